#!/usr/bin/env python3
"""A real service on the GPUs of one host: faults while calls run, and M3.

    many_gpus_service.py PACKAGE LOGS [--results=FILE] [--seconds=N]
                         [--parts=spare,faults,memory,host] [--cpu-workers=N]

spare   a worker killed during calls, another at hand: R1. With one GPU, three
        workers share it, each with an NCCL host identity of its own.
faults  workers that the coordinator started and starts again, one a GPU, no
        spare: killed during calls (R2), frozen during calls (R3), killed and
        frozen while idle (R4)
memory  attention of tensors in this process's GPU, through the CUDA memory
        plane, on 1, 2, 4 and 8 GPUs as far as there are: the speed-up (M3),
        and on one GPU the same attention in process (S2)
host    attention of tensors in shared memory, on one GPU (S3)

Prints a line a check and a line a figure, adds the figures to FILE as JSON
lines, and exits 1 if a check failed. Needs torch, numpy and grpcio.
--cpu-workers tries the first two parts out without a GPU.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import threading
import time

import numpy as np
from service_test import Checks, Service

COLLECTIVE_TIMEOUT = 2
CALLERS = 4
# [1, image + text, heads, head_dim]: a call of a few milliseconds.
TOKENS, TEXT, HEADS, HEAD_DIM = 301, 40, 8, 64
MODELS = {"Wan480": (32760, 0, 40, 128), "FLUX": (4096, 512, 24, 128)}


class Figures:
    def __init__(self, path, shares_gpus):
        self.path, self.shares_gpus = path, shares_gpus

    def add(self, key, value, unit, detail="", shares_gpus=None):
        print(f"{key:<34} {value:10.4g} {unit:<7} {detail}".rstrip(), flush=True)
        if self.path is None:
            return
        shared = self.shares_gpus if shares_gpus is None else shares_gpus
        figure = {"key": key, "value": value, "unit": unit}
        with self.path.open("a", encoding="utf-8") as file:
            figure |= {"shared_gpus": shared, "detail": detail}
            print(json.dumps(figure), file=file)


class LocalService(Service):
    """A coordinator that starts its workers, one a GPU, and starts them again."""

    def __init__(self, checks, package, logs, name, workers, *flags):
        self.local_workers, self.flags = workers, flags
        super().__init__(checks, package, logs, name, group_size=workers)

    def start(self, program, log_name, *flags):
        if program == "ithaca-coordinator":
            # The last of a flag wins.
            flags = [*flags, f"--local-workers={self.local_workers}", *self.flags]
        return super().start(program, log_name, *flags)

    def add_worker(self, *flags, share=True):
        """It has them already."""


def members(ithaca, service):
    """Process ids of the ready group's workers, by rank."""
    with ithaca.Client(service.address) as client:
        for group in client.server_info().groups:
            if group.state == "ready":
                return [int(name.rpartition("/")[2]) for name in group.workers]
    return []


@contextlib.contextmanager
def running(service, checks):
    start = time.monotonic()
    try:
        ready = service.await_ready()
        took = time.monotonic() - start
        checks.note(f"{service.name}: ready", ready, f"after {took:.1f} s")
        yield ready
    finally:
        codes = service.stop()
        clean = all(code == 0 for code in codes)
        checks.note(f"{service.name}: ends cleanly", clean, str(codes))


def softmax_attention(query, key, value):
    """By the definition, in float64; image first, all text valid."""
    query, key, value = (
        tensor[0].transpose(1, 0, 2).astype(np.float64)
        for tensor in (query, key, value)
    )
    logits = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return (weights @ value).transpose(1, 0, 2)[None]


