"""What a student runs: the public tests' plugin and scoreboard, their assertions, the environment, and the Makefile."""

import collections
import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from handout.problems import Problem
from tests import environment
from tests.checks import check_close, check_equal, check_raises, says_which
from tests.environment import CannotMake, Interpreter
from tests.scoreboard import CANNOT_IMPORT, Row, Tally, next_lines, points_lines, row

ROOT = Path(__file__).resolve().parents[2]

PROBLEMS = """
title = "A small assignment"
points = 6
[[parts]]
id = "fruit"
title = "Fruit"
graded = true
problems = [
  { id = "apple", title = "An apple", points = 2 },
  { id = "Banana", title = "A banana", points = 1 },
  { id = "cherry", title = "A cherry", points = 3, bonus = true },
]
[[parts]]
id = "roots"
title = "Roots"
graded = true
problems = [
  { id = "carrot", title = "A carrot", points = 1.5 },
  { id = "turnip", title = "A turnip, never tested in public", points = 0.5 },
]
[[parts]]
id = "later"
title = "Not graded yet"
graded = false
problems = [{ id = "plum", title = "A plum", points = 1 }]
"""

# The same tests for every submission below. None needs PyTorch, so that a run takes half a second.
FRUIT_TESTS = """
import pytest
from student import fruit

@pytest.mark.problem("fruit.apple")
def test_apple_is_one():
    assert fruit.apple() == 1

@pytest.mark.problem("fruit.apple")
def test_apple_refuses_a_stone():
    with pytest.raises(ValueError):
        fruit.apple("stone")

@pytest.mark.problem("fruit.Banana")
def test_banana_is_yellow():
    assert fruit.Banana().colour() == "yellow"

@pytest.mark.problem("fruit.cherry")
def test_cherry_needs_a_gpu():
    pytest.skip("no GPU here")
"""
ROOTS_TESTS = """
import pytest
from student import roots

@pytest.mark.problem("roots.carrot")
def test_carrot_is_orange():
    assert roots.carrot() == "orange"
"""
# Stands in for tests/allowed.py, which needs PyTorch: in a file with the comment "# banned: apple", apple uses what it may not.
ALLOWED = """
import re
from dataclasses import dataclass

@dataclass
class Violation:
    file: str
    line: int
    problem: str | None
    name = "banned"

    def __str__(self):
        return f"student/{self.file}:{self.line}: banned: not in a fruit"

def check_part(part, sources):
    return [
        Violation(f"{part}.py", i, f"{part}.{found[1]}" if found[1] else None)
        for i, line in enumerate(sources.get(f"{part}.py", b"").decode().splitlines(), 1)
        if (found := re.search("# banned:? ?(.*)", line))
    ]
"""
LATER_TESTS = """
import pytest
from student import later

@pytest.mark.problem("later.plum")
def test_plum_is_blue():
    assert later.plum() == "blue"
"""

