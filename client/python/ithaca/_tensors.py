"""numpy arrays and torch tensors as the bytes of a `Tensor`, and back.

torch is never imported here: a caller that hands over a torch tensor has it.
"""

from __future__ import annotations

import abc
import functools
import sys
from typing import Any

import ml_dtypes
import numpy as np

from ithaca import _copies
from ithaca.v1 import attention_pb2 as pb

_NUMPY_DTYPES = {
    np.dtype(np.float32): pb.DATA_TYPE_FLOAT32,
    np.dtype(np.float16): pb.DATA_TYPE_FLOAT16,
    np.dtype(ml_dtypes.bfloat16): pb.DATA_TYPE_BFLOAT16,
}
_SUPPORTED = "float32, float16 and bfloat16"


class Output(abc.ABC):
    """The output of a call, before it is written."""

    @abc.abstractmethod
    def host_bytes(self) -> memoryview:
        """Where to write it, in host memory."""

    @abc.abstractmethod
    def finish(self) -> Any:
        """The caller's tensor, once it is written."""


class CallTensor(abc.ABC):
    """One tensor of a call: dense and row-major, whatever it was made from.

    kind: what it was made from, device included; call tensors must agree.
    """

    dtype: int
    shape: tuple[int, ...]
    nbytes: int
    kind: str

    @abc.abstractmethod
    def host_bytes(self) -> memoryview:
        """Its bytes in host memory; a copy if they lie elsewhere, or strided."""

    @abc.abstractmethod
    def copy_to(self, target: memoryview) -> None:
        """Writes its bytes; `target` has nbytes."""

    @abc.abstractmethod
    def new_output(self, memory: memoryview | None = None) -> Output:
        """An output of its kind, dtype and shape, in `memory` until finish()."""


def _check_rank(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) not in (3, 4):
        raise ValueError(
            f"{name} has shape {list(shape)}: expected [batch, tokens, heads, "
            "head_dim] or [tokens, heads, head_dim]"
        )


def _bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


class _NumpyOutput(Output):
    def __init__(self, array: np.ndarray, is_own: bool):
        self._array = array
        self._is_own = is_own

    def host_bytes(self) -> memoryview:
        return _bytes_of(self._array)

    def finish(self) -> np.ndarray:
        if self._is_own:
            return self._array
        own = np.empty_like(self._array)
        _copies.copy(_bytes_of(own), _bytes_of(self._array))
        return own


class NumpyTensor(CallTensor):
    def __init__(self, name: str, array: np.ndarray):
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(f"{name} is a masked array: its mask would be lost")
        native = array.dtype.newbyteorder("=")
        if native not in _NUMPY_DTYPES:
            raise TypeError(f"{name} has dtype {array.dtype}: expected {_SUPPORTED}")
        _check_rank(name, array.shape)
        self._array = array
        self._native = native
        self.dtype = _NUMPY_DTYPES[native]
        self.shape = array.shape
        self.nbytes = array.size * native.itemsize
        self.kind = "numpy array"

    @functools.cached_property
    def _dense(self) -> np.ndarray:
        # Copies only what is strided, or stored in the other byte order.
        return np.ascontiguousarray(self._array, dtype=self._native)

    def host_bytes(self) -> memoryview:
        return _bytes_of(self._dense)

    def copy_to(self, target: memoryview) -> None:
        if self._array.flags.c_contiguous and self._array.dtype == self._native:
            _copies.copy(target, self.host_bytes())
            return
        place = np.frombuffer(target, self._native).reshape(self.shape)
        place[...] = self._array

    def new_output(self, memory: memoryview | None = None) -> Output:
        if memory is None:
            return _NumpyOutput(np.empty(self.shape, self._native), is_own=True)
        array = np.frombuffer(memory, self._native).reshape(self.shape)
        return _NumpyOutput(array, is_own=False)


class _TorchOutput(Output):
    def __init__(self, tensor: Any, device: Any, is_own: bool):
        self._tensor = tensor
        self._device = device
        self._is_own = is_own

    def host_bytes(self) -> memoryview:
        torch = sys.modules["torch"]
        return self._tensor.reshape(-1).view(torch.uint8).numpy().data

    def finish(self) -> Any:
        # `to` copies only to another device.
        if self._is_own or self._device.type != "cpu":
            return self._tensor.to(self._device)
        return self._tensor.clone()


class TorchTensor(CallTensor):
    """tensor: detached, on its own device, strided as it came."""

    def __init__(self, name: str, tensor: Any, torch: Any):
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
        self.tensor = tensor.detach()
        self.torch = torch
        self.dtype = dtypes[tensor.dtype]
        self.shape = tuple(tensor.shape)
        self.nbytes = tensor.numel() * tensor.element_size()
        self.kind = f"torch tensor on {tensor.device}"

    def dense_on_device(self) -> Any:
        """The tensor without strides, where it is."""
        return self.tensor.resolve_neg().contiguous()

    @functools.cached_property
    def _dense(self) -> Any:
        # Copies only what is strided, negated lazily, or on another device.
        return self.tensor.resolve_neg().cpu().contiguous().reshape(-1)

    def host_bytes(self) -> memoryview:
        return self._dense.view(self.torch.uint8).numpy().data

    def copy_to(self, target: memoryview) -> None:
        if self.nbytes:
            self._place(target).copy_(self.tensor)

    def new_output(self, memory: memoryview | None = None) -> Output:
        device, is_own = self.tensor.device, memory is None or not self.nbytes
        if is_own:
            tensor = self.torch.empty(self.shape, dtype=self.tensor.dtype)
        else:
            tensor = self._place(memory)
        return _TorchOutput(tensor, device, is_own)

    def _place(self, memory: memoryview) -> Any:
        flat = self.torch.frombuffer(memory, dtype=self.tensor.dtype)
        return flat.reshape(self.shape)


def wrap(name: str, value: Any) -> CallTensor:
    """Raises TypeError or ValueError, naming `name`, if it cannot be sent."""
    if isinstance(value, np.ndarray):
        return NumpyTensor(name, value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return TorchTensor(name, value, torch)
    raise TypeError(
        f"{name} is a {type(value).__name__}: expected a numpy array or a torch tensor"
    )


def wrap_together(**values: Any) -> dict[str, CallTensor]:
    """wrap for one call's tensors, which must be of one kind and dtype."""
    tensors = {name: wrap(name, value) for name, value in values.items()}
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
