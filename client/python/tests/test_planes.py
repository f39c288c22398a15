"""The client by each plane: what travels how, and what happens when it can't."""

import concurrent.futures
import gc
import os
import pathlib
import subprocess
import sys
import textwrap
import time
import warnings

import grpc
import ml_dtypes
import numpy as np
import pytest
import torch

import fake_server
import ithaca
import reference
from ithaca import _planes
from test_client import random_qkv

LARGE = (1, 4500, 4, 64)  # 4.6 MB in float32
MIDDLE = (1, 150, 4, 64)


@pytest.fixture
def local_server():
    """One on this host, with shared memory."""
    server = fake_server.FakeServer(shared_memory=True)
    # Attention of thousands of tokens is not what is tested: the query comes back.
    server.echo = True
    yield server
    server.stop()


def objects():
    return [
        name
        for name in os.listdir("/dev/shm")
        if name.startswith(f"ithaca-{os.getpid()}-")
    ]


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def wait_for(condition):
    limit = time.monotonic() + 60
    while not condition() and time.monotonic() < limit:
        time.sleep(0.005)
    assert condition()


def echo(client, shape=LARGE, seed=0, dtype=np.float32):
    """One call whose output is its query; the report."""
    arrays = random_qkv(shape, seed=seed, dtype=dtype)
    output, report = client.attention(*arrays, return_report=True)
    np.testing.assert_array_equal(output, arrays[0])
    return report


@pytest.fixture(params=["unary", "stream", "shared_memory"])
def plane(request):
    return request.param


def test_an_unknown_plane_is_refused_with_the_known_ones(server):
    with pytest.raises(ValueError, match="'auto', 'unary', 'stream', 'shared_memory'"):
        ithaca.Client(server.address, plane="pigeon")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_every_plane_carries_every_dtype(local_server, plane, dtype):
    local_server.echo = False
    arrays = random_qkv(dtype=dtype, kv_heads=2)
    layout = {"text_tokens": 3, "valid_text_tokens": [1, 3], "order": "text_first"}
    with ithaca.Client(local_server.address, plane=plane) as client:
        output, report = client.attention(*arrays, **layout, return_report=True)
    expected = reference.attention(*(x.astype(np.float32) for x in arrays), **layout)
    assert reference.relative_error(output, expected) < 8e-3
    assert output.dtype == dtype
    assert output.flags.writeable
    assert report.plane == local_server.planes[0] == plane
    assert report.plane_note == ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_plane_carries_torch_tensors_by_their_meaning(local_server, plane, dtype):
    tensors = [
        torch.from_numpy(x).to(dtype).transpose(1, 2).contiguous().transpose(1, 2)
        for x in random_qkv()
    ]
    with ithaca.Client(local_server.address, plane=plane) as client:
        output = client.attention(*tensors)
    assert torch.equal(output, tensors[0])
    assert output.is_contiguous()


@pytest.mark.parametrize(
    "view", [lambda x: x[:, ::-1], lambda x: x.astype(">f4"), np.asfortranarray]
)
def test_every_plane_carries_strided_views_by_their_meaning(local_server, plane, view):
    arrays = [view(x) for x in random_qkv()]
    with ithaca.Client(local_server.address, plane=plane) as client:
        output = client.attention(*arrays)
    np.testing.assert_array_equal(output, arrays[0])
    assert output.flags.c_contiguous


def test_no_tokens_at_all_pass_by_every_plane(local_server, plane):
    with ithaca.Client(local_server.address, plane=plane) as client:
        empty = [torch.from_numpy(x) for x in random_qkv((1, 0, 2, 4))]
        assert client.attention(*empty).shape == (1, 0, 2, 4)


def test_auto_takes_the_connection_where_there_is_no_shared_memory(server):
    server.echo = True
    with ithaca.Client(server.address) as client:
        assert echo(client, MIDDLE).plane == "unary"
        assert echo(client, LARGE).plane == "stream"
    assert server.planes == ["unary", "stream"]


def test_auto_streams_what_no_message_holds():
    server = fake_server.FakeServer(max_message_bytes=1 << 21)
    server.info["max_message_bytes"] = 1 << 21
    server.echo = True
    try:
        with ithaca.Client(server.address) as client:
            assert echo(client, (1, 1000, 4, 200)).plane == "stream"
    finally:
        server.stop()