class Callers:
    """Threads that call again and again; what became of each call."""

    def __init__(self, ithaca, address):
        random = np.random.default_rng(7)
        shape = (1, TOKENS + TEXT, HEADS, HEAD_DIM)
        self.tensors = [
            random.standard_normal(shape, dtype=np.float32) for _ in range(3)
        ]
        self.expected = softmax_attention(*self.tensors)
        self.ithaca = ithaca
        self.address = address
        self.calls = []  # (begin, end, "right", "wrong" or a status code's name)
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.run) for _ in range(CALLERS)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def run(self):
        with self.ithaca.Client(self.address, plane="unary", timeout=60) as client:
            while not self.stopping.is_set():
                begin = time.monotonic()
                outcome = self.call(client)
                with self.lock:
                    self.calls.append((begin, time.monotonic(), outcome))
                if outcome != "right":
                    time.sleep(0.01)

    def call(self, client):
        try:
            output = client.attention(*self.tensors, text_tokens=TEXT)
        except self.ithaca.Error as error:
            return error.code.name
        distance = np.linalg.norm(output - self.expected)
        right = distance <= 1e-4 * np.linalg.norm(self.expected)
        return "right" if right else "wrong"

    def outcomes(self):
        with self.lock:
            return list(self.calls)

    def await_calls(self, count, seconds=20):
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and len(self.outcomes()) < count:
            time.sleep(0.01)

    def first_right_begun_after(self, when, seconds):
        """Seconds from `when` to the end of the first such call, or None."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            ends = [
                end
                for begin, end, outcome in self.outcomes()
                if begin >= when and outcome == "right"
            ]
            if ends:
                return min(ends) - when
            time.sleep(0.005)
        return None


def end_rank(pid, how):
    os.kill(pid, how)
    return time.monotonic()


def recovery(checks, figures, callers, name, key, pid, target):
    """Kills `pid` while calls run."""
    callers.await_calls(10 * CALLERS)
    killed = end_rank(pid, signal.SIGKILL)
    took = callers.first_right_begun_after(killed, checks.left(60))
    wrong = [call for call in callers.outcomes() if call[2] == "wrong"]
    checks.note(f"{name}: no answer is wrong", not wrong, f"{len(wrong)} were")
    checks.note(f"{name}: answers again", took is not None)
    if took is not None:
        figures.add(key, took, "s", f"from the kill; target {target} s")


def frozen(checks, figures, callers, name, key, pid):
    """Freezes `pid` while calls run: when those in flight end, and how."""
    callers.await_calls(len(callers.outcomes()) + 10 * CALLERS)
    stopped = end_rank(pid, signal.SIGSTOP)
    limit = time.monotonic() + checks.left(COLLECTIVE_TIMEOUT + 30)
    in_flight = []
    while time.monotonic() < limit and len(in_flight) < CALLERS:
        time.sleep(0.02)
        # Each caller has one call at a time; its first to end after the freeze.
        ended = [call for call in callers.outcomes() if call[1] > stopped + 0.2]
        in_flight = sorted(ended, key=lambda call: call[0])[:CALLERS]
    kinds = sorted({outcome for _, _, outcome in in_flight})
    expected = {"right", "UNAVAILABLE"}
    checks.note(
        f"{name}: calls in flight end",
        len(in_flight) == CALLERS and set(kinds) <= expected,
        f"{len(in_flight)} of {CALLERS}: {kinds}",
    )
    if in_flight:
        took = max(end for _, end, _ in in_flight) - stopped
        figures.add(key, took, "s", f"from the freeze; calls ended {kinds}")
    again = callers.first_right_begun_after(stopped + 0.5, checks.left(60))
    checks.note(f"{name}: answers again", again is not None)
    if again is not None:
        figures.add(f"again/{key}", again + 0.5, "s", "to the next right answer")


def health_off(checks, figures, service, key, pid, how):
    """Ends a rank of an idle service: when it is not ready any more."""
    begin = end_rank(pid, how)
    limit = begin + checks.left(20)
    while service.is_ready() and time.monotonic() < limit:
        time.sleep(0.005)
    took = time.monotonic() - begin
    off = not service.is_ready()
    checks.note(f"{service.name}: {key}: health is off", off)
    if off:
        figures.add(key, took, "s", "idle")


def faults(checks, figures, ithaca, package, logs, gpus, flags):
    ranks = min(gpus, 8)
    name = f"faults-{ranks}"
    of = f"P{ranks}"
    flags = [f"--collective-timeout-seconds={COLLECTIVE_TIMEOUT}", *flags]
    service = LocalService(checks, package, logs, name, ranks, *flags)
    with running(service, checks) as ready:
        if not ready:
            return

        def victim():
            """The last rank's worker, of a service that is whole."""
            service.await_ready(60)
            pids = members(ithaca, service)
            checks.note(f"{name}: whole", len(pids) == ranks, str(pids))
            return pids[-1]

        pid = victim()
        with Callers(ithaca, service.address) as callers:
            recovery(checks, figures, callers, f"{name}: killed", f"R2/{of}", pid, 10)
            pid = victim()
            frozen(checks, figures, callers, f"{name}: frozen", f"R3/{of}", pid)
        for how, what in ((signal.SIGKILL, "killed"), (signal.SIGSTOP, "frozen")):
            pid = victim()
            health_off(checks, figures, service, f"R4/{of}/{what}", pid, how)
        victim()


