import dataclasses

import pytest

from ithaca import _coordinator, demo

GOOD = demo.Comparison(
    local_seconds=1,
    served_seconds=1,
    calls=[None, None],
    expected_calls=2,
    counted_calls=2,
    local_calls={},
    largest_difference=1e-6,
    largest_value=1,
    relative_error=1e-6,
)


def test_a_right_result_passes():
    demo.check("FLUX", GOOD)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"relative_error": 1e-3}, "off by 1.0e-03"),
        ({"relative_error": float("nan")}, "off by nan"),
        ({"calls": [None]}, "2 calls expected, 1 made"),
        ({"counted_calls": 1}, "1 counted by the service"),
        ({"local_calls": {"mask": 1}}, "ran locally"),
    ],
)
def test_anything_else_fails_loudly(change, message):
    with pytest.raises(demo.DemoError, match=message):
        demo.check("FLUX", dataclasses.replace(GOOD, **change))


def test_a_program_that_ends_at_once_is_reported_with_its_status():
    with (
        pytest.raises(_coordinator.CoordinatorError, match="false ended with status 1"),
        _coordinator.Coordinator("/bin/false", 2),
    ):
        pass


def test_a_missing_program_is_named():
    with pytest.raises(_coordinator.CoordinatorError, match="/nonexistent"):
        _coordinator.Coordinator("/nonexistent", 2)


def test_metrics_are_parsed():
    page = (
        "# HELP a_total b\n# TYPE a_total counter\n"
        'a_total{code="OK",method="Attention"} 3\n'
        'a_seconds_bucket{le="+Inf"} 1e3\n'
        "up 1\n"
    )
    assert _coordinator.parse_metrics(page) == [
        ("a_total", {"code": "OK", "method": "Attention"}, 3),
        ("a_seconds_bucket", {"le": "+Inf"}, 1000),
        ("up", {}, 1),
    ]
