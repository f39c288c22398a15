#!/usr/bin/env python3
"""Writes what the package needs from the repository around it.

    ithaca/v1/*_pb2.py    messages, from proto/ithaca/v1/*.proto
    ithaca/_version.py    from the VERSION file

Run from a checkout (`./dev` and setup.py do). In an unpacked source
distribution both are there already, and nothing is done. Only what changed is
written, so it costs milliseconds when nothing did.

protoc comes from $PROTOC, the PATH, or else the grpcio-tools package.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def _protoc() -> list[str]:
    protoc = os.environ.get("PROTOC") or shutil.which("protoc")
    if protoc:
        return [protoc]
    try:
        import grpc_tools  # noqa: F401
    except ImportError:
        sys.exit(
            "generate_protos.py needs protoc: install Debian's "
            "protobuf-compiler, or the Python package grpcio-tools"
        )
    return [sys.executable, "-m", "grpc_tools.protoc"]


def _write_if_changed(path: pathlib.Path, content: bytes) -> None:
    if path.exists() and path.read_bytes() == content:
        return
    # Renamed into place: two test runs may generate at once.
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as scratch:
        scratch.write(content)
    os.chmod(scratch.name, 0o644)
    os.replace(scratch.name, path)


def generate() -> None:
    proto_root = ROOT / "proto"
    protos = sorted(proto_root.glob("ithaca/v1/*.proto"))
    if not protos:
        if not (HERE / "ithaca" / "_version.py").exists():
            sys.exit(f"generate_protos.py: no .proto files in {proto_root}")
        return
    version = (ROOT / "VERSION").read_text().strip()
    _write_if_changed(
        HERE / "ithaca" / "_version.py",
        f'__version__ = "{version}"\n'.encode(),
    )
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [*_protoc(), f"-I{proto_root}", f"--python_out={scratch}"]
            + [str(proto) for proto in protos],
            check=True,
        )
        for generated in pathlib.Path(scratch).glob("ithaca/v1/*_pb2.py"):
            _write_if_changed(
                HERE / "ithaca" / "v1" / generated.name, generated.read_bytes()
            )


if __name__ == "__main__":
    generate()