def test_auto_takes_shared_memory_and_uses_it_again(local_server):
    with ithaca.Client(local_server.address) as client:
        assert echo(client, (1, 3, 2, 8)).plane == "unary"
        for seed in range(5):
            assert echo(client, seed=seed).plane == "shared_memory"
        assert local_server.memory.registrations == 1
        assert len(objects()) == 1
    assert objects() == []
    wait_for(lambda: not local_server.memory.leases)


def test_calls_in_flight_each_have_memory_of_their_own(local_server):
    with ithaca.Client(local_server.address, plane="shared_memory") as client:

        def call(seed):
            return echo(client, (1, 100 + seed % 5, 4, 64), seed).plane

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            assert set(pool.map(call, range(60))) == {"shared_memory"}
        assert local_server.memory.registrations <= 12


def test_shared_memory_that_is_off_falls_back_with_one_warning(server):
    server.echo = True
    with ithaca.Client(server.address, plane="shared_memory") as client:
        with pytest.warns(RuntimeWarning, match="has shared memory disabled") as seen:
            report = echo(client)
        assert [warning.filename for warning in seen] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            echo(client)
    assert report.plane == "stream"
    assert "disabled" in report.plane_note


def test_a_refused_registration_falls_back_and_says_why(local_server):
    refusal = (grpc.StatusCode.FAILED_PRECONDITION, "it is of another host")
    local_server.memory.refuse_with = refusal
    with ithaca.Client(local_server.address) as client:
        with pytest.warns(RuntimeWarning, match="another host"):
            assert echo(client).plane == "stream"
        local_server.memory.refuse_with = None
        assert echo(client).plane_note == "it is of another host"
        assert local_server.memory.registrations == 0
        assert objects() == []


