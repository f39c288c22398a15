"""Protobuf framing by hand, where the runtime would copy every tensor again.

A request is joined once from the small message and the tensors' own memory; a
response's tensor is a view of the bytes received. Everything else is left to
the generated messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ithaca.v1 import attention_pb2 as pb

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5

# Of a stream: large enough that a message's own cost is small.
CHUNK_BYTES = 1 << 20

_TENSOR_DATA = pb.Tensor.DESCRIPTOR.fields_by_name["data"].number
_OUTPUT = pb.AttentionResponse.DESCRIPTOR.fields_by_name["output"].number
_STREAM_REQUEST = pb.StreamAttentionRequest.DESCRIPTOR.fields_by_name
_STREAM_RESPONSE = pb.StreamAttentionResponse.DESCRIPTOR.fields_by_name
_CHUNK = pb.TensorChunk.DESCRIPTOR.fields_by_name
_ROLES = {
    "query": pb.TENSOR_ROLE_QUERY,
    "key": pb.TENSOR_ROLE_KEY,
    "value": pb.TENSOR_ROLE_VALUE,
}


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _length_prefix(field: int, size: int) -> bytes:
    return varint(field << 3 | _LENGTH) + varint(size)


def _read_varint(buffer: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(buffer) or shift > 63:
            raise ValueError("truncated or overlong varint")
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(
    buffer: memoryview,
) -> Iterator[tuple[int, int | memoryview, memoryview]]:
    """Yields (number, value, raw) for each field of a message.

    The value is an int for varints and a view for everything else; raw is the
    whole field, its tag included. Raises ValueError on a malformed message.
    """
    at = 0
    while at < len(buffer):
        start = at
        tag, at = _read_varint(buffer, at)
        number, kind = tag >> 3, tag & 7
        value: int | memoryview
        if kind == _VARINT:
            value, at = _read_varint(buffer, at)
        else:
            if kind == _LENGTH:
                size, at = _read_varint(buffer, at)
            elif kind == _FIXED64:
                size = 8
            elif kind == _FIXED32:
                size = 4
            else:
                raise ValueError(f"wire type {kind}")
            if size > len(buffer) - at:
                raise ValueError("truncated field")
            value = buffer[at : at + size]
            at += size
        yield number, value, buffer[start:at]


def encode_request(
    request: pb.AttentionRequest, tensor_data: dict[str, memoryview]
) -> bytes:
    """`request`, with tensor_data[name] as the `data` of its tensor `name`.

    REQUIRES: those tensors carry dtype and shape in `request`, and no data.
    """
    parts: list[bytes | memoryview] = []
    rest = pb.AttentionRequest()
    rest.CopyFrom(request)
    for name, data in tensor_data.items():
        rest.ClearField(name)
        header = getattr(request, name).SerializeToString()
        prefix = header + _length_prefix(_TENSOR_DATA, len(data))
        number = pb.AttentionRequest.DESCRIPTOR.fields_by_name[name].number
        parts.append(_length_prefix(number, len(prefix) + len(data)) + prefix)
        parts.append(data)
    return b"".join([rest.SerializeToString(), *parts])


def decode_response(
    serialized: bytes,
) -> tuple[pb.AttentionResponse, memoryview]:
    """The response without its output's data, and that data as a view.

    Raises ValueError or google.protobuf.message.DecodeError if malformed.
    """
    data = memoryview(b"")
    rest: list[bytes | memoryview] = []
    for number, value, raw in fields(memoryview(serialized)):
        if number != _OUTPUT or isinstance(value, int):
            rest.append(raw)
            continue
        header: list[memoryview] = []
        for inner, inner_value, inner_raw in fields(value):
            if inner == _TENSOR_DATA and not isinstance(inner_value, int):
                data = inner_value
            else:
                header.append(inner_raw)
        rest.append(_length_prefix(_OUTPUT, sum(map(len, header))))
        rest.extend(header)
    return pb.AttentionResponse.FromString(b"".join(rest)), data


def encode_stream(
    request: pb.AttentionRequest, tensor_data: dict[str, memoryview]
) -> Iterator[bytes]:
    """The messages of a StreamAttention call, each joined once.

    REQUIRES: as encode_request.
    """
    yield pb.StreamAttentionRequest(request=request).SerializeToString()
    for name, data in tensor_data.items():
        for offset in range(0, len(data), CHUNK_BYTES):
            piece = data[offset : offset + CHUNK_BYTES]
            header = pb.TensorChunk(role=_ROLES[name], offset=offset)
            inside = header.SerializeToString() + _length_prefix(
                _CHUNK["data"].number, len(piece)
            )
            outside = _length_prefix(
                _STREAM_REQUEST["chunk"].number, len(inside) + len(piece)
            )
            yield b"".join([outside, inside, piece])


class StreamedResponse:
    """Puts together what a StreamAttention call answers.

    expect: called with the response when it comes; returns the memory that the
    output's bytes go to.
    """

    def __init__(self, expect: Callable[[pb.AttentionResponse], memoryview]):
        self._expect = expect
        self._output = memoryview(b"")
        self._received = 0
        self.response: pb.AttentionResponse | None = None

    def take(self, serialized: bytes) -> None:
        """The next message. ValueError or DecodeError if it is not that."""
        for number, value, _ in fields(memoryview(serialized)):
            if isinstance(value, int):
                continue
            if number == _STREAM_RESPONSE["response"].number:
                if self.response is not None:
                    raise ValueError("two responses: expected one")
                self.response = pb.AttentionResponse.FromString(bytes(value))
                self._output = self._expect(self.response)
            elif number == _STREAM_RESPONSE["chunk"].number:
                self._take_chunk(value)

    def finish(self) -> pb.AttentionResponse:
        """After the last message. ValueError if the answer is not whole."""
        if self.response is None:
            raise ValueError("it ended without a response")
        if self._received != len(self._output):
            raise ValueError(
                f"output: expected {len(self._output)} bytes, the answer ended "
                f"after {self._received}"
            )
        return self.response

    def _take_chunk(self, chunk: memoryview) -> None:
        if self.response is None:
            raise ValueError("it starts with a chunk: expected the response first")
        role = offset = 0
        data = memoryview(b"")
        for number, value, _ in fields(chunk):
            if number == _CHUNK["data"].number and not isinstance(value, int):
                data = value
            elif number == _CHUNK["role"].number:
                role = value
            elif number == _CHUNK["offset"].number:
                offset = value
        left = len(self._output) - self._received
        if (
            role != pb.TENSOR_ROLE_OUTPUT
            or offset != self._received
            or len(data) > left
        ):
            raise ValueError(
                f"a chunk: expected role {pb.TENSOR_ROLE_OUTPUT}, offset "
                f"{self._received} and at most {left} bytes, got role {role}, "
                f"offset {offset} and {len(data)} bytes"
            )
        self._output[offset : offset + len(data)] = data
        self._received += len(data)
