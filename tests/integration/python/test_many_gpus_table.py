"""tests/gpu/many_gpus_table.py: figures beside their targets and the model."""

import json
import pathlib
import subprocess
import sys

_SCRIPT = pathlib.Path(__file__).parents[2] / "gpu" / "many_gpus_table.py"


def _rows(tmp_path, results, model):
    files = []
    for name, figures in (("results", results), ("model", model)):
        path = tmp_path / name
        path.write_text("".join(json.dumps(figure) + "\n" for figure in figures))
        files.append(path)
    output = subprocess.run(
        [sys.executable, _SCRIPT, *files], check=True, capture_output=True, text=True
    ).stdout
    return {line.split()[0]: line.split()[1:] for line in output.splitlines()}


def test_a_figure_is_held_against_its_target_and_the_model(tmp_path):
    rows = _rows(
        tmp_path,
        [
            {"key": "M1/Wan720/P8/native/fused", "value": 1.0612, "unit": ""},
            {"key": "M1/Wan720/P8/native/per_head", "value": 1.0288, "unit": ""},
            {"key": "M1/Wan720/P4/native/fused", "value": 1.05, "unit": ""},
            {"key": "M2/exchange/P8/512MiB", "value": 291.2, "unit": "GB/s"},
            {"key": "R3/P8", "value": 3.6, "unit": "s"},
        ],
        [{"key": "M1/Wan720/P8/native/fused", "value": 1.0672}],
    )
    fused = rows["M1/Wan720/P8/native/fused"]
    assert fused == ["1.061", "<=", "1.05", "missed", "1.067"]
    assert rows["M1/Wan720/P8/native/per_head"][-2:] == ["1.03", "reached"]
    assert rows["M1/Wan720/P4/native/fused"] == ["1.05"]  # targets are for 8 GPUs
    assert rows["M2/exchange/P8/512MiB"][-2:] == ["290", "reached"]
    assert rows["R3/P8"][-2:] == ["3.5", "missed"]


def test_ranks_that_share_a_gpu_reach_and_miss_nothing(tmp_path):
    key = "M1/H3/P8/native/fused"
    shared = {"key": key, "value": 9.5, "unit": "", "shared_gpus": True}
    assert _rows(tmp_path, [shared], [])[key][-1] == "shared"