def test_a_full_file_system_falls_back_for_what_is_too_large(local_server, monkeypatch):
    def reserve(fd, offset, nbytes, real=os.posix_fallocate):
        if nbytes > 1 << 20:
            raise OSError(28, "No space left on device")
        real(fd, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", reserve)
    with ithaca.Client(local_server.address) as client:
        with pytest.warns(RuntimeWarning, match="No space left on device"):
            assert echo(client).plane == "stream"
        assert echo(client, MIDDLE).plane == "shared_memory"


@pytest.mark.parametrize("told", [True, False])
def test_a_lost_lease_is_replaced_within_the_call(local_server, told):
    memory = local_server.memory
    with ithaca.Client(local_server.address) as client, warnings.catch_warnings():
        warnings.simplefilter("error")
        echo(client)
        if told:
            memory.end_leases()
            wait_for(lambda: not memory.leases)
        else:
            memory.lose_leases()
        assert echo(client).plane == "shared_memory"
        assert memory.registrations == 2
        assert len(objects()) == 1


def test_the_servers_errors_come_through_every_plane(local_server, plane):
    local_server.fail_with = (
        grpc.StatusCode.UNAVAILABLE,
        "no ready group",
        (("ithaca-retry-after-ms", "250"),),
    )
    with ithaca.Client(local_server.address, plane=plane) as client:
        with pytest.raises(ithaca.UnavailableError, match="no ready group") as caught:
            client.attention(*random_qkv(), request_id="mine")
        assert caught.value.retry_after == 0.25
        assert caught.value.request_id == "mine"


def test_memory_of_a_call_that_was_given_up_is_not_used_again(local_server):
    with ithaca.Client(local_server.address, plane="shared_memory") as client:
        echo(client, MIDDLE)
        local_server.release.clear()
        with pytest.raises(ithaca.DeadlineExceededError):
            client.attention(*random_qkv(MIDDLE), timeout=0.2)
        assert objects() == []
        local_server.release.set()
        echo(client, MIDDLE)
        assert local_server.memory.registrations == 2


def test_memory_of_a_refused_call_is_used_again(local_server):
    with ithaca.Client(local_server.address, plane="shared_memory") as client:
        echo(client, MIDDLE)
        local_server.fail_with = (grpc.StatusCode.INVALID_ARGUMENT, "layout", ())
        with pytest.raises(ithaca.InvalidArgumentError):
            client.attention(*random_qkv(MIDDLE))
        local_server.fail_with = None
        echo(client, MIDDLE)
        assert local_server.memory.registrations == 1


def swap_chunks(messages):
    messages[1], messages[2] = messages[2], messages[1]


BAD_STREAMS = {
    "chunks out of order": (swap_chunks, "offset 0"),
    "a chunk left out": (lambda m: m.pop(1), "offset 0"),
    "a chunk twice": (lambda m: m.insert(1, m[1]), "offset 1000"),
    "the end missing": (lambda m: m.pop(), "the answer ended after"),
    "too long": (lambda m: m.append(m[-1]), "at most 0 bytes"),
    "no response": (lambda m: m.clear(), "without a response"),
    "no response first": (lambda m: m.pop(0), "starts with a chunk"),
    "two responses": (lambda m: m.append(m[0]), "two responses"),
    "the wrong role": (
        lambda m: setattr(m[1].chunk, "role", 1),
        "expected role 4",
    ),
    "another shape": (
        lambda m: m[0].response.output.shape.append(3),
        "expected query's",
    ),
    "data inside": (
        lambda m: setattr(m[0].response.output, "data", b"inside"),
        "expected query's",
    ),
}


@pytest.mark.parametrize("fault", BAD_STREAMS)
def test_a_bad_stream_ends_in_an_error_and_the_next_call_works(server, fault):
    server.echo = True
    spoil, message = BAD_STREAMS[fault]
    with ithaca.Client(server.address, plane="stream") as client:
        server.edit_stream = spoil
        with pytest.raises(ithaca.InternalError, match=message):
            client.attention(*random_qkv((1, 100, 2, 8)))
        server.edit_stream = lambda messages: None
        echo(client)


def test_a_region_answer_of_another_shape_is_an_error(local_server):
    local_server.edit_response = lambda r: r.output.shape.append(1)
    with ithaca.Client(local_server.address, plane="shared_memory") as client:
        with pytest.raises(ithaca.InternalError, match="expected query's"):
            client.attention(*random_qkv())
        assert objects() == []


def test_many_calls_leave_no_descriptors_and_no_objects(local_server, plane):
    with ithaca.Client(local_server.address, plane=plane) as client:
        for _ in range(20):
            echo(client, (1, 20, 2, 8))
        gc.collect()
        before = descriptors()
        for _ in range(300):
            echo(client, (1, 20, 2, 8))
        gc.collect()
        assert descriptors() <= before + 1
        assert len(objects()) == (plane == "shared_memory")
    assert objects() == []


def run_python(code, address):
    """Its own process; what it printed."""
    here = pathlib.Path(__file__).parent
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), address],
        env={**os.environ, "PYTHONPATH": f"{here.parent}{os.pathsep}{here}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout.split()


MAKE_A_CALL = """
    import os, sys, time
    import numpy as np
    import ithaca
    client = ithaca.Client(sys.argv[1], plane="shared_memory")
    x = np.ones((1, 8, 2, 8), np.float32)
    client.attention(x, x, x)
    print(os.getpid(), flush=True)
"""


def left_by(pid):
    return [n for n in os.listdir("/dev/shm") if n.startswith(f"ithaca-{pid}-")]


def test_a_process_that_ends_without_closing_leaves_nothing(local_server):
    (pid,) = run_python(MAKE_A_CALL, local_server.address)
    assert left_by(pid) == []
    wait_for(lambda: not local_server.memory.leases)


def test_what_a_killed_process_left_goes_with_the_next_client(local_server):
    code = MAKE_A_CALL + "    os._exit(0)\n"
    (pid,) = run_python(code, local_server.address)
    wait_for(lambda: not local_server.memory.leases)
    assert len(left_by(pid)) == 1
    with ithaca.Client(local_server.address, plane="shared_memory") as client:
        echo(client, MIDDLE)
    assert left_by(pid) == []


def test_a_forked_child_leaves_its_parents_memory_alone(local_server):
    code = """
        child = os.fork()
        if child == 0:
            try:
                client.attention(x, x, x)
            except RuntimeError as error:
                print("forked" in str(error), flush=True)
            client.close()
            os._exit(0)
        os.waitpid(child, 0)
        client.attention(x, x, x)
        client.close()
        print("done")
    """
    code = textwrap.dedent(MAKE_A_CALL) + textwrap.dedent(code)
    output = run_python(code, local_server.address)
    assert output[1:] == ["True", "done"]
    assert local_server.memory.registrations == 1


def test_connection_planes_by_size():
    limits = _planes.Limits(1 << 30)
    small = _planes.Limits(1 << 20)
    large = _planes.STREAM_FROM_BYTES
    assert _planes.connection_plane("auto", 1000, 1000, limits) == "unary"
    assert _planes.connection_plane("auto", large, 1000, limits) == "stream"
    assert _planes.connection_plane("auto", 1000, large, limits) == "stream"
    assert _planes.connection_plane("auto", (1 << 20) - 10, 1000, small) == "stream"
    assert _planes.connection_plane("unary", 1 << 40, 1000, small) == "unary"
    assert _planes.connection_plane("stream", 1, 1, small) == "stream"
