"""Names the misconceptions that give a student's wrong answers.

A misconception can be the student's if it loses none of the problem's rows that they have passed. Each that can is asked what the student was asked in
the rows that it loses. The one that answers as the student has in most of them is named first; in a row where it does not, the
next. It answers in the sandbox, in a child like the student's own, where it finds what they found (limits, what uninitialised memory
holds, the generators' states) and where whatever it does to its process ends with the child.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import Any

from autograder.compare import Tolerance, first_difference
from autograder.misconceptions import Misconception, misconceptions, reference
from autograder.probing import imitating
from autograder.sandbox.client import Child, Deadline, Outcome, Reply, Sandbox
from autograder.sandbox.codec import RemoteError

# What answers more slowly is passed over: the student's answer came in time.
_DEADLINE = Deadline(cpu=2.0, wall=20.0)
_MOST_ASKED = 100  # of a problem: an answer takes about 10 ms, and who is wrong in every row waits for all of them
_REFUSAL = "builtins.ValueError"
_EXACTLY = Tolerance(rtol=0.0, finite=False)

Answers = dict[tuple[str, int, str], Outcome]  # by the case's id, the number of the question in it, and who answers


@dataclass(frozen=True)
class Question:
    """One question of a case, with the student's answer."""

    request: bytes  # the probe, pickled
    answer: Outcome
    tolerance: Tolerance  # within which an answer is the same


@dataclass(frozen=True)
class Case:
    """A case that the student has lost."""

    id: str
    row: str  # name of the test function
    device: str  # where it takes place
    questions: Sequence[Question]
    compared: bool  # the last answer is not the reference's; else a property of all answers does not hold
    about: str  # the key of what is wrong in it, where it is a dict of several answers


class _Likeness(IntEnum):
    """How closely an implementation's answers to a case are the student's."""

    NONE = 0
    PARTLY = 1  # of several answers, up to the first that is wrong: behind it there can be another mistake; of a refusal, the type
    WITHIN_TOLERANCE = 2
    EXACT = 3


class Diagnosis:
    """Looks for misconceptions in wrong answers."""

    def __init__(self, sandbox: Sandbox, answers: Answers) -> None:
        """Prepare.

        Args:
            sandbox: gives children to answer in.
            answers: of our implementations so far, to this submission's questions and to earlier ones'; added to.
        """
        self._sandbox = sandbox
        self._answers = answers

    def of(self, problem: str, lost: Sequence[Case], passed: frozenset[str]) -> Mapping[str, Misconception]:
        """Return, by row, the likeliest misconception behind each lost row where there is one.

        Args:
            problem: id of the problem that all rows are of.
            lost: the case that has lost each lost row.
            passed: names of the rows' functions.
        """
        lost = [case for case in lost if _tells(case)]
        part = problem.split(".")[0]
        possible = [known for known in misconceptions(part) if known.problem == problem and not known.loses & passed]
        likeness: dict[str, dict[str, _Likeness]] = {known.name: {} for known in possible}
        asked = 0
        for case in lost:
            about = [known for known in possible if case.row in known.loses | known.tolerates]
            before = [known for known in about if likeness[known.name]]
            with _Witness(self._sandbox, self._answers, part, case) as witness:
                # Where right code answers like this too, what is wrong does not show in the answers.
                least = _Likeness.NONE if case.compared else witness.likeness("", reference(part))
                # Those that have answered as the student has in an earlier row; the others only if none of them does again.
                for group in (before, [known for known in about if known not in before]):
                    if least is _Likeness.EXACT or any(
                        likeness[known.name].get(case.row, 0) > _Likeness.PARTLY for known in before
                    ):
                        break
                    for known in group[: _MOST_ASKED - asked]:
                        asked += 1
                        found = witness.likeness(known.name, known.source())
                        if found > least:
                            likeness[known.name][case.row] = found
                        if found is _Likeness.EXACT and case is lost[-1] and known not in before:
                            break  # none of those behind it can explain more
        # The sort is stable: of equals, the one that stands first in its file.
        ranked = sorted(possible, key=lambda known: (-len(likeness[known.name]), -sum(likeness[known.name].values())))
        named = {case.row: next((known for known in ranked if case.row in likeness[known.name]), None) for case in lost}
        return {row: known for row, known in named.items() if known is not None}


