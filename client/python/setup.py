"""Generates the messages and the version, then leaves it to pyproject.toml."""

import pathlib
import runpy
import sys

from setuptools import setup

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from generate_protos import generate  # noqa: E402

generate()
setup(version=runpy.run_path(str(HERE / "ithaca" / "_version.py"))["__version__"])
