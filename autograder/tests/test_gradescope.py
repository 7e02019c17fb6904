"""results.json: what the platform demands of it, and that it stands there, whole and true, whenever someone looks."""

import json
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from autograder import gradescope
from autograder.grade import Grade, Row
from autograder.gradescope import results, write_results
from autograder.pack import grader_version
from autograder.settings import load_settings
from autograder.tests import traces
from autograder.tests.handed_in import ROOT, reference, replaced, write
from autograder.tests.running import copy_of_the_tree, open_folder, run, started
from autograder.tests.written import SCHEMA, Checker, read
from handout.problems import load_assignment

NOT_YOUR_FAULT = "not your fault"


def checked(content: Any) -> dict[str, Any]:
    """Return results that the platform takes; anything else fails the test."""
    return Checker().check(content)


def names_in(folder: Path) -> list[str]:
    """Return the names of what lies in a folder, hidden files too."""
    return sorted(path.name for path in folder.iterdir())


# The file, from a grade


def row(**changes: Any) -> Row:
    return Row(
        **{
            "number": "8.3",
            "problem": "optimizers.AdamW",
            "test": "t.py::t",
            "name": "AdamW: a sentence.",
            "max_score": 1.5,
            **changes,
        }
    )


def grade(*rows: Row, **changes: Any) -> Grade:
    return Grade(**{"rows": rows, "isolation": "full", **changes})


def test_the_schema_is_one_and_refuses_what_loses_a_grade():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    good = results(grade(row()), 1.0)
    checked(good)
    test = good["tests"][0]
    for bad in (
        {**good, "score": 1.0},
        {**good, "tests": [{**test, "score": None}]},
        {**good, "tests": [{**test, "status": "error"}]},
        {**good, "tests": [{**test, "output": "\0"}]},
        {**good, "tests": [{**test, "output": "x" * 100_001}]},
        {**good, "visibility": "sometimes"},
        {**good, "tests": []},
        {**good, "tests": [{key: value for key, value in test.items() if key != "max_score"}]},
    ):
        with pytest.raises(jsonschema.ValidationError):
            checked(bad)


def test_a_row_becomes_a_test():
    content = checked(results(grade(row(outcome="passed", output="")), 12.345))
    assert content["tests"] == [
        {"number": "8.3", "name": "AdamW: a sentence.", "score": 1.5, "max_score": 1.5, "status": "passed", "output": ""}
    ]  # fmt: skip
    assert content["execution_time"] == 12.3 and "score" not in content
    assert content["visibility"] == "visible" and "leaderboard" not in content
    assert content["extra_data"] == {"grader": grader_version(), "isolation": "full", "finished": True}


def test_only_what_passed_has_points():
    rows = [row(outcome=outcome) for outcome in ("passed", "failed", "not graded")]
    tests = checked(results(grade(*rows), 0.0))["tests"]
    assert [(test["score"], test["status"]) for test in tests] == [(1.5, "passed"), (0.0, "failed"), (0.0, "failed")]


def test_an_unfinished_row_says_that_it_is_not_the_students_fault():
    (test,) = results(grade(row()), 0.0)["tests"]
    assert test["output"].startswith("Not graded") and NOT_YOUR_FAULT in test["output"]


def test_staff_text_stays_with_staff():
    content = results(grade(row(outcome="failed", output="told", staff="SECRET")), 0.0)
    assert "SECRET" not in json.dumps(content)


def test_a_run_that_was_ended_says_so_at_the_top():
    rows = [row(outcome="passed", output=""), row(outcome="failed"), row()]
    content = checked(results(grade(*rows, notes=("a note",)), 0.0))
    assert content["extra_data"]["finished"] is False
    assert content["output"].startswith("Grading is not finished: 2 of 3 tests have been run")
    assert NOT_YOUR_FAULT in content["output"] and content["output"].endswith("a note")
    assert "not finished" not in results(grade(*rows[:2]), 0.0)["output"]