def spare(checks, figures, ithaca, package, logs, gpus, flags):
    """R1: all GPUs but one are a group's, the last one's worker waits."""
    if gpus >= 3:
        ranks = min(gpus, 8) - 1
        service = LocalService(
            checks, package, logs, "spare", ranks + 1, f"--group-size={ranks}", *flags
        )
    else:
        ranks = 2
        service = Service(checks, package, logs, "spare", ranks)
        service.add_worker()
    with running(service, checks) as ready:
        if not ready:
            return
        time.sleep(checks.left(8))  # until the spare has joined as well
        with Callers(ithaca, service.address) as callers:
            pid = members(ithaca, service)[-1]
            recovery(checks, figures, callers, "spare: killed", f"R1/P{ranks}", pid, 2)


def torch_attention(torch, query, key, value):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    swapped = (tensor.transpose(1, 2) for tensor in (query, key, value))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):  # as the workers
        output = torch.nn.functional.scaled_dot_product_attention(*swapped)
    return output.transpose(1, 2)


def median_seconds(torch, call, repeats=15):
    for _ in range(3):
        call()
    seconds = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.monotonic()
        call()
        torch.cuda.synchronize()
        seconds.append(time.monotonic() - begin)
    return statistics.median(seconds)


def measure_memory_plane(torch, checks, client, name, tensors, text):
    """Median seconds of a call, or None if it took another plane."""
    output, report = client.attention(*tensors, text_tokens=text, return_report=True)
    by_plane = report.plane == "cuda_memory"
    checks.note(f"{name}: by the CUDA memory plane", by_plane, report.plane_note)
    heads = [0, tensors[0].shape[2] - 1]
    wanted = torch_attention(torch, *(tensor[:, :, heads] for tensor in tensors))
    distance = (output[:, :, heads].float() - wanted.float()).norm()
    error = (distance / wanted.float().norm()).item()
    checks.note(f"{name}: right", error <= 1e-2, f"relative L2 {error:.1e}")
    if not by_plane:
        return None
    return median_seconds(torch, lambda: client.attention(*tensors, text_tokens=text))


def memory(checks, figures, ithaca, package, logs, gpus, flags):
    import torch

    torch.manual_seed(7)
    alone = {}  # one GPU's seconds, by model
    for ranks in (1, 2, 4, 8):
        if ranks > gpus:
            break
        name = f"memory-{ranks}"
        service = LocalService(
            checks, package, logs, name, ranks, "--allow-cuda-memory", *flags
        )
        with running(service, checks) as ready, checks.part(name):
            if not ready:
                continue
            client = ithaca.Client(service.address, plane="cuda_memory")
            for model, (image, text, heads, head_dim) in MODELS.items():
                shape = (1, image + text, heads, head_dim)
                tensors = [
                    torch.randn(shape, dtype=torch.bfloat16, device="cuda:0")
                    for _ in range(3)
                ]
                took = measure_memory_plane(
                    torch, checks, client, f"{name}: {model}", tensors, text
                )
                if took is None:
                    continue
                of = f"{model}/P{ranks}"
                figures.add(f"rpc/{of}", 1e3 * took, "ms", shares_gpus=False)
                if ranks == 1:
                    alone[model] = took
                    in_process = median_seconds(
                        torch,
                        lambda tensors=tensors: torch_attention(torch, *tensors),
                    )
                    figures.add(
                        f"S2/{of}",
                        took / in_process,
                        "",
                        f"torch in process {1e3 * in_process:.3f} ms",
                        shares_gpus=False,
                    )
                elif model in alone:
                    figures.add(f"M3/{of}", alone[model] / took, "x")
                del tensors
            client.close()
        torch.cuda.empty_cache()


