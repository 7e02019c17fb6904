"""Is each mistake that nobody thought of seen? What a mutant is, what is known of them, and a few of each part, run."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autograder import mutate
from autograder.grade import Row
from autograder.mutants import Mutant, mutants
from autograder.mutate import BadSurvivors, Fate, faults_of, faults_of_list, faults_of_score, mutants_of, survivors
from handout.problems import load_assignment

ROOT = Path(__file__).parents[2]
ASSIGNMENT = load_assignment()
MUTANT = Mutant("strides", "flat_index", "number", "return 1", "return 2", 1, "")
ROW = Row("4.2", "strides.flat_index", "test_strides.py::test_flat_index", "flat_index: works.", 1)


def changes(source: str, part: str = "strides", **options: object) -> set[str]:
    """The lines that mutants of a module have in place of its own."""
    return {mutant.after for mutant in mutants(part, source, **options)}


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "autograder", "mutate", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )


def test_each_operator_and_number_is_changed_once_a_mutant():
    source = "def f(a: int, b: int = 3) -> int:\n    if a < b:\n        return a + 1\n    return b\n"

    found = mutants("strides", source)

    assert {mutant.after for mutant in found} == {
        "def f(a: int, b: int = 4) -> int:", "if a <= b:", "return a - 1", "return a + 2"
    }  # fmt: skip
    for mutant in found:
        assert mutant.source == source.replace(mutant.before, mutant.after)
        assert (mutant.part, mutant.function) == ("strides", "f")


def test_methods_are_known_by_their_class_and_equal_changes_by_their_number():
    source = "class A:\n    def f(self, x):\n        x = x + 1\n        x = x + 1\n        return x\n"

    keys = [mutant.key for mutant in mutants("strides", source) if mutant.after == "x = x + 2"]

    assert keys == [("strides", "A.f", "number", "x = x + 1", "x = x + 2", nth) for nth in (1, 2)]


@pytest.mark.parametrize(
    "source",
    [
        'def f(x):\n    """Return x, 1."""\n    return x\n',
        'def f(x: Float[Tensor, "a 1"]) -> "Int | None":\n    return x\n',
        "LIMIT = 3\n\n\n@dataclass(frozen=True)\nclass C:\n    a: int = 1\n",
        'def f(x):\n    raise ValueError("x is 1 thing too many")\n',
        'def f(x):\n    _require_positive("x")\n',
        "def f(x):\n    return [*zip(strict=True)]\n",
    ],
    ids=["docstring", "annotation", "outside of functions", "wording", "name in a message", "strict zip"],
)
def test_what_no_test_may_see_is_not_changed(source):
    assert not changes(source)


def test_the_names_of_a_patterns_axes_are_not_changed_unless_a_keyword_calls_one():
    source = 'def f(x):\n    return rearrange("a b -> b a")\n'

    assert 'return rearrange("A B -> B A")' not in changes(source)
    assert 'return rearrange("(A B) -> B A", a=n)' in changes(source.replace('"a b -> b a"', '"(a b) -> b a", a=n'))


def test_a_function_that_is_not_tested_is_not_changed():
    source = "def f(x):\n    return x + 1\n\n\ndef g(x):\n    return x * 2\n"

    assert changes(source, untested=["g"]) == {"return x - 1", "return x + 2"}


def test_the_values_of_a_message_are_changed():
    assert "raise ValueError(f'not {x - 1}')" in changes("def f(x):\n    raise ValueError(f'not {x + 1}')\n")
    assert "raise ValueError(None)" in changes("def f(x):\n    raise ValueError(f'not {x}')\n")


def test_annotations_of_part_5_are_changed_but_for_a_name_that_any_other_could_replace():
    source = 'def f(x: Float[Tensor, "a b"], y: Float[Tensor, "b"]) -> Float[Tensor, "a"]:\n    return x\n'

    after = changes(source, part="einsums")

    assert 'def f(x: Float[Tensor, "XXa bXX"], y: Float[Tensor, "b"]) -> Float[Tensor, "a"]:' in after
    assert 'def f(x: Float[Tensor, "A B"], y: Float[Tensor, "b"]) -> Float[Tensor, "a"]:' not in after  # the same again
    assert not changes(source.replace('"b"]', '"c"]').replace('"a"]', '"d"]'), part="einsums")


def test_every_known_survivor_is_a_mutant_of_the_reference_as_it_is():
    there = {mutant.key for part in ASSIGNMENT.graded_parts for mutant in mutants_of(part, None)}
    known = survivors()

    assert not known.keys() - there
    assert len(known) <= 0.03 * len(there)


@pytest.mark.parametrize("repeated", [True, False])
def test_a_survivor_without_a_reason_or_listed_twice_is_refused(repeated, tmp_path, monkeypatch):
    entry = "[[survivor]]\npart = 'a'\nfunction = 'f'\noperator = 'o'\nbefore = 'b'\nafter = 'c'\nwhy = '{}'\n"
    path = tmp_path / "survivors.toml"
    path.write_text(entry.format("so") * 2 if repeated else entry.format(" "), encoding="utf-8")
    monkeypatch.setattr(mutate, "SURVIVORS", path)

    with pytest.raises(BadSurvivors):
        survivors()


def test_a_survivor_that_is_not_known_is_a_fault_printed_as_it_is_to_be_listed():
    [fault] = faults_of([Fate(MUTANT, None)], {})

    assert "This mutant survives" in fault and "part = 'strides'" in fault and "after = 'return 2'" in fault


def test_a_known_survivor_that_dies_is_a_fault_that_names_the_row():
    [fault] = faults_of([Fate(MUTANT, ROW)], {MUTANT.key: "equal"})

    assert "test_flat_index" in fault


def test_known_survivors_and_dead_mutants_are_no_faults():
    dead = Fate(replace(MUTANT, nth=2), ROW)

    assert not list(faults_of([Fate(MUTANT, None), dead], {MUTANT.key: "equal"}))


def test_a_known_survivor_that_is_no_mutant_any_more_is_a_fault():
    [fault] = faults_of_list([Fate(MUTANT, ROW)], {replace(MUTANT, before="return 0").key: "equal"})

    assert "is none (any more)" in fault


def test_fewer_than_97_of_100_dead_are_a_fault_even_if_all_survivors_are_known():
    alive, dead = Fate(MUTANT, None), Fate(MUTANT, ROW)

    assert not list(faults_of_score([alive] * 3 + [dead] * 97))
    [fault] = faults_of_score([alive] * 4 + [dead] * 96)
    assert "96.00%" in fault


def test_a_few_mutants_of_each_part_are_run():
    done = run("--sample", "4")

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"of {4 * len(ASSIGNMENT.graded_parts):4} mutants died" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "says"), [(["--part", "nonsense"], "nonsense"), (["--sample", "0"], "1 or more, not '0'")]
)
def test_bad_input_is_one_line(arguments, says):
    done = run(*arguments)

    assert done.returncode == 2
    assert says in done.stderr and done.stderr.count("\n") == 1
