"""Small diffusion transformers of diffusers, from config and random weights.

The real architectures of FLUX and HunyuanVideo, with fewer and narrower blocks:
nothing is downloaded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    FluxTransformer2DModel,
    HunyuanVideoTransformer3DModel,
)

_SEED = 20


@dataclasses.dataclass(frozen=True)
class DemoModel:
    """A transformer and what it denoises.

    predict: (latents, timestep [batch]) -> the velocity, of latents' shape.
    calls_per_step: attention calls in one forward pass.
    """

    name: str
    description: str
    transformer: torch.nn.Module
    latents: torch.Tensor
    predict: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    calls_per_step: int


def _randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _build(model: Callable[..., torch.nn.Module], **config) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        return model(**config).eval()


def flux(side: int = 16, text_tokens: int = 32) -> DemoModel:
    """Text to image: side x side image tokens, joined with text in front.

    Its 6 heads do not divide evenly over 4 workers.
    """
    transformer = _build(
        FluxTransformer2DModel,
        in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=32,
        num_attention_heads=6,
        joint_attention_dim=64,
        pooled_projection_dim=32,
        axes_dims_rope=(8, 12, 12),
    )
    text = _randn(1, text_tokens, 64, seed=1)
    pooled = _randn(1, 32, seed=2)
    rows, columns = torch.meshgrid(
        torch.arange(side), torch.arange(side), indexing="ij"
    )
    image_ids = torch.stack([torch.zeros_like(rows), rows, columns], -1).reshape(-1, 3)
    text_ids = torch.zeros(text_tokens, 3)

    def predict(latents: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        return transformer(
            hidden_states=latents,
            timestep=timestep / 1000,
            encoder_hidden_states=text,
            pooled_projections=pooled,
            img_ids=image_ids,
            txt_ids=text_ids,
            return_dict=False,
        )[0]

    return DemoModel(
        name="FLUX",
        description=(
            f"2 double and 2 single blocks, 6 heads of 32, {side * side} image "
            f"and {text_tokens} text tokens"
        ),
        transformer=transformer,
        latents=_randn(1, side * side, 16, seed=3),
        predict=predict,
        calls_per_step=4,
    )


def hunyuan_video(
    frames: int = 3,
    side: int = 12,
    text_tokens: int = 24,
    valid_text_tokens: tuple[int, ...] = (17, 6),
    head_dim: int = 32,
) -> DemoModel:
    """Text to video: two prompts of different lengths, padded to one length."""
    batch = len(valid_text_tokens)
    transformer = _build(
        HunyuanVideoTransformer3DModel,
        in_channels=4,
        out_channels=4,
        num_attention_heads=4,
        attention_head_dim=head_dim,
        num_layers=2,
        num_single_layers=2,
        num_refiner_layers=1,
        patch_size=2,
        guidance_embeds=False,
        text_embed_dim=48,
        pooled_projection_dim=32,
        rope_axes_dim=(head_dim // 4, head_dim * 3 // 8, head_dim * 3 // 8),
    )
    text = _randn(batch, text_tokens, 48, seed=4)
    pooled = _randn(batch, 32, seed=5)
    mask = torch.arange(text_tokens) < torch.tensor(valid_text_tokens)[:, None]

    def predict(latents: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        return transformer(
            hidden_states=latents,
            timestep=timestep.long(),
            encoder_hidden_states=text,
            encoder_attention_mask=mask.long(),
            pooled_projections=pooled,
            return_dict=False,
        )[0]

    valid = " and ".join(map(str, valid_text_tokens))
    return DemoModel(
        name="HunyuanVideo",
        description=(
            f"2 double and 2 single blocks, 4 heads of {head_dim}, "
            f"{frames * (side // 2) ** 2} video and {text_tokens} text tokens, "
            f"of which {valid} are real"
        ),
        transformer=transformer,
        latents=_randn(batch, 4, frames, side, side, seed=6),
        predict=predict,
        calls_per_step=4,
    )


@torch.no_grad()
def denoise(model: DemoModel, steps: int) -> torch.Tensor:
    """The latents after `steps` steps of flow matching from noise."""
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(steps)
    latents = model.latents
    for timestep in scheduler.timesteps:
        velocity = model.predict(latents, timestep.expand(latents.shape[0]))
        latents = scheduler.step(velocity, timestep, latents, return_dict=False)[0]
    return latents
