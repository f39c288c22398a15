from __future__ import annotations

import operator
import time
import uuid
from collections.abc import Sequence
from typing import Any

import grpc

from ithaca import _calls, _planes, _tensors, _wire, errors
from ithaca._reports import ExecutionReport, ServerInfo, enum_label
from ithaca.v1 import attention_pb2 as pb

_SERVICE = "ithaca.v1.AttentionService"
_MAX_PROTOBUF_BYTES = (1 << 31) - 1
# What a stream's messages may be, whatever max_message_bytes says of others.
_STREAM_MESSAGE_BYTES = 4 << 20
_HEALTH_SERVING = 1  # grpc.health.v1.HealthCheckResponse.SERVING
_POLL_SECONDS = 0.05


def _enum_value(argument: str, enum: Any, prefix: str, label: str) -> int:
    labels = {
        enum_label(enum, prefix, number): number for number in enum.values() if number
    }
    if label not in labels:
        expected = ", ".join(map(repr, labels))
        raise ValueError(f"{argument} is {label!r}: expected one of {expected}")
    return labels[label]


def _valid_lengths(valid: Any, shape: tuple[int, ...]) -> list[int]:
    if valid is None:
        return []
    if hasattr(valid, "tolist"):
        valid = valid.tolist()
    batch = shape[0] if len(shape) == 4 else 1
    try:
        if not isinstance(valid, Sequence):
            return [operator.index(valid)] * batch
        return [operator.index(length) for length in valid]
    except TypeError:
        raise TypeError(
            f"valid_text_tokens is {valid!r}: expected an int, or one for each "
            "batch element"
        ) from None