def test_the_settings_decide_what_is_visible(monkeypatch):
    settings = replace(load_settings(), row_visibility="after_published", show_diagnosis=False)
    monkeypatch.setattr(gradescope, "load_settings", lambda: settings)
    content = checked(results(grade(row(outcome="failed", output="WHY"), row(), row(outcome="passed", output="")), 0.0))
    assert content["visibility"] == "after_published"
    assert "WHY" not in json.dumps(content)
    lost, missing, passed_ = content["tests"]
    assert "switched off" in lost["output"] and NOT_YOUR_FAULT in missing["output"] and passed_["output"] == ""


def test_the_leaderboard_has_the_loss_and_lower_is_better():
    assert checked(results(grade(row(), held_out_loss=0.123456), 0.0))["leaderboard"] == [
        {"name": "held-out loss", "value": 0.1235, "order": "asc"}
    ]


def test_the_version_changes_with_whatever_decides_about_a_grade(tree):
    def version() -> str:
        return grader_version.__wrapped__(tree)

    before = version()
    assert before == grader_version() and re.fullmatch(r"[0-9.]+\+[0-9a-f]{8}", before)
    for name in (
        "reference/memory.py",
        "autograder/hidden/test_memory.py",
        "autograder/settings.toml",
        "handout/problems.toml",
    ):
        path = tree / name
        source = path.read_text()
        path.write_text(source + "\n")
        assert version() != before, name
        path.write_text(source)
    assert version() == before


@pytest.mark.parametrize(
    "text",
    ["\0", "a\0b", "\ud800", "x" * 10**6, "é" * 100_001, "<" * 10**6, "\x1b[31m", "<script>", "\ufffe", "x\r\n"],
)
def test_any_text_can_be_written(tmp_path, text):
    content = results(grade(row(output=text, outcome="failed"), notes=(text, text)), 0.0)
    write_results(tmp_path / "results.json", content)
    read(tmp_path / "results.json")


def test_notes_are_shown_above_the_tests():
    assert results(grade(row(outcome="passed"), notes=("one", "two")), 0.0)["output"] == "one\n\ntwo"


def test_a_long_text_is_cut_where_the_platform_would_not_cut_it_again():
    (test,) = results(grade(row(output="x" * 10**6)), 0.0)["tests"]
    assert 99_000 < len(test["output"]) <= 100_000 and test["output"].endswith("the rest is cut&#93;")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), object()])
def test_what_cannot_be_written_leaves_the_old_file_and_nothing_else(tmp_path, bad):
    path = tmp_path / "results.json"
    path.write_text("old")
    with pytest.raises((ValueError, TypeError)):
        write_results(path, {"execution_time": bad})
    assert path.read_text() == "old" and names_in(tmp_path) == ["results.json"]


def test_a_place_that_cannot_be_taken_gets_nothing_beside_it(tmp_path):
    (tmp_path / "results.json" / "more").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        write_results(tmp_path / "results.json", {})
    assert names_in(tmp_path) == ["results.json"]


def test_the_file_is_replaced_and_not_changed(tmp_path):
    """Whoever has the old one open reads it to its end."""
    path = tmp_path / "results.json"
    write_results(path, {"a": "x" * 10_000})
    with path.open() as file:
        begun = file.read(10)
        write_results(path, {"b": 1})
        assert json.loads(begun + file.read()) == {"a": "x" * 10_000}
    assert json.loads(path.read_text()) == {"b": 1}
    assert path.stat().st_mode & 0o777 == 0o644
    assert names_in(tmp_path) == ["results.json"]


def test_a_reader_never_finds_half_a_file(tmp_path):
    path = tmp_path / "results.json"
    write_results(path, {"n": 0})
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            for i in range(10**9):
                write_results(path, {"n": i, "padding": "x" * (i % 5000)})
        os._exit(0)
    try:
        end, seen = time.monotonic() + 1.5, set()
        while time.monotonic() < end:
            seen.add(json.loads(path.read_text())["n"])
        assert len(seen) > 10
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


