"""The client's lease: regions registered under it go when it does."""

from __future__ import annotations

import dataclasses
import secrets
import threading
from collections.abc import Callable
from typing import Any

import grpc

from ithaca import errors
from ithaca.v1 import memory_pb2 as pb

_SERVICE = "ithaca.v1.MemoryService"
# A server that is there answers at once.
_ANSWER_SECONDS = 10.0
# For as long as a call of the server's may run on.
_UNREGISTER_SECONDS = 600.0

LEASE_METADATA = "ithaca-lease"


@dataclasses.dataclass(frozen=True)
class Registration:
    """Who the server knows a region as."""

    lease: str
    region: str


def soon(left: float | None) -> float:
    """Seconds that an answer may take, of those left."""
    return _ANSWER_SECONDS if left is None else min(left, _ANSWER_SECONDS)


class Lease:
    """Opened when first needed, and again after it was lost. Thread-safe.

    Functions that take `timeout` call it for the seconds left, None for any
    number, and raise errors.Error.
    """

    def __init__(self, channel: grpc.Channel, metadata: tuple[tuple[str, str], ...]):
        self._metadata = metadata
        self._lock = threading.Lock()  # of what follows
        self._opening = threading.Lock()
        self._stream: Any = None
        self._lease = ""
        self._keep = channel.unary_stream(
            f"/{_SERVICE}/KeepLease",
            request_serializer=pb.KeepLeaseRequest.SerializeToString,
            response_deserializer=pb.KeepLeaseResponse.FromString,
        )

        def method(name: str, request: Any, response: Any) -> Any:
            return channel.unary_unary(
                f"/{_SERVICE}/{name}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )

        self._register_shared = method(
            "RegisterSharedMemory",
            pb.RegisterSharedMemoryRequest,
            pb.RegisterMemoryResponse,
        )
        self._register_cuda = method(
            "RegisterCudaMemory",
            pb.RegisterCudaMemoryRequest,
            pb.RegisterMemoryResponse,
        )
        self._unregister = method(
            "UnregisterMemory",
            pb.UnregisterMemoryRequest,
            pb.UnregisterMemoryResponse,
        )

    def register_shared(
        self, shared: Any, timeout: Callable[[], float | None]
    ) -> Registration:
        """shared: a SharedObject."""
        return self._register(
            self._register_shared,
            pb.RegisterSharedMemoryRequest(
                object_name=shared.name, byte_size=shared.nbytes
            ),
            timeout,
        )

    def register_cuda(
        self, request: pb.RegisterCudaMemoryRequest, timeout: Callable[[], float | None]
    ) -> Registration:
        """request: all but lease and region."""
        return self._register(self._register_cuda, request, timeout)

    def covers(self, registration: Registration) -> bool:
        """Whether the lease of now has it."""
        with self._lock:
            return registration.lease == self._lease and self._is_open()

    def forget(self, lease: str) -> None:
        """The server does not know it: the next registration opens another."""
        with self._lock:
            if lease != self._lease:
                return
            stream, self._stream, self._lease = self._stream, None, ""
        if stream is not None:
            stream.cancel()

    def unregister(
        self, registration: Registration, then: Callable[[], None] = lambda: None
    ) -> None:
        """Without waiting; `then` is called once no running call uses it."""
        if not self.covers(registration):
            then()
            return
        try:
            answer = self._unregister.future(
                pb.UnregisterMemoryRequest(
                    lease=registration.lease, region=registration.region
                ),
                timeout=_UNREGISTER_SECONDS,
                metadata=self._metadata,
            )
        except ValueError:  # the channel is closed, and the lease with it
            then()
            return
        answer.add_done_callback(lambda _: then())

    def close(self) -> None:
        """Gives it up, and every region with it."""
        with self._lock:
            lease = self._lease
        self.forget(lease)

    def _is_open(self) -> bool:
        return self._stream is not None and self._stream.is_active()

    def _get(self, timeout: Callable[[], float | None]) -> str:
        with self._opening:
            with self._lock:
                if self._lease and self._is_open():
                    return self._lease
            stream = self._keep(pb.KeepLeaseRequest(), metadata=self._metadata)
            # The stream itself has no deadline: it lasts.
            timer = threading.Timer(soon(timeout()), stream.cancel)
            timer.daemon = True
            timer.start()
            try:
                lease = next(stream).lease
            except StopIteration:
                raise errors.UnavailableError(
                    "the lease ended at once", grpc.StatusCode.UNAVAILABLE
                ) from None
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.CANCELLED:
                    raise errors.UnavailableError(
                        "the server gave no lease in time",
                        grpc.StatusCode.UNAVAILABLE,
                    ) from error
                raise errors.from_rpc_error(error) from error
            finally:
                timer.cancel()
            with self._lock:
                self._stream, self._lease = stream, lease
            return lease

    def _register(
        self, method: Any, request: Any, timeout: Callable[[], float | None]
    ) -> Registration:
        for is_last in (False, True):
            request.lease = self._get(timeout)
            # A name of its own each time: the last one's may not have gone yet.
            request.region = f"python-{secrets.token_hex(8)}"
            try:
                method(request, timeout=soon(timeout()), metadata=self._metadata)
                break
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.NOT_FOUND or is_last:
                    raise errors.from_rpc_error(error) from error
                self.forget(request.lease)
        return Registration(request.lease, request.region)
