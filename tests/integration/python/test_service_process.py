"""The service as a process: metrics, readiness, limits, its end, the demo."""

import collections
import os
import subprocess
import sys

import numpy as np
import pytest

import ithaca
from ithaca._coordinator import Coordinator, parse_metrics


def small_qkv():
    return [np.ones((1, 4, 2, 8), np.float32) for _ in range(3)]


def test_server_info_tells_of_the_group(client, coordinator):
    info = client.server_info()
    assert info.version == ithaca.__version__
    assert info.device == "cpu"
    (group,) = info.groups
    assert group.state == "ready"
    assert group.world_size == len(group.workers) == coordinator.workers
    assert info.max_message_bytes == 1 << 30
    assert {"native", "fp8_e4m3", "int8"} <= set(info.precisions)
    assert {"math", "flash"} <= set(info.kernels)


def test_the_report_of_a_call(client, coordinator):
    _, report = client.attention(
        *small_qkv(), request_id="mine", schedule="fused", return_report=True
    )
    assert report.request_id == "mine"
    assert report.world_size == coordinator.workers
    assert report.schedule == "fused"
    assert report.precision == "native"
    assert report.kernel in ("math", "flash")
    assert 0 < report.stage_seconds["attention"] <= report.total_seconds
    assert report.communication_bytes > 0


def test_wait_until_ready_sees_a_ready_service(client):
    client.wait_until_ready(timeout=60)


def test_a_call_counts_once_under_its_status(client, coordinator):
    def counted(code):
        return coordinator.metric(
            "ithaca_requests_total", method="Attention", code=code
        )

    before = {code: counted(code) for code in ("OK", "INVALID_ARGUMENT")}
    for _ in range(5):
        client.attention(*small_qkv())
    for _ in range(2):
        with pytest.raises(ithaca.InvalidArgumentError):
            client.attention(*small_qkv(), text_tokens=9)
    assert counted("OK") - before["OK"] == 5
    assert counted("INVALID_ARGUMENT") - before["INVALID_ARGUMENT"] == 2


def test_the_metrics_page_is_sound(client, coordinator):
    client.attention(*small_qkv())
    series = parse_metrics(coordinator.metrics_text())
    seen = collections.Counter(
        (name, tuple(sorted(labels.items()))) for name, labels, _ in series
    )
    assert max(seen.values()) == 1
    buckets = collections.defaultdict(list)
    for name, labels, value in series:
        if name.endswith("_bucket"):
            bound = labels.pop("le")
            key = (name.removesuffix("_bucket"), tuple(sorted(labels.items())))
            buckets[key].append((float(bound.replace("+Inf", "inf")), value))
    assert buckets
    for (name, labels), counts in buckets.items():
        values = [value for _, value in sorted(counts)]
        assert values == sorted(values)
        count = [
            value
            for other, other_labels, value in series
            if other == f"{name}_count"
            and tuple(sorted(other_labels.items())) == labels
        ]
        assert count == [values[-1]]


def test_a_message_over_the_limit_leaves_the_service_well(coordinator_binary):
    with (
        Coordinator(
            coordinator_binary, 2, flags=(f"--max-message-bytes={1 << 20}",)
        ) as coordinator,
        ithaca.Client(coordinator.address, plane="unary") as client,
    ):
        assert client.server_info().max_message_bytes == 1 << 20
        large = np.ones((1, 1024, 8, 16), np.float32)
        with pytest.raises(ithaca.ResourceExhaustedError):
            client.attention(large, large, large)
        with ithaca.Client(coordinator.address) as streaming:
            assert (streaming.attention(large, large, large) == 1).all()
        assert (client.attention(*small_qkv()) == 1).all()


def test_calls_after_the_end_are_unavailable(coordinator_binary):
    with Coordinator(coordinator_binary, 2) as coordinator:
        client = ithaca.Client(coordinator.address)
        client.attention(*small_qkv())
    with pytest.raises(ithaca.UnavailableError):
        client.attention(*small_qkv())
    client.close()


def test_the_demo_serves_every_call_and_says_so(coordinator_binary):
    demo = subprocess.run(
        [sys.executable, "-m", "ithaca.demo", "--coordinator", coordinator_binary],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert demo.stdout.count("16 of 16 served, each by 4 workers") == 2
    assert "left with status 0" in demo.stdout
