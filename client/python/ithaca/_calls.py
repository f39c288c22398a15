"""One attention call by each plane: how its tensors get there and back."""

from __future__ import annotations

import dataclasses
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from ithaca import _planes, _tensors, _wire, errors
from ithaca._cuda_memory import CudaMemoryError, CudaRegions
from ithaca._lease import LEASE_METADATA, Lease, Registration, soon
from ithaca._shared_memory import PooledRegion, RegionPool, SharedMemoryError
from ithaca.v1 import attention_pb2 as pb

_SERVICE = "ithaca.v1.AttentionService"
_PLANE_METADATA = "ithaca-plane"
# So that a worker's vector loads are aligned, as in a tensor alone.
_ALIGNMENT = 256

# The request was judged before any rank saw it, or every rank declined it:
# nobody uses its regions any more.
_REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,
}


class _Fallback(Exception):
    """The call can't go this way; what it says is why."""


@dataclasses.dataclass(frozen=True)
class Answer:
    output: Any
    response: pb.AttentionResponse
    plane: str
    plane_note: str


class _Call:
    """request: without tensor data. left: seconds until its end, or None."""

    def __init__(
        self,
        request: pb.AttentionRequest,
        tensors: dict[str, _tensors.CallTensor],
        timeout: float | None,
    ):
        self.request = request
        self.tensors = tensors
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.note = ""

    @property
    def query(self) -> _tensors.CallTensor:
        return self.tensors["query"]

    @property
    def request_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def left(self) -> float | None:
        if self.deadline is None:
            return None
        return max(self.deadline - time.monotonic(), 0.0)

    def with_regions(
        self, places: dict[str, tuple[Registration, int]]
    ) -> tuple[pb.AttentionRequest, str]:
        """The request with query, key, value and output there; their lease."""
        request = pb.AttentionRequest()
        request.CopyFrom(self.request)
        lease = ""
        for name, (registration, offset) in places.items():
            tensor = self.tensors.get(name, self.query)
            field = getattr(request, name)
            slice_ = field if name == "output" else field.memory
            slice_.region = registration.region
            slice_.offset = offset
            slice_.byte_size = tensor.nbytes
            lease = registration.lease
        return request, lease


