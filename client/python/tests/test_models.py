"""Whole transformers of diffusers: served, they say what they say locally."""

import diffusers
import pytest
import torch

import ithaca.diffusers
from ithaca import _demo_models


def flux():
    return _demo_models.flux(side=4, text_tokens=6)


def hunyuan_video():
    return _demo_models.hunyuan_video(
        frames=2, side=4, text_tokens=7, valid_text_tokens=(5, 2)
    )


def wan():
    torch.manual_seed(0)
    transformer = diffusers.WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        text_dim=24,
        freq_dim=16,
        ffn_dim=32,
        num_layers=2,
        rope_max_seq_len=32,
    ).eval()
    text = torch.randn(1, 6, 24)

    def predict(latents, timestep):
        return transformer(latents, timestep, text, return_dict=False)[0]

    return _demo_models.DemoModel(
        name="Wan",
        description="",
        transformer=transformer,
        latents=torch.randn(1, 4, 2, 8, 8),
        predict=predict,
        calls_per_step=2,
    )


def qwen_image():
    torch.manual_seed(0)
    transformer = diffusers.QwenImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=3,
        joint_attention_dim=24,
        axes_dims_rope=(4, 6, 6),
    ).eval()
    text = torch.randn(2, 7, 24)
    mask = torch.arange(7) < torch.tensor([3, 7])[:, None]

    def predict(latents, timestep):
        return transformer(
            hidden_states=latents,
            encoder_hidden_states=text,
            encoder_hidden_states_mask=mask,
            timestep=timestep / 1000,
            img_shapes=[[(1, 4, 4)]] * 2,
            return_dict=False,
        )[0]

    return _demo_models.DemoModel(
        name="QwenImage",
        description="",
        transformer=transformer,
        latents=torch.randn(2, 16, 16),
        predict=predict,
        calls_per_step=2,
    )


MODELS = {
    "FLUX": (flux, None),
    "HunyuanVideo": (hunyuan_video, ("image_first", (3, 0))),
    "Wan": (wan, None),
    "QwenImage": (qwen_image, ("text_first", (3, 7))),
}


@pytest.mark.parametrize("padded_queries", ["local", "zero"])
@pytest.mark.parametrize("name", MODELS)
def test_a_served_transformer_equals_the_local_one(client, name, padded_queries):
    make, layout = MODELS[name]
    model = make()
    local = _demo_models.denoise(model, steps=2)
    calls = []
    backend = ithaca.diffusers.backend(
        client, padded_queries=padded_queries, on_call=calls.append
    )
    model.transformer.set_attention_backend(backend)
    try:
        served = _demo_models.denoise(model, steps=2)
    finally:
        backend.close()
    torch.testing.assert_close(served, local, rtol=1e-4, atol=1e-5)
    statistics = backend.statistics()
    assert statistics.served_calls == len(calls) == 2 * model.calls_per_step
    # Wan attends to its text apart: fewer keys than queries.
    assert statistics.local_calls == ({"cross_attention": 4} if name == "Wan" else {})
    for call in calls:
        if layout is None:
            assert call.layout is None
        else:
            assert (call.layout.order, call.layout.valid_text_tokens) == layout

    model.transformer.reset_attention_backend()
    torch.testing.assert_close(_demo_models.denoise(model, steps=2), local)


@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_answer_of_the_service_shows_in_the_output(client, server, name):
    model = MODELS[name][0]()
    local = _demo_models.denoise(model, steps=2)
    server.edit_response = lambda response: setattr(
        response.output, "data", bytes(len(response.output.data))
    )
    backend = ithaca.diffusers.backend(client)
    model.transformer.set_attention_backend(backend)
    try:
        served = _demo_models.denoise(model, steps=2)
    finally:
        backend.close()
    assert (served - local).abs().max() > 1e-3
