"""Grades the same submissions again and again, under conditions that may not matter, and looks for a verdict that differs.

From run to run three things change: the seed that hidden inputs derive from, how many threads the student's process may use, and in which
order it imports the student's parts. The first run is as students are graded: the term's seed, one thread, each part by itself.
"""

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console
from rich.markup import escape

from autograder.classroom.cells import Cells
from autograder.classroom.pool import Done, Pool, cores
from autograder.misconceptions import misconceptions
from autograder.plugin import REFERENCE, SUITES, Suites, run_suites
from autograder.sandbox.client import Sandbox
from autograder.scoreboard import long_work
from autograder.settings import load_settings
from autograder.submission import Submission, read_submission
from handout.problems import Assignment

_EQUIVALENTS = SUITES.parent / "tests" / "equivalents"
_REFERENCE_SHARE = 10  # runs of the reference for one of every other submission
_THREADS = (1, 2, 4)
_INIT = "__init__.py"  # of a student's package: each child runs it first


@dataclass(frozen=True)
class Candidate:
    """A submission whose verdicts may not differ."""

    name: str
    kind: str  # "reference", "equivalent" or "misconception"
    part: str | None  # whose rows are run; None: all
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class Conditions:
    """What changes from run to run."""

    seed: int
    threads: int
    order: Sequence[str]  # of the parts, all of which each child then imports first

    def __str__(self) -> str:
        """Say it in a line."""
        return f"seed {self.seed}, {self.threads} threads, imports of {', '.join(self.order) or 'one part only'}"

    def init(self) -> bytes:
        """Return the __init__.py of a student who sets the threads and imports the parts so."""
        threads = ["import torch", f"torch.set_num_threads({self.threads})"] if self.threads > 1 else []
        return "\n".join([*threads, *(f"import student.{part}" for part in self.order), ""]).encode()


@dataclass(frozen=True)
class Graded:
    """What a candidate has come to under some conditions; None: the worker died over it."""

    given: Conditions
    candidate: Candidate
    verdicts: Mapping[str, str] | None


def soak(cells: Cells, own: Sandbox, assignment: Assignment, part: str | None, times: int, sample: int | None) -> int:
    """Grade every candidate again and again, print each verdict that differs, and return 0 if none does, else 1.

    Args:
        cells: where the workers' sandboxes come from.
        own: the sandbox that the suites are collected with.
        assignment: whose suites run.
        part: whose rows are run; None: those of all parts.
        times: how often; the reference more often.
        sample: how many equivalents and misconceptions of a part are run, and the reference as often as they; None: all.
    """
    reference = read_submission(REFERENCE, frozenset(each.id for each in assignment.parts))
    parts = [each.id for each in assignment.graded_parts if part in (None, each.id)]
    others = [other for each in parts for other in _candidates(reference, each, sample)]
    whole = Candidate("reference", "reference", part, reference.files)
    share = _REFERENCE_SHARE if sample is None else 1
    schedule = [(run, each) for run in range(times * share) for each in [whole, *(others if run < times else [])]]
    every = [each.id for each in assignment.graded_parts]
    different: list[str] = []

    def job(suites: Suites) -> None:
        own.close()
        sizes = Counter(task.row.part for task in suites.tasks)
        rows = [sizes[each.part] if each.part else sizes.total() for _, each in schedule]
        pool = Pool(cells, partial(_work, suites, schedule, every), cores())
        try:
            different.extend(differences(_graded(pool, schedule, rows, every)))
        finally:
            pool.close()

    run_suites(own, assignment, job)
    return int(bool(different))


def _work(
    suites: Suites, schedule: Sequence[tuple[int, Candidate]], parts: Sequence[str], id: str, sandbox: Sandbox
) -> dict[str, Any]:
    """In a worker: grade what stands at a place of the schedule."""
    run, candidate = schedule[int(id)]
    given = conditions(run, parts)
    suites.move(sandbox)
    if suites.seed != given.seed:
        suites.reseed(given.seed)
    submission = Submission({**candidate.files, _INIT: given.init()}, "", ())
    grade = suites.grade(submission, part=candidate.part, checked=False)
    return {row.test: " as ".join(filter(None, (row.outcome, row.misconception))) for row in grade.rows}


def _graded(
    pool: Pool, schedule: Sequence[tuple[int, Candidate]], rows: Sequence[int], parts: Sequence[str]
) -> Iterator[Graded]:
    """Yield what is graded; the first run is over before the second begins, since it says what the others are held against."""
    first = sum(run == 0 for run, _ in schedule)
    with long_work(sum(rows), "rows") as advance:
        for places in (range(first), range(first, len(schedule))):
            for result in pool.results(map(str, places)):
                if result is not None:
                    run, candidate = schedule[int(result.id)]
                    yield Graded(conditions(run, parts), candidate, result.answer if isinstance(result, Done) else None)
                    advance(f"run {run + 1} of {schedule[-1][0] + 1}", rows[int(result.id)])


def conditions(run: int, parts: Sequence[str]) -> Conditions:
    """Return what the run of a number is made under."""
    order = random.Random(run).sample(parts, len(parts)) if run else []
    return Conditions(load_settings().seed + run, _THREADS[run % len(_THREADS)], order)


def _candidates(reference: Submission, part: str, sample: int | None) -> Iterator[Candidate]:
    """Yield the equivalents and misconceptions of a part: with `sample` so many of each, the same ones every time."""
    equivalents = {path.stem: path.read_bytes() for path in sorted((_EQUIVALENTS / part).glob("*.py"))}
    wrong = {known.name: known.source().encode() for known in misconceptions(part)}
    for kind, modules in (("equivalent", equivalents), ("misconception", wrong)):
        names = list(modules)
        if sample is not None and sample < len(names):
            names = random.Random(part).sample(names, sample)
        for name in names:
            yield Candidate(f"{part}, {kind} {name}", kind, part, {**reference.files, f"{part}.py": modules[name]})


def differences(graded: Iterable[Graded]) -> Iterator[str]:
    """Print and yield each verdict that differs, and print what was graded, even if it is stopped."""
    console = Console(highlight=False, soft_wrap=True)
    first: dict[str, Mapping[str, str]] = {}
    counts: Counter[str] = Counter()
    judged = differing = 0
    start = time.monotonic()
    try:
        for one in graded:
            verdicts = one.verdicts or {"its worker": "died"}
            expected = first.setdefault(one.candidate.name, verdicts)
            if one.verdicts is None:
                expected = {"its worker": "alive"}
            elif one.candidate.kind != "misconception":
                expected = dict.fromkeys(verdicts, "passed")
            for test in verdicts:
                if verdicts[test] != expected.get(test):
                    differing += 1
                    line = (
                        f"{one.candidate.name}: {test} is {verdicts[test]}, not {expected.get(test)}, with {one.given}"
                    )
                    console.print(escape(line))
                    yield line
            counts[one.candidate.kind] += 1
            judged += len(verdicts)
    finally:
        for kind, count in counts.items():
            console.print(f"{kind}: graded {count} times")
        console.print(f"{judged} verdicts, {differing} of them differ; {time.monotonic() - start:.0f} s")
