import pathlib
import sys

import pytest

_HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE.parent), str(_HERE)]

import generate_protos  # noqa: E402

generate_protos.generate()

import fake_server  # noqa: E402
import ithaca  # noqa: E402


@pytest.fixture
def server():
    server = fake_server.FakeServer()
    yield server
    server.stop()


@pytest.fixture
def client(server):
    with ithaca.Client(server.address, timeout=60) as client:
        yield client
