"""Tests the hidden suites: each mutant of the reference must lose a row, or `survivors.toml` says why it is right.

A mutant is handed in as a student's module among right ones. The rows of its own problem are run first, and the first lost row ends it.
"""

import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from autograder.grade import Row
from autograder.misconceptions import reference
from autograder.mutants import Mutant, mutants
from autograder.plugin import REFERENCE, Suites, run_suites
from autograder.sandbox.client import Sandbox
from autograder.scoreboard import long_work
from autograder.submission import Submission, read_submission
from handout.problems import Assignment, Part

if sys.version_info >= (3, 11):
    import tomllib
else:  # Gradescope's Ubuntu 22.04
    import tomli as tomllib

SURVIVORS = Path(__file__).with_name("survivors.toml")
_LEAST = 0.97  # of all mutants that must die
_SEED = 4  # of samples
_TOGETHER = "training.together"  # its row runs a student's own parts

Key = tuple[str | int, ...]


class BadSurvivors(ValueError):
    """`survivors.toml` cannot be used."""


@dataclass(frozen=True)
class Fate:
    """What came of a mutant."""

    mutant: Mutant
    lost: Row | None  # the row that it dies by; None: it survives


def survivors() -> Mapping[Key, str]:
    """Return why each known survivor is right, by its mutant's key.

    Raises:
        BadSurvivors: if one has no reason, or stands twice.
    """
    known: dict[Key, str] = {}
    for table in tomllib.loads(SURVIVORS.read_text(encoding="utf-8"))["survivor"]:
        key = tuple(table[name] for name in ("part", "function", "operator", "before", "after")) + (
            table.get("nth", 1),
        )
        if key in known or not table["why"].strip():
            raise BadSurvivors(f"{SURVIVORS.name}: {key} stands twice, or without a reason")
        known[key] = table["why"]
    return known


def mutants_of(part: Part, sample: int | None) -> Sequence[Mutant]:
    """Return a part's mutants; with `sample`, so many of them, the same ones each time."""
    made = mutants(part.id, reference(part.id), [problem.name for problem in part.problems if problem.bonus])
    if sample is None or sample >= len(made):
        return made
    chosen = random.Random(f"{_SEED} {part.id}").sample(range(len(made)), sample)
    return [made[i] for i in sorted(chosen)]


def mutate(sandbox: Sandbox, assignment: Assignment, part: str | None, sample: int | None) -> int:
    """Run mutants, print what came of them, and return 0 if all is as it must be, else 1.

    Args:
        sandbox: to run them in.
        assignment: whose suites are tested.
        part: whose mutants are run; None: those of all parts.
        sample: how many of each part; None: all.
    """
    known = {key: why for key, why in survivors().items() if part in (None, key[0])}
    chosen = {each.id: mutants_of(each, sample) for each in assignment.graded_parts if part in (None, each.id)}
    fates: list[Fate] = []

    def job(suites: Suites) -> None:
        solutions = read_submission(REFERENCE, frozenset(each.id for each in assignment.parts))
        fates.extend(_fates(suites, solutions, chosen))

    run_suites(sandbox, assignment, job)
    faults = [*faults_of(fates, known)]
    if sample is None:
        faults += faults_of_list(fates, known)
        if part is None:
            faults += faults_of_score(fates)
    for fault in faults:
        print(f"\n{fault}")
    return int(bool(faults))


def _fates(suites: Suites, solutions: Submission, chosen: Mapping[str, Sequence[Mutant]]) -> Iterator[Fate]:
    """Run the mutants of each part, and print a line a part."""
    console = Console(highlight=False)
    start = time.monotonic()
    fates: list[Fate] = []
    with long_work(sum(map(len, chosen.values())), "mutants") as advance:
        for part, made in chosen.items():
            begun = time.monotonic()
            done = []
            for mutant in made:
                done.append(fate := Fate(mutant, _lost(suites, solutions, mutant)))
                yield fate
                advance(part, 1)
            console.print(_line(part, done, time.monotonic() - begun))
            fates += done
    console.print(_line("all", fates, time.monotonic() - start))


def _line(name: str, fates: Sequence[Fate], seconds: float) -> str:
    died = sum(fate.lost is not None for fate in fates)
    return f"{name:10} {died:4} of {len(fates):4} mutants died, {_score(fates):6.1%}   {seconds:4.0f} s"


def _score(fates: Sequence[Fate]) -> float:
    return sum(fate.lost is not None for fate in fates) / len(fates)


def _lost(suites: Suites, solutions: Submission, mutant: Mutant) -> Row | None:
    """Return the row that a mutant dies by."""
    rows = [task.row for task in suites.tasks if task.row.part == mutant.part or task.row.problem == _TOGETHER]
    own = f"{mutant.part}.{mutant.function.split('.')[0]}"
    rows.sort(key=lambda row: (row.problem != own, row.part != mutant.part))
    files = {**solutions.files, f"{mutant.part}.py": mutant.source.encode()}
    return suites.first_lost(replace(solutions, files=files), rows)


def faults_of(fates: Sequence[Fate], known: Mapping[Key, str]) -> Iterator[str]:
    """Yield where the fates of mutants are not those that are known."""
    for fate in fates:
        if fate.lost is None and fate.mutant.key not in known:
            yield (
                f"This mutant survives. A test is missing, or {SURVIVORS.name} is to say why it is right:\n"
                f"{_toml(fate.mutant.key)}"
            )
        if fate.lost is not None and fate.mutant.key in known:
            yield f"{SURVIVORS.name} lists a mutant that dies by {fate.lost.test}:\n{_toml(fate.mutant.key)}"


def faults_of_list(fates: Sequence[Fate], known: Mapping[Key, str]) -> Iterator[str]:
    """Yield the known survivors that are not among all mutants."""
    there = {fate.mutant.key for fate in fates}
    for key in known:
        if key not in there:
            yield f"{SURVIVORS.name} lists a mutant that is none (any more):\n{_toml(key)}"


def faults_of_score(fates: Sequence[Fate]) -> Iterator[str]:
    """Yield what is wrong if too many of all mutants survive, for whatever reason."""
    if _score(fates) < _LEAST:
        yield f"{_score(fates):.2%} of the mutants died; {_LEAST:.0%} must."


def _toml(key: Key) -> str:
    """Return a mutant as it stands in `survivors.toml`."""
    *texts, nth = key
    names = ("part", "function", "operator", "before", "after")
    lines = [f"{name} = {_quoted(str(text))}" for name, text in zip(names, texts, strict=True)]
    return "\n".join(["[[survivor]]", *lines, *([f"nth = {nth}"] if nth != 1 else []), 'why = ""'])


def _quoted(text: str) -> str:
    return f"'''{text}'''" if "\n" in text or "'" in text else f"'{text}'"
