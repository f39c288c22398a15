"""Requests no client library would send: refused by name, and then good."""

import threading

import grpc
import numpy as np
import pytest

import ithaca
from ithaca.v1 import attention_pb2 as pb

SHAPE = (1, 4, 2, 8)  # 128 bytes of bfloat16
INT64_MAX = (1 << 63) - 1


@pytest.fixture(scope="module")
def attention(coordinator):
    options = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
    ]
    with grpc.insecure_channel(coordinator.address, options) as channel:
        method = channel.unary_unary(
            "/ithaca.v1.AttentionService/Attention",
            request_serializer=pb.AttentionRequest.SerializeToString,
            response_deserializer=pb.AttentionResponse.FromString,
        )
        yield lambda request: method(request, timeout=60)


def good_request():
    request = pb.AttentionRequest()
    for name in ("query", "key", "value"):
        tensor = getattr(request, name)
        tensor.dtype = pb.DATA_TYPE_BFLOAT16
        tensor.shape.extend(SHAPE)
        tensor.data = b"\x80\x3f" * 64  # ones
    return request


def shape(name, *dims):
    def edit(request):
        getattr(request, name).shape[:] = dims

    return edit


def every_shape(*dims, data=None):
    def edit(request):
        for name in ("query", "key", "value"):
            getattr(request, name).shape[:] = dims
            if data is not None:
                getattr(request, name).data = data

    return edit


def data(name, size):
    return lambda request: setattr(getattr(request, name), "data", bytes(size))


def dtype(name, number, size=128):
    def edit(request):
        getattr(request, name).dtype = number
        getattr(request, name).data = bytes(size)

    return edit


def layout(**fields):
    return lambda request: request.layout.MergeFrom(pb.SequenceLayout(**fields))


def option(**fields):
    return lambda request: request.options.MergeFrom(pb.AttentionOptions(**fields))


def clear(name):
    return lambda request: request.ClearField(name)


INVALID = {
    **{
        f"{size} bytes for 128": (data("query", size), ("query", "128", str(size)))
        for size in (127, 129, 0, 64, 256)
    },
    "no query": (clear("query"), ("query",)),
    "no value": (clear("value"), ("value",)),
    "rank 2": (shape("key", 4, 16), ("key.shape", "2")),
    "rank 5": (shape("value", 1, 1, 4, 2, 8), ("value.shape", "5")),
    "a dim of 0": (every_shape(1, 4, 0, 8, data=b""), ("shape", "0")),
    "no tokens": (every_shape(1, 0, 2, 8, data=b""), ("0",)),
    "a dim of -1": (shape("key", 1, 4, -1, 8), ("key.shape", "-1")),
    "a dim of 2^63-1": (shape("query", 1, INT64_MAX, 2, 8), ("query",)),
    "more value tokens than key tokens": (
        lambda request: (
            shape("value", 1, 5, 2, 8)(request),
            data("value", 160)(request),
        ),
        ("value.shape", "4", "5"),
    ),
    "float32 key": (dtype("key", pb.DATA_TYPE_FLOAT32, 256), ("key.dtype",)),
    "float16 key of as many bytes": (
        dtype("key", pb.DATA_TYPE_FLOAT16),
        ("key.dtype", "float16"),
    ),
    "dtype unset": (dtype("query", 0), ("query.dtype", "0")),
    "dtype 99": (dtype("query", 99), ("query.dtype", "99")),
    "7 heads for 2": (
        lambda request: (
            shape("query", 1, 4, 7, 8)(request),
            data("query", 448)(request),
        ),
        ("7", "2"),
    ),
    "more text than tokens": (layout(text_tokens=5), ("text_tokens", "5")),
    "negative text": (layout(text_tokens=-1), ("text_tokens", "-1")),
    "more valid than text": (
        layout(text_tokens=2, valid_text_tokens=[3]),
        ("valid_text_tokens", "3"),
    ),
    "negative valid": (
        layout(text_tokens=2, valid_text_tokens=[-1]),
        ("valid_text_tokens", "-1"),
    ),
    "valid for two batch elements": (
        layout(text_tokens=2, valid_text_tokens=[1, 1]),
        ("valid_text_tokens", "2"),
    ),
    "order 9": (layout(order=9), ("layout.order", "9")),
    "precision 9": (
        option(communication_precision=9),
        ("options.communication_precision", "9"),
    ),
    "schedule 9": (option(head_schedule=9), ("options.head_schedule", "9")),
    "kernel 9": (option(kernel=9), ("options.kernel", "9")),
    "scale NaN": (option(softmax_scale=float("nan")), ("softmax_scale",)),
}


