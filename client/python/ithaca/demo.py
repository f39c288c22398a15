"""python -m ithaca.demo --coordinator PATH: two diffusion models, served.

Starts a coordinator with 4 CPU workers on this host; builds a small FLUX and a
small HunyuanVideo transformer of diffusers with random weights; denoises with
each, first with local attention, then with every attention call through the
service; and compares. Exits 1 if an output differs or a call was not served.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import logging
import os
import statistics
import sys
import time
import warnings

try:
    # The models are built here: nothing is looked up at the hub.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    import ithaca
    import ithaca.diffusers
    from ithaca import _demo_models
except ImportError as error:
    sys.exit(
        f"the demo needs diffusers and torch (pip install ithaca[diffusers]): {error}"
    )

from ithaca._coordinator import Coordinator, CoordinatorError

_STEPS = 4
# ||served - local|| / ||local|| of a model's float32 output. The two round
# differently; a token, head or mask gone astray is larger by orders of magnitude.
_TOLERANCE = 1e-4
# In the order in which a call goes through them.
_STAGES = (
    "scatter",
    "pack",
    "all_to_all",
    "unpack",
    "attention",
    "output_pack",
    "output_all_to_all",
    "output_unpack",
    "gather",
)
_SHOWN_METRICS = (
    "ithaca_requests_total",
    "ithaca_request_duration_seconds_count",
    "ithaca_request_duration_seconds_sum",
    "ithaca_groups",
    "ithaca_workers",
)


class DemoError(Exception):
    """What the demo was to show did not come true."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One model, served and local. Times in seconds."""

    local_seconds: float
    served_seconds: float
    calls: list[ithaca.diffusers.ServedCall]
    expected_calls: int
    counted_calls: int  # by the service
    local_calls: dict[str, int]
    largest_difference: float
    largest_value: float
    relative_error: float


def compare(
    model: _demo_models.DemoModel, coordinator: Coordinator, steps: int
) -> Comparison:
    """Denoises with local attention, then with the service's."""
    start = time.perf_counter()
    local = _demo_models.denoise(model, steps)
    local_seconds = time.perf_counter() - start

    calls: list[ithaca.diffusers.ServedCall] = []
    backend = ithaca.diffusers.backend(
        coordinator.address,
        # Outputs of padded text are thrown away by the model.
        padded_queries="zero",
        on_call=calls.append,
    )
    counted = _calls_counted(coordinator)
    model.transformer.set_attention_backend(backend)
    try:
        start = time.perf_counter()
        served = _demo_models.denoise(model, steps)
        served_seconds = time.perf_counter() - start
    finally:
        model.transformer.reset_attention_backend()
        backend.close()
    return Comparison(
        local_seconds=local_seconds,
        served_seconds=served_seconds,
        calls=calls,
        expected_calls=steps * model.calls_per_step,
        counted_calls=_calls_counted(coordinator) - counted,
        local_calls=backend.statistics().local_calls,
        largest_difference=(served - local).abs().max().item(),
        largest_value=local.abs().max().item(),
        relative_error=((served - local).norm() / local.norm()).item(),
    )


def _calls_counted(coordinator: Coordinator) -> int:
    return int(
        coordinator.metric("ithaca_requests_total", method="Attention", code="OK")
    )


def check(name: str, result: Comparison) -> None:
    """Raises DemoError if a call was not served or the output is not the same."""
    if result.local_calls:
        raise DemoError(f"{name}: calls ran locally: {result.local_calls}")
    if not len(result.calls) == result.counted_calls == result.expected_calls:
        raise DemoError(
            f"{name}: {result.expected_calls} calls expected, {len(result.calls)} "
            f"made, {result.counted_calls} counted by the service"
        )
    # Written so that NaN fails.
    if not result.relative_error <= _TOLERANCE:
        raise DemoError(
            f"{name}: the served output is off by {result.relative_error:.1e} of its "
            f"norm, over the tolerance of {_TOLERANCE:.0e}"
        )


def _show(result: Comparison) -> None:
    calls = result.calls
    print(
        f"  calls     {len(calls)} of {result.expected_calls} served, each by "
        f"{calls[0].report.world_size} workers; /metrics counted "
        f"{result.counted_calls}"
    )
    milliseconds = [call.seconds * 1e3 for call in calls]
    percentiles = statistics.quantiles(milliseconds, n=20, method="inclusive")
    print(f"  latency   p50 {percentiles[9]:.1f} ms, p95 {percentiles[18]:.1f} ms")
    stages: collections.Counter[str] = collections.Counter()
    for call in calls:
        stages.update(call.report.stage_seconds)
    shown = [
        f"{stage} {seconds / len(calls) * 1e3:.2f}"
        for stage, seconds in sorted(stages.items(), key=_place_in_call)
    ]
    shown[-1] += " ms a call"
    for i in range(0, len(shown), 3):
        print(f"  {'' if i else 'stages':<9} {', '.join(shown[i : i + 3])}")
    print(
        f"  model     {result.local_seconds:.2f} s local, "
        f"{result.served_seconds:.2f} s served"
    )
    difference = f"largest difference {result.largest_difference:.1e}"
    if result.largest_difference == 0:
        difference = "no difference, bit for bit"
    print(
        f"  output    {difference} (values up to {result.largest_value:.1f}); "
        f"relative {result.relative_error:.1e}, tolerance {_TOLERANCE:.0e}"
    )


def _place_in_call(stage: tuple[str, float]) -> tuple[int, str]:
    name = stage[0]
    return (_STAGES.index(name) if name in _STAGES else len(_STAGES), name)


def _show_metrics(coordinator: Coordinator) -> None:
    print(f"\nA few lines of http://{coordinator.metrics_address}/metrics")
    for line in coordinator.metrics_text().splitlines():
        name, _, value = line.rpartition(" ")
        if name.partition("{")[0] in _SHOWN_METRICS and float(value):
            print(f"  {line}")


def run(binary: str, workers: int, steps: int) -> None:
    start = time.perf_counter()
    print(f"Ithaca {ithaca.__version__}: diffusion models with their attention served")
    with Coordinator(binary, workers) as coordinator:
        print(
            f"A coordinator at {coordinator.address} and its {workers} CPU workers, "
            f"ready in {time.perf_counter() - start:.1f} s"
        )
        for build in (_demo_models.flux, _demo_models.hunyuan_video):
            model = build()
            print(f"\n{model.name}, {steps} steps: {model.description}")
            result = compare(model, coordinator, steps)
            check(model.name, result)
            _show(result)
        _show_metrics(coordinator)
        print("\nStopping the coordinator with SIGTERM ...", end=" ", flush=True)
    print("it drained and left with status 0.")
    print(
        "Every attention call was served, and both models said what they say "
        f"locally ({time.perf_counter() - start:.0f} s)."
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ithaca.demo", description=__doc__.partition("\n\n")[2]
    )
    parser.add_argument(
        "--coordinator", required=True, help="the ithaca-coordinator program"
    )
    parser.add_argument("--workers", type=int, default=4, help="default: 4")
    parser.add_argument("--steps", type=int, default=_STEPS, help="denoising steps")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    logging.getLogger("diffusers").setLevel(logging.ERROR)
    # The workers are on this host too: leave cores to them.
    torch.set_num_threads(1)
    try:
        run(arguments.coordinator, arguments.workers, arguments.steps)
    except (DemoError, CoordinatorError, ithaca.Error) as error:
        sys.stdout.flush()
        print(f"\nThe demo FAILED: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
