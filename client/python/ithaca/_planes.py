"""How the tensors of a call travel, and which way a call takes."""

from __future__ import annotations

import dataclasses

NAMES = ("auto", "unary", "stream", "shared_memory", "cuda_memory")

# From so many bytes in one direction on a stream is faster than a message;
# measured on loopback.
STREAM_FROM_BYTES = 4 << 20
# Up to so many in both together a message is as fast as shared memory.
SHARED_MEMORY_FROM_BYTES = 128 << 10
# What a message has beside its tensors is far below this.
_MESSAGE_MARGIN = 64 << 10


@dataclasses.dataclass(frozen=True)
class Limits:
    """What both sides can."""

    max_message_bytes: int
    shared_memory: bool = False
    cuda_memory: bool = False


def connection_plane(
    asked: str, request_bytes: int, response_bytes: int, limits: Limits
) -> str:
    """ "unary" or "stream", of a call that goes through the connection."""
    if asked in ("unary", "stream"):
        return asked
    largest = max(request_bytes, response_bytes)
    fits = limits.max_message_bytes - _MESSAGE_MARGIN
    return "stream" if largest > fits or largest >= STREAM_FROM_BYTES else "unary"
