"""What a call can fail with: one class for each gRPC status Ithaca uses.

Problems that the client sees itself (a dtype Ithaca does not know, a tensor
that wants gradients) are plain TypeError and ValueError, raised before anything
is sent.
"""

from __future__ import annotations

import grpc

# Trailing metadata, in milliseconds.
_RETRY_AFTER = "ithaca-retry-after-ms"


class Error(Exception):
    """A call to the service failed.

    code: the gRPC status. message: the server's own words. request_id: as in
    the server's log; empty for calls without one. retry_after: seconds after
    which the server thinks a retry worth while, None if it did not say.
    """

    def __init__(
        self,
        message: str,
        code: grpc.StatusCode,
        *,
        request_id: str = "",
        retry_after: float | None = None,
    ):
        super().__init__(message)
        self.message = message
        self.code = code
        self.request_id = request_id
        self.retry_after = retry_after

    def __str__(self) -> str:
        text = f"{self.code.name}: {self.message}"
        if self.request_id:
            text += f" (request_id {self.request_id})"
        return text


class InvalidArgumentError(Error, ValueError):
    """The request is malformed; the message names the field. Do not retry."""


class NotFoundError(Error):
    """A memory region or lease that the server does not know."""


class AlreadyExistsError(Error):
    """A request with this request_id is in flight."""


class UnimplementedError(Error):
    """A well-formed request for something this server cannot do."""


class ResourceExhaustedError(Error):
    """The queue or byte budget is full, or the request is over a limit."""


class DeadlineExceededError(Error, TimeoutError):
    """The timeout passed first."""


class UnavailableError(Error):
    """No ready group of workers, a lost one, or no server. Worth a retry."""


class FailedPreconditionError(Error):
    """The server's state forbids it; a retry as is will not help."""


class UnauthenticatedError(Error):
    """The token is missing or wrong."""


class CancelledError(Error):
    """The call was cancelled."""


class InternalError(Error):
    """A fault in Ithaca itself, or an answer that makes no sense."""


_CLASSES = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExistsError,
    grpc.StatusCode.UNIMPLEMENTED: UnimplementedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPreconditionError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.CANCELLED: CancelledError,
    grpc.StatusCode.INTERNAL: InternalError,
}


def _retry_after(error: grpc.RpcError) -> float | None:
    hint = dict(error.trailing_metadata() or ()).get(_RETRY_AFTER)
    try:
        return None if hint is None else int(hint) / 1000
    except ValueError:
        return None  # a hint we cannot read is no hint


def from_rpc_error(error: grpc.RpcError, request_id: str = "") -> Error:
    """The Error that says what `error`, raised by a gRPC call, says."""
    code = error.code()
    return _CLASSES.get(code, Error)(
        error.details() or code.name,
        code,
        request_id=request_id,
        retry_after=_retry_after(error),
    )