FRUIT_STUB = """
def apple(kind=""):
    raise NotImplementedError("fruit.apple")

class Banana:
    def colour(self):
        raise NotImplementedError("fruit.Banana")

def cherry():
    raise NotImplementedError("fruit.cherry")
"""
FRUIT = """
def apple(kind=""):
    if kind == "stone":
        raise ValueError(kind)
    return 1

class Banana:
    def colour(self):
        return "yellow"

def cherry():
    return 0
"""
ROOTS_STUB = 'def carrot():\n    raise NotImplementedError("roots.carrot")\n'
ROOTS = 'def carrot():\n    return "orange"\n'


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A student release with small parts of its own, unsolved, in a folder with a space and a quote in its name."""
    root = tmp_path / "a student's folder"
    for folder in ("tests", "handout", "student"):
        (root / folder).mkdir(parents=True)
    for name in ("__init__", "__main__", "advice", "checks", "conftest", "environment", "scoreboard"):
        shutil.copy(ROOT / "tests" / f"{name}.py", root / "tests")
    for name in ("pyproject.toml", "constraints.txt", "Makefile", "handout/__init__.py", "handout/problems.py"):
        shutil.copy(ROOT / name, root / name)
    (root / "handout/problems.toml").write_text(PROBLEMS)
    (root / "tests/allowed.py").write_text(ALLOWED)
    for part, source in (("fruit", FRUIT_TESTS), ("roots", ROOTS_TESTS), ("later", LATER_TESTS)):
        (root / f"tests/test_{part}.py").write_text(source)
    for part, source in (("__init__", ""), ("fruit", FRUIT_STUB), ("roots", ROOTS_STUB)):
        (root / f"student/{part}.py").write_text(source)
    return root


def run(root: Path, *arguments: str, command: str = "tests", **variables: str) -> tuple[int, str]:
    """Run `python -m tests` and return its exit status and all that it printed."""
    return _finished([sys.executable, "-m", command, *arguments], root, variables)


def make(root: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """Run make."""
    return _finished(["make", *arguments], root, variables)


def _finished(command: list[str], root: Path, variables: dict[str, str]) -> tuple[int, str]:
    # Not what `make check` and pytest, which run this, have in their environment.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PYTEST"))}
    finished = subprocess.run(
        command,
        cwd=root,
        env=inherited | {"COLUMNS": "100"} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return finished.returncode, finished.stdout


def scoreboard(output: str) -> dict[str, str]:
    """Return what the scoreboard says of each problem: "3.1 memory.x 2 failing 1 of 3 tests fail" without its first three words."""
    rows = re.findall(r"^\d+\.\d+ +(\S+) +\+?[\d.]+ +(.*?) *$", output, re.MULTILINE)
    return {problem: re.sub(" +", " ", status) for problem, status in rows}


# --- the scoreboard ---


def test_stubs_are_not_started_and_no_error(release: Path) -> None:
    status, output = run(release)
    assert status == 0
    assert scoreboard(output) == {
        "fruit.apple": "not started",
        "fruit.Banana": "not started",
        "fruit.cherry": "not run no GPU here",
        "roots.carrot": "not started",
    }
    assert "Traceback" not in output and "NotImplementedError" not in output


def test_first_problem_that_is_not_done_comes_next(release: Path) -> None:
    (release / "student/fruit.py").write_text(FRUIT.replace('"yellow"', '"green"'))
    _, output = run(release)
    assert "Next: fruit.Banana, failing: student/fruit.py:7\n      python3 -m tests --part fruit\n" in output


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["not started", "failing", "broken"], "a.p2"),
        (["not started", "started", "failing"], "a.p2"),
        (["not started", "started", "started"], "a.p1"),
        (["waiting", "done", "not started"], "a.p2"),
        (["waiting", "done", "passing"], "a.p0"),
    ],
)
def test_next_is_what_is_broken_then_what_fails_then_what_is_begun(
    release: Path, statuses: list[str], expected: str
) -> None:
    rows = [
        Row(Problem(f"a.p{i}", f"1.{i}", "", 1, False), "failing", CANNOT_IMPORT)
        if status == "broken"
        else Row(Problem(f"a.p{i}", f"1.{i}", "", 1, False), status)
        for i, status in enumerate(statuses)
    ]
    assert next_lines(rows, release, "make test PART=", everything=True)[0].startswith(f"Next: {expected},")


def test_part_that_cannot_be_imported_comes_next(release: Path) -> None:
    (release / "student/fruit.py").write_text(FRUIT.replace('"yellow"', '"green"'))
    (release / "student/roots.py").write_text("1 / 0")
    assert "Next: roots.carrot, failing: student/roots.py:1\n" in run(release)[1]


def test_skipped_test_of_a_problem_leaves_it_short_of_done() -> None:
    problem = Problem("fruit.apple", "1.1", "An apple", 2, False)
    assert row(problem, Tally(existing=2, chosen=2, passed=1, skipped=["bored"])).status == "passing"
    assert row(problem, Tally(existing=1, chosen=1, skipped=["bored"])) == Row(problem, "not run", "bored")


@pytest.mark.parametrize(
    "arguments",
    [(), ("--part", "fruit"), ("-k", "apple_is_one"), ("tests/test_fruit.py::test_apple_is_one",)],
    ids=["everything", "a part", "by name", "a single test"],
)
def test_what_the_handout_does_not_allow_fails_its_problem(release: Path, arguments: tuple[str, ...]) -> None:
    (release / "student/fruit.py").write_text(FRUIT.replace("    return 1", "    return 1  # banned: apple"))
    status, output = run(release, *arguments)
    assert status == 1
    assert output.count("\nstudent/fruit.py:5: banned: not in a fruit\n") == 1
    assert scoreboard(output)["fruit.apple"] == "failing not allowed: line 5"
    assert scoreboard(output).get("fruit.Banana", "done") == "done"
    assert f"Public tests pass for {1 if 'fruit.Banana' in scoreboard(output) else 0} of the " in output
    assert "Next: fruit.apple, failing: student/fruit.py:2\n" in output


def test_what_the_handout_does_not_allow_of_another_problem_is_not_said(release: Path) -> None:
    (release / "student/fruit.py").write_text(FRUIT.replace("    return 1", "    return 1  # banned: apple"))
    status, output = run(release, "-k", "banana")
    assert status == 0
    assert scoreboard(output) == {"fruit.Banana": "done"}


def test_what_a_whole_part_may_not_use_fails_all_its_problems_and_is_said_once(release: Path) -> None:
    (release / "student/fruit.py").write_text(FRUIT_STUB + "# banned")
    status, output = run(release)
    assert status == 1
    assert output.count("student/fruit.py:11: banned: not in a fruit") == 1
    assert {problem: said.split()[0] for problem, said in scoreboard(output).items()} == {
        "fruit.apple": "failing",
        "fruit.Banana": "failing",
        "fruit.cherry": "failing",
        "roots.carrot": "not",
    }


def test_keeping_to_what_is_allowed_is_no_progress(release: Path) -> None:
    assert re.search(r"^1 skipped, 4 not started in ", run(release)[1], re.MULTILINE)


def test_second_test_of_a_problem_that_never_ends_is_not_waited_for(release: Path) -> None:
    plugin = release / "tests/conftest.py"
    plugin.write_text(plugin.read_text().replace("SECONDS_PER_TEST = 60", "SECONDS_PER_TEST = 1"))
    (release / "student/fruit.py").write_text('def apple(kind=""):\n    while True:\n        pass\n')
    (release / "student/roots.py").write_text(ROOTS)
    status, output = run(release)
    assert status == 1
    assert output.count("stopped after 1 s: is there a loop that never ends?") == 1
    assert output.count("not run: another test of this problem never ended") == 1
    assert scoreboard(output)["fruit.apple"] == "failing 2 of 2 tests fail"
    assert scoreboard(output)["roots.carrot"] == "done"


def test_import_without_an_end_is_said_once_with_its_place(release: Path) -> None:
    plugin = release / "tests/conftest.py"
    plugin.write_text(plugin.read_text().replace("SECONDS_OF_IMPORT = 10", "SECONDS_OF_IMPORT = 0.3"))
    (release / "student/fruit.py").write_text(f"import time\ntime.sleep(1)\n{FRUIT}")
    status, output = run(release)
    assert status == 0
    said = [line for line in output.splitlines() if "still being imported" in line]
    assert len(said) == 1
    assert said[0].startswith("student/fruit.py is still being imported after 0.3 s. ")
    assert said[0].endswith("It is at student/fruit.py:2: time.sleep(1)")


def test_failure_shows_the_students_own_lines_only(release: Path) -> None:
    (release / "student/fruit.py").write_text(FRUIT.replace("return 1", "import json\n    return json.loads('apple')"))
    status, output = run(release)
    assert status == 1
    assert scoreboard(output)["fruit.apple"] == "failing 1 of 2 tests fail"
    assert re.search(r"^student/fruit.py:6: in apple$", output, re.MULTILINE)
    assert "json/" not in output and "_pytest" not in output


def test_all_done_does_not_sound_like_full_marks(release: Path) -> None:
    (release / "student/fruit.py").write_text(FRUIT)
    (release / "student/roots.py").write_text(ROOTS)
    status, output = run(release)
    assert status == 0
    assert scoreboard(output)["fruit.apple"] == "done"
    assert "Public tests pass for 4.5 of the 4.5 points above." in output
    assert "hidden tests, which try more, decide all 4.5" in " ".join(output.split())
    assert "Hidden tests alone decide 0.5 more points: roots.turnip." in output
    assert "Next: hand in" in output


def test_half_written_class_is_started(release: Path) -> None:
    half = FRUIT.replace("    return 1\n", '    raise NotImplementedError("fruit.apple")\n')
    (release / "student/fruit.py").write_text(half)
    status, output = run(release)
    assert status == 0
    assert scoreboard(output)["fruit.apple"] == "started 1 of 2 tests pass"


def test_problem_that_ends_in_anothers_stub_waits_for_it(release: Path) -> None:
    needing = FRUIT.replace('return "yellow"', "return cherry()").replace(
        "return 0", 'raise NotImplementedError("fruit.cherry")'
    )
    (release / "student/fruit.py").write_text(needing)
    _, output = run(release)
    assert scoreboard(output)["fruit.Banana"] == "waiting needs 1.3"
    assert "Next: roots.carrot" in output


def test_not_implemented_error_of_a_library_is_a_failure(release: Path) -> None:
    # PyTorch raises it for what a device cannot do.
    library = "class Library:\n    def f(self):\n        raise NotImplementedError\n"
    (release / "a_library.py").write_text(library)
    (release / "student/fruit.py").write_text(
        FRUIT.replace("return 1", "import a_library\n    a_library.Library().f()")
    )
    status, output = run(release)
    assert status == 1
    assert scoreboard(output)["fruit.apple"] == "failing 1 of 2 tests fail"


def test_broken_file_costs_a_line_and_no_other_part(release: Path) -> None:
    (release / "student/fruit.py").write_text(FRUIT.replace("class Banana:", "class Banana"))
    (release / "student/roots.py").write_text(ROOTS)
    status, output = run(release)
    assert status == 1
    assert scoreboard(output)["fruit.apple"] == "failing cannot be imported"
    assert scoreboard(output)["roots.carrot"] == "done"
    assert "student/fruit.py cannot be imported: student/fruit.py:7: SyntaxError: expected ':'" in output
    assert re.search(r"class Banana\n +\^", output), "Python's caret is missing"
    assert "Traceback" not in output and len(output.splitlines()) < 20


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "\nimport nosuch",
            "student/fruit.py cannot be imported: student/fruit.py:2: ModuleNotFoundError: No module named",
        ),
        ("import sys\nsys.exit(3)", "student/fruit.py cannot be imported: student/fruit.py:2: SystemExit: 3"),
        ("from student import helper", "student/fruit.py cannot be imported: student/helper.py:1: ZeroDivisionError"),
        (None, "student/fruit.py is missing"),
    ],
    ids=["no such module", "exit", "an own file is to blame", "missing"],
)
def test_part_that_cannot_be_imported_says_where_and_why(release: Path, source: str | None, said: str) -> None:
    (release / "student/helper.py").write_text("1 / 0")
    (release / "student/fruit.py").unlink()
    if source is not None:
        (release / "student/fruit.py").write_text(source)
    status, output = run(release)
    assert status == 1
    assert said in output
    assert scoreboard(output)["fruit.Banana"] == "failing cannot be imported"
    assert scoreboard(output)["roots.carrot"] == "not started"


def test_function_missing_at_the_top_of_a_test_costs_a_line(release: Path) -> None:
    tests = release / "tests/test_fruit.py"
    tests.write_text(tests.read_text() + "\nfrom_the_start = fruit.pear\n")
    status, output = run(release)
    assert status == 1
    assert (
        "tests/test_fruit.py cannot be collected: AttributeError: module 'student.fruit' has no attribute 'pear'"
        in output
    )
    assert scoreboard(output)["fruit.apple"] == "failing cannot be imported"
    assert scoreboard(output)["roots.carrot"] == "not started"
    assert "from_the_start" not in output, "the test's source says nothing to a student"


# --- choosing what is run ---


def test_one_part_shows_its_own_problems_only(release: Path) -> None:
    (release / "student/fruit.py").write_text("this is not Python")
    status, output = run(release, "--part", "roots")
    assert status == 0
    assert list(scoreboard(output)) == ["roots.carrot"]
    assert "fruit" not in output and "turnip" not in output


@pytest.mark.parametrize("part", ["nonsense", "later"])
def test_part_without_tests_is_one_line_and_status_2(release: Path, part: str) -> None:
    status, output = run(release, "--part", part)
    assert status == 2
    assert output.strip() == f"error: there is no part {part!r}: choose from fruit, roots"


def test_plain_pytest_chooses_by_name(release: Path) -> None:
    (release / "student/fruit.py").write_text(FRUIT)
    (release / "student/roots.py").write_text("this is not Python")
    status, output = run(release, "tests", "-k", "banana", command="pytest")
    assert status == 0
    assert scoreboard(output) == {"fruit.Banana": "done"}
    assert "roots" not in output.split("scoreboard")[1]
    assert "Next: the other tests" in output


def test_problem_of_which_not_all_tests_ran_is_not_done(release: Path) -> None:
    (release / "student/fruit.py").write_text(FRUIT)
    _, output = run(release, "-k", "apple_is_one")
    assert scoreboard(output) == {"fruit.apple": "passing 1 of 2 tests run"}
    _, output = run(release, "tests/test_fruit.py::test_apple_is_one")
    assert scoreboard(output) == {"fruit.apple": "passing as far as was run"}


def test_parts_that_are_not_graded_run_only_when_their_file_is_named(release: Path) -> None:
    (release / "student/later.py").write_text('def plum():\n    return "blue"\n')
    assert "later" not in run(release)[1]
    assert scoreboard(run(release, "tests/test_later.py")[1]) == {"later.plum": "done"}


def test_another_student_package_is_refused(release: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "student").mkdir(parents=True)
    (elsewhere / "student/__init__.py").write_text("")
    # Imported before the plugin looks, as an installed package could do that has a `student` inside.
    (elsewhere / "early.py").write_text(f"import sys\nsys.path.insert(0, {str(elsewhere)!r})\nimport student\n")
    status, output = run(release, "-p", "early", PYTHONPATH=str(elsewhere))
    assert status == 2
    assert f"'import student' finds {elsewhere / 'student'}, and not {release / 'student'}" in output


def test_missing_student_folder_is_one_line(release: Path) -> None:
    shutil.rmtree(release / "student")
    status, output = run(release)
    assert status == 2
    assert re.fullmatch(r"error: there is no folder .*student: the solutions go there", output.strip())


def test_endless_loop_ends_with_its_line(release: Path) -> None:
    conftest = release / "tests/conftest.py"
    conftest.write_text(conftest.read_text().replace("SECONDS_PER_TEST = 60", "SECONDS_PER_TEST = 1"))
    (release / "student/fruit.py").write_text(FRUIT.replace("    return 1", "    while True:\n        pass"))
    status, output = run(release)
    assert status == 1
    assert "stopped after 1 s: is there a loop that never ends?" in output
    assert re.search(r"^student/fruit.py:[56]: in apple$", output, re.MULTILINE)
    assert scoreboard(output)["fruit.Banana"] == "done"


def test_mark_of_an_unknown_problem_is_refused(release: Path) -> None:
    tests = release / "tests/test_fruit.py"
    tests.write_text(tests.read_text().replace("fruit.cherry", "fruit.pear"))
    status, output = run(release)
    assert status != 0
    assert "handout/problems.toml has no problem 'fruit.pear'" in output


def test_student_code_runs_in_the_process_of_the_tests(release: Path) -> None:
    # Else no breakpoint would work.
    tests = release / "tests/test_roots.py"
    tests.write_text(
        tests.read_text().replace('roots.carrot() == "orange"', "roots.carrot() == __import__('os').getpid()")
    )
    (release / "student/roots.py").write_text("import os\n\ndef carrot():\n    return os.getpid()\n")
    assert scoreboard(run(release)[1])["roots.carrot"] == "done"


def test_garbage_collector_is_on_while_tests_run(release: Path) -> None:
    (release / "student/roots.py").write_text(
        "import gc\n\ndef carrot():\n    return 'orange' if gc.isenabled() else 'off'\n"
    )
    assert scoreboard(run(release)[1])["roots.carrot"] == "done"


def test_renamed_function_is_said_to_be_missing(release: Path) -> None:
    (release / "student/fruit.py").write_text(FRUIT.replace("def apple", "def appel"))
    status, output = run(release)
    assert status == 1
    assert scoreboard(output)["fruit.apple"] == "failing not defined"
    assert scoreboard(output)["fruit.Banana"] == "done"
    assert output.count("student/fruit.py defines no apple\n") == 2
    assert "AttributeError" not in output


def test_error_of_one_line_is_shown_once_with_advice(release: Path) -> None:
    broken = FRUIT.replace('    if kind == "stone":', '    if kind.missing.nothing == "stone":').replace(
        'def apple(kind="")', "def apple(kind=None)"
    )
    (release / "student/fruit.py").write_text(
        broken.replace("    if kind", "    kind = type('K', (), {'missing': None})\n    if kind")
    )
    status, output = run(release)
    assert status == 1
    assert output.count("AttributeError: 'NoneType' object has no attribute 'nothing'") == 1
    assert output.count("None came where a value is needed") == 1
    assert output.count("student/fruit.py:4: the same AttributeError as in test_apple_is_one\n") == 1
    assert scoreboard(output)["fruit.apple"] == "failing 2 of 2 tests fail"


def test_helper_imported_without_its_package_is_told_how(release: Path) -> None:
    (release / "student/seeds.py").write_text("x = 1\n")
    (release / "student/fruit.py").write_text("import seeds\n" + FRUIT)
    assert "(a file of your own is imported as student.seeds)" in run(release)[1]


def test_name_that_no_test_has_is_said_in_a_line(release: Path) -> None:
    status, output = run(release, "-k", "test_pear")
    assert status == 2
    assert output.count("no public test is called 'test_pear'\n") == 1


def test_problem_that_waits_names_the_numbers_it_needs() -> None:
    problem = Problem("training.together", "10.6", "", 1, False)
    needs = ["data.open_tokens", "data.open_tokens", "model.Linear", "optimizers.SGD"]
    assert row(problem, Tally(1, 1, stubs=needs[:2])).remark == "needs 9.1"
    assert row(problem, Tally(1, 1, stubs=needs)).remark == "needs 9.1 and 2 more"


def test_points_of_problems_that_were_half_run_are_said_not_to_count() -> None:
    rows = [Row(Problem("a.b", "1.1", "", 2, False), "passing"), Row(Problem("a.c", "1.2", "", 3, False), "done")]
    assert "3 of the 5 points above, not counting those of which only some were run. " in points_lines(rows, [])[0]
    assert "3 of the 3 points above. " in points_lines(rows[1:], [])[0]


# --- what the scoreboard is made of ---


def test_next_step_is_said_in_the_words_of_who_ran_it(release: Path) -> None:
    rows = [Row(Problem("fruit.apple", "1.1", "An apple", 2, False), "done")]
    assert next_lines(rows, release, "make test PART=", everything=True) == ["Next: hand in", "      make submission"]
    assert next_lines(rows, release, "make test PART=", everything=False) == [
        "Next: the other tests",
        "      make test",
    ]
    assert next_lines(rows, release, "py -m tests --part ", everything=False)[1] == "      py -m tests"
    assert next_lines(rows, release, "py -m tests --part ", everything=True)[1] == "      py -m tests.submission"


def test_bonus_points_do_not_count_toward_the_total() -> None:
    rows = [Row(Problem("a.b", "1.1", "", 2, False), "done"), Row(Problem("a.c", "1.2", "", 3, True), "done")]
    assert points_lines(rows, [])[0].startswith("Public tests pass for 2 of the 2 points above.")


# --- the assertions ---


def message(call: Callable[[], None]) -> str:
    """Return what a failing check says."""
    with pytest.raises(AssertionError) as failure:
        call()
    return str(failure.value)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (True, 1),
        (1.0, 1),
        (1, True),
        (np.int64(1), 1),
        (np.float64(1.0), 1.0),
        (torch.tensor(1), 1),
        (torch.Size([1]), (2,)),
        (torch.Size([1]), [1]),
        ([1], (1,)),
        ((1, 2), (1,)),
        ((1, 2), (1, 3)),
        ((1, (2, None)), (1, (2, 0))),
        (1.0 + 1e-8, 1.0),
        (float("nan"), 1.0),
        (1.0, float("inf")),
        (None, 0),
        ({"a": 1}, {"b": 1}),
    ],
    ids=repr,
)
def test_check_equal_refuses(got: object, expected: object) -> None:
    assert "\n  expected: " in message(lambda: check_equal(got, expected))


@pytest.mark.parametrize(
    "value", [0, True, None, float("nan"), float("inf"), "text", (1, [2.0, None]), {"a": (1,)}, torch.ones(2)], ids=repr
)
def test_check_equal_accepts_the_same(value: object) -> None:
    check_equal(value, copy.deepcopy(value))


def test_check_equal_takes_every_kind_of_tuple_and_dict() -> None:
    pair = collections.namedtuple("pair", "first second")
    check_equal([torch.Size([1, 2]), pair(3, (4,))], [(1, 2), (3, (4,))])
    check_equal((3, 4), pair(3, 4))
    check_equal(collections.OrderedDict(a=1), {"a": 1})


def test_check_equal_forgives_the_rounding_of_doubles() -> None:
    check_equal(0.1 + 0.2, 0.3)


def test_check_equal_says_where_what_and_why() -> None:
    said = message(lambda: check_equal((48, (1, 2)), (48, (1, 3)), hint="count each storage once"))
    assert said == "wrong value at [1][1]\n  expected: int 3\n  got:      int 2\n  hint: count each storage once"


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (torch.ones(1), torch.ones(2)),  # would broadcast
        (torch.ones(2, 1), torch.ones(1, 2)),
        (torch.tensor([]), torch.tensor(1.0)),
        (torch.ones(2, dtype=torch.float64), torch.ones(2)),
        (torch.ones(2, device="meta"), torch.ones(2)),
        (torch.tensor([1.0, 0.9999]), torch.ones(2)),
        (torch.zeros(2), torch.full((2,), 1e-6)),  # any fixed tolerance would take it
        (torch.full((2,), float("nan")), torch.ones(2)),
        (torch.ones(2), torch.full((2,), float("inf"))),
        (torch.ones(2), torch.full((2,), float("nan"))),
        (torch.tensor([1, 3]), torch.tensor([1, 2])),
        (1.0, torch.tensor(1.0)),
    ],
)
def test_check_close_refuses(got: object, expected: torch.Tensor) -> None:
    assert message(lambda: check_close(got, expected)).startswith("wrong ")


def test_check_close_accepts_other_rounding_and_expected_infinities() -> None:
    check_close(torch.tensor([1.0 + 1e-6, float("inf"), float("nan")]), torch.tensor([1.0, float("inf"), float("nan")]))
    check_close(torch.empty(0), torch.empty(0))
    check_close(torch.ones(2, requires_grad=True), torch.ones(2))


def test_check_close_names_the_first_index_that_differs() -> None:
    got, expected = torch.tensor([[1.0, 2.5], [3.0, 4.5]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    said = message(lambda: check_close(got, expected, hint="look at the last column"))
    assert "first at index (0, 1)\n  expected: 2.0\n  got:      2.5" in said
    assert said.endswith("\n  hint: look at the last column")


def test_check_raises_lets_a_stub_through() -> None:
    def stub() -> None:
        raise NotImplementedError("memory.storage_bytes")

    with pytest.raises(NotImplementedError):
        check_raises(RuntimeError, stub)  # of which NotImplementedError is a kind


@pytest.mark.parametrize(
    ("text", "value", "does"),
    [
        ("lr is -0.5", -0.5, True),
        ("lr is -5.0e-01", -0.5, True),
        ("1,234,567 is too much", 1234567, True),
        ("an MFU of 150% cannot be", 1.5, True),
        ("0.12 is no probability", 0.1234, True),
        ("float64 is no integer dtype", torch.float64, True),
        ("int64 is no floating-point dtype", torch.float64, False),
        ("wrong lr", -0.5, False),
        ("lr must be 0 or more", -0.5, False),
        ("lr must be 0 or more, not 0.5", -0.5, False),
        ("lr must be 0 or more", -1e-9, False),
        ("9" * 5000, -0.5, False),
    ],
)
def test_an_error_says_which_value_is_meant_in_any_format(text, value, does) -> None:
    assert says_which(text, value) is does


def test_check_raises_wants_the_kind_and_the_value() -> None:
    def refuse(error: Exception) -> Callable[[], None]:
        def call() -> None:
            raise error

        return call

    check_raises(ValueError, refuse(ValueError("lr is -0.5")), names=-0.5)
    assert "got KeyError" in message(lambda: check_raises(ValueError, refuse(KeyError("-0.5")), names=-0.5))
    assert "... -0.5 ..." in message(lambda: check_raises(ValueError, refuse(ValueError("wrong lr")), names=-0.5))
    assert "got no error" in message(lambda: check_raises(ValueError, lambda: None))


# --- the environment ---


def interpreter(path: str, version: tuple[int, int] = (3, 12)) -> Interpreter:
    return Interpreter(path, path, version)


def answers(*known: Interpreter) -> Callable[[str], Interpreter | None]:
    return lambda executable: next((python for python in known if python.executable == executable), None)


def test_first_python_that_is_new_enough_is_taken() -> None:
    known = [interpreter("/old", (3, 9)), interpreter("/good", (3, 10)), interpreter("/newer", (3, 13))]
    chosen = environment.choose(["/runs nothing", "/old", "/good", "/newer"], answers(*known), as_root=False)
    assert chosen.executable == "/good"


def test_root_takes_a_python_that_all_can_read_if_there_is_one(tmp_path: Path) -> None:
    private, public = tmp_path / "private", Path(sys.base_prefix)
    private.mkdir(mode=0o700)
    if not environment.readable_by_all(interpreter(str(public))):
        pytest.skip("no Python here can be read by all")
    known = [interpreter(str(private)), interpreter(str(public))]
    names = [python.executable for python in known]
    assert environment.choose(names, answers(*known), as_root=True).executable == str(public)
    assert environment.choose(names, answers(*known), as_root=False).executable == str(private)
    assert environment.choose(names[:1], answers(*known), as_root=True).executable == str(private)


def test_folder_above_may_hide_a_python(tmp_path: Path) -> None:
    # pytest's own folders are closed to others, so one beside them is needed.
    with tempfile.TemporaryDirectory() as name:
        python = Path(name, "home/python")
        python.mkdir(parents=True)
        for folder in (python, python.parent, Path(name)):
            folder.chmod(0o755)
        (tmp_path / "link").symlink_to(python)
        assert environment.readable_by_all(interpreter(str(tmp_path / "link")))
        python.parent.chmod(0o700)
        assert not environment.readable_by_all(interpreter(str(tmp_path / "link")))


def test_no_suitable_python_says_what_was_found() -> None:
    with pytest.raises(CannotMake, match=r"Python 3\.10 or newer is needed.*/old is 3\.9.*PYTHON"):
        environment.choose(["/old"], answers(interpreter("/old", (3, 9))), as_root=False)


def test_python_variable_is_the_only_candidate() -> None:
    assert list(environment.candidates({"PYTHON": "/opt/my python", "PATH": os.environ["PATH"]})) == ["/opt/my python"]
    assert next(environment.candidates({"PATH": os.environ["PATH"]})) == sys.executable


def test_virtual_environment_answers_for_the_python_that_it_was_made_from() -> None:
    answer = environment.ask(sys.executable)
    assert answer is not None
    assert answer.prefix == sys.base_prefix
    assert answer.version == sys.version_info[:2]
    assert environment.ask("/no/such/python") is None


def pretend_environment(root: Path, script: str) -> None:
    """Write a `.venv` that counts as ready, whose Python is a shell script."""
    python = environment.venv_python(root)
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    environment.stamp_path(root).write_text("\n".join([environment.pins_hash(root), "dev", "grader"]))


def is_ready(root: Path, *extras: str) -> bool:
    command = [sys.executable, "-I", "-S", "tests/environment.py", "--check", *extras]
    status, output = _finished(command, root, {})
    assert output == ""
    return status == 0


def test_environment_is_made_anew_when_pins_change_and_not_when_a_linter_does(release: Path) -> None:
    assert not is_ready(release)
    pretend_environment(release, "exit 0")
    assert is_ready(release)
    assert is_ready(release, "grader")
    assert not is_ready(release, "figures")

    pyproject, constraints = release / "pyproject.toml", release / "constraints.txt"
    pyproject.write_text(pyproject.read_text() + "\n[tool.another]\n")
    assert is_ready(release)
    constraints.write_text(constraints.read_text().replace("numpy==2", "numpy==3"))
    assert not is_ready(release)
    constraints.write_text(constraints.read_text().replace("numpy==3", "numpy==2"))
    assert is_ready(release)
    pyproject.write_text(pyproject.read_text().replace('"einops"', '"einops>=1"'))
    assert not is_ready(release)


@pytest.mark.parametrize("stopped_by", [KeyboardInterrupt, CannotMake])
def test_half_made_environment_does_not_count(
    release: Path, monkeypatch: pytest.MonkeyPatch, stopped_by: type[BaseException]
) -> None:
    pretend_environment(release, "exit 0")

    def stop(command: list[str], ticking: bool = False) -> str:
        if ticking:  # it is pip's long run
            raise stopped_by
        return ""

    monkeypatch.setattr(environment, "_run", stop)
    with pytest.raises(stopped_by):
        environment.make(["figures"], release)
    assert environment.installed_extras(release) is None


def test_extras_that_are_installed_stay(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_environment(release, "exit 0")
    commands: list[list[str]] = []

    def note(command: list[str], ticking: bool = False) -> str:
        commands.append(command)
        return "matplotlib\nrich\n"

    monkeypatch.setattr(environment, "_run", note)
    environment.make(["figures"], release)
    assert environment.installed_extras(release) == {"dev", "figures", "grader"}
    assert not any("venv" in command for command in commands), "it was made anew, and only an extra was missing"
    assert commands[-1][-2:] == ["matplotlib", "rich"]


def test_dependencies_are_those_of_pyproject() -> None:
    command = [sys.executable, "-c", environment.DEPENDENCIES, str(ROOT / "pyproject.toml"), "figures"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "torch>=2.6" in listed and "matplotlib" in listed and "ruff" not in listed


def test_every_dependency_is_pinned_and_no_pin_names_a_build() -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    pinned = {re.match(r"[a-z0-9-]+", pin).group() for pin in pins}
    command = [sys.executable, "-c", environment.DEPENDENCIES, str(ROOT / "pyproject.toml"), "figures", "grader", "dev"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {re.match(r"[a-z0-9-]+", name).group() for name in listed} <= pinned
    assert not [pin for pin in pins if "+" in pin or "==" not in pin]


# --- the Makefile ---

# Stands for .venv's Python: shows its arguments, one a line, as JSON would quote them.
SHOW = f"""case "$*" in *--check*) exit 0;; esac
exec {sys.executable} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@" """


