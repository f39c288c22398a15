#!/usr/bin/env python3
"""A real service on one GPU: a coordinator and workers that share it.

    service_test.py PACKAGE LOGS [--seconds=N]

Each worker has an NCCL host identity of its own, which makes NCCL take them for
different hosts: slow, and NCCL's own groups, order and faults. Calls come from
`ithaca attend --verify`, which judges the numbers. Prints a line a check and
exits 1 if one failed; LOGS gets what the processes said.
"""

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

PRECISIONS = ["native", "fp8_e4m3", "int8"]
SCHEDULES = ["auto", "fused", "per_head"]
DTYPES = ["float32", "float16", "bfloat16"]
KERNELS = ["auto", "math", "flash", "cudnn"]

# ithaca's exit codes.
REFUSED, TRY_LATER = 3, 4


class Checks:
    def __init__(self, deadline):
        self.deadline = deadline
        self.failures = 0
        self.passes = 0

    def note(self, name, passed, detail=""):
        self.passes += passed
        self.failures += not passed
        print(f"{'PASS' if passed else 'FAIL'} {name} {detail}".rstrip(), flush=True)

    def left(self, at_most):
        return max(1.0, min(at_most, self.deadline - time.monotonic()))

    @contextlib.contextmanager
    def part(self, name):
        """What goes wrong in a part fails that part only."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            self.note(name, False, f"{type(error).__name__}: {error}")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Service:
    """A coordinator and the workers of one group."""

    def __init__(self, checks, package, logs, name, group_size):
        self.checks, self.package, self.logs, self.name = checks, package, logs, name
        self.address = f"127.0.0.1:{free_port()}"
        self.metrics = f"127.0.0.1:{free_port()}"
        self.processes = []
        self.started = 0
        self.coordinator = self.start(
            "ithaca-coordinator",
            "coordinator",
            f"--listen={self.address}",
            f"--metrics-listen={self.metrics}",
            f"--group-size={group_size}",
            "--device=cuda",
            "--collective-timeout-seconds=10",
            "--formation-timeout-seconds=40",
        )
        self.workers = [self.add_worker() for _ in range(group_size)]

    def start(self, program, log_name, *flags):
        path = self.logs / f"{self.name}-{log_name}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [self.package / "bin" / program, *flags], stdout=log, stderr=log
            )
        process.log = path
        self.processes.append(process)
        return process

    def add_worker(self, *flags, share=True):
        self.started += 1
        identity = [f"--nccl-host-id=worker-{self.started}"] if share else []
        return self.start(
            "ithaca-worker",
            f"worker-{self.started}",
            f"--coordinator={self.address}",
            "--device=cuda:0",
            "--listen=127.0.0.1:0",
            *identity,
            *flags,
        )

    def is_ready(self):
        url = f"http://{self.metrics}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def await_ready(self, seconds=90):
        limit = time.monotonic() + self.checks.left(seconds)
        while time.monotonic() < limit:
            if self.is_ready():
                return True
            if any(process.poll() is not None for process in self.processes):
                return False  # who has left will not come
            time.sleep(0.05)
        return False

    def attend(self, *flags, verify=True, seconds=60):
        """(exit code, JSON or None, what it said on stderr)"""
        command = [self.package / "bin" / "ithaca", "attend", "--json"]
        command += [f"--address={self.address}", *flags]
        command += ["--verify"] if verify else []
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=self.checks.left(seconds),
            )
        except subprocess.TimeoutExpired:
            return -1, None, "no answer in time"
        try:
            answer = json.loads(done.stdout)
        except json.JSONDecodeError:
            answer = None
        return done.returncode, answer, done.stderr.strip()

    def check_call(self, name, *flags, seconds=60):
        code, answer, said = self.attend(*flags, seconds=seconds)
        error = (answer or {}).get("verify", {}).get("relative_l2")
        if error is None:
            self.checks.note(name, False, f"exit {code}: {said}")
        else:
            self.checks.note(name, code == 0, f"relative L2 {error:.2g}")
        return answer

    def stop(self):
        """Exit codes after SIGTERM, coordinator last."""
        order = [*self.processes[1:], self.coordinator]
        processes = [p for p in order if p.poll() is None]
        for process in processes:
            process.send_signal(signal.SIGTERM)
        codes = []
        for process in processes:
            try:
                codes.append(process.wait(timeout=20))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(process.wait())
        return codes


@contextlib.contextmanager
def running(checks, package, logs, ranks):
    name = f"{ranks} ranks"
    service = Service(checks, package, logs, f"ranks{ranks}", ranks)
    try:
        start = time.monotonic()
        ready = service.await_ready()
        took = time.monotonic() - start
        checks.note(f"{name}: ready", ready, f"after {took:.1f} s")
        yield service if ready else None
    finally:
        codes = service.stop()
        clean = all(code == 0 for code in codes)
        checks.note(f"{name}: ends cleanly", clean, str(codes))


SMALL = ["--image-tokens=301", "--text-tokens=40", "--heads=8", "--head-dim=64"]


def every_mode(service, name, stride):
    modes = list(itertools.product(PRECISIONS, SCHEDULES, DTYPES))
    for precision, schedule, dtype in modes[::stride]:
        service.check_call(
            f"{name}: {precision} {schedule} {dtype}",
            *SMALL,
            "--batch=2",
            "--valid-text=40,13",
            f"--precision={precision}",
            f"--schedule={schedule}",
            f"--dtype={dtype}",
        )


def every_kernel(service, name):
    for kernel in KERNELS:
        answer = service.check_call(
            f"{name}: kernel {kernel}",
            "--image-tokens=1100",
            "--text-tokens=77",
            "--heads=5",
            "--head-dim=64",
            "--dtype=bfloat16",
            f"--kernel={kernel}",
        )
        ran = str((answer or {}).get("report", {}).get("kernel", "")).lower()
        if kernel != "auto":
            service.checks.note(f"{name}: {kernel} ran", kernel in ran, ran)


def odd_shapes(service, name):
    tokens = SMALL[:2]
    service.check_call(
        f"{name}: grouped heads",
        *tokens,
        "--heads=28",
        "--kv-heads=7",
        "--head-dim=72",
    )
    service.check_call(f"{name}: odd head_dim", *tokens, "--heads=3", "--head-dim=77")
    service.check_call(
        f"{name}: image queries only, text first",
        *SMALL,
        "--image-queries-only",
        "--order=text_first",
    )
    service.check_call(
        f"{name}: fewer tokens and heads than ranks",
        "--image-tokens=1",
        "--text-tokens=0",
        "--heads=1",
        "--head-dim=8",
    )


def refusals(service, name):
    code, _, said = service.attend(
        *SMALL, "--dtype=float32", "--kernel=cudnn", verify=False
    )
    service.checks.note(
        f"{name}: a kernel that cannot is refused",
        code == REFUSED and "cudnn" in said.lower(),
        said,
    )
    service.check_call(f"{name}: the call after it is right", *SMALL)


def two_workers_on_a_gpu(service, name):
    # Without identities of their own NCCL would refuse the GPU, late and darkly.
    first = service.add_worker(share=False)
    time.sleep(service.checks.left(8))
    start = time.monotonic()
    second = service.add_worker(share=False)
    try:
        code = second.wait(timeout=service.checks.left(30))
    except subprocess.TimeoutExpired:
        code = None
    said = second.log.read_text(errors="replace").strip()
    took = time.monotonic() - start
    service.checks.note(
        f"{name}: a second worker on a GPU is refused",
        code == 1 and "GPU-" in said,
        f"exit {code} after {took:.1f} s: {said.splitlines()[-1:]}",
    )
    for process in (first, second):
        process.kill()
        process.wait()
        service.processes.remove(process)


# Leaves a call, which needs gigabytes, what the workers hold and 96 MiB.
HOG = """
import sys, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - (96 << 20), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