class Client:
    """A connection to an Ithaca coordinator. Safe to share between threads.

    address: "host:port". token: sent as `authorization: Bearer TOKEN`.
    timeout: seconds a call may take when it names none itself; None waits for
    ever. plane: how tensors travel. "auto" takes the first of these that both
    sides can: "cuda_memory" (the workers read and write torch's own memory on a
    GPU of this host), "shared_memory" (through memory of this host), "stream"
    for large tensors, "unary" (inside the messages). What was asked for and
    can't be is replaced by the next, with a RuntimeWarning, once a client, that
    says why. max_message_bytes: the largest request and response, at most 2
    GiB; the server has a limit of its own, see server_info().
    max_idle_shared_bytes: shared memory kept for later calls while none uses
    it. credentials: for TLS; without them the connection is in clear.
    channel_options: gRPC's, after and over those set here.

    Do not use one Client on both sides of a fork: gRPC does not survive it.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        timeout: float | None = 300.0,
        plane: str = "auto",
        max_message_bytes: int = 1 << 30,
        max_idle_shared_bytes: int = 2 << 30,
        credentials: grpc.ChannelCredentials | None = None,
        channel_options: Sequence[tuple[str, Any]] = (),
    ):
        if not 0 < max_message_bytes <= _MAX_PROTOBUF_BYTES:
            raise ValueError(
                f"max_message_bytes is {max_message_bytes}: expected 1 to "
                f"{_MAX_PROTOBUF_BYTES}"
            )
        if plane not in _planes.NAMES:
            expected = ", ".join(map(repr, _planes.NAMES))
            raise ValueError(f"plane is {plane!r}: expected one of {expected}")
        self.address = address
        self._timeout = timeout
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        channel_bytes = max(max_message_bytes, _STREAM_MESSAGE_BYTES)
        options = [
            ("grpc.max_send_message_length", channel_bytes),
            ("grpc.max_receive_message_length", channel_bytes),
            # Fewer, larger frames: tensors are megabytes.
            ("grpc.http2.max_frame_size", (1 << 24) - 1),
            *channel_options,
        ]
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, credentials, options)
        self._transport = _calls.Transport(
            self._channel,
            self._metadata,
            plane,
            max_message_bytes,
            max_idle_shared_bytes,
        )
        self._server_info = self._channel.unary_unary(
            f"/{_SERVICE}/GetServerInfo",
            request_serializer=pb.GetServerInfoRequest.SerializeToString,
            response_deserializer=pb.GetServerInfoResponse.FromString,
        )
        self._health_check = self._channel.unary_unary("/grpc.health.v1.Health/Check")

    def attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        *,
        text_tokens: int = 0,
        valid_text_tokens: Any = None,
        order: str = "image_first",
        image_queries_only: bool = False,
        softmax_scale: float | None = None,
        precision: str = "native",
        schedule: str = "auto",
        kernel: str = "auto",
        request_id: str | None = None,
        timeout: float | None = None,
        return_report: bool = False,
    ) -> Any:
        """softmax(softmax_scale * query key^T) value, computed by the service.

        query, key, value: numpy arrays (bfloat16 is ml_dtypes') or torch
        tensors, all of one kind, float32, float16 or bfloat16, of shape [batch,
        tokens, heads, head_dim] or [tokens, heads, head_dim]. key and value may
        have fewer heads, which divide the query's. Strided views and tensors on
        other devices are right too; they cost a copy.

        text_tokens: how many of the tokens are text, padding included.
        valid_text_tokens: how many of those are real, counted from the first:
        an int, or one for each batch element; None means all. Padded text keys
        have no influence; padded text query rows come back as zeros.
        order: "image_first" or "text_first", where text sits.
        image_queries_only: query holds image tokens only, key and value both.
        softmax_scale: None means 1/sqrt(head_dim).
        precision: between workers, "native", "fp8_e4m3" or "int8".
        schedule: "auto", "fused" or "per_head". kernel: "auto", "math", "flash"
        or "cudnn".
        request_id: None makes one. timeout: seconds; None means the client's.

        Returns query's kind, shape, dtype and device; with return_report, that
        and an ExecutionReport. For inference only: torch tensors that require
        gradients are refused unless gradients are off, and the output has none.
        CUDA tensors: waits for the current stream first, and the output is
        ready when this returns.

        Raises TypeError or ValueError before anything is sent, or a subclass of
        ithaca.Error.
        """
        tensors = _tensors.wrap_together(query=query, key=key, value=value)
        request = pb.AttentionRequest(
            request_id=uuid.uuid4().hex if request_id is None else request_id
        )
        for name, tensor in tensors.items():
            message = getattr(request, name)
            message.dtype = tensor.dtype
            message.shape.extend(tensor.shape)
        request.layout.text_tokens = text_tokens
        request.layout.order = _enum_value(
            "order", pb.TokenOrder, "TOKEN_ORDER_", order
        )
        request.layout.valid_text_tokens.extend(
            _valid_lengths(valid_text_tokens, tensors["query"].shape)
        )
        request.layout.image_queries_only = bool(image_queries_only)
        options = request.options
        if softmax_scale is not None:
            options.softmax_scale = float(softmax_scale)
        options.communication_precision = _enum_value(
            "precision",
            pb.CommunicationPrecision,
            "COMMUNICATION_PRECISION_",
            precision,
        )
        options.head_schedule = _enum_value(
            "schedule", pb.HeadSchedule, "HEAD_SCHEDULE_", schedule
        )
        options.kernel = _enum_value(
            "kernel", pb.AttentionKernel, "ATTENTION_KERNEL_", kernel
        )

        answer = self._transport.attend(
            request, tensors, self._timeout if timeout is None else timeout
        )
        if not return_report:
            return answer.output
        return answer.output, ExecutionReport.from_response(
            answer.response, answer.plane, answer.plane_note
        )

    def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """What the server can do, and its groups of workers."""
        return ServerInfo.from_response(
            self._call(self._server_info, pb.GetServerInfoRequest(), timeout)
        )

    def wait_until_ready(self, timeout: float | None = 60.0) -> None:
        """Returns once a group of workers is ready to serve.

        timeout: seconds; None waits for ever. Raises DeadlineExceededError
        when it passes, or another Error at once if waiting cannot help.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        why = "not serving yet"
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise errors.DeadlineExceededError(
                    f"{self.address} was not ready in {timeout} seconds: {why}",
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                )
            try:
                reply = self._call(
                    self._health_check, _health_request(), left, wait_for_ready=True
                )
                if _health_status(reply) == _HEALTH_SERVING:
                    return
                why = "not serving yet"
            except (errors.UnavailableError, errors.NotFoundError) as error:
                why = error.message
            except errors.DeadlineExceededError as error:
                why = error.message
                continue
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """Ends calls that are running; further ones fail."""
        if self._transport.close():
            self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _call(
        self,
        method: Any,
        request: Any,
        timeout: float | None,
        *,
        wait_for_ready: bool = False,
    ) -> Any:
        try:
            return method(
                request,
                timeout=self._timeout if timeout is None else timeout,
                metadata=self._metadata,
                wait_for_ready=wait_for_ready,
            )
        except grpc.RpcError as error:
            raise errors.from_rpc_error(error) from error


def _health_request() -> bytes:
    # grpc.health.v1.HealthCheckRequest{service}, too small to generate.
    service = _SERVICE.encode()
    return b"\x0a" + _wire.varint(len(service)) + service


def _health_status(reply: bytes) -> int:
    status = 0
    for number, value, _ in _wire.fields(memoryview(reply)):
        if number == 1 and isinstance(value, int):
            status = value
    return status