class Transport:
    """Makes calls over one channel, by the plane asked for or the next best.

    Thread-safe. close() gives back every region; the channel is its maker's.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        metadata: tuple[tuple[str, str], ...],
        plane: str,
        max_message_bytes: int,
        max_idle_shared_bytes: int,
    ):
        self._metadata = metadata
        self._plane = plane
        self._max_message_bytes = max_message_bytes
        # Bytes in, bytes out: ithaca._wire frames the large messages.
        self._unary = channel.unary_unary(f"/{_SERVICE}/Attention")
        self._stream = channel.stream_stream(f"/{_SERVICE}/StreamAttention")
        self._server_info = channel.unary_unary(
            f"/{_SERVICE}/GetServerInfo",
            request_serializer=pb.GetServerInfoRequest.SerializeToString,
            response_deserializer=pb.GetServerInfoResponse.FromString,
        )
        self._lease = Lease(channel, metadata)
        self._pool = RegionPool(self._lease, max_idle_shared_bytes)
        self._cuda = CudaRegions(self._lease)
        self._limits: _planes.Limits | None = None
        self._warned = False
        self._pid = os.getpid()

    def attend(
        self,
        request: pb.AttentionRequest,
        tensors: dict[str, _tensors.CallTensor],
        timeout: float | None,
    ) -> Answer:
        """Raises errors.Error."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                "this Client was made before the process forked: make another"
            )
        call = _Call(request, tensors, timeout)
        try:
            answer = self._attend(call)
        except errors.UnavailableError:
            # Who answers next may be another server.
            self._limits = None
            self._pool.forgive()
            self._cuda.forgive()
            raise
        if answer.plane_note and not self._warned:
            self._warned = True
            warnings.warn(
                f"ithaca: a call took the {answer.plane} plane: {answer.plane_note}",
                RuntimeWarning,
                stacklevel=4,
            )
        return answer

    def close(self) -> bool:
        """False in a forked child: it is the parent's, who goes on using it."""
        if os.getpid() != self._pid:
            return False
        self._lease.close()
        self._pool.clear()
        return True

    # --------------------------------------------------------------- choosing

    def _attend(self, call: _Call) -> Answer:
        asked = self._plane
        if asked in ("unary", "stream"):
            return self._by_connection(asked, call)
        limits = self._get_limits(call)
        for plane in ("cuda_memory", "shared_memory"):
            if not self._is_wanted(plane, call, limits):
                continue
            try:
                by = getattr(self, f"_by_{plane}")
                return self._starting_over(by, call)
            except _Fallback as fallback:
                call.note = call.note or str(fallback)
        return self._by_connection(
            _planes.connection_plane(
                "auto", call.request_bytes, call.query.nbytes, limits
            ),
            call,
        )

    def _is_wanted(self, plane: str, call: _Call, limits: _planes.Limits) -> bool:
        asked = self._plane
        enabled = getattr(limits, plane)
        if plane == "cuda_memory":
            fits = call.query.kind.startswith("torch tensor on cuda")
            if asked == plane and not fits:
                call.note = f"query is a {call.query.kind}, not on a CUDA device"
            if asked == plane and not enabled:
                call.note = "the server has CUDA memory disabled"
            return asked in ("auto", plane) and fits and enabled
        if asked == plane and not enabled:
            call.note = "the server has shared memory disabled"
        total = call.request_bytes + call.query.nbytes
        worth_it = asked != "auto" or total >= _planes.SHARED_MEMORY_FROM_BYTES
        return enabled and worth_it

    def _get_limits(self, call: _Call) -> _planes.Limits:
        limits = self._limits
        if limits is None:
            try:
                info = self._server_info(
                    pb.GetServerInfoRequest(),
                    timeout=soon(call.left()),
                    metadata=self._metadata,
                )
            except grpc.RpcError:
                # The call itself will say what is wrong with the server.
                return _planes.Limits(self._max_message_bytes)
            limits = self._limits = _planes.Limits(
                min(self._max_message_bytes, info.max_message_bytes or (1 << 62)),
                info.shared_memory,
                info.cuda_memory,
            )
        return limits

    def _starting_over(self, by: Callable[[_Call], Answer], call: _Call) -> Answer:
        """Once, where the server does not know the lease."""
        try:
            return by(call)
        except errors.NotFoundError as error:
            lease = getattr(error, "lease", None)
            if lease is None:
                raise
            self._lease.forget(lease)
        return by(call)

    # ---------------------------------------------------------------- regions

    def _by_shared_memory(self, call: _Call) -> Answer:
        places, nbytes = {}, 0
        for name in ("query", "key", "value", "output"):
            places[name] = nbytes
            size = call.tensors.get(name, call.query).nbytes
            nbytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        try:
            region = self._pool.acquire(max(nbytes, 1), call.left)
        except SharedMemoryError as error:
            raise _Fallback(str(error)) from error
        except errors.Error as error:
            raise _Fallback(error.message) from error
        is_over = False
        try:
            answer = self._use(region, places, call)
            is_over = True
            return answer
        except errors.Error as error:
            is_over = error.code in _REFUSALS
            if error.code == grpc.StatusCode.FAILED_PRECONDITION:
                raise _Fallback(error.message) from error
            raise
        finally:
            # What a worker may still write is not for the next call.
            (self._pool.release if is_over else self._pool.drop)(region)

    def _use(self, region: PooledRegion, places: dict[str, int], call: _Call) -> Answer:
        view = region.shared.view
        for name, tensor in call.tensors.items():
            tensor.copy_to(view[places[name] : places[name] + tensor.nbytes])
        at = places["output"]
        output = call.query.new_output(view[at : at + call.query.nbytes])
        request, lease = call.with_regions(
            {name: (region.registration, place) for name, place in places.items()}
        )
        response, plane = self._by_region(call, request, lease, "shared_memory")
        return Answer(output.finish(), response, plane, call.note)

    def _by_cuda_memory(self, call: _Call) -> Answer:
        torch = call.query.torch
        with torch.cuda.device(call.query.tensor.device):
            held = {
                name: tensor.dense_on_device() for name, tensor in call.tensors.items()
            }
            output = torch.empty_like(
                held["query"], memory_format=torch.contiguous_format
            )
            held["output"] = output
            # Workers run on streams of their own: what this one still does to
            # the tensors has to be done.
            torch.cuda.current_stream().synchronize()
            try:
                places = {
                    name: self._cuda.place(tensor, torch, call.left)
                    for name, tensor in held.items()
                }
            except CudaMemoryError as error:
                raise _Fallback(str(error)) from error
            except errors.Error as error:
                raise _Fallback(error.message) from error
        request, lease = call.with_regions(places)
        is_over = False
        try:
            response, plane = self._by_region(call, request, lease, "cuda_memory")
            is_over = True
        except errors.Error as error:
            is_over = error.code in _REFUSALS
            if error.code == grpc.StatusCode.FAILED_PRECONDITION:
                self._cuda.refuse(error.message)
                raise _Fallback(error.message) from error
            raise
        finally:
            if not is_over:
                # Workers may still write the output: torch must not hand its
                # memory out again before they are done.
                self._cuda.abandon({place[0] for place in places.values()}, held)
        return Answer(output, response, plane, call.note)

    def _by_region(
        self, call: _Call, request: pb.AttentionRequest, lease: str, plane: str
    ) -> tuple[pb.AttentionResponse, str]:
        try:
            reply, plane = self._call_unary(
                call,
                request.SerializeToString(),
                plane,
                ((LEASE_METADATA, lease),),
            )
        except errors.NotFoundError as error:
            error.lease = lease
            raise
        response, data = self._decode(call, reply)
        self._check_output(call, response, len(data), 0)
        return response, plane

    # ------------------------------------------------------------- connection

    def _by_connection(self, plane: str, call: _Call) -> Answer:
        if plane == "stream":
            return self._by_stream(call)
        if max(call.request_bytes, call.query.nbytes) > self._max_message_bytes:
            raise errors.ResourceExhaustedError(
                f"query, key and value are {call.request_bytes} bytes, over the "
                f"client's max_message_bytes of {self._max_message_bytes}",
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                request_id=call.request.request_id,
            )
        data = {name: tensor.host_bytes() for name, tensor in call.tensors.items()}
        reply, plane = self._call_unary(
            call, _wire.encode_request(call.request, data), plane
        )
        response, received = self._decode(call, reply)
        self._check_output(call, response, len(received), call.query.nbytes)
        output = call.query.new_output()
        output.host_bytes()[:] = received
        return Answer(output.finish(), response, plane, call.note)

    def _by_stream(self, call: _Call) -> Answer:
        data = {name: tensor.host_bytes() for name, tensor in call.tensors.items()}
        output = call.query.new_output()

        def expect(response: pb.AttentionResponse) -> memoryview:
            self._check_output(call, response, len(response.output.data), 0)
            return output.host_bytes()

        answer = _wire.StreamedResponse(expect)
        stream = self._stream(
            _wire.encode_stream(call.request, data),
            timeout=call.left(),
            metadata=self._metadata,
        )
        try:
            for message in stream:
                answer.take(message)
            response = answer.finish()
        except grpc.RpcError as error:
            raise errors.from_rpc_error(error, call.request.request_id) from error
        except (ValueError, DecodeError) as error:
            raise self._unreadable(call, error) from error
        finally:
            stream.cancel()  # nothing, once it has ended
        return Answer(output.finish(), response, _plane_of(stream, "stream"), call.note)

    # ---------------------------------------------------------------- answers

    def _call_unary(
        self,
        call: _Call,
        serialized: bytes,
        plane: str,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> tuple[bytes, str]:
        try:
            reply, rpc = self._unary.with_call(
                serialized, timeout=call.left(), metadata=(*self._metadata, *metadata)
            )
        except grpc.RpcError as error:
            raise errors.from_rpc_error(error, call.request.request_id) from error
        return reply, _plane_of(rpc, plane)

    def _decode(
        self, call: _Call, reply: bytes
    ) -> tuple[pb.AttentionResponse, memoryview]:
        try:
            return _wire.decode_response(reply)
        except (ValueError, DecodeError) as error:
            raise self._unreadable(call, error) from error

    @staticmethod
    def _unreadable(call: _Call, error: Exception) -> errors.InternalError:
        return errors.InternalError(
            f"the response cannot be read: {error}",
            grpc.StatusCode.INTERNAL,
            request_id=call.request.request_id,
        )

    @staticmethod
    def _check_output(
        call: _Call, response: pb.AttentionResponse, nbytes: int, expected: int
    ) -> None:
        output, query = response.output, call.query
        if (output.dtype, tuple(output.shape), nbytes) == (
            query.dtype,
            query.shape,
            expected,
        ):
            return
        raise errors.InternalError(
            f"the response's output has dtype {output.dtype}, shape "
            f"{list(output.shape)} and {nbytes} bytes inside: expected query's, "
            f"{query.dtype}, {list(query.shape)} and {expected}",
            grpc.StatusCode.INTERNAL,
            request_id=call.request.request_id,
        )


def _plane_of(rpc: Any, otherwise: str) -> str:
    plane = dict(rpc.trailing_metadata() or ()).get(_PLANE_METADATA, otherwise)
    return plane if plane in _planes.NAMES else otherwise
