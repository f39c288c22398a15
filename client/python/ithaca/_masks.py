"""From an attention mask, as diffusers passes it, to Ithaca's token layout.

A call to Ithaca knows no mask: it knows image tokens, text tokens after or
before them, and how many of the text tokens are real. Most masks of diffusion
transformers say just that, key by key; these functions read it back.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

# Additive masks: what is at most this hides a key (-10000, finfo.min and -inf
# are all in use), 0 keeps it, and anything between is a bias.
_HIDDEN = -1e4


class UnsupportedMaskError(ValueError):
    """The mask treats query rows or heads differently, or is a bias."""


@dataclasses.dataclass(frozen=True)
class TokenLayout:
    """The layout arguments of Client.attention."""

    text_tokens: int
    order: str
    valid_text_tokens: tuple[int, ...]


def _as_bool(mask: torch.Tensor) -> torch.Tensor:
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise UnsupportedMaskError(
            f"the mask has dtype {mask.dtype}: expected bool (true keeps a key) or "
            "float (added to the logits)"
        )
    hidden = mask <= _HIDDEN
    if not torch.all(hidden | (mask == 0)):
        raise UnsupportedMaskError(
            "the mask is a bias: it adds values other than 0 to kept keys"
        )
    return ~hidden


@dataclasses.dataclass(frozen=True)
class KeyPadding:
    """keep: which keys each batch element attends to, bool [batch, key_tokens].

    empty_rows: the query rows of the tokens that are not kept attend to nothing;
    otherwise they attend to what all the others do.
    """

    keep: np.ndarray
    empty_rows: bool


def _broadcastable(
    mask: torch.Tensor, batch: int, query_tokens: int, key_tokens: int
) -> torch.Tensor:
    """`mask` as [1|batch, heads, 1|query, 1|key]."""
    if mask.ndim == 2 and tuple(mask.shape) == (batch, key_tokens):
        return mask[:, None, None, :]
    while mask.ndim < 4:
        mask = mask[None]
    shape = tuple(mask.shape)
    if (
        mask.ndim != 4
        or shape[0] not in (1, batch)
        or shape[2] not in (1, query_tokens)
        or shape[3] not in (1, key_tokens)
    ):
        raise UnsupportedMaskError(
            f"the mask has shape {list(shape)}: expected one that broadcasts to "
            f"[{batch}, heads, {query_tokens}, {key_tokens}]"
        )
    return mask


def key_padding(
    mask: torch.Tensor, batch: int, query_tokens: int, key_tokens: int
) -> KeyPadding:
    """Reads a mask that speaks of keys.

    mask: bool (true keeps) or float (added), and of any shape that
    scaled_dot_product_attention broadcasts to [batch, heads, query, key], or
    [batch, key]. It may also empty the rows of hidden tokens.

    Raises UnsupportedMaskError if it tells query rows or heads apart.
    """
    mask = _broadcastable(mask, batch, query_tokens, key_tokens)
    # An expanded dimension repeats itself: no need to look at all of it.
    for dim in range(3):
        if mask.shape[dim] > 1 and mask.stride(dim) == 0:
            mask = mask.narrow(dim, 0, 1)
    keep = _as_bool(mask)
    if keep.shape[1] > 1 and not torch.equal(keep, keep[:, :1].expand_as(keep)):
        raise UnsupportedMaskError("the mask differs between heads")
    keep = keep[:, 0].expand(-1, -1, key_tokens)
    kept = keep.any(dim=1)
    empty_rows = False
    if keep.shape[1] > 1:
        alike = (keep == kept[:, None]).all(dim=2)
        if not torch.all(alike):
            # As in outer products of a padding mask with itself.
            attending = keep.any(dim=2)
            if query_tokens != key_tokens or not torch.equal(attending, kept):
                raise UnsupportedMaskError("the mask differs between query rows")
            if not torch.all(alike | ~kept):
                raise UnsupportedMaskError("the mask differs between query rows")
            empty_rows = True
    return KeyPadding(kept.expand(batch, -1).cpu().numpy(), empty_rows)


def text_layout(keep: np.ndarray) -> TokenLayout | None:
    """The layout that keeps what `keep`, bool [batch, tokens], keeps.

    None if no single one does: text padded to different places, or on the left
    in some batch elements.
    """
    batch, tokens = keep.shape
    if keep.all():
        return TokenLayout(0, "image_first", ())
    kept = keep.sum(axis=1)
    # All hidden keys last: the text is at the end. As few tokens as can be are
    # called text, since every worker gets all of the text.
    if all(keep[b, : kept[b]].all() for b in range(batch)):
        image_tokens = int(kept.min())
        return TokenLayout(
            tokens - image_tokens,
            "image_first",
            tuple(int(count) - image_tokens for count in kept),
        )
    # One gap that ends at the same token everywhere: the text is in front.
    ends = tokens - np.argmin(keep[:, ::-1], axis=1)
    starts = np.argmin(keep, axis=1)
    holey = kept < tokens
    text_tokens = int(ends[holey][0])
    if (ends[holey] != text_tokens).any():
        return None
    valid = np.where(holey, starts, text_tokens)
    if (kept != tokens - text_tokens + valid).any():
        return None
    return TokenLayout(text_tokens, "text_first", tuple(map(int, valid)))
