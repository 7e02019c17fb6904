"""The reference against what does not come from it: the public tests' literal values, and its own worked examples."""

import doctest
import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from handout.problems import load_assignment

ROOT = Path(__file__).parents[2]


def test_the_reference_passes_every_public_test(tmp_path):
    """`verify` holds the reference against itself; a wrong formula in it would get every point there."""
    for name in ("handout", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("build", "fonts", "figures"))
    shutil.copytree(ROOT / "reference", tmp_path / "student")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)

    done = subprocess.run([sys.executable, "-m", "tests"], cwd=tmp_path, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "100 of the 100 points" in " ".join(done.stdout.split()), done.stdout


@pytest.mark.parametrize("part", [part.id for part in load_assignment().parts])
def test_the_worked_examples_of_the_reference_run(part):
    failed, tried = doctest.testmod(importlib.import_module(f"reference.{part}"))

    assert tried > 0 and failed == 0