def _tells(case: Case) -> bool:
    """Return whether a misconception can be behind a case: behind a stub, or an answer that never came, there is none."""
    answer = case.questions[-1].answer if case.questions else None
    if isinstance(answer, RemoteError):
        return "builtins.NotImplementedError" not in answer.type_names
    return isinstance(answer, Reply)


class _Witness:
    """Puts a case's questions to one implementation after the other, in one child as long as it lives."""

    def __init__(self, sandbox: Sandbox, answers: Answers, part: str, case: Case) -> None:
        self._sandbox = sandbox
        self._answers = answers
        self._part = part
        self._case = case
        self._child: Child | None = None

    def __enter__(self) -> "_Witness":
        return self

    def __exit__(self, *error: object) -> None:
        if self._child is not None:
            self._child.close()

    def likeness(self, name: str, source: str) -> _Likeness:
        """Return how closely an implementation's answers are the student's."""
        least = _Likeness.EXACT
        questions = list(enumerate(self._case.questions))
        for number, question in questions[-1:] if self._case.compared else questions:
            least = min(least, _likeness(question, self._ask(name, source, number), self._case.about))
            if least is _Likeness.NONE:
                break
        return least

    def _ask(self, name: str, source: str, number: int) -> Outcome:
        key = self._case.id, number, name
        if key not in self._answers:
            if self._child is None:
                self._child = self._sandbox.child(None)
            request = self._case.questions[number].request
            self._child.send(imitating(self._part, source, request, self._case.device))
            self._answers[key] = answer = self._child.reply(_DEADLINE)
            if not isinstance(answer, (Reply, RemoteError)):
                self._child.close()
                self._child = None
        return self._answers[key]


def _likeness(question: Question, ours: Outcome, about: str) -> _Likeness:
    theirs = question.answer
    if isinstance(ours, RemoteError) and isinstance(theirs, RemoteError):
        if ours.type_names[:1] != theirs.type_names[:1]:
            return _Likeness.NONE
        if ours.message == theirs.message:
            return _Likeness.EXACT
        # A refusal is written by hand, in words of one's own; what is refused comes last in them. Python and PyTorch say the
        # same of the same mistake.
        alike = ours.type_names[0] == _REFUSAL and _last_word(ours.message) == _last_word(theirs.message)
        return _Likeness.PARTLY if alike else _Likeness.NONE
    if not isinstance(ours, Reply) or not isinstance(theirs, Reply):
        return _Likeness.NONE
    same = partial(_same, ours.value, theirs.value)
    # A wrong answer may well be NaN or infinite.
    tolerance = replace(question.tolerance, finite=False)
    if not same(tolerance):
        both = _up_to(about, ours.value), _up_to(about, theirs.value)
        return _Likeness.PARTLY if None not in both and _same(*both, tolerance) else _Likeness.NONE
    return _Likeness.EXACT if same(_EXACTLY) else _Likeness.WITHIN_TOLERANCE


def _last_word(message: str) -> str:
    return message.split()[-1].strip("'\".,:;!()[]{}") if message.split() else ""


def _up_to(key: str, reply: Any) -> dict[str, Any] | None:
    """Return the answers of a reply up to one of them, if it is there."""
    if type(reply) is not dict or key not in reply:
        return None
    names = list(reply)
    return {name: reply[name] for name in names[: names.index(key) + 1]}


def _same(ours: Any, theirs: Any, tolerance: Tolerance) -> bool:
    return first_difference(ours, theirs, tolerance) is None
