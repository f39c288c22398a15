"""Many large calls by every plane, with clients that come and go.

    plane_soak.py --coordinator PATH [--worker PATH] [--workers N]
        [--calls N] [--concurrency N] [--mebibytes N] [--calls-a-client N]

Each caller makes a client, a plane of its own each time, has it make some
calls, closes it and makes another; every fourth client is dropped without
closing it. Every answer is compared bit for bit with the first one. Prints
what the coordinator and the workers hold as it goes on. Ends with 1 if a call
failed, an answer differed, or something grew: resident memory by over a tenth,
and 16 MiB, between the end of the first fifth and the end; descriptors; objects
in /dev/shm.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import threading
import time

import numpy as np

import ithaca
from ithaca._coordinator import Coordinator

_PLANES = ("unary", "stream", "shared_memory")
_TOKENS, _HEAD_DIM = 8, 256
_MEBIBYTE = 1 << 20


class Held:
    """What a process holds."""

    def __init__(self, pid: int):
        folder = pathlib.Path("/proc") / str(pid)
        status = (folder / "status").read_text().split()
        self.resident = int(status[status.index("VmRSS:") + 1]) << 10
        self.descriptors = len(os.listdir(folder / "fd"))


def children(pid: int) -> list[int]:
    task = pathlib.Path(f"/proc/{pid}/task")
    return sorted(
        int(child)
        for thread in task.iterdir()
        for child in (thread / "children").read_text().split()
    )


def shared_objects() -> int:
    return len(list(pathlib.Path("/dev/shm").glob("ithaca-*")))


class Soak:
    """Callers that share a number of calls. Thread-safe."""

    def __init__(self, address: str, args: argparse.Namespace):
        self._address, self._args = address, args
        heads = args.mebibytes * _MEBIBYTE // (_TOKENS * _HEAD_DIM * 4)
        make = np.random.default_rng(0).standard_normal
        self._query = make((_TOKENS, heads, _HEAD_DIM), np.float32)
        self._key, self._value = make((2, _TOKENS, 1, _HEAD_DIM), np.float32)
        self._lock = threading.Lock()
        self._begun = self._clients = 0
        self.done = 0
        self.faults: list[str] = []
        self._right = None

    def run(self) -> list[threading.Thread]:
        threads = [
            threading.Thread(target=self._call_on_and_on)
            for _ in range(self._args.concurrency)
        ]
        for thread in threads:
            thread.start()
        return threads

    def _call_on_and_on(self) -> None:
        while True:
            with self._lock:
                number = self._clients
                self._clients += 1
            plane = _PLANES[number % len(_PLANES)]
            client = ithaca.Client(self._address, plane=plane)
            for _ in range(self._args.calls_a_client):
                with self._lock:
                    if self._begun == self._args.calls or self.faults:
                        client.close()
                        return
                    self._begun += 1
                self._call(client, plane)
            if number % 4 != 3:  # a client that is forgotten is closed late
                client.close()

    def _call(self, client: ithaca.Client, plane: str) -> None:
        try:
            output, report = client.attention(
                self._query, self._key, self._value, return_report=True
            )
        except ithaca.Error as error:
            with self._lock:
                self.faults.append(f"{plane}: {error}")
            return
        with self._lock:
            if self._right is None:
                self._right = output
            self.done += 1
            if report.plane != plane:
                self.faults.append(f"{plane}: went by {report.plane}")
            if not np.array_equal(output, self._right):
                self.faults.append(f"{plane}: another answer than the first")


def watch(soak: Soak, pids: list[int], args: argparse.Namespace) -> list[str]:
    """Prints a line now and then; what grew."""
    threads = soak.run()
    names = ["coordinator", *(f"worker {i}" for i in range(len(pids) - 1))]
    print(f"{'calls':>6} {'seconds':>8}  resident MiB and descriptors of")
    print(f"{'':>16} {'  '.join(f'{name:>16}' for name in names)}  /dev/shm")
    begin, step, early = time.monotonic(), max(1, args.calls // 10), None
    for turn in range(1, 11):
        while soak.done < turn * step and any(t.is_alive() for t in threads):
            time.sleep(0.05)
        if turn == 10:
            for thread in threads:
                thread.join()
            time.sleep(12)  # leases of clients that went without a word
        held = [Held(pid) for pid in pids]
        if turn == 2:
            early = held
        texts = (f"{h.resident / _MEBIBYTE:9.1f} {h.descriptors:6d}" for h in held)
        passed = time.monotonic() - begin
        print(
            f"{soak.done:6d} {passed:8.1f} {'  '.join(texts)}  {shared_objects():8d}",
            flush=True,
        )
    grown = []
    for name, before, after in zip(names, early, held, strict=True):
        growth = after.resident - before.resident
        if growth > max(before.resident // 10, 16 * _MEBIBYTE):
            grown.append(f"{name}: {growth / _MEBIBYTE:.0f} MiB more than early on")
        if after.descriptors > before.descriptors + 2:
            grown.append(f"{name}: {after.descriptors - before.descriptors} more fds")
    return grown


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--coordinator", required=True, help="ithaca-coordinator")
    parser.add_argument("--worker", help="ithaca-worker, if not the usual one")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--mebibytes", type=int, default=64, help="query, and output")
    parser.add_argument("--calls-a-client", type=int, default=20)
    args = parser.parse_args(arguments)
    flags = ["--allow-shared-memory", "--log-level=warning"]
    if args.worker:
        flags.append(f"--worker-binary={pathlib.Path(args.worker).resolve()}")
    before = shared_objects()
    with Coordinator(args.coordinator, args.workers, tuple(flags)) as coordinator:
        pids = [coordinator.pid, *children(coordinator.pid)]
        soak = Soak(coordinator.address, args)
        faults = watch(soak, pids, args)
    faults += soak.faults[:10]
    if shared_objects() > before:
        faults.append(f"/dev/shm: {shared_objects() - before} objects left")
    print(f"{soak.done} calls, {len(faults)} faults")
    for fault in faults:
        print(f"FAULT {fault}")
    return 1 if faults or soak.done != args.calls else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
