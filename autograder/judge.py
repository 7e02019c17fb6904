"""Judges one submission: puts each probe to the student's child and to the reference, and holds the answers together.

Whose fault is a failure? Ours, unless student data was there: then it is a verdict on them.
"""

import random
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import cloudpickle
import numpy as np
import torch

from autograder.compare import Difference, Tolerance, first_difference, misfit
from autograder.diagnosis import Answers, Case, Diagnosis, Question
from autograder.examples import examples
from autograder.feedback import Feedback, Reader
from autograder.grade import Row
from autograder.misconceptions import Drifted, Misconception
from autograder.probing import ReliesOn, inspecting, nothing, relying
from autograder.sandbox.client import (
    GPU_IMPORT_DEADLINE,
    IMPORT_DEADLINE,
    Child,
    Deadline,
    Died,
    Outcome,
    Probe,
    Reply,
    Sandbox,
    SandboxBroken,
    TimedOut,
)
from autograder.sandbox.codec import plain, snapshot
from autograder.sandbox.package import Package

_UNMEASURED_CPU = 0.15  # seconds that the reference is taken to need where it is not run
_EXAMPLES = Deadline(cpu=3.0, wall=30.0)  # all of them together
_OBSERVED = Tolerance(rtol=1e-5, finite=False)  # by which two observed replies are the same to a diagnosis


class SuiteBroken(Exception):
    """The suites or the reference are at fault, so there is no grade."""


class Lost(Exception):
    """The student's reply loses the row."""

    def __init__(self, feedback: Feedback, compared: bool = False, about: str = "") -> None:
        """Keep what the student reads, and whether it is the last answer alone that is wrong."""
        super().__init__(feedback.student)
        self.feedback = feedback
        self.compared = compared
        self.about = about  # the key of the answer that is wrong, where there are several


class Killed(Exception):
    """The kernel has ended the child, as it ends children first when memory runs out, whoever has used it up."""


@dataclass(frozen=True)
class Expected:
    """What a probe yields on the reference, kept for the next submission."""

    request: bytes  # the probe, pickled
    reply: Any
    cpu: float  # seconds it took


@dataclass(frozen=True)
class Memory:
    """What was asked of our own implementations so far, kept for the next submission."""

    expected: dict[tuple[str, int], Expected] = field(
        default_factory=dict
    )  # by the case's id and the question's number
    wrong: Answers = field(default_factory=dict)  # of the misconceptions