def out_of_memory(service, name):
    large = [
        "--image-tokens=40000",
        "--text-tokens=0",
        "--heads=24",
        "--head-dim=128",
    ]
    with subprocess.Popen(
        ["python3", "-c", HOG],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as hog:
        held = hog.stdout.readline().strip() == "held"
        code, _, said = service.attend(*large, verify=False)
        service.checks.note(
            f"{name}: a GPU without memory refuses the call",
            held
            and code in (REFUSED, TRY_LATER)
            and ("alloc" in said.lower() or "memory" in said.lower()),
            f"exit {code}: {said}",
        )
        service.checks.note(f"{name}: the group lives on", service.is_ready())
        hog.stdin.close()
        hog.wait(timeout=30)
    service.check_call(f"{name}: with memory the same call is right", *large)


def killed_worker(service, name):
    """A spare is at hand: R1."""
    service.add_worker()
    time.sleep(service.checks.left(10))
    victim = service.workers[-1]
    victim.kill()
    start = time.monotonic()
    victim.wait()
    service.processes.remove(victim)
    code = None
    while code != 0 and time.monotonic() - start < service.checks.left(40):
        code, _, _ = service.attend(*SMALL, "--connect-timeout-seconds=5")
    took = time.monotonic() - start
    service.checks.note(
        f"{name}: a spare takes its place, the next answer is right",
        code == 0,
        f"{took:.2f} s after the kill",
    )
    service.check_call(f"{name}: and the one after it", *SMALL)


def check_ranks(checks, package, logs, ranks):
    name = f"{ranks} ranks"
    if time.monotonic() > checks.deadline - 20:
        checks.note(name, False, "no time left for it")
        return
    with checks.part(name), running(checks, package, logs, ranks) as service:
        if service is None:
            return
        every_mode(service, name, stride=1 if ranks == 2 else 2)
        every_kernel(service, name)
        odd_shapes(service, name)
        if ranks == 2:
            refusals(service, name)
            out_of_memory(service, name)
            two_workers_on_a_gpu(service, name)
        if ranks == 3:
            killed_worker(service, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=pathlib.Path)
    parser.add_argument("logs", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=200)
    arguments = parser.parse_args()
    arguments.logs.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    checks = Checks(time.monotonic() + arguments.seconds)
    for ranks in (2, 3, 4):
        check_ranks(checks, arguments.package, arguments.logs, ranks)
    print(f"{checks.passes} passed, {checks.failures} failed")
    return checks.failures > 0


if __name__ == "__main__":
    sys.exit(main())
