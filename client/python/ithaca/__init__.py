"""Ithaca: attention for diffusion transformers, served over several workers.

>>> import ithaca
>>> with ithaca.Client("localhost:50051") as client:
...     output = client.attention(query, key, value)

`ithaca.diffusers` sends a diffusers pipeline's attention here. This package
only talks to a running service; it computes no attention itself.
"""

try:
    from ithaca._version import __version__
    from ithaca.v1 import attention_pb2 as _attention_pb2  # noqa: F401
except ImportError as error:
    raise ImportError(
        "ithaca's generated files are missing or broken: in a checkout, run "
        "client/python/generate_protos.py"
    ) from error

from ithaca._client import Client
from ithaca._reports import ExecutionReport, GroupInfo, ServerInfo
from ithaca.errors import (
    AlreadyExistsError,
    CancelledError,
    DeadlineExceededError,
    Error,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)

__all__ = [
    "AlreadyExistsError",
    "CancelledError",
    "Client",
    "DeadlineExceededError",
    "Error",
    "ExecutionReport",
    "FailedPreconditionError",
    "GroupInfo",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "ResourceExhaustedError",
    "ServerInfo",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "__version__",
]
