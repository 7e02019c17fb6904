"""Is the grader right? Solutions written in other ways get every row of their part; known mistakes lose exactly the rows about them.

`equivalents/<part>/` holds the right solutions, each a module. The wrong ones are in `autograder/misconceptions/`, and `make verify`
grades them. Those that no student would recognise, or that nothing tells from another, are in `known_wrong/<part>.json`, each as edits of
the reference: the rows that it loses, and rows about something else that it may lose with them. The right ones are always graded. Of the
wrong ones that takes long, so it is a few of each part, the same ones every time, and all with VERDICTS=all in the environment.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from autograder.misconceptions import Drifted, Edit, edited, misconceptions
from autograder.tests.grading import Grader
from autograder.tests.handed_in import reference, replaced, write
from handout.problems import load_assignment

HERE = Path(__file__).parent
PARTS = tuple(part.id for part in load_assignment().graded_parts)
# A part whose rows need others is handed in with the reference's.
BESIDE = {"training": ("model", "data", "optimizers")}
SAMPLE = 6  # wrong ones of a part


@pytest.fixture(scope="module")
def rows() -> Mapping[str, frozenset[str]]:
    """The names of each part's rows."""
    return {
        part: frozenset(
            line.removeprefix("def ").split("(")[0]
            for line in (HERE.parent / "hidden" / f"test_{part}.py").read_text(encoding="utf-8").splitlines()
            if line.startswith("def test_")
        )
        for part in PARTS
    }


def known_wrong(part: str) -> dict[str, dict[str, Any]]:
    """Return the wrong solutions of a part: what they lose, what they may lose, and how the reference becomes them."""
    path = HERE / "known_wrong" / f"{part}.json"
    variants: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return variants


def chosen(part: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the wrong solutions to grade: by the hash of their names, so that a new one displaces one at most."""
    variants = known_wrong(part)
    names = sorted(variants, key=lambda name: hashlib.sha256(f"{part} {name}".encode()).digest())
    for name in names if os.environ.get("VERDICTS") == "all" else names[:SAMPLE]:
        yield name, variants[name]


def source(part: str, variant: dict[str, Any]) -> str:
    """Return a wrong solution's module."""
    return edited(part, [Edit(old, new) for old, new in variant["edits"]])


def graded(grader: Grader, folder: Path, part: str, module: str) -> dict[str, str]:
    """Return the rows that a solution loses in its part, with what its student reads."""
    files = {f"{other}.py": reference(other) for other in BESIDE.get(part, ())}
    grade = grader.grade(write(folder, {**files, f"{part}.py": module}))
    return {
        row["test"].partition("::")[2]: row["output"]
        for row in grade["rows"]
        if row["problem"].split(".")[0] == part and row["outcome"] != "passed"
    }


def first_words(outputs: Mapping[str, str]) -> str:
    """Return a line for each row of `outputs`."""
    return "".join(f"\n      {test}: {' '.join(output.split())[:300]}" for test, output in sorted(outputs.items()))


@pytest.mark.parametrize("part", PARTS)
def test_a_right_solution_gets_every_row(part, grader, tmp_path):
    solutions = sorted((HERE / "equivalents" / part).glob("*.py"))
    assert solutions
    wronged = []
    for path in solutions:
        lost = graded(grader, tmp_path / path.stem, part, path.read_text(encoding="utf-8"))
        if lost:
            wronged.append(f"\n  {part}/{path.name} is right, and loses{first_words(lost)}")
    assert not wronged, "".join(wronged)


@pytest.mark.parametrize("part", PARTS)
def test_a_wrong_solution_loses_the_rows_about_its_mistake(part, grader, tmp_path):
    misjudged = []
    for name, variant in chosen(part):
        lost = graded(grader, tmp_path / name, part, source(part, variant))
        kept = sorted(set(variant["loses"]) - set(lost))
        extra = {test: text for test, text in lost.items() if test not in {*variant["loses"], *variant["tolerates"]}}
        if kept or extra:
            keeps = "".join(f"\n    keeps {test}" for test in kept)
            loses = f"\n    loses besides{first_words(extra)}" if extra else ""
            misjudged.append(f"\n  {name} in known_wrong/{part}.json{keeps}{loses}")
    assert not misjudged, "".join(misjudged)


@pytest.mark.parametrize(
    "body", ["raise ValueError(f'{args} {kwargs}')", "return None", "return args[0] if args else None", "return 0"]
)
def test_who_refuses_everything_or_does_nothing_gets_nothing(body, grader, tmp_path):
    files = {}
    for part in load_assignment().graded_parts:
        source = reference(part.id)
        for problem in part.problems:
            if f"\ndef {problem.name}(" in source or f"\nclass {problem.name}(" in source:
                source = replaced(source, problem.name, f"def {problem.name}(*args, **kwargs):\n    {body}\n")
        files[f"{part.id}.py"] = source
    rows = grader.grade(write(tmp_path / "s", files))["rows"]
    assert [row["test"] for row in rows if row["outcome"] == "passed"] == []


@pytest.mark.parametrize("part", PARTS)
def test_every_known_mistake_is_a_mistake_in_the_reference_as_it_is(part, rows):
    lost_by_one = {"test_together_a_cut_run_is_the_uncut_run"} & rows[part]  # lost beside others only
    lost_by_one.update(*(known.loses for known in misconceptions(part)))
    drifted = []
    for name, variant in known_wrong(part).items():
        assert variant["loses"], f"{name} loses nothing"
        assert {*variant["loses"], *variant["tolerates"]} <= rows[part], f"{name} names a row that there is not"
        lost_by_one.update(variant["loses"])
        try:
            compile(source(part, variant), name, "exec", dont_inherit=True)
        except Drifted as error:
            drifted.append(f"\n  {name}: {error}")
    assert not drifted, "known_wrong is to follow:" + "".join(drifted)
    assert lost_by_one == rows[part], "no known mistake loses these rows"
