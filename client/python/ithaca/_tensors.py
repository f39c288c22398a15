"""numpy arrays and torch tensors as the bytes of a `Tensor`, and back.

torch is never imported here: a caller that hands over a torch tensor has it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from ithaca.v1 import attention_pb2 as pb

_NUMPY_DTYPES = {
    np.dtype(np.float32): pb.DATA_TYPE_FLOAT32,
    np.dtype(np.float16): pb.DATA_TYPE_FLOAT16,
    np.dtype(ml_dtypes.bfloat16): pb.DATA_TYPE_BFLOAT16,
}
_SUPPORTED = "float32, float16 and bfloat16"


@dataclasses.dataclass(frozen=True)
class HostTensor:
    """One tensor in host memory: row-major, contiguous, little-endian.

    kind: what it was made from, device included; call tensors must agree.
    restore: makes another of that kind from (bytes, shape), copying once.
    """

    dtype: int
    shape: tuple[int, ...]
    data: memoryview
    kind: str
    restore: Callable[[memoryview, tuple[int, ...]], Any]


def _check_rank(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) not in (3, 4):
        raise ValueError(
            f"{name} has shape {list(shape)}: expected [batch, tokens, heads, "
            "head_dim] or [tokens, heads, head_dim]"
        )


def _from_numpy(name: str, array: np.ndarray) -> HostTensor:
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: its mask would be lost")
    native = array.dtype.newbyteorder("=")
    if native not in _NUMPY_DTYPES:
        raise TypeError(f"{name} has dtype {array.dtype}: expected {_SUPPORTED}")
    _check_rank(name, array.shape)
    # Copies only what is strided, or stored in the other byte order.
    flat = np.ascontiguousarray(array, dtype=native).reshape(-1)

    def restore(data: memoryview, shape: tuple[int, ...]) -> np.ndarray:
        return np.frombuffer(data, dtype=native).reshape(shape).copy()

    return HostTensor(
        dtype=_NUMPY_DTYPES[native],
        shape=array.shape,
        data=flat.view(np.uint8).data,
        kind="numpy array",
        restore=restore,
    )


def _from_torch(name: str, tensor: Any, torch: Any) -> HostTensor:
    dtypes = {
        torch.float32: pb.DATA_TYPE_FLOAT32,
        torch.float16: pb.DATA_TYPE_FLOAT16,
        torch.bfloat16: pb.DATA_TYPE_BFLOAT16,
    }
    if tensor.dtype not in dtypes:
        raise TypeError(f"{name} has dtype {tensor.dtype}: expected {_SUPPORTED}")
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} has layout {tensor.layout}: expected a dense one")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name} requires a gradient, and Ithaca only serves inference: "
            "call under torch.no_grad(), or detach it"
        )
    _check_rank(name, tuple(tensor.shape))
    dtype, device = tensor.dtype, tensor.device
    # Copies only what is strided, negated lazily, or on another device.
    flat = tensor.detach().resolve_neg().cpu().contiguous().reshape(-1)

    def restore(data: memoryview, shape: tuple[int, ...]) -> Any:
        if not data:
            return torch.empty(shape, dtype=dtype, device=device)
        # frombuffer shares memory, and wants it writable.
        out = torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
        return out.to(device)

    return HostTensor(
        dtype=dtypes[dtype],
        shape=tuple(tensor.shape),
        data=flat.view(torch.uint8).numpy().data,
        kind=f"torch tensor on {device}",
        restore=restore,
    )


def to_host(name: str, value: Any) -> HostTensor:
    """Raises TypeError or ValueError, naming `name`, if it cannot be sent."""
    if isinstance(value, np.ndarray):
        return _from_numpy(name, value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(name, value, torch)
    raise TypeError(
        f"{name} is a {type(value).__name__}: expected a numpy array or a torch tensor"
    )


def to_host_together(**values: Any) -> dict[str, HostTensor]:
    """to_host for one call's tensors, which must be of one kind and dtype."""
    tensors = {name: to_host(name, value) for name, value in values.items()}
    (first_name, first), *others = tensors.items()
    for name, tensor in others:
        if tensor.kind != first.kind:
            raise TypeError(
                f"{name} is a {tensor.kind}, {first_name} a {first.kind}: "
                "expected the same"
            )
        if tensor.dtype != first.dtype:
            raise TypeError(
                f"{name} has dtype {values[name].dtype}, {first_name} "
                f"{values[first_name].dtype}: expected the same"
            )
    return tensors
