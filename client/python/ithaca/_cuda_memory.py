"""torch's GPU memory as regions: workers read and write it themselves.

A region is a whole allocation of torch's, since that is what CUDA hands out
between processes; a tensor is a place in it. torch keeps its allocations, so
that a few registrations serve all calls.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import functools
import re
import threading
from collections.abc import Callable
from typing import Any

import grpc

from ithaca import errors
from ithaca._lease import Lease, Registration
from ithaca.v1 import memory_pb2 as pb

_HANDLE_BYTES = 64  # cudaIpcMemHandle_t
_MAX_REGIONS = 64


class CudaMemoryError(Exception):
    """These tensors can't travel as CUDA memory."""


@dataclasses.dataclass(frozen=True)
class Allocation:
    """What holds a tensor. A handle names one allocation, ever."""

    device_uuid: str
    base: int
    nbytes: int
    handle: bytes


class CudaDriver:
    """The CUDA calls that torch does not offer, from the libraries it loaded."""

    def __init__(self):
        with open("/proc/self/maps", encoding="utf-8") as maps:
            found = re.search(r"/\S*libcudart[^\s/]*\.so\S*", maps.read())
        if found is None:
            raise CudaMemoryError("torch has not loaded libcudart")
        try:
            self._runtime = ctypes.CDLL(found[0])
            self._driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaMemoryError(f"CUDA's libraries: {error}") from error
        self._runtime.cudaGetErrorString.restype = ctypes.c_char_p

    def allocation(self, tensor: Any, torch: Any) -> Allocation:
        """The allocation that a CUDA tensor lies in."""
        properties = torch.cuda.get_device_properties(tensor.device)
        base, nbytes = ctypes.c_uint64(), ctypes.c_size_t()
        code = self._driver.cuMemGetAddressRange_v2(
            ctypes.byref(base),
            ctypes.byref(nbytes),
            ctypes.c_uint64(tensor.data_ptr()),
        )
        if code != 0:
            raise CudaMemoryError(f"cuMemGetAddressRange failed with {code}")
        handle = ctypes.create_string_buffer(_HANDLE_BYTES)
        code = self._runtime.cudaIpcGetMemHandle(handle, ctypes.c_void_p(base.value))
        if code != 0:
            # Else torch would find the error later, and take it for its own.
            self._runtime.cudaGetLastError()
            why = self._runtime.cudaGetErrorString(code).decode()
            raise CudaMemoryError(
                f"cudaIpcGetMemHandle: {why}; only what cudaMalloc made can be "
                "shared: not with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
                "or backend:cudaMallocAsync"
            )
        uuid = str(properties.uuid)
        return Allocation(
            device_uuid=uuid if uuid.startswith("GPU-") else f"GPU-{uuid}",
            base=base.value,
            nbytes=nbytes.value,
            handle=handle.raw,
        )


@functools.cache
def _driver() -> CudaDriver:
    return CudaDriver()


class CudaRegions:
    """Registrations of allocations, a bounded number. Thread-safe."""

    def __init__(self, lease: Lease, driver: Callable[[], Any] = _driver):
        self._lease = lease
        self._driver = driver
        self._lock = threading.Lock()
        # (device, base) of the allocation; most lately used last.
        self._regions: collections.OrderedDict[
            tuple[str, int], tuple[Allocation, Registration]
        ] = collections.OrderedDict()
        self._refusal = ""

    def place(
        self, tensor: Any, torch: Any, timeout: Callable[[], float | None]
    ) -> tuple[Registration, int]:
        """The region that a dense CUDA tensor lies in, and its offset there.

        Raises CudaMemoryError if it can't be one, or errors.Error if the server
        was not to be asked.
        """
        with self._lock:
            if self._refusal:
                raise CudaMemoryError(self._refusal)
        allocation = self._driver().allocation(tensor, torch)
        key = (allocation.device_uuid, allocation.base)
        offset = tensor.data_ptr() - allocation.base
        with self._lock:
            known = self._regions.get(key)
            if known and known[0] == allocation and self._lease.covers(known[1]):
                self._regions.move_to_end(key)
                return known[1], offset
        registration = self._register(allocation, timeout)
        with self._lock:
            # The same addresses may have been another allocation before.
            replaced = self._regions.pop(key, None)
            self._regions[key] = (allocation, registration)
            dropped = [replaced] if replaced else []
            while len(self._regions) > _MAX_REGIONS:
                dropped.append(self._regions.popitem(last=False)[1])
        for _, old in dropped:
            self._lease.unregister(old)
        return registration, offset

    def abandon(self, registrations: set[Registration], held: Any) -> None:
        """Holds `held` until no running call uses these regions."""
        with self._lock:
            for key, (_, registration) in list(self._regions.items()):
                if registration in registrations:
                    del self._regions[key]
        for registration in registrations:
            # A default argument, so that the function holds it.
            self._lease.unregister(registration, lambda _held=held: None)

    def refuse(self, why: str) -> None:
        """Nothing is tried until forgive()."""
        with self._lock:
            self._refusal = why

    def forgive(self) -> None:
        """Another server may judge otherwise."""
        self.refuse("")

    def _register(
        self, allocation: Allocation, timeout: Callable[[], float | None]
    ) -> Registration:
        try:
            return self._lease.register_cuda(
                pb.RegisterCudaMemoryRequest(
                    ipc_handle=allocation.handle,
                    device_uuid=allocation.device_uuid,
                    byte_size=allocation.nbytes,
                ),
                timeout,
            )
        except errors.Error as error:
            if error.code in (
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
                grpc.StatusCode.CANCELLED,
            ):
                raise
            self.refuse(error.message)
            raise CudaMemoryError(error.message) from error