# The file, while a submission is graded


WAIT = "import time\ntime.sleep(600)"
SPIN = "while True: pass"


def waiting(place: Path, where: str, how: str = WAIT) -> Path:
    """Hand in two parts that stop at import, or in the first step of SGD."""
    files = {"memory.py": reference("memory"), "optimizers.py": reference("optimizers")}
    if where == "import":
        files["memory.py"] += f"\n{how}\n"
    else:
        body = how.replace("\n", "\n    ")
        files["optimizers.py"] = replaced(
            files["optimizers.py"], "SGD.step", f"def step(self, closure=None):\n    {body}"
        )
    return write(place / "handed in", files)


def exists(path: Path) -> Callable[[], bool]:
    return path.exists


def passed(path: Path) -> int:
    """Count the rows that have passed so far."""
    return sum(test["status"] == "passed" for test in read(path)["tests"]) if path.exists() else 0


def rows_of(part: str, tests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    (number,) = [item.number for item in load_assignment().parts if item.id == part]
    return [
        test for test in tests if test["number"].split(".")[0] == str(number) and "score" in test
    ]  # without the bonus


@pytest.mark.parametrize("how", [WAIT, SPIN])
def test_zeros_stand_there_before_student_code_runs(place, how):
    out = place / "results.json"
    with started("grade", waiting(place, "import", how), "--out", out) as command:
        assert traces.eventually(out.exists, 60)
        content = read(out)
        assert command.process.poll() is None
        assert all(
            test["score"] == 0 and NOT_YOUR_FAULT in test["output"] for test in rows_of("memory", content["tests"])
        )
        assert sum(test.get("max_score", 0) for test in content["tests"]) == sum(
            problem.points for problem in load_assignment().graded_problems
        )


@pytest.mark.parametrize(
    ("number", "status", "whole_group"), [(signal.SIGINT, 130, True), (signal.SIGINT, 130, False), (signal.SIGTERM, 143, False), (signal.SIGTERM, 143, True)]
)  # fmt: skip
def test_a_stopped_grader_keeps_what_it_knows_and_leaves_nothing(place, number, status, whole_group):
    out = place / "results.json"
    with started("grade", waiting(place, "function"), "--out", out) as command:
        assert traces.eventually(
            lambda: passed(out) > 0 and all(test["score"] for test in rows_of("memory", read(out)["tests"])), 90
        )
        command.signal(number, whole_group)
        if whole_group:  # an impatient user
            time.sleep(0.05)
            with suppress(ProcessLookupError):
                command.signal(number, whole_group)
        code, _, err = command.end(30)
        assert (code, err.strip()) == (status, "grade: stopped")
        assert traces.eventually(command.has_left_nothing)
    content = read(out)
    tests = content["tests"]
    assert content["extra_data"]["finished"] is False and content["output"].startswith("Grading is not finished")
    assert {test["status"] for test in rows_of("memory", tests)} == {"passed"}
    for test in rows_of("optimizers", tests):
        assert (
            test["status"] == "failed" and test["output"].startswith("Not graded") and NOT_YOUR_FAULT in test["output"]
        )
    assert names_in(place) == ["handed in", "results.json"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("seconds", [0.0, 0.4, 0.8, 1.6])  # PyTorch is being imported, which must not be broken off
def test_a_grader_that_is_stopped_at_once_leaves_no_mark_and_no_process(place, number, status, seconds):
    out = place / "results.json"
    out.write_text("of another day")
    with started("grade", waiting(place, "import"), "--out", out) as command:
        assert traces.eventually(lambda: traces.catches(command.process.pid, signal.SIGTERM))
        time.sleep(seconds)
        command.signal(number)
        code, _, err = command.end(30)
        assert (code, err.strip()) == (status, "grade: stopped")
        assert traces.eventually(command.has_left_nothing)
    if out.exists():  # it has come so far already
        assert all(NOT_YOUR_FAULT in test["output"] for test in rows_of("memory", read(out)["tests"]))
    assert (
        place / "results.json~"
    ).read_text() == "of another day"  # nothing is lost, and nothing is taken for another's


def test_two_gradings_differ_in_their_times_only(place):
    files = {
        "student/memory.py": replaced(
            reference("memory"), "storage_bytes", "def storage_bytes(tensors):\n    return {}[1]"
        ),
        "student/optimizers.py": reference("optimizers").replace("beta2**t", "beta1**t"),
        "student/conftest.py": "x",
        "old/memory.py": "x",
    }
    write(place / "handed in", files)
    outs = [place / f"{i}.json" for i in range(2)]
    with (
        started("grade", place / "handed in", "--out", outs[0]) as one,
        started("grade", place / "handed in", "--out", outs[1]) as two,
    ):
        assert one.end()[0] == two.end()[0] == 0
    first, second = (read(out) for out in outs)
    assert first.pop("execution_time") > 0 and second.pop("execution_time") > 0
    assert first == second
    assert {test["status"] for test in first["tests"]} == {"passed", "failed"}
    assert "old/ looks like the assignment too" in first["output"]


# Faults of ours


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    """A copy of the grader, to be broken and mended."""
    with open_folder() as folder:
        yield copy_of_the_tree(folder)


OURS = {
    "the reference raises": ("reference/memory.py", "return x.numel() * x.element_size()", "return 1 / 0", "ZeroDivisionError"),
    "the reference does not import": ("reference/memory.py", "import torch\n", "import torch\nimport nowhere\n", "nowhere"),
    "a suite has a SyntaxError": ("autograder/hidden/test_memory.py", "import pytest\n", "import pytest\n)\n", "SyntaxError"),
    "a suite does not import": ("autograder/hidden/test_memory.py", "import pytest\n", "import pytest\nimport nowhere\n", "nowhere"),
    "weights are not the points": ("autograder/hidden/test_memory.py", "@weight(1)", "@weight(7)", "weigh"),
    "a row has no sentence": ("autograder/hidden/test_memory.py", '    """get_memory_usage: ', '    x = """get_memory_usage: ', "docstring"),
    "a test fails by itself": ("autograder/hidden/test_memory.py", '    compare("memory.get_memory_usage"', '    assert 1 == 2, "ours"\n    compare("memory.get_memory_usage"', "ours"),
    "a test asks about another problem": ("autograder/hidden/test_memory.py", 'compare("memory.get_memory_usage"', 'compare("memory.storage_bytes"', "memory.storage_bytes"),
    "a test skips itself": ("autograder/hidden/test_memory.py", '    compare("memory.get_memory_usage"', '    pytest.skip("ours")\n    compare("memory.get_memory_usage"', "skip"),
    "a fixture is missing": ("autograder/hidden/test_memory.py", "usage_multiplies_elements_by_their_size(compare: Any,", "usage_multiplies_elements_by_their_size(nowhere: Any, compare: Any,", "nowhere"),
    "a file of the reference is missing": ("reference/memory.py", "", None, "memory.py is missing"),
}  # fmt: skip


SAID_IN_A_LINE = ("weights are not the points", "a row has no sentence", "a file of the reference is missing")


CAUSE_ABOVE = ("a fixture is missing", "a suite has a SyntaxError")


@pytest.mark.parametrize("name", OURS)
def test_a_fault_of_ours_is_no_grade(tree, place, name):
    file, old, new, words = OURS[name]
    path, out = tree / file, place / "results.json"
    source = path.read_text()
    assert old in source
    out.write_text("of an earlier submission")
    path.write_text(source.replace(old, new, 1)) if new is not None else path.unlink()
    try:
        code, _, err = run("grade", tree / "student", "--out", out, tree=tree)
    finally:
        path.write_text(source)
    assert code == 1 and words in err
    lines = err.rstrip().splitlines()
    *_, last = (line for line in lines if line.startswith("grade: "))
    assert last.startswith("grade: the grader failed, so there is no grade: ")
    if name in SAID_IN_A_LINE:
        assert lines == [last]
    else:
        assert words in last or name in CAUSE_ABOVE, last
        assert "Traceback (most recent" not in err or re.search(r"\(\S+\.py:\d+\)$", last), last
    assert not out.exists()  # nothing that looks like a mark


def test_a_disk_that_is_full_is_our_fault(place):
    """To the grader, a limit on the size of files is the same: the first half of the results is written, the rest is refused."""
    out = place / "results.json"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        command = started("grade", ROOT / "student", "--out", out)
        running = command.__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    try:
        code, _, err = running.end()
    finally:
        command.__exit__(None, None, None)
    assert code == 1 and "Traceback" in err and "OSError" in err.splitlines()[-1]
    assert names_in(place) == []


def test_a_results_folder_that_is_gone_is_our_fault(place):
    folder = place / "results"
    folder.mkdir()
    submission = waiting(place, "function", "import time\ntime.sleep(3)")
    with started("grade", submission, "--out", folder / "results.json") as command:
        assert traces.eventually((folder / "results.json").exists, 60)
        folder.rename(place / "gone")
        code, _, err = command.end()
        assert code == 1 and "Traceback" in err and "FileNotFoundError" in err
        assert traces.eventually(command.has_left_nothing)


def test_a_killed_zygote_is_our_fault(place):
    out = place / "results.json"
    with started("grade", waiting(place, "function"), "--out", out) as command:
        assert traces.eventually(lambda: passed(out) > 0, 90)
        (zygote,) = [
            pid for pid in traces.descendants(command.process.pid) if traces.parent(pid) == command.process.pid
        ]
        os.kill(zygote, signal.SIGKILL)
        code, _, err = command.end()
        assert code == 1 and "zygote" in err
        assert traces.eventually(command.has_left_nothing)
    assert not out.exists()


def test_a_killed_grader_takes_its_children_and_files_along(place):
    out = place / "results.json"
    with started("grade", waiting(place, "function"), "--out", out) as command:
        assert traces.eventually(lambda: passed(out) > 0, 90)
        below = traces.descendants(command.process.pid)
        command.signal(signal.SIGKILL)
        command.end()
        assert below and traces.eventually(lambda: not any(pid in traces.all_processes() for pid in below))
        assert traces.eventually(command.has_left_nothing), [*command.temporary.iterdir()]
    read(out)  # what was known


@pytest.mark.skipif(sys.platform != "linux", reason="the grader needs Linux")
def test_results_of_the_reference_are_full_marks(place):
    out = place / "results.json"
    code, text, _ = run("grade", ROOT / "reference", "--out", out)
    content = read(out)
    assert code == 0
    scored = [test for test in content["tests"] if "score" in test]
    assert sum(test["score"] for test in scored) == sum(test["max_score"] for test in scored) == 100
    (bonus,) = [test for test in content["tests"] if test not in scored]
    assert bonus["number"] == "3.6" and bonus["status"] == "passed" and "needs a GPU" in bonus["output"]
    assert {test["output"] for test in scored} == {""}
    assert content["extra_data"]["isolation"] in text


def test_a_run_that_is_out_of_time_ends_with_all_rows(tree, place):
    settings, out = tree / "autograder" / "settings.toml", place / "results.json"
    source = settings.read_text()
    settings.write_text(source.replace("total_seconds = 480", "total_seconds = 1"))
    try:
        code, _, _ = run("grade", waiting(place, "import", SPIN), "--out", out, tree=tree)
    finally:
        settings.write_text(source)
    content = read(out)
    assert code == 0 and content["extra_data"]["finished"] is False
    assert content["output"].startswith("Grading is not finished")
    scored = [test for test in content["tests"] if "score" in test]
    assert sum(test["max_score"] for test in scored) == sum(p.points for p in load_assignment().graded_problems)
    assert all("time for the whole submission was used up" in test["output"] for test in rows_of("optimizers", scored))
