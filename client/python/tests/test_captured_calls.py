import pytest

import captured_calls
import reference


def test_both_models_are_there():
    assert captured_calls.names() == [
        "flux_attention.safetensors",
        "hunyuan_video_attention.safetensors",
    ]


@pytest.mark.parametrize("name", captured_calls.names())
def test_a_captured_call_is_answered_rightly(client, name):
    call = captured_calls.load(name)
    output = client.attention(*call.qkv, **call.layout)
    assert output.dtype == call.output.dtype
    error = reference.relative_error(output.float(), call.output.float())
    assert error < captured_calls.TOLERANCE[output.dtype]


def test_the_padding_of_a_captured_call_matters(client):
    call = captured_calls.load("hunyuan_video_attention.safetensors")
    output = client.attention(*call.qkv, text_tokens=9)
    assert reference.relative_error(output, call.output) > 0.01
