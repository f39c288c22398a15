"""Tests of the Python client against real processes.

$ITHACA_COORDINATOR names the ithaca-coordinator program; `./dev test` sets it.
"""

import os
import pathlib
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [
    str(_ROOT / "client" / "python"),
    str(_ROOT / "client" / "python" / "tests"),
]

import generate_protos  # noqa: E402

generate_protos.generate()

import ithaca  # noqa: E402
from ithaca._coordinator import Coordinator  # noqa: E402


@pytest.fixture(scope="session")
def coordinator_binary():
    binary = os.environ.get("ITHACA_COORDINATOR")
    if not binary:
        pytest.fail(
            "these tests run the real service: set ITHACA_COORDINATOR to the "
            "ithaca-coordinator program (./dev test does)"
        )
    return binary


@pytest.fixture(scope="session", params=[2, 4], ids=lambda n: f"{n}workers")
def coordinator(coordinator_binary, request):
    with Coordinator(coordinator_binary, request.param) as coordinator:
        coordinator.workers = request.param
        yield coordinator


@pytest.fixture(scope="session")
def client(coordinator):
    with ithaca.Client(coordinator.address, timeout=120) as client:
        yield client
