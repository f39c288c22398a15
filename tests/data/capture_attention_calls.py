#!/usr/bin/env python3
"""Makes the .safetensors files beside it: see README.md.

    PYTHONPATH=client/python:client/python/tests tests/data/capture_attention_calls.py

Denoises with the demo's models, takes query, key and value of one attention call
out of the last step, and adds the output by the definition, in float64, rounded
once.
"""

import pathlib

import torch
from ml_dtypes import bfloat16
from safetensors.torch import save_file

import ithaca.diffusers
import reference
from ithaca import _demo_models

HERE = pathlib.Path(__file__).resolve().parent
BLOCK = 1  # of the last step: the second, still a double block


class Recorder:
    """Stands in for a Client: answers by the definition, and keeps the calls."""

    def __init__(self):
        self.calls = []

    def attention(self, query, key, value, *, return_report, **arguments):
        assert return_report
        self.calls.append((query, key, value))
        return exact(query, key, value, **arguments), None


def exact(query, key, value, **arguments):
    arrays = (x.to(torch.float64).numpy() for x in (query, key, value))
    output = reference.attention(*arrays, **arguments)
    if query.dtype == torch.bfloat16:
        # Rounded by ml_dtypes: torch would go through float32, and round twice.
        output = output.astype(bfloat16).astype("float32")
    return torch.from_numpy(output).to(query.dtype)


def capture(file_name, model, dtype, layout):
    recorder = Recorder()
    backend = ithaca.diffusers.backend(recorder, padded_queries="zero")
    model.transformer.set_attention_backend(backend)
    _demo_models.denoise(model, steps=2)
    backend.close()
    call = recorder.calls[model.calls_per_step + BLOCK]
    query, key, value = (x.to(dtype).contiguous() for x in call)
    save_file(
        {
            "query": query,
            "key": key,
            "value": value,
            "output": exact(query, key, value, **layout),
        },
        HERE / file_name,
        metadata={
            "model": model.name,
            "text_tokens": str(layout["text_tokens"]),
            "order": layout["order"],
            "valid_text_tokens": ",".join(map(str, layout["valid_text_tokens"])),
        },
    )


def main():
    capture(
        "flux_attention.safetensors",
        _demo_models.flux(side=5, text_tokens=6),
        torch.bfloat16,
        {"text_tokens": 6, "order": "text_first", "valid_text_tokens": [6]},
    )
    capture(
        "hunyuan_video_attention.safetensors",
        _demo_models.hunyuan_video(
            frames=3, side=6, text_tokens=9, valid_text_tokens=(7, 3), head_dim=16
        ),
        torch.float32,
        {"text_tokens": 9, "order": "image_first", "valid_text_tokens": [7, 3]},
    )


if __name__ == "__main__":
    main()