def pinned_copy_rates(torch, nbytes):
    """Bytes a second from locked host memory to the GPU, and back."""
    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(nbytes, dtype=torch.uint8, device="cuda:0")
    return (
        nbytes / median_seconds(torch, lambda: device.copy_(host, non_blocking=True)),
        nbytes / median_seconds(torch, lambda: host.copy_(device, non_blocking=True)),
    )


def host(checks, figures, ithaca, package, logs, gpus, flags):
    """S3: calls of the command line, whose tensors lie in shared memory."""
    import torch

    image, text, heads, head_dim = MODELS["FLUX"]
    shape = (1, image + text, heads, head_dim)
    tensors = [
        torch.randn(shape, dtype=torch.bfloat16, device="cuda:0") for _ in range(3)
    ]
    attention = median_seconds(torch, lambda: torch_attention(torch, *tensors))
    nbytes = tensors[0].numel() * tensors[0].element_size()
    to_device, to_host = pinned_copy_rates(torch, nbytes)
    least = 3 * nbytes / to_device + nbytes / to_host + attention
    figures.add("pinned/to_device", to_device / 1e9, "GB/s", shares_gpus=False)
    figures.add("pinned/to_host", to_host / 1e9, "GB/s", shares_gpus=False)
    service = LocalService(
        checks, package, logs, "host", 1, "--allow-shared-memory", *flags
    )
    with running(service, checks) as ready:
        if not ready:
            return
        for way in (["--allocated"], []):
            command = [package / "bin" / "ithaca", "bench", "--json", *way]
            command += [f"--address={service.address}", "--plane=shared-memory"]
            command += ["--shape=flux", "--calls=40", "--warm-up-calls=5"]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=checks.left(60)
            )
            name = "allocated" if way else "copied"
            checks.note(f"host: {name}", done.returncode == 0, done.stderr.strip())
            if done.returncode:
                continue
            answer = json.loads(done.stdout)
            took = answer["client_seconds"]["p50"]
            print(json.dumps(answer["server_seconds"]))
            figures.add(f"host/FLUX/P1/{name}", 1e3 * took, "ms", shares_gpus=False)
            figures.add(
                f"S3/FLUX/P1/{name}",
                took / least,
                "",
                "over pinned copies and torch's attention",
                shares_gpus=False,
            )


PARTS = {"spare": spare, "faults": faults, "memory": memory, "host": host}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=pathlib.Path)
    parser.add_argument("logs", type=pathlib.Path)
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=170)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--cpu-workers", type=int, default=0)
    arguments = parser.parse_args()
    arguments.logs.mkdir(parents=True, exist_ok=True)
    for wheel in (arguments.package / "python").glob("ithaca-*.whl"):
        sys.path.insert(0, str(wheel))  # pure Python: it can stay packed
    import ithaca

    flags = []
    if arguments.cpu_workers:
        gpus, flags = arguments.cpu_workers, ["--device=cpu"]
    else:
        import torch

        gpus = torch.cuda.device_count()
    checks = Checks(time.monotonic() + arguments.seconds)
    figures = Figures(arguments.results, shares_gpus=gpus < 3 or bool(flags))
    if gpus < 8:
        print(f"NOTE {gpus} GPU(s): what needs more ranks is left out", flush=True)
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    for part in arguments.parts.split(","):
        if checks.left(600) < 20:
            checks.note(part, False, "no time left for it")
            continue
        with checks.part(part):
            PARTS[part](
                checks, figures, ithaca, arguments.package, arguments.logs, gpus, flags
            )
    print(f"{checks.passes} passed, {checks.failures} failed")
    return checks.failures > 0


if __name__ == "__main__":
    sys.exit(main())
