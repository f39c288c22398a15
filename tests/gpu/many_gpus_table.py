#!/usr/bin/env python3
"""Puts what was measured on several GPUs beside its target and the model.

    many_gpus_table.py RESULTS MODEL

Both are files of JSON objects, one a line, each with a key and a value. Prints
one line a figure. A figure of ranks that shared a GPU is no measurement and is
held against nothing.
"""

import json
import pathlib
import re
import sys

# M1: a whole call over attention alone, on eight GPUs.
FUSED_NATIVE = {"Wan720": 1.05, "H3": 1.095, "Wan480": 1.12}
OVERLAPPED_OR_8_BIT = {"Wan720": 1.03, "H3": 1.05, "Wan480": 1.06}

# Seconds that ranks wait for each other in what many_gpus_service.py runs.
COLLECTIVE_TIMEOUT = 2

LIMITS = [
    (r"S2/Wan480/P1", "<=", 1.02),
    (r"S3/FLUX/P1/allocated", "<=", 1.3),
    (r"M3/Wan480/P8", ">=", 5.5),
    (r"R1/.*", "<=", 2),
    (r"R2/.*", "<=", 10),
    (r"R3/.*", "<=", COLLECTIVE_TIMEOUT + 1.5),
    (r"R4/.*", "<=", 2),
    # At least 100 MB that a rank sends.
    (r"M2/exchange/P\d+/(256|512)MiB", ">=", 290),
    (r"M2/(Wan720|H3|Wan480)/P\d+/native/fused/in", ">=", 290),
]

# Of the rest, the kinds of figures that the table leaves out: they are in the
# results file.
LEFT_OUT = re.compile(r"(path|call|alone)/|M2/exchange/.*KiB")


def read(path):
    figures = {}
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        figure = json.loads(line)
        figures[figure["key"]] = figure
    return figures


def target(key):
    """(comparison, limit), or None."""
    parts = key.split("/")
    if parts[0] == "M1" and parts[2] == "P8" and parts[1] in FUSED_NATIVE:
        plain = parts[3:] == ["native", "fused"]
        return "<=", (FUSED_NATIVE if plain else OVERLAPPED_OR_8_BIT)[parts[1]]
    for pattern, comparison, limit in LIMITS:
        if re.fullmatch(pattern, key):
            return comparison, limit
    return None


def verdict(value, wanted):
    comparison, limit = wanted
    reached = value <= limit if comparison == "<=" else value >= limit
    return "reached" if reached else "missed"


def row(key, figure, model):
    wanted = target(key)
    shared = figure.get("shared_gpus", False)
    judged = (
        "shared" if shared else (verdict(figure["value"], wanted) if wanted else "")
    )
    aim = f"{wanted[0]} {wanted[1]:g}" if wanted else ""
    paper = f"{model[key]['value']:.4g}" if key in model else ""
    value = f"{figure['value']:.4g} {figure['unit']}".rstrip()
    return f"{key:<34} {value:<14} {aim:<9} {judged:<8} {paper}".rstrip()


def table(results, model):
    lines = [f"{'figure':<34} {'measured':<14} {'target':<9} {'':<8} model"]
    order = ["matmul", "M1", "M2", "M3", "S2", "S3", "R1", "R2", "R3", "R4"]

    def place(key):
        kind = key.split("/")[0]
        return (order.index(kind) if kind in order else len(order), kind)

    for key in sorted(results, key=place):  # else in the order measured
        if not LEFT_OUT.match(key):
            lines.append(row(key, results[key], model))
    return lines


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    print("\n".join(table(read(sys.argv[1]), read(sys.argv[2]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
