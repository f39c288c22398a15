"""Right numbers through a coordinator and its workers."""

import ml_dtypes
import numpy as np
import pytest
import torch

import captured_calls
import reference

TOLERANCE = {np.float32: 1e-5, np.float16: 1e-3, ml_dtypes.bfloat16: 8e-3}


def random_qkv(batch, query_tokens, key_tokens, heads, kv_heads, head_dim, dtype):
    generator = np.random.default_rng(7)
    return [
        generator.standard_normal((batch, tokens, h, head_dim)).astype(dtype)
        for tokens, h in (
            (query_tokens, heads),
            (key_tokens, kv_heads),
            (key_tokens, kv_heads),
        )
    ]


def check(client, qkv, dtype, *, layout=None, **options):
    layout = layout or {}
    output = client.attention(*qkv, **layout, **options)
    expected = reference.attention(*(x.astype(np.float64) for x in qkv), **layout)
    assert output.dtype == dtype
    assert reference.relative_error(output, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("order", ["image_first", "text_first"])
@pytest.mark.parametrize("schedule", ["fused", "per_head"])
def test_joint_attention_with_padded_text(client, dtype, order, schedule):
    layout = {"text_tokens": 5, "valid_text_tokens": [2, 5], "order": order}
    qkv = random_qkv(2, 18, 18, 6, 6, 32, dtype)
    check(client, qkv, dtype, layout=layout, schedule=schedule)


@pytest.mark.parametrize("kernel", ["math", "flash"])
def test_every_kernel_of_a_cpu_worker(client, kernel):
    qkv = random_qkv(1, 33, 33, 4, 4, 64, np.float32)
    check(client, qkv, np.float32, kernel=kernel)


@pytest.mark.parametrize("image_tokens", [1, 2, 3, 5])
def test_fewer_image_tokens_than_workers_or_not_a_multiple(client, image_tokens):
    qkv = random_qkv(1, image_tokens, image_tokens, 4, 4, 16, np.float32)
    check(client, qkv, np.float32)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (7, 7), (8, 2), (28, 7)])
def test_heads_that_do_not_divide_by_the_workers(client, heads, kv_heads):
    qkv = random_qkv(1, 9, 9, heads, kv_heads, 16, np.float32)
    check(client, qkv, np.float32)


def test_image_queries_only(client):
    layout = {
        "text_tokens": 5,
        "valid_text_tokens": [0, 3],
        "image_queries_only": True,
    }
    qkv = random_qkv(2, 13, 18, 4, 4, 16, np.float32)
    check(client, qkv, np.float32, layout=layout)


def test_text_only(client):
    layout = {"text_tokens": 6, "valid_text_tokens": [4]}
    qkv = random_qkv(1, 6, 6, 4, 4, 16, np.float32)
    check(client, qkv, np.float32, layout=layout)


@pytest.mark.parametrize("precision", ["fp8_e4m3", "int8"])
def test_eight_bit_communication_is_close(client, precision):
    qkv = random_qkv(1, 64, 64, 4, 4, 64, np.float32)
    output = client.attention(*qkv, precision=precision)
    error = reference.relative_error(output, reference.attention(*qkv))
    # Off by the rounding to 8 bits: not more, and not nothing.
    assert 1e-4 < error < 0.1


@pytest.mark.parametrize("text_tokens", [0, 1, 7])
def test_the_same_call_twice_gives_the_same_bits(client, text_tokens):
    qkv = random_qkv(1, 64, 64, 8, 8, 64, ml_dtypes.bfloat16)
    first = client.attention(*qkv, text_tokens=text_tokens)
    for _ in range(3):
        again = client.attention(*qkv, text_tokens=text_tokens)
        np.testing.assert_array_equal(first.view(np.int16), again.view(np.int16))


def test_padding_is_never_seen_be_it_nan(client):
    query, key, value = random_qkv(1, 9, 9, 4, 4, 16, np.float32)
    key[:, 7:] = np.nan
    value[:, 7:] = np.inf
    layout = {"text_tokens": 4, "valid_text_tokens": [2]}
    output = client.attention(query, key, value, **layout)
    expected = reference.attention(query, key, value, **layout)
    assert np.isfinite(output).all()
    assert reference.relative_error(output, expected) < 1e-5
    assert not output[:, 7:].any()


def test_float32_is_true_float32(client):
    zeros = np.zeros((1, 2, 2, 8), np.float32)
    value = np.ones((1, 2, 2, 8), np.float32)
    value[:, 1] += np.float32(2**-20)
    output = client.attention(zeros, zeros, value)
    np.testing.assert_allclose(output, 1 + 2**-21, rtol=0, atol=1.2e-7)
    assert (output > 1).all()


@pytest.mark.parametrize("order", ["text_first", "image_first"])
def test_a_padded_text_key_has_no_weight(client, order):
    # All keys weigh the same: the plain mean of the values that are kept.
    zeros = np.zeros((1, 12, 2, 8), np.float32)
    text, image = (0, 8) if order == "text_first" else (4, 0)
    value = np.full((1, 12, 2, 8), 100, np.float32)
    value[:, text : text + 2] = 1
    value[:, image : image + 4] = 2
    output = client.attention(
        zeros, zeros, value, text_tokens=8, valid_text_tokens=2, order=order
    )
    kept = np.r_[text : text + 2, image : image + 4]
    np.testing.assert_allclose(output[:, kept], 10 / 6, rtol=1e-6)


@pytest.mark.parametrize("name", captured_calls.names())
def test_a_captured_call_of_a_model(client, name):
    call = captured_calls.load(name)
    output = client.attention(*call.qkv, **call.layout)
    assert output.dtype == call.output.dtype
    error = reference.relative_error(output.float(), call.output.float())
    assert error < captured_calls.TOLERANCE[output.dtype]


def test_strided_torch_views(client):
    tensors = [
        torch.from_numpy(x).transpose(1, 2)
        for x in random_qkv(1, 6, 6, 10, 10, 16, np.float32)
    ]
    output = client.attention(*tensors)
    expected = reference.attention(*(x.numpy() for x in tensors))
    assert reference.relative_error(output, expected) < 1e-5


def test_messages_of_many_megabytes(client):
    zeros = np.zeros((1, 20480, 1, 128), ml_dtypes.bfloat16)
    # Over gRPC's own default of 4 MiB, and little work: the text is hidden.
    output = client.attention(
        zeros, zeros, zeros + 1, text_tokens=20416, valid_text_tokens=[0]
    )
    assert output.nbytes == 5242880
    assert (output[:, :64] == 1).all()
    assert not output[:, 64:].any()
