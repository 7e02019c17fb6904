"""Fixtures of the package's own tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from autograder.tests import written
from autograder.tests.classes import small_tree
from autograder.tests.grading import Grader
from autograder.tests.running import open_folder


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what `make faults` asks for."""
    parser.addoption("--thorough", action="store_true", help="run what takes long and is not in `make check`, too")


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker."""
    config.addinivalue_line("markers", "thorough: takes long; `make check` leaves it out")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes long, unless it is asked for."""
    if not config.getoption("--thorough"):
        left_out = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


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


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of the test's own that is not closed to other users."""
    with open_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    """One for all tests of a module."""
    with open_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def tree(shared: Path) -> Path:
    """The grader with one part."""
    return small_tree(shared)
