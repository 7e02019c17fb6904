"""What the judge asks of a child, and for how long: seen by a sandbox that only writes it down."""

import time

import pytest

from autograder.feedback import Reader
from autograder.grade import Row
from autograder.judge import Judge, Memory, SuiteBroken
from autograder.sandbox.client import Reply
from autograder.submission import Submission
from autograder.tests.handed_in import reference, write

PROBLEM = "napkin.training_flops"


class Witness:
    """A sandbox and its only child, whose source is allowed and which answers everything else alike."""

    def __init__(self) -> None:
        self.printed = b""
        self.asked = []  # what was sent, and for each reply the seconds that it was waited for

    def child(self, part, device="cpu"):
        self.asked.append(("child", part))
        return self

    def send(self, probe):
        self.asked.append(("sent", probe.func.__name__))

    def send_pickled(self, request):
        self.asked.append(("sent", "hidden"))

    def reply(self, deadline):
        inspected = self.asked[-1] == ("sent", "_inspect")
        self.asked.append(("waited", deadline.wall))
        return Reply([] if inspected else ["training_flops"])

    def close(self, last=False):
        pass


@pytest.fixture
def witness():
    return Witness()


def judged(witness, seconds):
    """Judge one question of one row with so many seconds left for the submission."""
    reader = Reader(Submission({"napkin.py": b""}, "", ()))
    judge = Judge(witness, reader, Memory(), time.monotonic() + seconds)
    judge.check_sources(["napkin"])
    judge.try_examples([PROBLEM])
    judge.open_row(Row("1.1", PROBLEM, "test_napkin.py::test_x", "x", 1.0), again=False)
    judge.open_case("x", {})
    judge.observe(PROBLEM, lambda lib: None, like=[""])
    return judge


def test_nothing_is_waited_for_longer_than_the_submission_may_take(witness):
    judged(witness, seconds=7.0)
    waited = [seconds for what, seconds in witness.asked if what == "waited"]
    assert len(waited) == 4 and max(waited) <= 7.0  # the source, the examples, the import, the answer


def test_a_submission_with_time_is_given_it(witness):
    judged(witness, seconds=1000.0)
    assert min(seconds for what, seconds in witness.asked if what == "waited") > 20.0


def test_the_public_examples_are_answered_before_a_hidden_question_is_put(witness):
    """Once a hidden input is known, the time of day alone could tell a later child what to say."""
    judge = judged(witness, seconds=1000.0)
    kinds = [what if what != "sent" else name for what, name in witness.asked]
    assert "waited" in kinds[kinds.index("_state") : kinds.index("hidden")]
    with pytest.raises(SuiteBroken, match="public examples are run after hidden tests"):
        judge.try_examples([PROBLEM])


@pytest.mark.parametrize("outcome", ["passed", "failed"])
def test_a_child_that_the_kernel_ends_is_asked_once_more(grader, place, outcome):
    """It may be the machine's memory that ran out, whoever used it up. Twice is taken for the student's doing."""
    grader.grade(write(place / "first", {"napkin.py": ""}))  # it is warm then, and soon comes to the first question
    again = time.time() + (3 if outcome == "passed" else 1000)
    killed = f"""
def training_flops(num_parameters, num_tokens):
    import os, time
    if num_parameters != 70e9 and time.time() < {again}:  # not in the docstring's example, which is tried before
        time.sleep({again} - time.time() if {outcome == "passed"} else 0)
        os.kill(os.getpid(), 9)
    return right(num_parameters, num_tokens)
"""
    source = reference("napkin").replace("def training_flops(", "def right(", 1) + killed
    grade = grader.grade(write(place / "second", {"napkin.py": source}))
    assert {row["outcome"] for row in grade["rows"] if row["problem"] == PROBLEM} == {outcome}
