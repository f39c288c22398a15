"""Attention by its definition, in float64: what the service must answer."""

import numpy as np


def attention(
    query,
    key,
    value,
    *,
    text_tokens=0,
    valid_text_tokens=None,
    order="image_first",
    image_queries_only=False,
    softmax_scale=None,
):
    """[B, S, H, D] in and out; the output is rounded once to query's dtype."""
    batch, key_tokens, num_kv_heads, head_dim = key.shape
    group = query.shape[2] // num_kv_heads
    scale = 1 / np.sqrt(head_dim) if softmax_scale is None else softmax_scale
    valid = [text_tokens] * batch if valid_text_tokens is None else valid_text_tokens
    text_start = 0 if order == "text_first" else key_tokens - text_tokens
    out = np.zeros(query.shape, np.float64)
    for b in range(batch):
        keep = np.ones(key_tokens, bool)
        keep[text_start + valid[b] : text_start + text_tokens] = False
        q = query[b].astype(np.float64)
        k = np.repeat(key[b, keep].astype(np.float64), group, axis=1)
        v = np.repeat(value[b, keep].astype(np.float64), group, axis=1)
        if not keep.any():
            continue
        logits = scale * np.einsum("qhd,khd->hqk", q, k)
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[b] = np.einsum("hqk,khd->qhd", weights, v)
        if not image_queries_only:
            out[b, ~keep] = 0
    return out.astype(query.dtype)


def relative_error(actual, expected) -> float:
    """||actual - expected|| / ||expected||, as float64."""
    actual = np.asarray(actual, np.float64)
    expected = np.asarray(expected, np.float64)
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))
