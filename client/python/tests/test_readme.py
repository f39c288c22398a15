"""What the README shows works as it stands, but for the server's address."""

import pathlib
import re
import types

import ithaca._demo_models
import ithaca.diffusers

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text()
ONE_CALL, TWO_LINES = re.findall(r"```python\n(.*?)```", README, re.S)


def run(code, server, **names):
    assert code.count('"localhost:50051"') == 1
    code = code.replace("localhost:50051", server.address)
    exec(compile(code, "README.md", "exec"), names)


def test_the_one_call(server):
    run(ONE_CALL, server)
    assert server.requests[0].layout.text_tokens == 128


def test_the_two_lines(server):
    assert len([line for line in TWO_LINES.splitlines() if line]) == 2
    model = ithaca._demo_models.flux(side=4, text_tokens=6)
    run(
        TWO_LINES,
        server,
        pipeline=types.SimpleNamespace(transformer=model.transformer),
    )
    try:
        ithaca._demo_models.denoise(model, steps=1)
        assert len(server.requests) == model.calls_per_step
    finally:
        model.transformer.reset_attention_backend()
        # Whoever comes next gets diffusers' default again.
        ithaca.diffusers.backend(server.address).close()
