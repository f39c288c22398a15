import threading

import grpc
import pytest

import fake_server
import ithaca
from test_client import random_qkv

CODES = {
    grpc.StatusCode.INVALID_ARGUMENT: ithaca.InvalidArgumentError,
    grpc.StatusCode.NOT_FOUND: ithaca.NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: ithaca.AlreadyExistsError,
    grpc.StatusCode.UNIMPLEMENTED: ithaca.UnimplementedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ithaca.ResourceExhaustedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: ithaca.DeadlineExceededError,
    grpc.StatusCode.UNAVAILABLE: ithaca.UnavailableError,
    grpc.StatusCode.FAILED_PRECONDITION: ithaca.FailedPreconditionError,
    grpc.StatusCode.UNAUTHENTICATED: ithaca.UnauthenticatedError,
    grpc.StatusCode.CANCELLED: ithaca.CancelledError,
    grpc.StatusCode.INTERNAL: ithaca.InternalError,
    grpc.StatusCode.DATA_LOSS: ithaca.Error,
}


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_each_status_has_its_exception(client, server, code):
    server.fail_with = (code, "because", ())
    with pytest.raises(ithaca.Error) as caught:
        client.attention(*random_qkv(), request_id="r1")
    assert type(caught.value) is CODES[code]
    assert caught.value.code is code
    assert caught.value.message == "because"
    assert caught.value.request_id == "r1"
    assert caught.value.retry_after is None
    assert str(caught.value) == f"{code.name}: because (request_id r1)"
    server.fail_with = None
    client.attention(*random_qkv())


@pytest.mark.parametrize(("hint", "seconds"), [("250", 0.25), ("soon", None)])
def test_retry_after_is_the_servers_hint(client, server, hint, seconds):
    server.fail_with = (
        grpc.StatusCode.UNAVAILABLE,
        "no ready group",
        (("ithaca-retry-after-ms", hint),),
    )
    with pytest.raises(ithaca.UnavailableError) as caught:
        client.attention(*random_qkv())
    assert caught.value.retry_after == seconds


def test_nobody_listening_is_unavailable():
    with (
        ithaca.Client("127.0.0.1:1") as client,
        pytest.raises(ithaca.UnavailableError),
    ):
        client.attention(*random_qkv())


def test_the_timeout_of_a_call_is_kept(client, server):
    server.release.clear()
    with pytest.raises(TimeoutError):
        client.attention(*random_qkv(), timeout=0.2)
    server.release.set()
    client.attention(*random_qkv())


def test_close_ends_running_calls(server):
    client = ithaca.Client(server.address)
    server.release.clear()
    caught = []

    def call():
        try:
            client.attention(*random_qkv())
        except ithaca.Error as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert server.entered.acquire(timeout=60)
    client.close()
    thread.join(60)
    assert [type(error) for error in caught] == [ithaca.CancelledError]


def test_a_request_over_the_clients_limit_is_never_sent(server):
    with ithaca.Client(server.address, plane="unary", max_message_bytes=4096) as client:
        with pytest.raises(ithaca.ResourceExhaustedError, match="4096"):
            client.attention(*random_qkv((1, 128, 4, 8)))
        assert server.requests == []
        client.attention(*random_qkv((1, 4, 4, 8)))


def test_a_request_over_the_servers_limit_is_resource_exhausted():
    server = fake_server.FakeServer(max_message_bytes=4096)
    try:
        with ithaca.Client(server.address) as client:
            with pytest.raises(ithaca.ResourceExhaustedError):
                client.attention(*random_qkv((1, 128, 4, 8)))
            client.attention(*random_qkv((1, 4, 4, 8)))
    finally:
        server.stop()


@pytest.mark.parametrize("limit", [0, -1, 1 << 31])
def test_impossible_limits_are_refused(limit):
    with pytest.raises(ValueError, match="max_message_bytes"):
        ithaca.Client("127.0.0.1:1", max_message_bytes=limit)


def cut_data(response):
    response.output.data = response.output.data[:-1]


def swap_dims(response):
    response.output.shape[:] = [2, 4, 7, 8]


def change_dtype(response):
    response.output.dtype = 2


def drop_output(response):
    response.ClearField("output")


@pytest.mark.parametrize("spoil", [cut_data, swap_dims, change_dtype, drop_output])
def test_an_answer_of_another_shape_is_an_internal_error(client, server, spoil):
    server.edit_response = spoil
    with pytest.raises(ithaca.InternalError, match="expected query's"):
        client.attention(*random_qkv())
