#!/usr/bin/env python3
"""Holds the directions in which rooms may know each other.

    check_imports.py [ROOT]

Reads every #include and every Bazel dep of our own C++; prints each that its
room may not have, and exits 1 if there is any. The rules are the table in
docs/architecture.md.
"""

import pathlib
import re
import sys

ROOMS = ["core", "kernels", "worker", "server", "client", "tests"]

# Room -> rooms of ours that it may include (itself besides).
MAY_INCLUDE = {
    "core": [],
    "kernels": ["core"],
    "worker": ["kernels", "core", "proto"],
    "server": ["core", "proto"],
    "client": ["proto"],
    "tests": ["core", "kernels", "worker", "server", "client", "proto"],
}

# Test code may use what only tests may: tests/oracle from any room.
TEST_ONLY_ROOM = "tests"

# Library -> how its headers look -> files that may include them.
LIBRARIES = {
    "LibTorch": (
        r"^(ATen|c10|torch)/",
        r"^(worker/torch_|tests/)",
    ),
    "gRPC": (
        r"^grpc(pp)?/",
        r"^(server/|client/|tests/|worker/(rank_|membership|grpc_|worker_main))",
    ),
    "NCCL": (r"^nccl\.h$", r"^(worker/nccl_|tests/)"),
    "Gloo": (r"^gloo/", r"^(worker/gloo_|tests/)"),
    "CUDA": (
        r"^(cuda|cudnn)",
        r"^(kernels/|worker/(cuda_|nccl_|torch_cuda_)|tests/)",
    ),
    "spdlog": (r"^spdlog/", r"^(worker|server|client|tests)/"),
    "Prometheus": (r"^prometheus/", r"^(worker|server|tests)/"),
}

INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)
SOURCES = {".h", ".cc", ".cu", ".cuh"}


def is_test(path: str) -> bool:
    return (
        path.startswith("tests/")
        or re.search(r"_(test|benchmark|conformance)\b|_test_|/fake_", path) is not None
    )


def room_of(included: str) -> str | None:
    first = included.split("/")[0]
    if first == "ithaca" or included.endswith(".pb.h"):
        return "proto"
    return first if first in ROOMS else None


def faults_in(path: str, text: str):
    room = path.split("/")[0]
    for included in INCLUDE.findall(text):
        other = room_of(included)
        known = [room, *MAY_INCLUDE[room]]
        if is_test(path):
            known.append(TEST_ONLY_ROOM)
        if other and other not in known:
            yield f"{path}: {room} may not know {other} ({included})"
        for name, (header, allowed) in LIBRARIES.items():
            if re.search(header, included) and not re.search(allowed, path):
                yield f"{path}: {name} is not for this file ({included})"


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    faults, seen = [], 0
    for room in ROOMS:
        for file in sorted((root / room).rglob("*")):
            if file.suffix in SOURCES:
                seen += 1
                path = file.relative_to(root).as_posix()
                faults += faults_in(path, file.read_text())
    print("\n".join(faults), end="\n" if faults else "")
    print(f"imports: {seen} files, {len(faults)} faults", file=sys.stderr)
    return 1 if faults or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
