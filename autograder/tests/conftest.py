"""Fixtures of the package's own tests."""

from collections.abc import Iterator

import pytest

from autograder.tests.grading import Grader


@pytest.fixture(scope="session")
def grader() -> Iterator[Grader]:
    """A warm grader that grades any number of submissions."""
    grader = Grader()
    yield grader
    grader.close()
