"""How tensors get in and out: a table of the planes, by size.

    plane_benchmark.py --coordinator PATH --ithaca PATH [--worker PATH] \
        [--workers N] [--sizes 1KiB,1MiB,512MiB] [--quick] [--output FILE]

One call at a time through real processes on this machine, against raw loopback
TCP and a copy of memory in the same run. A size is what travels in each
direction: query and output, with one key/value head so that there is little
else. The attention of 8 tokens is cheap, and its time and the ranks' exchange
are taken off: a rate is the bytes of both directions over what is left.

    unary         inside the messages
    stream        in chunks of 1 MiB
    shared        shared memory, the caller's tensors copied in and out of it
    shared, own   shared memory, tensors that already lie in it

S4  stream, 512 MiB each way, one connection and four, / raw TCP
S5  the coordinator's memory while calls run over the bytes they hold in flight,
    for the unary and the stream plane

Prints a table, then JSON; writes a file only where --output names one. Ends
with 1 if something could not be measured; a missed target is not an error.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import pathlib
import re
import socket
import statistics
import sys
import time

import numpy as np
from service_benchmark import BenchmarkError, CoordinatorError, Service, machine

_TOKENS = 8
_ELEMENT_BYTES = 2  # bfloat16
_MAX_MESSAGE_BYTES = 1 << 30
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZES = "1KiB,64KiB,1MiB,16MiB,128MiB,512MiB,1GiB,2GiB"
_QUICK_SIZES = "1KiB,1MiB,16MiB"
# Ranks' work that is no transport: what lies between the tensors' way in
# ("scatter") and their way out ("gather").
_RANK_STAGES = (
    "pack",
    "all_to_all",
    "unpack",
    "attention",
    "output_pack",
    "output_all_to_all",
    "output_unpack",
)
_PLANES = {
    "unary": ("--plane=unary",),
    "stream": ("--plane=stream",),
    "shared": ("--plane=shared-memory",),
    "shared, own": ("--plane=shared-memory", "--allocated"),
}


def parse_size(text: str) -> int:
    """Bytes of "1MiB"."""
    match = re.fullmatch(r"(\d+)(KiB|MiB|GiB)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected such as 64KiB or 1GiB")
    return int(match[1]) * _UNITS[match[2]]


def shape_flags(size: int) -> tuple[str, ...]:
    """Of a call whose query has about so many bytes."""
    head_dim = 256 if size >= _TOKENS * 256 * _ELEMENT_BYTES else 64
    heads = max(1, size // (_TOKENS * head_dim * _ELEMENT_BYTES))
    return (
        f"--image-tokens={_TOKENS}",
        "--text-tokens=0",
        f"--heads={heads}",
        "--kv-heads=1",
        f"--head-dim={head_dim}",
    )


def transport_seconds(result: dict) -> float:
    """A call's median without the ranks' own work."""
    stages = result["server_seconds"]
    work = sum(stages[name]["p50"] for name in _RANK_STAGES if name in stages)
    return max(result["client_seconds"]["p50"] - work, 1e-9)


def _send_all(port: int, size: int, rounds: int) -> None:
    data = memoryview(bytes(1 << 20))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(rounds * (size >> 20)):
            connection.sendall(data)


def tcp_rate(size: int, rounds: int) -> float:
    """Bytes a second over one raw loopback connection, the median of rounds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        sender = multiprocessing.Process(target=_send_all, args=(port, size, rounds))
        sender.start()
        connection, _ = server.accept()
        buffer = memoryview(bytearray(1 << 20))
        rates = []
        with connection:
            for _ in range(rounds):
                begin, missing = time.perf_counter(), size
                while missing > 0:
                    got = connection.recv_into(buffer[: min(missing, len(buffer))])
                    if got == 0:
                        raise BenchmarkError("the sender of the TCP test ended")
                    missing -= got
                rates.append(size / (time.perf_counter() - begin))
        sender.join()
    return statistics.median(rates)


