import diffusers
import pytest
import torch
from diffusers.models.attention_dispatch import (
    AttentionBackendName,
    _AttentionBackendRegistry,
    dispatch_attention_fn,
)

import ithaca
import ithaca.diffusers
import reference


@pytest.fixture
def backend(client):
    backend = ithaca.diffusers.backend(client)
    yield backend
    backend.close()


def random_qkv(batch=2, tokens=9, key_tokens=None, heads=4, head_dim=8, kv_heads=None):
    generator = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, generator=generator)

    key_shape = (batch, key_tokens or tokens, kv_heads or heads, head_dim)
    return randn(batch, tokens, heads, head_dim), randn(*key_shape), randn(*key_shape)


def dispatch_both(backend, *qkv, **arguments):
    served = dispatch_attention_fn(*qkv, backend=backend, **arguments)
    local = dispatch_attention_fn(
        *qkv, backend=AttentionBackendName.NATIVE, **arguments
    )
    return served, local


def test_the_name_is_one_of_diffusers_own(backend):
    assert backend == "ithaca"
    assert AttentionBackendName("ithaca") is AttentionBackendName.ITHACA
    assert "ITHACA" in AttentionBackendName.__members__
    assert list(AttentionBackendName)[-1] is AttentionBackendName.ITHACA
    assert AttentionBackendName.ITHACA in _AttentionBackendRegistry.list_backends()


def test_the_context_manager_of_diffusers_takes_it(backend):
    qkv = random_qkv()
    with diffusers.attention_backend(backend):
        dispatch_attention_fn(*qkv)
    dispatch_attention_fn(*qkv)
    assert backend.statistics().served_calls == 1


def test_an_address_opens_a_client_and_close_closes_it(server):
    backend = ithaca.diffusers.backend(server.address)
    qkv = random_qkv()
    dispatch_attention_fn(*qkv, backend=backend)
    backend.close()
    with pytest.raises(RuntimeError, match="'ithaca' was closed"):
        dispatch_attention_fn(*qkv, backend=backend)
    with pytest.raises(ValueError, match="closed"):
        backend.client.server_info()


def test_close_leaves_diffusers_with_its_own_default(client):
    backend = ithaca.diffusers.backend(client)
    _AttentionBackendRegistry.set_active_backend(AttentionBackendName(backend))
    backend.close()
    active, _ = _AttentionBackendRegistry.get_active_backend()
    assert active is AttentionBackendName.NATIVE


def test_two_backends_live_under_two_names(client):
    first = ithaca.diffusers.backend(client)
    second = ithaca.diffusers.backend(client, name="ithaca_fp8")
    dispatch_attention_fn(*random_qkv(), backend=second)
    assert first.statistics().served_calls == 0
    assert second.statistics().served_calls == 1


@pytest.mark.parametrize("name", ["native", "Ithaca", "two words"])
def test_a_name_that_cannot_be_used_is_refused(client, name):
    with pytest.raises(ValueError, match="name|own attention backends"):
        ithaca.diffusers.backend(client, name=name)


@pytest.mark.parametrize("argument", ["fallback", "padded_queries"])
def test_an_unknown_policy_is_refused(client, argument):
    with pytest.raises(ValueError, match=f"{argument} is 'maybe'"):
        ithaca.diffusers.backend(client, **{argument: "maybe"})


@pytest.mark.parametrize("scale", [None, 0.25])
def test_attention_without_a_mask_is_served(backend, server, scale):
    served, local = dispatch_both(backend, *random_qkv(), scale=scale)
    torch.testing.assert_close(served, local)
    assert len(server.requests) == 1


def test_grouped_heads_are_served(backend, server):
    qkv = random_qkv(heads=8, kv_heads=2)
    served, local = dispatch_both(backend, *qkv, enable_gqa=True)
    torch.testing.assert_close(served, local)
    with pytest.raises(ValueError, match="enable_gqa"):
        dispatch_attention_fn(*qkv, backend=backend)
    assert len(server.requests) == 1


T, F = True, False
PADDING = {
    "nothing": [[T] * 9, [T] * 9],
    "text last": [[T] * 7 + [F] * 2, [T] * 5 + [F] * 4],
    "text first": [[T, T, F, F] + [T] * 5, [T] * 9],
    "text first, left padded": [[F, F, T, T] + [T] * 5, [F] + [T] * 8],
    "no order at all": [[T, F] * 4 + [T], [F, T] * 4 + [F]],
}


@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("rows", ["key", "full"])
@pytest.mark.parametrize("kind", PADDING)
def test_padding_of_every_kind_equals_local_attention(
    backend, server, kind, rows, additive
):
    mask = torch.tensor(PADDING[kind])[:, None, None, :]
    if rows == "full":
        mask = mask.repeat(1, 1, 9, 1)
    if additive:
        mask = torch.where(mask, 0.0, -torch.inf)
    served, local = dispatch_both(backend, *random_qkv(), attn_mask=mask)
    torch.testing.assert_close(served, local)
    calls = 1 if kind in ("nothing", "text last", "text first") else 2
    assert len(server.requests) == calls
    assert backend.statistics() == ithaca.diffusers.Statistics(calls, {})


def test_padded_query_rows_are_zero_on_request(client):
    backend = ithaca.diffusers.backend(client, padded_queries="zero")
    keep = torch.tensor(PADDING["text last"])
    served, local = dispatch_both(
        backend, *random_qkv(), attn_mask=keep[:, None, None, :]
    )
    torch.testing.assert_close(served[keep], local[keep])
    assert not served[~keep].any()
    assert local[~keep].all()


