"""Fixtures of the package's own tests."""

from collections.abc import Iterator

import pytest

from autograder.tests import written
from autograder.tests.grading import Grader


@pytest.fixture(scope="session", autouse=True)
def results_are_checked() -> Iterator[None]:
    """Hold every results.json that this process writes against the schema."""
    undo = written.check_every_write()
    yield
    undo()


@pytest.fixture(scope="session")
def grader() -> Iterator[Grader]:
    """A warm grader that grades any number of submissions."""
    grader = Grader()
    yield grader
    grader.close()