def shown(output: str) -> list[list[str]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("[")]


def test_make_alone_prints_help_by_group(release: Path) -> None:
    status, output = make(ROOT)
    assert status == 0
    assert output.index("For students") < output.index("make test ") < output.index("For instructors")
    assert output.index("For instructors") < output.index("make grade ")
    targets = set(
        re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text() + (ROOT / "autograder/staff.mk").read_text(), re.M)
    )
    assert targets - set(re.findall(r"^ +make ([a-z]+)", output, re.M)) == {"help"}

    status, output = make(release)
    assert status == 0
    assert "For students" in output
    assert "For instructors" not in output


def test_make_test_works_from_a_path_with_spaces(release: Path) -> None:
    pretend_environment(release, f'exec {sys.executable} "$@"')
    status, output = make(release, "test", "PART=roots")
    assert status == 0
    assert list(scoreboard(output)) == ["roots.carrot"]
    assert "      make test PART=roots\n" in output


def test_make_test_says_so_when_there_is_no_such_part(release: Path) -> None:
    pretend_environment(release, f'exec {sys.executable} "$@"')
    status, output = make(release, "test", "PART=all of them")
    assert status == 2
    assert output.startswith("error: there is no part 'all of them': choose from fruit, roots\nmake: ***")


@pytest.fixture
def checkout(release: Path) -> Path:
    """A release with the staff's targets, whose Python shows what it was asked to do."""
    (release / "autograder").mkdir()
    shutil.copy(ROOT / "autograder/staff.mk", release / "autograder")
    pretend_environment(release, SHOW)
    return release


@pytest.mark.parametrize("name", ["plain", "it's late; echo no", 'a "quoted" one', "-rf", "star *", "back`date`tick"])
def test_make_grade_hands_on_any_name(checkout: Path, name: str) -> None:
    (checkout / name).mkdir()
    status, output = make(checkout, "grade", f"SUBMISSION={name}", f"OUT={name}.json")
    assert status == 0
    assert shown(output) == [["-m", "autograder", "grade", f"--out={name}.json", "--", name]]
    status, output = make(checkout, "grade", SUBMISSION=name, ISOLATION="process")
    assert shown(output) == [["-m", "autograder", "grade", "--isolation", "process", "--", name]]


def test_make_grade_without_a_submission_is_one_line_and_status_2(checkout: Path) -> None:
    status, output = make(checkout, "grade")
    assert status == 2
    assert output.startswith("say what to grade: make grade SUBMISSION=<folder or zip> [OUT=results.json]\nmake: ***")
    status, output = make(checkout, "grade", "SUBMISSION=no such/file.zip")
    assert status == 2
    assert output.startswith("there is no no such/file.zip\nmake: ***")
    assert not shown(output)