@pytest.mark.parametrize("case", INVALID)
def test_malformed_requests_are_refused_by_name_and_the_next_is_served(
    attention, coordinator, case
):
    edit, words = INVALID[case]
    request = good_request()
    edit(request)
    served = coordinator.metric("ithaca_stage_duration_seconds_count")
    with pytest.raises(grpc.RpcError) as caught:
        attention(request)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    for word in words:
        assert word in caught.value.details()
    # Nothing of it reached a worker.
    assert coordinator.metric("ithaca_stage_duration_seconds_count") == served
    response = attention(good_request())
    assert response.output.data == good_request().value.data


@pytest.mark.parametrize(
    "edit",
    [
        # 2^70 bytes: 0 modulo 2^64, which a careless product takes for a match.
        every_shape(1, 1 << 31, 1 << 31, 128, data=b""),
        every_shape(1 << 32, 1 << 32, 1, 256, data=b""),
        every_shape(INT64_MAX, INT64_MAX, INT64_MAX, 256, data=b""),
    ],
    ids=["2^70", "2^72", "2^197"],
)
def test_shapes_beyond_64_bits_cost_nothing(attention, coordinator, edit):
    request = good_request()
    edit(request)
    before = resident_bytes(coordinator.pid)
    for _ in range(20):
        with pytest.raises(grpc.RpcError) as caught:
            attention(request)
        assert caught.value.code() in (
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        )
    assert resident_bytes(coordinator.pid) - before < 16 << 20
    attention(good_request())


def resident_bytes(pid):
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def test_bytes_that_are_no_message_are_refused(coordinator, attention):
    with grpc.insecure_channel(coordinator.address) as channel:
        method = channel.unary_unary("/ithaca.v1.AttentionService/Attention")
        for garbage in (b"\x12\xff\xff\xff\xff\x0f", b"\xff" * 100, b"\x0b\x0c"):
            with pytest.raises(grpc.RpcError) as caught:
                method(garbage, timeout=60)
            assert caught.value.code() in (
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.INTERNAL,
            )
    attention(good_request())


def tagged(tag):
    """Attention whose answer is `tag` everywhere, and that takes a while."""
    zeros = np.zeros((1, 4096, 4, 64), np.float32)
    return zeros, zeros, zeros + tag


def test_a_second_request_with_an_id_in_flight_is_refused(client, coordinator):
    answers = []

    def first():
        answers.append(client.attention(*tagged(1), request_id="x"))

    thread = threading.Thread(target=first)
    thread.start()
    wait_for(lambda: coordinator.metric("ithaca_in_flight_requests") >= 1)
    small = np.zeros((1, 4, 2, 8), np.float32)
    with pytest.raises(ithaca.AlreadyExistsError, match="x"):
        client.attention(small, small, small + 2, request_id="x")
    thread.join(60)
    assert (answers[0] == 1).all()
    assert (client.attention(small, small, small + 3, request_id="x") == 3).all()


def wait_for(condition):
    event = threading.Event()
    for _ in range(6000):
        if condition():
            return
        event.wait(0.01)
    raise AssertionError("it never came true")


def test_of_many_at_once_with_one_id_each_ends_once(client, coordinator):
    outcomes = []

    def call():
        try:
            outcomes.append(
                bool((client.attention(*tagged(5), request_id="y") == 5).all())
            )
        except ithaca.AlreadyExistsError:
            outcomes.append("refused")

    threads = [threading.Thread(target=call) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(outcomes) == 16
    assert outcomes.count(True) + outcomes.count("refused") == 16
    assert outcomes.count(True) >= 1
    wait_for(lambda: coordinator.metric("ithaca_in_flight_requests") == 0)
    wait_for(lambda: coordinator.metric("ithaca_in_flight_bytes") == 0)
