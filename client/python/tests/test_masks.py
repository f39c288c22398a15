import numpy as np
import pytest
import torch

from ithaca import _masks
from ithaca._masks import TokenLayout, key_padding, text_layout

T, F = True, False


def layout_of(*rows):
    return text_layout(np.array(rows))


def test_a_mask_that_hides_nothing_needs_no_text():
    assert layout_of([T, T, T], [T, T, T]) == TokenLayout(0, "image_first", ())


def test_padding_at_the_end_is_text_after_the_image():
    assert layout_of([T, T, T, T, F], [T, T, F, F, F]) == TokenLayout(
        3, "image_first", (2, 0)
    )


def test_everything_hidden_in_one_element_is_text_of_length_zero():
    assert layout_of([T, T, F], [F, F, F]) == TokenLayout(3, "image_first", (2, 0))


def test_padding_before_the_image_is_text_in_front():
    assert layout_of([T, F, F, T, T], [T, T, F, T, T], [T] * 5) == TokenLayout(
        3, "text_first", (1, 2, 3)
    )


def test_text_padded_on_the_left_is_hidden_text_in_front():
    assert layout_of([F, F, T, T]) == TokenLayout(2, "text_first", (0,))


@pytest.mark.parametrize(
    "rows",
    [
        [[F, T, T, T], [F, F, T, T]],
        [[T, F, T, F]],
        [[T, F, T, F, T]],
        [[T, T, F], [F, T, T]],
    ],
)
def test_other_padding_has_no_one_layout(rows):
    assert layout_of(*rows) is None


def test_every_layout_keeps_what_the_mask_keeps():
    # All masks of up to 5 tokens, alone and in pairs.
    for tokens in range(1, 6):
        rows = [[bool(n >> i & 1) for i in range(tokens)] for n in range(1 << tokens)]
        for first in rows:
            for second in [None, *rows] if tokens < 5 else [None]:
                keep = np.array([first] if second is None else [first, second])
                layout = text_layout(keep)
                if layout is None:
                    continue
                again = np.ones_like(keep)
                start = (
                    0 if layout.order == "text_first" else tokens - layout.text_tokens
                )
                for b, valid in enumerate(layout.valid_text_tokens):
                    assert 0 <= valid <= layout.text_tokens
                    again[b, start + valid : start + layout.text_tokens] = False
                np.testing.assert_array_equal(again, keep)


KEEP = torch.tensor([[T, T, T, F], [T, F, F, F]])
ADDITIVE = torch.where(KEEP, 0.0, -torch.inf)

SAME_MASK = {
    "batch by key": KEEP,
    "broadcast over heads and rows": KEEP[:, None, None, :],
    "expanded over rows": KEEP[:, None, None, :].expand(2, 3, 4, 4),
    "every row in full": KEEP[:, None, None, :].repeat(1, 3, 4, 1),
    "additive -inf": ADDITIVE[:, None, None, :],
    "additive finfo.min": ADDITIVE.clamp(torch.finfo(torch.float32).min),
    "additive -10000": ADDITIVE.clamp(-10000).half()[:, None, None, :],
}


@pytest.mark.parametrize("kind", SAME_MASK)
def test_masks_of_every_form_are_read_alike(kind):
    padding = key_padding(SAME_MASK[kind], 2, 4, 4)
    np.testing.assert_array_equal(padding.keep, KEEP.numpy())
    assert not padding.empty_rows


def test_a_mask_that_also_empties_the_hidden_rows_is_read_as_such():
    mask = KEEP[:, None, None, :] & KEEP[:, None, :, None]
    padding = key_padding(mask, 2, 4, 4)
    np.testing.assert_array_equal(padding.keep, KEEP.numpy())
    assert padding.empty_rows


def test_one_mask_serves_the_whole_batch():
    padding = key_padding(KEEP[:1, None, None, :], 3, 4, 4)
    np.testing.assert_array_equal(padding.keep, KEEP[:1].expand(3, -1).numpy())


def test_a_square_mask_is_query_by_key_unless_it_is_batch_by_key():
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    with pytest.raises(_masks.UnsupportedMaskError, match="query rows"):
        key_padding(causal, 2, 4, 4)
    assert key_padding(causal, 4, 4, 4).keep.sum() == 10


ROW_HIDDEN = torch.ones(1, 1, 4, 4, dtype=torch.bool)
ROW_HIDDEN[0, 0, 3] = False
HEADS_DIFFER = torch.ones(1, 2, 1, 4, dtype=torch.bool)
HEADS_DIFFER[0, 1, 0, 3] = False
REFUSED = {
    "bias": (torch.tensor([0.0, 0.7, 0, 0]).expand(1, 1, 1, 4), "bias"),
    "nan": (torch.tensor([0.0, torch.nan, 0, 0]).expand(1, 1, 1, 4), "bias"),
    "integers": (torch.ones(1, 4, dtype=torch.int64), "dtype torch.int64"),
    "a kept key's row emptied": (ROW_HIDDEN, "query rows"),
    "heads": (HEADS_DIFFER, "heads"),
    "length": (torch.ones(1, 1, 1, 5, dtype=torch.bool), "shape"),
    "rank 5": (torch.ones(1, 1, 1, 1, 4, dtype=torch.bool), "shape"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_masks_that_say_more_than_padding_are_refused(kind):
    mask, message = REFUSED[kind]
    with pytest.raises(_masks.UnsupportedMaskError, match=message):
        key_padding(mask, 1, 4, 4)
