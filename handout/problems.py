"""The assignment's parts, problems and points, read from `problems.toml` beside this file."""

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # Gradescope's Ubuntu 22.04
    import tomli as tomllib


# Problems that are about several functions at once: nothing bears their name, in the reference or in the stubs.
SPANNING_PROBLEMS = frozenset({"einsums.annotations", "training.together"})


class BadProblems(ValueError):
    """`problems.toml` contradicts itself."""


@dataclass(frozen=True)
class Problem:
    """One thing that a student solves."""

    id: str  # module.name, e.g. "optimizers.AdamW"
    number: str  # the part's place and the problem's place in it, e.g. "8.3"
    title: str
    points: float
    bonus: bool  # graded on a GPU, outside the assignment's total

    @property
    def part(self) -> str:
        """Name of the module that holds the solution."""
        return self.id.split(".")[0]

    @property
    def name(self) -> str:
        """Name of the function or class inside its module."""
        return self.id.split(".")[1]


@dataclass(frozen=True)
class Part:
    """The problems that share one file, `student/<id>.py`."""

    id: str
    number: int
    title: str
    graded: bool  # False while the part's suites do not exist yet
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Assignment:
    """All parts, in the order of the handout."""

    title: str
    parts: tuple[Part, ...]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Every problem, in the order of the handout."""
        return tuple(problem for part in self.parts for problem in part.problems)

    @property
    def graded_parts(self) -> tuple[Part, ...]:
        """The parts that have suites."""
        return tuple(part for part in self.parts if part.graded)

    @property
    def graded_problems(self) -> tuple[Problem, ...]:
        """The problems that count toward the total: bonus problems and parts without suites left out."""
        return tuple(problem for part in self.graded_parts for problem in part.problems if not problem.bonus)

    def problem(self, id: str) -> Problem:
        """Return the problem called `id`, or raise KeyError naming it."""
        for problem in self.problems:
            if problem.id == id:
                return problem
        raise KeyError(f"no problem is called {id!r}")


PROBLEMS = Path(__file__).with_name("problems.toml")


@cache
def load_assignment(path: Path = PROBLEMS) -> Assignment:
    """Read and check `problems.toml`.

    Raises:
        BadProblems: if it cannot be read, an id stands twice, or the points do not add up to the total stated at the top.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        assignment = Assignment(table["title"], _parts(table["parts"]))
        stated = table["points"]
        total = sum(problem.points for problem in assignment.problems if not problem.bonus)
    except KeyError as error:
        raise BadProblems(f"{path.name}: {error} is missing") from None
    except (OSError, ValueError, TypeError) as error:
        raise BadProblems(f"{path.name}: {error}") from None
    ids = [problem.id for problem in assignment.problems]
    if repeated := {id for id in ids if ids.count(id) > 1}:
        raise BadProblems(f"{path.name}: these ids stand more than once: {', '.join(sorted(repeated))}")
    if total != stated:
        raise BadProblems(f"{path.name}: the problems' points add up to {total}, not to {stated}")
    return assignment


def _parts(tables: list[dict[str, Any]]) -> tuple[Part, ...]:
    return tuple(
        Part(
            id=part["id"],
            number=i,
            title=part["title"],
            graded=part["graded"],
            problems=tuple(
                Problem(f"{part['id']}.{p['id']}", f"{i}.{j}", p["title"], p["points"], p.get("bonus", False))
                for j, p in enumerate(part["problems"], start=1)
            ),
        )
        for i, part in enumerate(tables, start=1)
    )
