"""Does no verdict depend on the seed, the threads or the order of imports? A short run, and the soak's own eyes."""

import subprocess
import sys
from pathlib import Path

import pytest

from autograder.settings import load_settings
from autograder.soak import Candidate, Conditions, Graded, conditions, differences
from autograder.tests.unchecked import UncheckedGrader
from handout.problems import load_assignment

ROOT = Path(__file__).parents[2]
PARTS = [part.id for part in load_assignment().graded_parts]
TEST = "test_strides.py::test_flat_index"


def found(kind: str, *outcomes: str | None) -> list[str]:
    """Return the differences among what one candidate's row comes to from run to run; None: its worker dies."""
    candidate = Candidate("one", kind, None, {})
    return list(
        differences(
            Graded(conditions(run, PARTS), candidate, each and {TEST: each}) for run, each in enumerate(outcomes)
        )
    )


@pytest.mark.parametrize(("losing", "number"), [((), 0), ((2,), 1), ((0, 1, 2, 3), 4)])
def test_a_right_submission_must_keep_every_row_in_every_run(losing, number):
    assert len(found("equivalent", *("failed" if run in losing else "passed" for run in range(4)))) == number


@pytest.mark.parametrize(("losing", "number"), [((0, 1, 2, 3), 0), ((0, 1, 3), 1), ((2,), 1)])
def test_a_wrong_submission_must_lose_what_it_lost_in_the_first_run(losing, number):
    assert len(found("misconception", *("failed" if run in losing else "passed" for run in range(4)))) == number


@pytest.mark.parametrize("kind", ["equivalent", "misconception"])
def test_a_submission_that_its_worker_dies_of_is_a_difference(kind):
    assert len(found(kind, "passed", None, "passed")) == 1


def test_a_difference_says_whose_row_it_is_and_under_which_conditions(capsys):
    [line] = found("equivalent", "passed", "failed", "passed", "passed")

    assert "one: test_strides.py::test_flat_index is failed, not passed" in line
    assert f"seed {load_settings().seed + 1}, 2 threads, imports of " in line
    shown = capsys.readouterr().out
    assert line in shown and "equivalent: graded 4 times" in shown and "4 verdicts, 1 of them differ" in shown


def test_the_first_run_is_as_students_are_graded():
    first = conditions(0, PARTS)

    assert (first.seed, first.threads, list(first.order)) == (load_settings().seed, 1, [])
    assert first.init().strip() == b""


def test_later_runs_vary_seed_threads_and_order():
    runs = [conditions(run, PARTS) for run in range(20)]

    assert len({run.seed for run in runs}) == 20
    assert {run.threads for run in runs} == {1, 2, 4}
    assert len({tuple(run.order) for run in runs}) == 20
    assert all(sorted(run.order) == sorted(PARTS) for run in runs[1:])


def test_the_conditions_reach_the_child(tmp_path):
    given = Conditions(seed=1, threads=2, order=["extra", "napkin"])
    (tmp_path / "__init__.py").write_bytes(given.init())
    (tmp_path / "extra.py").write_text("", encoding="utf-8")
    (tmp_path / "napkin.py").write_text(
        (ROOT / "reference" / "napkin.py").read_text(encoding="utf-8")
        + "\nimport sys\nassert torch.get_num_threads() == 2 and 'student.extra' in sys.modules\n",
        encoding="utf-8",
    )

    unchecked = UncheckedGrader()
    grade = unchecked.grade(tmp_path)
    unchecked.close()

    lost = [
        row["test"] + row["staff"] for row in grade["rows"] if row["number"][:2] == "1." and row["outcome"] != "passed"
    ]
    assert not lost


def test_no_verdict_of_a_few_submissions_differs():
    done = subprocess.run(
        [sys.executable, "-m", "autograder", "soak", "--times", "3", "--sample", "1"],
        cwd=ROOT, capture_output=True, text=True, timeout=900,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "reference: graded 3 times" in done.stdout
    assert f"equivalent: graded {3 * len(PARTS)} times" in done.stdout
    assert ", 0 of them differ" in done.stdout
