import concurrent.futures
import threading

import grpc
import ml_dtypes
import numpy as np
import pytest
import torch

import ithaca
import reference
from ithaca.v1 import attention_pb2 as pb

TOLERANCE = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}
NUMPY_DTYPES = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}


def random_qkv(shape=(2, 7, 4, 8), kv_heads=None, dtype=np.float32, seed=0):
    generator = np.random.default_rng(seed)
    batch, tokens, heads, head_dim = shape
    kv_shape = (batch, tokens, kv_heads or heads, head_dim)
    return [
        generator.standard_normal(s).astype(dtype) for s in (shape, kv_shape, kv_shape)
    ]


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_numpy_arrays_come_back_as_numpy_of_the_same_dtype(client, dtype):
    query, key, value = random_qkv(dtype=NUMPY_DTYPES[dtype])
    output = client.attention(query, key, value)
    assert isinstance(output, np.ndarray)
    assert output.dtype == query.dtype
    assert output.shape == query.shape
    assert output.flags.writeable
    expected = reference.attention(*(x.astype(np.float32) for x in (query, key, value)))
    assert reference.relative_error(output, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_torch_tensors_come_back_as_torch_of_the_same_dtype(client, dtype):
    query, key, value = (
        torch.from_numpy(x).to(getattr(torch, dtype)) for x in random_qkv()
    )
    output = client.attention(query, key, value)
    assert isinstance(output, torch.Tensor)
    assert output.dtype == query.dtype
    assert output.shape == query.shape
    expected = reference.attention(*(x.float().numpy() for x in (query, key, value)))
    assert reference.relative_error(output.float(), expected) < TOLERANCE[dtype]


def test_rank_three_means_a_batch_of_one_and_comes_back_as_rank_three(client):
    arrays = random_qkv((1, 5, 2, 4))
    output = client.attention(*(x[0] for x in arrays))
    assert output.shape == (5, 2, 4)
    assert reference.relative_error(output, reference.attention(*arrays)[0]) < 1e-5


def test_key_and_value_may_have_fewer_heads(client):
    arrays = random_qkv((1, 5, 8, 4), kv_heads=2)
    output = client.attention(*arrays)
    assert reference.relative_error(output, reference.attention(*arrays)) < 1e-5


@pytest.mark.parametrize("order", ["image_first", "text_first"])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_the_layout_and_scale_reach_the_service(client, server, order, scale):
    arrays = random_qkv()
    layout = {"text_tokens": 3, "valid_text_tokens": [1, 3], "order": order}
    output = client.attention(*arrays, **layout, softmax_scale=scale)
    expected = reference.attention(*arrays, **layout, softmax_scale=scale)
    assert reference.relative_error(output, expected) < 1e-5
    assert server.requests[0].options.HasField("softmax_scale") == (scale is not None)


def test_image_queries_only_takes_a_shorter_query(client):
    query, key, value = random_qkv()
    layout = {"text_tokens": 2, "image_queries_only": True}
    output = client.attention(query[:, :5], key, value, **layout)
    expected = reference.attention(query[:, :5], key, value, **layout)
    assert output.shape == (2, 5, 4, 8)
    assert reference.relative_error(output, expected) < 1e-5


@pytest.mark.parametrize(
    "valid", [2, np.int64(2), (2, 2), np.array([2, 2]), torch.tensor([2, 2])]
)
def test_valid_text_tokens_may_be_one_number_or_one_each(client, server, valid):
    client.attention(*random_qkv(), text_tokens=3, valid_text_tokens=valid)
    assert list(server.requests[0].layout.valid_text_tokens) == [2, 2]


def test_options_reach_the_service_under_their_names(client, server):
    client.attention(
        *random_qkv(),
        precision="fp8_e4m3",
        schedule="per_head",
        kernel="flash",
        request_id="mine",
    )
    (request,) = server.requests
    assert request.request_id == "mine"
    options = request.options
    assert options.communication_precision == pb.COMMUNICATION_PRECISION_FP8_E4M3
    assert options.head_schedule == pb.HEAD_SCHEDULE_PER_HEAD
    assert options.kernel == pb.ATTENTION_KERNEL_FLASH


STRIDED = {
    "heads before tokens": lambda x: x.swapaxes(1, 2).copy().swapaxes(1, 2),
    "every second row of more": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "reversed": lambda x: x[:, ::-1].copy()[:, ::-1],
    "Fortran order": np.asfortranarray,
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "part of fused qkv": lambda x: np.concatenate([x, x, x], -1)[..., 8:16],
}


@pytest.mark.parametrize("kind", STRIDED)
def test_strided_numpy_views_are_sent_by_their_meaning(client, kind):
    arrays = [STRIDED[kind](x) for x in random_qkv()]
    assert not all(x.flags.c_contiguous for x in arrays)
    output = client.attention(*arrays)
    assert output.flags.c_contiguous
    assert reference.relative_error(output, reference.attention(*arrays)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strided_torch_views_are_sent_by_their_meaning(client, dtype):
    tensors = [
        torch.from_numpy(x).to(dtype).transpose(1, 2).contiguous().transpose(1, 2)
        for x in random_qkv()
    ]
    assert not tensors[0].is_contiguous()
    output = client.attention(*tensors)
    again = client.attention(*(x.contiguous() for x in tensors))
    assert torch.equal(output, again)


def test_foreign_byte_order_is_sent_by_its_meaning(client):
    arrays = random_qkv()
    output = client.attention(*(x.astype(">f4") for x in arrays))
    assert output.dtype == np.float32
    assert reference.relative_error(output, reference.attention(*arrays)) < 1e-5


def test_inputs_are_left_as_they_were(client):
    arrays = random_qkv()
    copies = [x.copy() for x in arrays]
    output = client.attention(*arrays)
    output[:] = 7
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


BAD_TENSORS = {
    "float64": (lambda x: x.astype(np.float64), TypeError, "key has dtype float64"),
    "int16": (lambda x: x.astype(np.int16), TypeError, "key has dtype int16"),
    "a list": (lambda x: x.tolist(), TypeError, "key is a list"),
    "another dtype": (lambda x: x.astype(np.float16), TypeError, "key has dtype"),
    "masked": (np.ma.masked_array, TypeError, "key is a masked array"),
    "rank 2": (lambda x: x[0, 0], ValueError, r"key has shape \[4, 8\]"),
    "rank 5": (lambda x: x[None], ValueError, r"key has shape \[1, 2, 7, 4, 8\]"),
    "torch among numpy": (torch.from_numpy, TypeError, "key is a torch tensor"),
}


@pytest.mark.parametrize("kind", BAD_TENSORS)
def test_what_cannot_be_sent_is_refused_before_sending(client, server, kind):
    spoil, error, message = BAD_TENSORS[kind]
    query, key, value = random_qkv()
    with pytest.raises(error, match=message):
        client.attention(query, spoil(key), value)
    assert server.requests == []
    client.attention(query, key, value)


@pytest.mark.parametrize(
    ("argument", "bad", "message"),
    [
        ("order", "text", "'image_first', 'text_first'"),
        ("precision", "fp8", "'native', 'fp8_e4m3', 'int8'"),
        ("schedule", "unspecified", "'auto', 'fused', 'per_head'"),
        ("kernel", "", "'auto', 'math', 'flash', 'cudnn'"),
    ],
)
def test_an_unknown_option_is_refused_with_the_known_ones(
    client, server, argument, bad, message
):
    with pytest.raises(ValueError, match=message):
        client.attention(*random_qkv(), **{argument: bad})
    assert server.requests == []


def test_fractional_valid_lengths_are_refused(client):
    with pytest.raises(TypeError, match="valid_text_tokens"):
        client.attention(*random_qkv(), text_tokens=3, valid_text_tokens=[1.5, 2])


def test_tensors_that_want_gradients_are_refused_unless_gradients_are_off(client):
    query, key, value = map(torch.from_numpy, random_qkv())
    value.requires_grad_()
    with pytest.raises(ValueError, match="value requires a gradient"):
        client.attention(query, key, value)
    with torch.no_grad():
        assert not client.attention(query, key, value).requires_grad
    client.attention(query, key, value.detach())


def test_sparse_tensors_are_refused(client):
    query, key, value = map(torch.from_numpy, random_qkv())
    with pytest.raises(TypeError, match="value has layout torch.sparse"):
        client.attention(query, key, value.to_sparse())


def test_no_tokens_at_all_are_left_to_the_service(client, server):
    server.fail_with = (grpc.StatusCode.INVALID_ARGUMENT, "no tokens", ())
    with pytest.raises(ithaca.InvalidArgumentError):
        client.attention(*map(torch.from_numpy, random_qkv((1, 0, 2, 4))))
    assert list(server.requests[0].query.shape) == [1, 0, 2, 4]


def test_the_report_comes_when_asked_for(client, server):
    output, report = client.attention(*random_qkv(), return_report=True)
    assert output.shape == (2, 7, 4, 8)
    assert report == ithaca.ExecutionReport(
        request_id=server.requests[0].request_id,
        group="fake",
        group_generation=1,
        world_size=2,
        precision="native",
        schedule="fused",
        kernel="math",
        queue_seconds=0,
        total_seconds=0.002,
        stage_seconds={"attention": 0.001},
        communication_bytes=64,
    )
    assert report.request_id


def test_server_info_is_plain_python(client):
    assert client.server_info() == ithaca.ServerInfo(
        version="0.0.1",
        device="cpu",
        groups=(ithaca.GroupInfo("fake", 1, 2, "ready", ("a/1", "a/2")),),
        max_message_bytes=1 << 30,
        max_request_bytes=0,
        shared_memory=False,
        cuda_memory=False,
        precisions=("native", "fp8_e4m3"),
        kernels=("math",),
    )


def test_the_token_travels_as_a_bearer_token(server):
    with ithaca.Client(server.address, token="secret") as client:
        client.attention(*random_qkv())
    assert server.metadata["authorization"] == "Bearer secret"


def test_wait_until_ready_returns_when_the_service_becomes_ready(client, server):
    server.ready = False
    timer = threading.Timer(0.3, lambda: setattr(server, "ready", True))
    timer.start()
    client.wait_until_ready(timeout=60)
    assert server.ready
    timer.join()


def test_wait_until_ready_gives_up_at_its_timeout(client, server):
    server.ready = False
    with pytest.raises(ithaca.DeadlineExceededError, match="not serving yet"):
        client.wait_until_ready(timeout=0.3)


def test_wait_until_ready_gives_up_where_nobody_listens():
    with (
        ithaca.Client("127.0.0.1:1") as client,
        pytest.raises(ithaca.DeadlineExceededError, match="127.0.0.1:1"),
    ):
        client.wait_until_ready(timeout=0.3)


def test_threads_may_share_a_client(client):
    def call(seed):
        arrays = random_qkv((1, 5 + seed % 3, 2, 4), seed=seed)
        output = client.attention(*arrays)
        return reference.relative_error(output, reference.attention(*arrays))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert max(pool.map(call, range(64))) < 1e-5


def test_calls_after_close_fail(server):
    client = ithaca.Client(server.address)
    client.close()
    with pytest.raises(ValueError, match="closed"):
        client.attention(*random_qkv())