def copy_rate(size: int, rounds: int) -> float:
    """Bytes a second that one thread copies from memory to memory."""
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    rates = []
    for _ in range(rounds):
        begin = time.perf_counter()
        np.copyto(target, source)
        rates.append(size / (time.perf_counter() - begin))
    return statistics.median(rates)


class ProcessMemory:
    """Resident bytes of a process: now, and the most since reset_peak."""

    def __init__(self, pid: int):
        self._folder = pathlib.Path("/proc") / str(pid)

    def now(self) -> int:
        return self._read("VmRSS")

    def peak(self) -> int:
        return self._read("VmHWM")

    def reset_peak(self) -> None:
        (self._folder / "clear_refs").write_text("5")

    def _read(self, name: str) -> int:
        status = (self._folder / "status").read_text()
        return int(re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)[1]) << 10


def calls_for(size: int, quick: bool) -> int:
    """Fewer of the large ones; a run stays within minutes."""
    most = 20 if quick else 200
    return max(2 if quick else 4, min(most, (1 << 30) // max(size, 1)))


def measure_sizes(args: argparse.Namespace, service: Service) -> list[dict]:
    """A row for each size and plane."""
    rows = []
    memory = ProcessMemory(service.pid)
    for size in args.sizes:
        for plane, flags in _PLANES.items():
            if plane == "unary" and size >= _MAX_MESSAGE_BYTES:
                continue
            print(f"measuring {plane}, {size} bytes ...", file=sys.stderr)
            before = memory.now()
            memory.reset_peak()
            result = service.bench(
                *shape_flags(size),
                *flags,
                f"--calls={calls_for(size, args.quick)}",
                "--warm-up-calls=2",
            )
            if not result["plane"].startswith(flags[0].removeprefix("--plane=")[:5]):
                raise BenchmarkError(f"{plane}: tensors went by {result['plane']}")
            seconds = transport_seconds(result)
            rows.append(
                {
                    "bytes_each_way": size,
                    "plane": plane,
                    "client_p50_seconds": result["client_seconds"]["p50"],
                    "transport_seconds": seconds,
                    "bytes_per_second": 2 * size / seconds,
                    "coordinator_bytes": max(0, memory.peak() - before),
                }
            )
    return rows


def measure_s4(args: argparse.Namespace, service: Service, tcp: float) -> dict:
    """The stream plane's share of raw TCP; 4 connections carry 4 calls."""
    size = (64 if args.quick else 512) << 20
    shares = {}
    for connections in (1, 4):
        print(f"measuring S4, {connections} connections ...", file=sys.stderr)
        result = service.bench(
            *shape_flags(size),
            "--plane=stream",
            f"--connections={connections}",
            f"--concurrency={connections}",
            f"--calls={2 * connections}",
            f"--warm-up-calls={connections}",
        )
        # The calls overlap: their latencies do, and so does their work.
        rate = connections * 2 * size / transport_seconds(result)
        shares[connections] = rate / tcp
    return {
        "what": f"stream, {size >> 20} MiB each way / raw TCP, 1 and 4 connections",
        "value": shares[1],
        "four_connections": shares[4],
        "target": 0.35,
        "target_four": 0.6,
        "met": shares[1] >= 0.35 and shares[4] >= 0.6,
    }


def measure_s5(args: argparse.Namespace, service: Service) -> dict:
    """Memory over the bytes in flight, at its highest and after a rest."""
    size = (16 if args.quick else 64) << 20
    memory = ProcessMemory(service.pid)
    found = {}
    for plane in ("unary", "stream"):
        service.bench(*shape_flags(size), f"--plane={plane}", "--calls=4")
        time.sleep(2)
        idle = memory.now()
        memory.reset_peak()
        service.bench(
            *shape_flags(size),
            f"--plane={plane}",
            "--concurrency=4",
            "--connections=4",
            "--calls=16",
            "--warm-up-calls=0",
        )
        peak = memory.peak() - idle
        time.sleep(2)
        # Four calls with query and output each, and the small rest.
        found[plane] = {
            "idle_bytes": idle,
            "peak_bytes_over_idle": peak,
            "bytes_in_flight": 4 * 2 * size,
            "over_what_is_held": peak / (4 * 2 * size) - 1,
            "left_after_idle_bytes": memory.now() - idle,
        }
    worst = max(each["over_what_is_held"] for each in found.values())
    return {
        "what": f"coordinator's memory over what it holds, {size >> 20} MiB calls",
        "value": worst,
        "planes": found,
        "target": 0.25,
        "met": worst <= 0.25,
    }


def _text(size: float) -> str:
    for unit, factor in reversed(_UNITS.items()):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size:.0f} B"


def print_tables(document: dict) -> None:
    """The sizes, then the targets."""
    print(
        f"raw loopback TCP {document['tcp_bytes_per_second'] / 1e9:.2f} GB/s, ", end=""
    )
    print(f"copy of memory {document['copy_bytes_per_second'] / 1e9:.2f} GB/s\n")
    line = "{:>10}  {:<12} {:>12} {:>12} {:>9} {:>7} {:>12}"
    print(
        line.format(
            "each way", "plane", "call p50", "transport", "GB/s", "/ TCP", "coordinator"
        )
    )
    for row in document["rows"]:
        print(
            line.format(
                _text(row["bytes_each_way"]),
                row["plane"],
                f"{row['client_p50_seconds'] * 1e3:.3f} ms",
                f"{row['transport_seconds'] * 1e3:.3f} ms",
                f"{row['bytes_per_second'] / 1e9:.3f}",
                f"{row['bytes_per_second'] / document['tcp_bytes_per_second']:.2f}",
                _text(row["coordinator_bytes"]),
            )
        )
    s4, s5 = document["S4"], document["S5"]
    print(
        f"\nS4  {s4['value']:.2f} (>= 0.35), 4 connections "
        f"{s4['four_connections']:.2f} (>= 0.6)  {s4['what']}"
    )
    print(f"S5  {s5['value']:.2f} (<= 0.25)  {s5['what']}")


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--coordinator", required=True, help="ithaca-coordinator")
    parser.add_argument("--worker", help="ithaca-worker, if not the usual one")
    parser.add_argument("--ithaca", required=True, help="the command line")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sizes", help=f"bytes each way (default: {_SIZES})")
    parser.add_argument("--quick", action="store_true", help="fewer, smaller calls")
    parser.add_argument("--output", help="also write the JSON to this file")
    args = parser.parse_args(arguments)
    try:
        sizes = args.sizes or (_QUICK_SIZES if args.quick else _SIZES)
        args.sizes = [parse_size(size) for size in sizes.split(",")]
    except argparse.ArgumentTypeError as error:
        parser.error(f"--sizes: {error}")
    return args


def main(arguments: list[str]) -> int:
    args = parse_arguments(arguments)
    rounds, raw_size = (2, 64 << 20) if args.quick else (5, 512 << 20)
    try:
        document = {
            "machine": machine(),
            "quick": args.quick,
            "workers": args.workers,
            "tcp_bytes_per_second": tcp_rate(raw_size, rounds),
            "copy_bytes_per_second": copy_rate(raw_size, rounds),
        }
        with Service(
            args,
            args.workers,
            "--allow-shared-memory",
            f"--max-request-bytes={8 << 30}",
            f"--max-inflight-bytes={16 << 30}",
        ) as service:
            document["rows"] = measure_sizes(args, service)
            document["S4"] = measure_s4(args, service, document["tcp_bytes_per_second"])
            document["S5"] = measure_s5(args, service)
    except (BenchmarkError, CoordinatorError, OSError) as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    print_tables(document)
    text = json.dumps(document, indent=2)
    print(text)
    if args.output:
        pathlib.Path(args.output).write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
