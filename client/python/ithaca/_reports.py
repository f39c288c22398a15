"""What the service says about a call and about itself, as plain Python."""

from __future__ import annotations

import dataclasses

from ithaca.v1 import attention_pb2 as pb


def enum_label(enum, prefix: str, number: int) -> str:
    """`HEAD_SCHEDULE_PER_HEAD` as "per_head"; a number we lack as digits."""
    value = enum.DESCRIPTOR.values_by_number.get(number)
    return value.name.removeprefix(prefix).lower() if value else str(number)


def _precision(number: int) -> str:
    return enum_label(pb.CommunicationPrecision, "COMMUNICATION_PRECISION_", number)


def _kernel(number: int) -> str:
    return enum_label(pb.AttentionKernel, "ATTENTION_KERNEL_", number)


@dataclasses.dataclass(frozen=True)
class ExecutionReport:
    """How one call ran. Times in seconds; stages are the slowest rank's.

    plane: how the tensors travelled, "unary", "stream", "shared_memory" or
    "cuda_memory". plane_note: why not by the plane that was asked for, or that
    both sides can in general; empty if there is nothing to tell.
    """

    request_id: str
    group: str
    group_generation: int
    world_size: int
    precision: str
    schedule: str
    kernel: str
    queue_seconds: float
    total_seconds: float
    stage_seconds: dict[str, float]
    communication_bytes: int  # that a rank put on the wire, largest rank
    plane: str = "unary"
    plane_note: str = ""

    @classmethod
    def from_response(
        cls, response: pb.AttentionResponse, plane: str, plane_note: str
    ) -> ExecutionReport:
        report = response.report
        return cls(
            request_id=response.request_id,
            group=report.group,
            group_generation=report.group_generation,
            world_size=report.world_size,
            precision=_precision(report.communication_precision),
            schedule=enum_label(
                pb.HeadSchedule, "HEAD_SCHEDULE_", report.head_schedule
            ),
            kernel=_kernel(report.kernel),
            queue_seconds=report.queue_seconds,
            total_seconds=report.total_seconds,
            stage_seconds=dict(report.stage_seconds),
            communication_bytes=report.communication_bytes,
            plane=plane,
            plane_note=plane_note,
        )


@dataclasses.dataclass(frozen=True)
class GroupInfo:
    """One group of workers; state is "forming", "ready", "draining", "failed"."""

    name: str
    generation: int
    world_size: int
    state: str
    workers: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class ServerInfo:
    """What the server can do."""

    version: str
    device: str
    groups: tuple[GroupInfo, ...]
    max_message_bytes: int
    max_request_bytes: int
    shared_memory: bool
    cuda_memory: bool
    precisions: tuple[str, ...]
    kernels: tuple[str, ...]

    @classmethod
    def from_response(cls, response: pb.GetServerInfoResponse) -> ServerInfo:
        return cls(
            version=response.version,
            device=response.device,
            groups=tuple(
                GroupInfo(
                    name=group.name,
                    generation=group.generation,
                    world_size=group.world_size,
                    state=group.state,
                    workers=tuple(group.workers),
                )
                for group in response.groups
            ),
            max_message_bytes=response.max_message_bytes,
            max_request_bytes=response.max_request_bytes,
            shared_memory=response.shared_memory,
            cuda_memory=response.cuda_memory,
            precisions=tuple(map(_precision, response.communication_precisions)),
            kernels=tuple(map(_kernel, response.kernels)),
        )
