"""A coordinator of one's own on this host: for the demo and for tests."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

_POLL_SECONDS = 0.05
_LOG_TAIL_LINES = 30
_SERIES = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class CoordinatorError(RuntimeError):
    """It did not start, become ready or end as it should; holds its last log."""


def _free_ports(count: int) -> list[int]:
    # All held at once, so that they differ.
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Coordinator:
    """Runs the binary with CPU workers of its own, on free loopback ports.

    As a context manager it is ready inside, and ended by SIGTERM after; an
    exit status other than 0 then is a CoordinatorError.

    binary: ithaca-coordinator. workers: how many, all in one group.
    flags: further ones. pid, address and metrics_address: of the running one.
    """

    def __init__(
        self,
        binary: str | os.PathLike,
        workers: int,
        flags: tuple[str, ...] = (),
    ):
        self._binary = pathlib.Path(binary)
        if not os.access(self._binary, os.X_OK):
            raise CoordinatorError(f"{binary} is no program that can be run")
        port, metrics_port = _free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self.metrics_address = f"127.0.0.1:{metrics_port}"
        log, self._log_path = tempfile.mkstemp(prefix="ithaca-coordinator-")
        self._process = subprocess.Popen(
            [
                self._binary,
                f"--listen={self.address}",
                f"--metrics-listen={self.metrics_address}",
                f"--local-workers={workers}",
                f"--group-size={workers}",
                "--device=cpu",
                *flags,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        os.close(log)
        self.pid = self._process.pid

    def wait_until_ready(self, timeout: float = 60) -> None:
        """Returns when /readyz says so."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise self._error(f"ended with status {self._process.returncode}")
            try:
                self._get("/readyz")
                return
            except (urllib.error.URLError, OSError):
                time.sleep(_POLL_SECONDS)
        raise self._error(f"was not ready in {timeout} seconds")

    def metrics_text(self) -> str:
        """The page at /metrics."""
        return self._get("/metrics")

    def metric(self, name: str, **labels: str) -> float:
        """The sum of this metric's series that have these labels."""
        return sum(
            value
            for series, series_labels, value in parse_metrics(self.metrics_text())
            if series == name and labels.items() <= series_labels.items()
        )

    def stop(self, timeout: float = 60) -> None:
        """SIGTERM, and waits; CoordinatorError unless it exits with 0."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._error(f"did not end in {timeout} s of SIGTERM") from None
        if status != 0:
            raise self._error(f"ended with status {status}")

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        """What it has printed so far."""
        return pathlib.Path(self._log_path).read_text(errors="replace")

    def __enter__(self) -> Coordinator:
        try:
            self.wait_until_ready()
        except BaseException:
            self.kill()
            os.unlink(self._log_path)
            raise
        return self

    def __exit__(self, kind: type | None, *exception: object) -> None:
        try:
            if kind is None:
                self.stop()
        finally:
            self.kill()
            os.unlink(self._log_path)

    def _get(self, path: str) -> str:
        # Never through a proxy: it is this host's loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{self.metrics_address}{path}", timeout=10) as page:
            return page.read().decode()

    def _error(self, what: str) -> CoordinatorError:
        tail = "\n".join(self.log().splitlines()[-_LOG_TAIL_LINES:])
        return CoordinatorError(f"{self._binary.name} {what}; its log ends:\n{tail}")


def parse_metrics(text: str) -> list[tuple[str, dict[str, str], float]]:
    """(name, labels, value) of each series on a Prometheus page."""
    series = []
    for line in text.splitlines():
        match = _SERIES.match(line)
        if match:
            name, labels, value = match.groups()
            series.append((name, dict(_LABEL.findall(labels or "")), float(value)))
    return series