class Judge:
    """Judges the rows of one submission, one after the other."""

    def __init__(self, sandbox: Sandbox, reader: Reader, memory: Memory, until: float) -> None:
        """Prepare to judge.

        Args:
            sandbox: has loaded the submission.
            reader: who the feedback is for.
            memory: our own implementations' replies so far; added to.
            until: when the total budget ends, on time.monotonic's clock.
        """
        self._sandbox = sandbox
        self._reader = reader
        self._memory = memory
        self._diagnosis = Diagnosis(sandbox, memory.wrong)
        self._until = until
        self._reference = Package("reference")
        self._closed: dict[str, Feedback] = {}  # parts and problems whose other rows are not run, and why
        self._row: Row | None = None  # that is judged
        self._again = False  # for the second time
        self._passed: set[str] = set()  # rows so far, by the names of their test functions
        self._case = ""
        self._relies_on: ReliesOn = {}
        self._questions: list[Question] = []  # of the case
        self._lost: list[Case] = []  # of the problem
        self._public: dict[str, tuple[str, str]] = {}  # what raised where nothing is hidden: the type, and the message
        self._child: Child | None = None
        self._defined: list[str] | None = None  # by the child's module; None: it is not imported yet
        # A child on a GPU, for the other rows of the part, since CUDA's start takes seconds; and what its module defines.
        self._kept: tuple[Child, list[str] | None] | None = None
        self._answered = False  # student data has reached the test

    def check_sources(self, parts: Sequence[str]) -> None:
        """Close the parts that have no file, and the problems whose source uses what the allow-lists leave out.

        Parsing runs no student code, but a hostile source can crash the parser, so it is done in a child.
        """
        sources = dict(self._reader.submission.files)  # as bytes: the checker reads them as the compiler will
        present = [part for part in parts if f"{part}.py" in sources]
        self._closed |= {part: self._reader.missing_file(part) for part in parts if part not in present}
        outcomes = {tuple(present): self._inspect(present, sources)}
        if not isinstance(outcomes[tuple(present)], Reply):  # one of the files is to blame: find out which
            outcomes = {(part,): self._inspect([part], sources) for part in present}
        for group, outcome in outcomes.items():
            if isinstance(outcome, Reply):
                for problem, line in reversed(outcome.value):  # the first of a problem is the one that is shown
                    self._closed[problem] = self._reader.not_allowed(line)
            else:
                self._closed[group[0]] = self._reader.unparsable(group[0], outcome)

    def _inspect(self, parts: Sequence[str], sources: dict[str, bytes]) -> Outcome:
        child = self._sandbox.child(None)
        child.send(inspecting(parts, sources))
        outcome = child.reply(self._in_time(IMPORT_DEADLINE))
        child.close()
        return outcome

    def closed(self, problem: str) -> Feedback | None:
        """Return why no row of a problem can be run, if that is so."""
        return self._closed.get(problem.split(".")[0]) or self._closed.get(problem)

    def open_row(self, row: Row, again: bool) -> None:
        """Begin a row, or begin it `again` after its child was killed, which then is the student's doing.

        Its cases will share one fresh child; on a GPU, all rows of a part share one while none is lost.
        """
        self._again = again
        if self._kept is not None and (self._row is None or self._row.part != row.part):
            self._kept[0].close()
            self._kept = None
        self._row = row

    def close_row(self, passed: bool, last: bool) -> None:
        """End a row and its child; `last` if no other will follow."""
        if self._child is not None:
            # After an error CUDA may refuse whatever else the process asks of it, so the next row begins anew.
            if passed and self._row is not None and self._row.device == "cuda":
                self._kept = self._child, self._defined
            else:
                self._child.close(last)
            self._child = None
        if last and self._kept is not None:
            self._kept[0].close(last)
        if passed and self._row is not None:
            self._passed.add(self._row.function)

    def open_case(self, case: str, relies_on: ReliesOn) -> None:
        """Begin a case of the row, with the defaults that every probe finds."""
        self._case, self._questions, self._answered = case, [], False
        self._relies_on = relies_on
        torch.set_default_dtype(torch.float32)

    def explain(self, error: BaseException) -> Feedback:
        """Return what a case's exception says about the student's answer; raise it if it says nothing about that."""
        if isinstance(error, Lost):
            self._lose(error.compared, error.about)
            return error.feedback
        if isinstance(error, (SuiteBroken, SandboxBroken, Killed)) or not isinstance(error, Exception):
            raise error  # ours, the machine's, or the order to stop
        if not self._answered:
            raise SuiteBroken(f"{self._case} failed before any student code was judged") from error
        if isinstance(error, AssertionError):
            sentence = error.args[0] if error.args and isinstance(error.args[0], str) else "A property does not hold."
            self._lose(compared=False)
            return Feedback(sentence, _trace(error))
        return Feedback("Your answer cannot be used: it is not what the docstring asks for.", _trace(error))

    def compare(self, problem: str, probe: Probe, **tolerance: Any) -> None:
        """Run the probe on both sides, and lose the row at the first difference."""
        options = Tolerance(**tolerance)
        expected, reply = self._ask(problem, probe, options, with_reference=True)
        assert expected is not None
        if difference := first_difference(expected.reply, reply, options):
            raise Lost(_explained(difference), compared=True, about=difference.about)

    def observe(self, problem: str, probe: Probe, *, like: Any) -> Any:
        """Return the student's reply as plain data of the structure of `like`, or lose the row."""
        _, reply = self._ask(problem, probe, _OBSERVED, with_reference=False)
        if difference := misfit(like, reply):
            raise Lost(_explained(difference))
        return plain(reply)

    def observe_memory(self, problem: str, probe: Probe, *, like: Any) -> tuple[Any, int]:
        """Observe, and return beside the reply how many bytes more the child has held at once than one that runs no student code.

        The kernel counts, from outside. What the student's module holds from its import on counts too: freed in time, it would hide growth.
        """
        fresh = self._sandbox.child(None)
        fresh.send(nothing)
        if not isinstance(fresh.reply(self._in_time(IMPORT_DEADLINE)), Reply):
            raise SandboxBroken("a child that runs no student code did not answer")
        before = fresh.peak_memory()
        fresh.close()
        reply = self.observe(problem, probe, like=like)
        assert self._child is not None
        return reply, self._child.peak_memory() - before

    def _lose(self, compared: bool, about: str = "") -> None:
        """Keep the case for the diagnosis."""
        assert self._row is not None
        if self._row.device == "cuda":
            return  # a misconception would need CUDA anew; on the simulated accelerator it is found
        case = Case(self._case, self._row.function, self._row.device, tuple(self._questions), compared, about)
        self._lost.append(case)

    def diagnose(self, problem: str) -> Mapping[str, Misconception]:
        """Return what is behind the rows that were lost in a problem whose last row was judged, by their functions."""
        lost, self._lost = self._lost, []
        try:
            return self._diagnosis.of(problem, lost, frozenset(self._passed)) if lost else {}
        except Drifted as error:  # the reference was changed since: that costs an explanation, and nobody's points
            print(f"nothing is diagnosed in {problem}: {error}", file=sys.stderr)
            return {}

    def _ask(
        self, problem: str, probe: Probe, tolerance: Tolerance, with_reference: bool
    ) -> tuple[Expected | None, Any]:
        """Put the probe to the student's child, meanwhile to the reference, and return both answers."""
        assert self._row is not None
        if problem != self._row.problem:
            raise SuiteBroken(f"{self._case} has the number of {self._row.problem} and asks for {problem}")
        probe = relying(self._row.part, self._relies_on.get(problem, {}), probe)
        key = self._case, len(self._questions)
        expected = self._memory.expected.get(key)
        request = expected.request if expected else cloudpickle.dumps(probe)
        if self._child is None and self._kept is not None and self._row.device == "cuda":
            (self._child, self._defined), self._kept = self._kept, None
        if self._child is None:
            self._child = self._sandbox.child(self._row.part, self._row.device)
            self._defined = None
        self._child.send_pickled(request)
        if with_reference and expected is None:
            expected = self._memory.expected[key] = self._run_reference(probe, request)
        outcome = self._answer(problem, request, expected.cpu if expected else _UNMEASURED_CPU)
        self._questions.append(Question(request, outcome, tolerance))
        if isinstance(outcome, Reply):
            self._answered = True
            return expected, outcome.value
        assert self._child is not None
        feedback = self._reader.fault(problem, outcome, bytes(self._child.printed))
        feedback = self._reader.with_message(feedback, outcome, self._public.get(problem))
        if isinstance(outcome, TimedOut):
            later = "An earlier test of this problem ran out of time, so this one was not run."
            self._closed[problem] = Feedback(f"{later}\n{feedback.student}", "", "timeout")
        raise Lost(feedback, compared=True)

    def try_examples(self, problems: Sequence[str]) -> None:
        """Run the public examples of these problems, before the first hidden question: see examples.py."""
        if self._row is not None:
            raise SuiteBroken(
                "public examples are run after hidden tests, so student code could pass on what it has seen"
            )
        child = self._sandbox.child(None)
        child.send(
            examples({problem: self._docstring(problem) for problem in problems if self.closed(problem) is None})
        )
        outcome = child.reply(self._in_time(_EXAMPLES))
        child.close()
        if isinstance(outcome, Reply) and type(outcome.value) is dict:
            self._public = {
                what: raised
                for what, raised in outcome.value.items()
                if type(raised) is tuple and [type(text) for text in raised] == [str, str]
            }

    def _docstring(self, problem: str) -> str:
        return getattr(self._solution(problem), "__doc__", None) or ""

    def _solution(self, problem: str) -> Any:
        """Return the reference's function or class for a problem; None for the one that runs all parts together."""
        part, name = problem.split(".")
        try:
            return getattr(getattr(self._reference, part), name, None)
        except Exception as error:
            raise SuiteBroken(f"reference/{part}.py does not import") from error

    def _run_reference(self, probe: Probe, request: bytes) -> Expected:
        torch.default_generator.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        start = time.process_time()
        try:
            reply = snapshot(probe(self._reference))
        except Exception as error:
            raise SuiteBroken(f"the reference fails in {self._case}") from error
        return Expected(request, reply, time.process_time() - start)

    def _answer(self, problem: str, request: bytes, reference_cpu: float) -> Outcome:
        assert self._child is not None and self._row is not None
        part, name = problem.split(".")
        on_gpu = self._row.device == "cuda"
        deadline = self._in_time(GPU_IMPORT_DEADLINE if on_gpu else IMPORT_DEADLINE)
        if self._defined is None:
            imported = self._unless_killed(self._child.reply(deadline))
            if not isinstance(imported, Reply):
                feedback = self._reader.import_fault(part, imported, bytes(self._child.printed))
                feedback = self._reader.with_message(feedback, imported, self._public.get(part))
                if self._row.device == "cpu":  # else it may well import elsewhere
                    self._closed[part] = replace(feedback, staff="")  # once is enough
                raise Lost(feedback)
            self._answered = True
            # The child can put anything in the place of a list of names.
            names = imported.value if type(imported.value) is list else []
            self._defined = [name for name in names if type(name) is str]
        if name not in self._defined and self._solution(problem) is not None:
            feedback = self._reader.missing_name(problem)
            self._closed[problem] = feedback
            raise Lost(feedback)
        cpu = 2.0 + 20 * reference_cpu + 20.0 * on_gpu  # kernels are loaded at their first use
        return self._unless_killed(self._child.reply(self._in_time(Deadline(cpu, wall=20.0 + 10 * cpu))))

    def _unless_killed(self, outcome: Outcome) -> Outcome:
        """Return an outcome, but raise Killed for the first of a row that is the kernel's doing."""
        if isinstance(outcome, Died) and outcome.signal == signal.SIGKILL and not self._again:
            raise Killed
        return outcome

    def _in_time(self, deadline: Deadline) -> Deadline:
        """Return the deadline, or what is left for the submission if that is less."""
        return replace(deadline, wall=min(deadline.wall, max(self._until - time.monotonic(), 1.0)))


def _explained(difference: Difference) -> Feedback:
    return Feedback(difference.reason, difference.detail)


def _trace(error: BaseException) -> str:
    """Return the traceback from the test on: above it is only pytest."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-3))
