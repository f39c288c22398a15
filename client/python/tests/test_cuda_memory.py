"""CUDA memory without a GPU: registrations, and what the client does with them.

The driver is a fake that knows allocations by address; tests/gpu has the real one.
"""

import ctypes
import types

import grpc
import pytest
import torch

import fake_server
import ithaca
from ithaca import _calls, _cuda_memory, _lease, _tensors

UUID = "GPU-00000000-0000-0000-0000-000000000000"


class FakeDriver:
    """allocations: base -> Allocation; fails where there is none."""

    def __init__(self):
        self.allocations = {}

    def add(self, base, nbytes, handle):
        self.allocations[base] = _cuda_memory.Allocation(UUID, base, nbytes, handle)

    def allocation(self, tensor, torch):
        for base, allocation in self.allocations.items():
            if base <= tensor.data_ptr() < base + allocation.nbytes:
                return allocation
        raise _cuda_memory.CudaMemoryError("expandable_segments")


def tensor_at(address):
    return types.SimpleNamespace(data_ptr=lambda: address)


@pytest.fixture
def server():
    server = fake_server.FakeServer(cuda_memory=True, device="cuda")
    server.echo = True
    yield server
    server.stop()


@pytest.fixture
def driver():
    return FakeDriver()


@pytest.fixture
def regions(server, driver):
    channel = grpc.insecure_channel(server.address)
    lease = _lease.Lease(channel, ())
    yield _cuda_memory.CudaRegions(lease, lambda: driver)
    lease.close()
    channel.close()


def place(regions, address):
    return regions.place(tensor_at(address), None, lambda: 60.0)


def test_tensors_of_an_allocation_share_its_region(server, driver, regions):
    driver.add(0x1000, 0x1000, b"a" * 64)
    first, at = place(regions, 0x1000)
    assert at == 0
    assert place(regions, 0x1800) == (first, 0x800)
    assert server.memory.registrations == 1


def test_another_allocation_at_the_same_address_is_another_region(
    server, driver, regions
):
    driver.add(0x1000, 0x1000, b"a" * 64)
    first, _ = place(regions, 0x1000)
    driver.add(0x1000, 0x1000, b"b" * 64)
    second, _ = place(regions, 0x1000)
    assert first != second
    assert server.memory.registrations == 2


def test_regions_of_a_lost_lease_are_registered_again(server, driver, regions):
    driver.add(0x1000, 0x1000, b"a" * 64)
    first, _ = place(regions, 0x1000)
    regions._lease.forget(first.lease)
    second, _ = place(regions, 0x1000)
    assert first.lease != second.lease


def test_the_number_of_regions_is_bounded(server, driver, regions, monkeypatch):
    monkeypatch.setattr(_cuda_memory, "_MAX_REGIONS", 3)
    for n in range(1, 6):
        driver.add(n * 0x1000, 0x1000, bytes([n]) * 64)
        place(regions, n * 0x1000)
    assert len(regions._regions) == 3
    assert server.memory.registrations == 5


def test_a_refusal_is_remembered_until_forgiven(server, driver, regions):
    driver.add(0x1000, 0x1000, b"a" * 64)
    server.memory.refuse_with = (grpc.StatusCode.FAILED_PRECONDITION, "container")
    for _ in range(2):
        with pytest.raises(_cuda_memory.CudaMemoryError, match="container"):
            place(regions, 0x1000)
        server.memory.refuse_with = None
    regions.forgive()
    place(regions, 0x1000)


def test_an_abandoned_region_holds_its_tensors_until_nobody_uses_it(driver, regions):
    driver.add(0x1000, 0x1000, b"a" * 64)
    registration, _ = place(regions, 0x1000)
    unregistered = []
    regions._lease.unregister = lambda r, then: unregistered.append((r, then))
    held = types.SimpleNamespace()
    regions.abandon({registration}, held)
    ((which, then),) = unregistered
    assert which == registration
    assert held in then.__defaults__
    again, _ = place(regions, 0x1000)
    assert again != registration


class FakeCudaTensor(_tensors.TorchTensor):
    """A CPU tensor that takes itself for one on a GPU."""

    def __init__(self, tensor, torch):
        super().__init__("query", tensor, torch)
        self.kind = "torch tensor on cuda:0"


class FakeTorch:
    """torch, whose CUDA is the CPU."""

    def __init__(self):
        self.cuda = types.SimpleNamespace(
            device=lambda device: _Nothing(),
            current_stream=lambda: types.SimpleNamespace(synchronize=lambda: None),
        )

    def __getattr__(self, name):
        return getattr(torch, name)


class _Nothing:
    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None


class MemoryDriver:
    """Takes 64 KiB around any tensor for its allocation, and shows it to the server."""

    def __init__(self, server):
        self._server = server

    def allocation(self, tensor, torch):
        base = tensor.data_ptr()
        nbytes = tensor.numel() * tensor.element_size()
        handle = base.to_bytes(8, "little") * 8
        memory = (ctypes.c_char * nbytes).from_address(base)
        self._server.memory.cuda_memory[(UUID, handle)] = memoryview(memory).cast("B")
        return _cuda_memory.Allocation(UUID, base, nbytes, handle)


@pytest.fixture
def transport(server):
    channel = grpc.insecure_channel(server.address)
    transport = _calls.Transport(channel, (), "auto", 1 << 30, 1 << 30)
    transport._cuda = _cuda_memory.CudaRegions(
        transport._lease, lambda: MemoryDriver(server)
    )
    yield transport
    transport.close()
    channel.close()


def attend(transport, timeout=60.0):
    from ithaca.v1 import attention_pb2 as pb

    tensors = {
        name: FakeCudaTensor(torch.randn(1, 5, 2, 8), FakeTorch())
        for name in ("query", "key", "value")
    }
    request = pb.AttentionRequest(request_id="mine")
    for name, tensor in tensors.items():
        message = getattr(request, name)
        message.dtype = tensor.dtype
        message.shape.extend(tensor.shape)
    return tensors["query"].tensor, transport.attend(request, tensors, timeout)


def test_the_workers_write_the_output_where_the_client_made_it(server, transport):
    query, answer = attend(transport)
    assert torch.equal(answer.output, query)
    assert answer.plane == server.planes[0] == "cuda_memory"
    assert answer.plane_note == ""


def test_a_server_without_it_gets_the_tensors_another_way(server, transport):
    server.info["cuda_memory"] = False
    query, answer = attend(transport)
    assert torch.equal(answer.output, query)
    assert answer.plane == "unary"


def test_a_refusal_falls_back_and_says_why(server, transport):
    server.memory.refuse_with = (grpc.StatusCode.FAILED_PRECONDITION, "container")
    with pytest.warns(RuntimeWarning, match="container"):
        query, answer = attend(transport)
    assert torch.equal(answer.output, query)
    assert answer.plane == "unary"


def test_a_call_that_was_given_up_abandons_its_regions(server, transport):
    attend(transport)
    abandoned = []
    transport._cuda.abandon = lambda regions, held: abandoned.append((regions, held))
    server.release.clear()
    with pytest.raises(ithaca.DeadlineExceededError):
        attend(transport, timeout=0.2)
    server.release.set()
    ((regions, held),) = abandoned
    assert len(regions) == 4
    assert set(held) == {"query", "key", "value", "output"}
