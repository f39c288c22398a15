import pytest

from ithaca import _wire
from ithaca.v1 import attention_pb2 as pb


def make_request(data=True):
    request = pb.AttentionRequest(request_id="r")
    for name, size in (("query", 300), ("key", 0), ("value", 70000)):
        tensor = getattr(request, name)
        tensor.dtype = pb.DATA_TYPE_BFLOAT16
        tensor.shape.extend([1, size, 1, 1])
        if data:
            tensor.data = bytes(i % 251 for i in range(size))
    request.layout.text_tokens = 3
    request.options.softmax_scale = 0.5
    return request


def test_a_framed_request_is_what_protobuf_reads_as_the_same():
    whole = make_request()
    data = {n: memoryview(getattr(whole, n).data) for n in ("query", "key", "value")}
    framed = _wire.encode_request(make_request(data=False), data)
    parsed = pb.AttentionRequest.FromString(framed)
    assert parsed == whole
    assert parsed.key.WhichOneof("source") == "data"


def test_a_response_is_split_into_message_and_data():
    response = pb.AttentionResponse(request_id="r")
    response.output.dtype = pb.DATA_TYPE_FLOAT32
    response.output.shape.extend([1, 100, 1, 1])
    response.output.data = bytes(range(200)) * 2
    response.report.stage_seconds["attention"] = 0.25
    message, data = _wire.decode_response(response.SerializeToString())
    assert bytes(data) == response.output.data
    response.output.ClearField("data")
    assert message == response


def test_unknown_fields_of_every_wire_type_are_passed_over():
    response = pb.AttentionResponse(request_id="r")
    extra = b"\xf8\x01\x96\x01" + b"\xf9\x01" + bytes(8) + b"\xfd\x01" + bytes(4)
    message, _ = _wire.decode_response(response.SerializeToString() + extra)
    assert message.request_id == "r"


@pytest.mark.parametrize(
    "malformed",
    [b"\x12\x05\x01", b"\x0b", b"\xff" * 11, b"\x11\x00", b"\x12\x02\x1a\x05"],
)
def test_malformed_bytes_are_a_value_error(malformed):
    with pytest.raises(ValueError, match=r"trunc|wire type"):
        _wire.decode_response(malformed)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 1 << 31, (1 << 63) - 1])
def test_varints_round_trip(value):
    field = b"\x08" + _wire.varint(value)
    assert [v for _, v, _ in _wire.fields(memoryview(field))] == [value]
