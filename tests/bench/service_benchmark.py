"""The service's own cost, measured through real processes on this machine.

    service_benchmark.py --coordinator PATH --ithaca PATH [--worker PATH] \
        [--in-process PATH] [--only S1,S6,S7] [--quick] [--output FILE]

S1  the coordinator's own time in a call: total less the slowest rank's stages,
    tiny tensors, 2 workers, one call at a time, p50
S6  FLUX's shape in bfloat16 on 4 workers / the same attention in one process
    with as many threads as there are cores; needs --in-process
S7  calls/s with logs at info level / with none; tiny tensors, 2 workers

The two sides of a ratio alternate within one run, and the medians of the
rounds are compared. Prints a table, then JSON; writes a file only where
--output names one. Ends with 1 if something could not be measured; a missed
target is not an error.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_TARGETS = {"S1": 300e-6, "S6": 1.15, "S7": 0.99}


def _load_coordinator_module():
    # By its path: the package around it needs grpc, and this does not.
    path = _ROOT / "client" / "python" / "ithaca" / "_coordinator.py"
    spec = importlib.util.spec_from_file_location("ithaca_coordinator", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_coordinator = _load_coordinator_module()
CoordinatorError = _coordinator.CoordinatorError


class BenchmarkError(RuntimeError):
    """A program ended as it should not; holds what it said."""


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def machine() -> dict:
    """What the numbers depend on most."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": model,
        "cores": _cores(),
        "memory_gib": round(pages / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


class Service:
    """A coordinator with workers of its own, and `ithaca bench` against it."""

    def __init__(self, args: argparse.Namespace, workers: int, *flags: str):
        self._ithaca = args.ithaca
        if args.worker:
            flags = (f"--worker-binary={pathlib.Path(args.worker).resolve()}", *flags)
        self._process = _coordinator.Coordinator(args.coordinator, workers, flags)

    def __enter__(self) -> Service:
        self._process.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.__exit__(*exception)

    @property
    def pid(self) -> int:
        """The coordinator's."""
        return self._process.pid

    def bench(self, *flags: str) -> dict:
        """One `ithaca bench`; what it measured."""
        command = [
            self._ithaca,
            "bench",
            f"--address={self._process.address}",
            "--json",
            *flags,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchmarkError(f"ithaca bench failed:\n{done.stderr}")
        return json.loads(done.stdout)


class InProcess:
    """in_process_attention, which attends when it is told to."""

    def __init__(self, program: str, shape: str, threads: int):
        self._process = subprocess.Popen(
            [program, f"--shape={shape}", f"--threads={threads}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> InProcess:
        self._expect_line()
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.stdin.close()
        self._process.wait()

    def run(self) -> float:
        """Seconds of one attention."""
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        return float(self._expect_line())

    def _expect_line(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            raise BenchmarkError(f"in_process_attention ended: {self._process.wait()}")
        return line


def _own_seconds(result: dict) -> float:
    # One call at a time waits for nobody: queueing is the coordinator's work.
    server = result["server_seconds"]
    return server["coordinator"]["p50"] + server["queue"]["p50"]


def _tiny_calls(args: argparse.Namespace, workers: int) -> list[dict]:
    calls = 500 if args.quick else 3000
    with Service(args, workers) as service:
        return [
            service.bench("--shape=tiny", f"--calls={calls}", "--warm-up-calls=200")
            for _ in range(2 if args.quick else 5)
        ]


def measure_s1(args: argparse.Namespace) -> dict:
    """The coordinator's own time, in seconds.

    A report has the slowest rank of each stage. Where ranks take turns in being
    slow, as on a busy machine, these add up to more than any rank took, and the
    time left is too small; so one worker, where it is exact, is measured too.
    """
    rounds = _tiny_calls(args, workers=2)
    one_worker = _tiny_calls(args, workers=1)
    own = [_own_seconds(result) for result in rounds]
    return {
        "what": "coordinator's own time, p50, 2 workers, tiny tensors",
        "value": statistics.median(own),
        "rounds_seconds": own,
        "one_worker_seconds": statistics.median(map(_own_seconds, one_worker)),
        "client_p50_seconds": statistics.median(
            r["client_seconds"]["p50"] for r in rounds
        ),
        "server_p50_seconds": {
            name: values["p50"] for name, values in rounds[-1]["server_seconds"].items()
        },
    }


def measure_s6(args: argparse.Namespace) -> dict:
    """RPC time over in-process time."""
    shape = "small" if args.quick else "flux"
    threads = _cores()
    remote, local, last = [], [], {}
    with (
        Service(args, 4) as service,
        InProcess(args.in_process, shape, threads) as in_process,
    ):
        for _ in range(4 if args.quick else 8):
            local.append(in_process.run())
            last = service.bench(f"--shape={shape}", "--calls=1", "--warm-up-calls=0")
            remote.append(last["client_seconds"]["p50"])
    # The first of each warms its side up.
    remote, local = remote[1:], local[1:]
    return {
        "what": f"RPC / in process, {last['shape']}, 4 workers, {threads} threads",
        "value": statistics.median(remote) / statistics.median(local),
        "rpc_seconds": remote,
        "in_process_seconds": local,
        "kernel": last["kernel"],
        "head_schedule": last["head_schedule"],
        "stage_seconds": {
            name: values["p50"] for name, values in last["server_seconds"].items()
        },
    }


def measure_s7(args: argparse.Namespace) -> dict:
    """Calls/s with a log line for each over calls/s without."""
    seconds = 0.5 if args.quick else 2
    with_logs, without = [], []
    flags = (
        "--shape=tiny",
        "--concurrency=4",
        f"--duration-seconds={seconds}",
        "--warm-up-calls=100",
    )
    with (
        Service(args, 2, "--log-level=info") as logging,
        Service(args, 2, "--log-level=off") as silent,
    ):
        for _ in range(3 if args.quick else 15):
            with_logs.append(logging.bench(*flags)["calls_per_second"])
            without.append(silent.bench(*flags)["calls_per_second"])
    return {
        "what": "calls/s, logs at info level / off, tiny tensors",
        "value": statistics.median(with_logs) / statistics.median(without),
        "calls_per_second_info": with_logs,
        "calls_per_second_off": without,
    }


_MEASUREMENTS = {"S1": measure_s1, "S6": measure_s6, "S7": measure_s7}


def _is_met(name: str, value: float) -> bool:
    target = _TARGETS[name]
    return value >= target if name == "S7" else value <= target


def print_table(results: dict) -> None:
    """One line for each measurement."""
    rows = [("", "measured", "target", "", "what")]
    for name, result in results.items():
        number = (lambda x: f"{x * 1e6:.0f} us") if name == "S1" else "{:.3f}".format
        rows.append(
            (
                name,
                number(result["value"]),
                ("> " if name == "S7" else "<= ") + number(_TARGETS[name]),
                "met" if result["met"] else "missed",
                result["what"],
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)]
        print("  ".join([*cells, row[4]]).rstrip())


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--coordinator", required=True, help="ithaca-coordinator")
    parser.add_argument("--worker", help="ithaca-worker, if not the usual one")
    parser.add_argument("--ithaca", required=True, help="the command line")
    parser.add_argument("--in-process", help="in_process_attention, for S6")
    parser.add_argument("--only", default="", help="comma list, such as S1,S7")
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds and a smaller S6"
    )
    parser.add_argument("--output", help="also write the JSON to this file")
    args = parser.parse_args(arguments)
    args.names = args.only.split(",") if args.only else list(_MEASUREMENTS)
    for name in args.names:
        if name not in _MEASUREMENTS:
            parser.error(f"--only: no measurement {name}; there are S1, S6 and S7")
    if "S6" in args.names and not args.in_process:
        if args.only:
            parser.error("S6 needs --in-process")
        args.names.remove("S6")
    return args


def main(arguments: list[str]) -> int:
    args = parse_arguments(arguments)
    results = {}
    for name in args.names:
        print(f"measuring {name} ...", file=sys.stderr)
        try:
            results[name] = _MEASUREMENTS[name](args)
        except (BenchmarkError, _coordinator.CoordinatorError, OSError) as error:
            print(f"{name} was not measured: {error}", file=sys.stderr)
            return 1
        results[name]["target"] = _TARGETS[name]
        results[name]["met"] = _is_met(name, results[name]["value"])
    print_table(results)
    document = {"machine": machine(), "quick": args.quick, "results": results}
    text = json.dumps(document, indent=2)
    print(text)
    if args.output:
        pathlib.Path(args.output).write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
