"""Each part uses only what the handout allows: a line for each name that it may not use."""

from pathlib import Path

import pytest

import student
from handout.problems import load_assignment
from tests.allowed import check_part

STUDENT = Path(student.__path__[0])


def pytest_generate_tests(metafunc):
    """One test a part, or the one of the part that was asked for."""
    wanted = metafunc.config.getoption("part")
    parts = [part.id for part in load_assignment().parts if wanted in (None, part.id)]
    metafunc.parametrize("part", [part for part in parts if (STUDENT / f"{part}.py").exists()])


def test_only_what_the_handout_allows(part):
    """The part's file, and the files of your own that it imports, use nothing else."""
    files = [path for path in STUDENT.rglob("*.py") if path.is_file()]
    sources = {
        path.relative_to(STUDENT).as_posix(): path.read_text(encoding="utf-8", errors="replace") for path in files
    }
    if violations := check_part(part, sources):
        lines = dict.fromkeys(map(str, violations))  # a line once, however many problems it is a part of
        pytest.fail("\n".join([f"{part}: only what the handout allows", *lines]), pytrace=False)
