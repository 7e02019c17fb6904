"""What grading one submission yields."""

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["passed", "failed", "not graded"]
# Why a row is lost, for whoever counts. "escape": what only code does that tries to get out, or that the sandbox refused.
Cause = Literal[
    "", "wrong", "raised", "missing", "not started", "not allowed", "timeout", "crash", "escape"
]  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One hidden test: a test function, with all its cases."""

    number: str  # of its problem, "8.3"
    problem: str  # id of its problem, "optimizers.AdamW"
    test: str  # "test_optimizers.py::test_adamw_follows_the_reference"
    name: str  # the sentence that the student reads
    max_score: float
    device: str = "cpu"  # where it takes place: "sim" and "cuda" are the accelerators
    outcome: Outcome = "not graded"
    output: str = "Not graded: grading ended before this test. This is not your fault."  # what the student reads
    staff: str = ""  # what only staff read
    cause: Cause = ""  # of a lost row
    misconception: str = ""  # that explains a lost row; "" if none is known to

    @property
    def part(self) -> str:
        """The part that its problem is in."""
        return self.problem.split(".")[0]

    @property
    def function(self) -> str:
        """The name of its test function."""
        return self.test.partition("::")[2]

    @property
    def score(self) -> float:
        """All or nothing."""
        return self.max_score if self.outcome == "passed" else 0.0


@dataclass(frozen=True)
class Grade:
    """All rows of a submission, planned before the first ran."""

    rows: tuple[Row, ...]
    isolation: Literal["full", "process"]
    notes: tuple[str, ...] = ()  # about the submission as a whole, for the student to read
    held_out_loss: float | None = None  # for the leaderboard: of the weights that their training reached

    @property
    def rows_run(self) -> int:
        """How many rows are decided."""
        return sum(row.outcome != "not graded" for row in self.rows)

    @property
    def finished(self) -> bool:
        """Whether all are; else the score is not a mark yet."""
        return self.rows_run == len(self.rows)

    @property
    def score(self) -> float:
        """Points reached."""
        return sum(row.score for row in self.rows)

    @property
    def max_score(self) -> float:
        """Points that can be reached."""
        return sum(row.max_score for row in self.rows)
