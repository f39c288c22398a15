"""Whole transformers of diffusers through the real service."""

import pytest
import torch

import ithaca.diffusers
import test_models
from ithaca import _demo_models


@pytest.mark.parametrize("name", test_models.MODELS)
def test_a_served_transformer_equals_the_local_one(client, name):
    model = test_models.MODELS[name][0]()
    local = _demo_models.denoise(model, steps=2)
    backend = ithaca.diffusers.backend(client)
    model.transformer.set_attention_backend(backend)
    try:
        served = _demo_models.denoise(model, steps=2)
    finally:
        backend.close()
    torch.testing.assert_close(served, local, rtol=1e-4, atol=1e-5)
    assert backend.statistics().served_calls == 2 * model.calls_per_step
