"""The calls kept in tests/data, for whoever wants to check a service by them."""

import dataclasses
import pathlib

import torch
from safetensors import safe_open

DATA = pathlib.Path(__file__).resolve().parents[3] / "tests" / "data"
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 8e-3}


@dataclasses.dataclass(frozen=True)
class CapturedCall:
    """qkv and output: torch tensors; layout: arguments of Client.attention."""

    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    output: torch.Tensor
    layout: dict


def names() -> list[str]:
    return sorted(path.name for path in DATA.glob("*.safetensors"))


def load(name: str) -> CapturedCall:
    with safe_open(DATA / name, framework="pt") as file:
        metadata = file.metadata()
        query, key, value, output = (
            file.get_tensor(tensor) for tensor in ("query", "key", "value", "output")
        )
    return CapturedCall(
        qkv=(query, key, value),
        output=output,
        layout={
            "text_tokens": int(metadata["text_tokens"]),
            "order": metadata["order"],
            "valid_text_tokens": [
                int(length) for length in metadata["valid_text_tokens"].split(",")
            ],
        },
    )