def test_rows_that_the_mask_empties_are_zero(backend):
    keep = torch.tensor(PADDING["text last"])
    mask = keep[:, None, None, :] & keep[:, None, :, None]
    served, local = dispatch_both(backend, *random_qkv(), attn_mask=mask)
    torch.testing.assert_close(served[keep], local[keep])
    assert not served[~keep].any()


def test_an_element_with_every_key_hidden_is_zero(backend):
    mask = torch.tensor([[T] * 9, [F] * 9])
    served = dispatch_attention_fn(*random_qkv(), attn_mask=mask, backend=backend)
    assert served[0].all()
    assert not served[1].any()


def test_attention_to_more_keys_than_queries_is_served(backend, server):
    served, local = dispatch_both(backend, *random_qkv(tokens=4, key_tokens=9))
    torch.testing.assert_close(served, local)
    assert server.requests[0].layout.image_queries_only


def test_cross_attention_to_fewer_keys_runs_locally_and_is_counted(
    backend, server, caplog
):
    qkv = random_qkv(tokens=9, key_tokens=4)
    for _ in range(3):
        served, local = dispatch_both(backend, *qkv)
        torch.testing.assert_close(served, local)
    assert server.requests == []
    assert backend.statistics() == ithaca.diffusers.Statistics(
        0, {"cross_attention": 3}
    )
    assert caplog.text.count("cross attention of 9 tokens to 4 others") == 1


UNSERVABLE = {
    "mask": {"attn_mask": torch.ones(9, 9, dtype=torch.bool).tril()},
    "causal": {"is_causal": True},
}


@pytest.mark.parametrize("kind", UNSERVABLE)
def test_what_is_not_served_is_refused(backend, server, kind):
    with pytest.raises(ithaca.diffusers.UnservableError) as caught:
        dispatch_attention_fn(*random_qkv(), backend=backend, **UNSERVABLE[kind])
    assert caught.value.kind == kind
    assert server.requests == []


@pytest.mark.parametrize("kind", UNSERVABLE)
def test_what_is_not_served_runs_locally_on_request(client, server, kind):
    backend = ithaca.diffusers.backend(client, fallback="local")
    served, local = dispatch_both(backend, *random_qkv(), **UNSERVABLE[kind])
    torch.testing.assert_close(served, local)
    assert backend.statistics().local_calls == {kind: 1}
    assert server.requests == []


def test_a_bias_is_refused(backend):
    bias = torch.log(torch.tensor([1.0, 3, 1, 1, 1, 1, 1, 1, 1])).expand(1, 1, 1, 9)
    with pytest.raises(ithaca.diffusers.UnservableError, match="bias"):
        dispatch_attention_fn(*random_qkv(), attn_mask=bias, backend=backend)


def test_dropout_and_other_value_sizes_are_refused(backend):
    query, key, value = random_qkv()
    with pytest.raises(ithaca.diffusers.UnservableError, match="dropout"):
        dispatch_attention_fn(query, key, value, dropout_p=0.1, backend=backend)
    with pytest.raises(ithaca.diffusers.UnservableError, match="head_dim"):
        dispatch_attention_fn(query, key, value[..., :4], backend=backend)
    with pytest.raises(ValueError, match="return_lse"):
        dispatch_attention_fn(
            query, key, value, attention_kwargs={"return_lse": True}, backend=backend
        )
    with pytest.raises(ithaca.diffusers.UnservableError, match="parallelism"):
        dispatch_attention_fn(
            query, key, value, backend=backend, parallel_config=object()
        )


def test_never_falling_back_refuses_cross_attention_too(client):
    backend = ithaca.diffusers.backend(client, fallback="never")
    with pytest.raises(ithaca.diffusers.UnservableError, match="cross attention"):
        dispatch_attention_fn(*random_qkv(key_tokens=4), backend=backend)


def test_a_failing_service_is_never_replaced_in_silence(client, server):
    backend = ithaca.diffusers.backend(client, fallback="local")
    server.stop()
    with pytest.raises(ithaca.UnavailableError):
        dispatch_attention_fn(*random_qkv(), backend=backend)
    assert backend.statistics() == ithaca.diffusers.Statistics(0, {})


def test_training_is_refused(backend):
    query, key, value = random_qkv()
    with pytest.raises(ValueError, match="query requires a gradient"):
        dispatch_attention_fn(query.requires_grad_(), key, value, backend=backend)


def test_inference_mode_is_served(backend, server):
    mask = torch.tensor(PADDING["no order at all"])[:, None, None, :]
    with torch.inference_mode():
        served, local = dispatch_both(backend, *random_qkv(), attn_mask=mask)
        torch.testing.assert_close(served, local)
    assert len(server.requests) == 2


def test_on_call_hears_of_every_call(client):
    calls = []
    backend = ithaca.diffusers.backend(client, on_call=calls.append)
    mask = torch.tensor(PADDING["text last"])
    dispatch_attention_fn(*random_qkv(), attn_mask=mask, backend=backend)
    dispatch_attention_fn(*random_qkv(), backend=backend)
    assert [call.query_shape for call in calls] == [(2, 9, 4, 8)] * 2
    assert calls[0].layout.valid_text_tokens == (2, 0)
    assert calls[1].layout is None
    assert all(call.seconds > 0 and call.report.world_size == 2 for call in calls)


def test_call_options_reach_the_service(client, server):
    backend = ithaca.diffusers.backend(client, precision="int8")
    dispatch_attention_fn(*random_qkv(), backend=backend)
    assert server.requests[0].options.communication_precision == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_dtype(backend, dtype):
    served, local = dispatch_both(backend, *(x.to(dtype) for x in random_qkv()))
    assert served.dtype == dtype
    assert reference.relative_error(served.float(), local.float()) < 8e-3
