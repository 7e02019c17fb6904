"""The commands as staff type them: bad input is one line and exit status 2, and loses nothing; ordinary users can grade too."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from autograder.tests import traces
from autograder.tests.handed_in import ROOT, reference, replaced, write
from autograder.tests.running import copy_of_the_tree, run, started
from autograder.tests.unchecked import UncheckedGrader
from autograder.tests.written import read

NOBODY = 65534
GOOD = {f"{part}.py": reference(part) for part in ("memory", "optimizers")}

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")


def refused(words: str, *arguments, **options) -> None:
    """Run a command that is refused with one line that has these words in it."""
    code, out, err = run(*arguments, **options)
    assert code == 2, err
    assert out == "" and len(err.splitlines()) == 1 and err.startswith(f"{arguments[0]}: "), err
    assert words in err and "Traceback" not in err


# Bad input


@pytest.mark.parametrize("path", ["nowhere", "nowhere/at/all", "/dev/null", "x" * 300])
def test_a_path_without_a_submission_is_refused(place, path):
    (place / "results.json").write_text("old")
    refused(
        "there is no folder and no file" if len(path) < 300 and path[0] == "n" else path[:20],
        "grade",
        place / path,
        "--out",
        place / "results.json",
    )
    assert set_aside(place) == "old"


def set_aside(place: Path) -> str:
    """Return the earlier results, which are kept and no longer stand where those of this submission would."""
    assert not (place / "results.json").exists()
    return (place / "results.json~").read_text()


@pytest.mark.parametrize("content", [b"", b"PK\3\4 cut off", b"no zip"])
def test_a_corrupt_zip_is_refused(place, content):
    (place / "results.json").write_text("old")
    (place / "s.zip").write_bytes(content)
    refused("s.zip is neither a folder nor a zip", "grade", place / "s.zip", "--out", place / "results.json")
    assert set_aside(place) == "old"


def test_on_the_platform_a_corrupt_zip_is_a_zero_with_a_reason(place):
    """There it is the student's doing, and they must read what is wrong."""
    (place / "s.zip").write_bytes(b"no zip")
    (place / "metadata.json").write_text("{}")
    arguments = ("--out", place / "results.json", "--metadata", place / "metadata.json")
    code, _, err = run("grade", place / "s.zip", *arguments)
    content = read(place / "results.json")
    assert code == 0 and "no rate limit for this submission" in err
    assert sum(test.get("score", 0) for test in content["tests"]) == 0 and content["extra_data"]["finished"]
    assert "s.zip is neither a folder nor a zip" in content["output"]
    assert all("was not found" in test["output"] for test in content["tests"] if "score" in test)


def test_a_submission_beyond_the_rate_limit_gets_the_results_of_the_one_before(place):
    tree = copy_of_the_tree(place)
    settings = tree / "autograder" / "settings.toml"
    settings.write_text(settings.read_text().replace("most_submissions = 0", "most_submissions = 1"))
    submission, out, metadata = write(place / "s", GOOD), place / "results.json", place / "metadata.json"
    metadata.write_text('{"created_at": "2026-03-02T20:00:00Z"}')
    assert run("grade", submission, "--out", out, "--metadata", metadata, tree=tree)[0] == 0
    first = read(out)
    earlier = {"submission_time": "2026-03-02T19:00:00Z", "autograder_error": False, "results": first}
    metadata.write_text(json.dumps({"created_at": "2026-03-02T20:00:00Z", "previous_submissions": [earlier]}))
    code, said, _ = run("grade", write(place / "worse", {}), "--out", out, "--metadata", metadata, tree=tree)
    second = read(out)
    assert code == 0 and "beyond the rate limit" in said
    assert second["tests"] == first["tests"] and "was not graded" in second["output"]


def test_results_need_the_name_of_a_file(place):
    (place / "results" / "more").mkdir(parents=True)
    refused("is a folder", "grade", write(place / "s", GOOD), "--out", place / "results")
    assert (place / "results" / "more").is_dir()


@pytest.mark.parametrize(
    "out", ["nowhere/results.json", "a file/results.json", "/dev/full/results.json", "/proc/results.json"]
)
def test_results_need_a_folder_that_can_be_written(place, out):
    (place / "a file").write_text("old")
    refused("cannot write", "grade", write(place / "s", GOOD), "--out", place / out)
    assert (place / "a file").read_text() == "old"


@pytest.mark.parametrize("kind", ["fifo", "link to a device"])
def test_results_replace_nothing_that_is_no_file(place, kind):
    """Else `OUT=/dev/null`, as root, takes the device away from everybody."""
    out = place / "results.json"
    if kind == "fifo":
        os.mkfifo(out)
    else:
        out.symlink_to("/dev/null")
    refused("results.json", "grade", write(place / "s", GOOD), "--out", out)
    assert out.is_fifo() if kind == "fifo" else out.is_symlink()


@needs_root
def test_a_folder_that_is_closed_to_the_user_is_refused(place):
    tree = copy_of_the_tree(place)
    submission = write(place / "s", GOOD)
    refused("cannot write", "grade", submission, "--out", place / "results.json", tree=tree, user=NOBODY)
    submission.chmod(0o700)
    place.chmod(0o777)
    refused("cannot be read", "grade", submission, "--out", place / "results.json", tree=tree, user=NOBODY)
    assert not (place / "results.json").exists()


@pytest.mark.parametrize(
    "arguments",
    [["mark"], [], ["grade"], ["grade", "a", "b"], ["grade", ".", "--isolation", "some"], ["grade", ".", "--nothing"]],
)
def test_a_command_that_does_not_exist_is_refused(arguments):
    code, out, err = run(*arguments)
    assert code == 2 and out == "" and len(err.splitlines()) == 1 and err.startswith("python -m autograder"), err
    assert "--help says more" in err


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("autograder/settings.toml", "seed", "sede", "settings.toml: sede is no setting"),
        (
            "handout/problems.toml",
            "points = 100",
            "points = 99",
            "problems.toml: the problems' points add up to 100, not to 99",
        ),
        ("handout/problems.toml", "points = 100", "", "problems.toml: 'points' is missing"),
        ("handout/problems.toml", "title = ", "title == ", "problems.toml: "),
    ],
)
def test_a_mistake_in_the_set_up_is_one_line(place, file, old, new, words):
    tree = copy_of_the_tree(place)
    (tree / file).write_text((tree / file).read_text().replace(old, new, 1))
    refused(words, "grade", tree / "student", "--out", place / "results.json", tree=tree)
    refused(words, "verify", tree=tree)


@pytest.mark.parametrize("seconds", [0.0, 0.03, 0.06, 0.1, 0.2, 0.3])
def test_ctrl_c_at_the_start_prints_no_traceback(place, seconds):
    """From our first line on: in the first hundredths of a second Python itself starts, and answers as it does."""
    with started("grade", ROOT / "student", "--out", place / "results.json") as command:
        until = time.monotonic() + 5
        for taken in (True, False):  # by Python for KeyboardInterrupt, and no longer
            while traces.catches(command.process.pid, signal.SIGINT) != taken and time.monotonic() < until:
                time.sleep(0.0005)
        time.sleep(seconds)
        command.signal(signal.SIGINT)
        code, _, err = command.end(60)
    assert code in (130, -signal.SIGINT) and err.strip() in ("", "grade: stopped"), (code, err)


@pytest.mark.parametrize("arguments", [["--help"], ["grade", "--help"], ["verify", "-h"]])
def test_help_is_quick_and_touches_nothing(arguments):
    start = time.monotonic()
    code, out, err = run(*arguments)
    assert code == 0 and "usage: python -m autograder" in out and err == ""
    assert time.monotonic() - start < 20


@needs_root
def test_temporary_files_in_a_closed_folder_are_refused(place):
    with started("grade", write(place / "s", GOOD), "--out", place / "results.json") as command:
        command.temporary.chmod(0o700)  # before it gets there: PyTorch takes a second to import
        code, _, err = command.end()
        assert code == 2 and "set TMPDIR" in err and len(err.splitlines()) == 1
        assert traces.eventually(command.has_left_nothing)
    assert not (place / "results.json").exists()


@needs_root
def test_a_python_that_other_users_cannot_read_is_refused(place):
    home = place / "home"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], check=True)
    packages = next((home / "venv").glob("lib/python*/site-packages"))
    (packages / "more.pth").write_text(sysconfig.get_path("purelib"))
    home.chmod(0o700)
    (place / "results.json").write_text("old")
    refused(
        f"{home} is closed to",
        "grade",
        write(place / "s", GOOD),
        "--out",
        place / "results.json",
        python=str(home / "venv/bin/python"),
    )
    assert set_aside(place) == "old"


def test_what_the_shell_has_set_does_not_reach_the_grader(place):
    ran = write(
        place / "here",
        {f"{name}.py": "raise SystemExit('ran')" for name in ("torch", "numpy", "argparse", "rich", "pytest")},
    )
    shell = {
        "PYTHONPATH": str(ran),
        "PYTEST_ADDOPTS": "--fail",
        "OMP_NUM_THREADS": "7",
        "PYTHONSTARTUP": "x",
        "LD_PRELOAD": "",
    }
    code, _, err = run("grade", write(place / "s", GOOD), "--out", place / "results.json", **shell)
    assert (code, err.strip()) == (0, "")


def test_no_file_of_the_submission_is_imported_by_the_grader(place):
    write(
        place / "here",
        {
            "torch.py": "raise SystemExit('ran')",
            "random.py": "raise SystemExit('ran')",
            "sitecustomize.py": "raise SystemExit('ran')",
        },
    )
    code, _, err = run("grade", place / "here", "--out", place / "results.json")
    assert (code, err.strip()) == (0, "")


# What is printed


def test_a_grade_is_printed_with_what_was_lost(place):
    files = {
        **GOOD,
        "memory.py": replaced(GOOD["memory.py"], "get_memory_usage", "def get_memory_usage(x):\n    return 1.5\n"),
    }
    code, out, err = run("grade", write(place / "s", files), "--out", place / "results.json")
    assert (code, err) == (0, "")
    assert "memory.get_memory_usage" in out and "A float came back where an int is expected" in out
    assert "test_memory.py::test_get_memory_usage" in out and "isolation: " in out


def test_nothing_that_a_student_writes_reaches_the_terminal_as_a_command(place):
    """An escape sequence can rename the window, hide lines, or on some terminals type."""
    code = "def get_memory_usage(x):\n    print('\\x1b]0;title\\x07', '[bold]', flush=True)\n    raise ValueError('\\x1b[2J \\x9b1m [/bold] [red]')\n"
    files = {
        **GOOD,
        "memory.py": replaced(GOOD["memory.py"], "get_memory_usage", code),
        "\x1b[31mred/memory.py": "x = '\x1b[2J'",
    }
    status, out, err = run("grade", write(place / "s", files), "--out", place / "results.json")
    assert (status, err.strip()) == (0, "")
    assert "ValueError" in out and "[bold]" in out and "[/bold]" in out
    assert not any(letter in out for letter in "\x1b\x07\x9b"), [line for line in out.splitlines() if "\x1b" in line]


def test_hostile_names_do_not_break_the_grade(place):
    submission = write(place / "s", GOOD)
    for name in (b"\xff\xfe.py", b"a\nb.py", b"[bold]b.py", b"[red].py"):
        Path(os.fsdecode(bytes(submission) + b"/" + name)).write_text("x")
    code, _, err = run("grade", submission, "--out", place / "results.json")
    assert (code, err.strip()) == (0, "")


# Ordinary users


@needs_root
def test_an_ordinary_user_can_grade(place):
    tree = copy_of_the_tree(place)
    mine = place / "mine"
    mine.mkdir()
    os.chown(mine, NOBODY, NOBODY)
    code, out, err = run("grade", tree / "reference", "--out", mine / "results.json", tree=tree, user=NOBODY)
    assert (code, err.strip()) == (0, "")
    assert "isolation: full" in out and (mine / "results.json").stat().st_uid == NOBODY
    code, out, err = run("verify", "--quick", tree=tree, user=NOBODY)
    assert code == 0 and "wrong" not in out, out


ATTACKS = {
    "memory.get_memory_usage": """
        def get_memory_usage(x):  # reads the reference and the hidden tests
            import os
            for path in (TREE + "/reference/memory.py", TREE + "/autograder/hidden/test_memory.py", "/etc/shadow", "/proc/self/environ"):
                try: open(path).read()
                except OSError: continue
                raise RuntimeError(path)
            for path in (TREE, TREE + "/reference", "/proc", "/tmp"):
                try: os.listdir(path)
                except OSError: continue
                raise RuntimeError(path)
            return x.numel() * x.element_size()
    """,
    "memory.storage_bytes": """
        def storage_bytes(tensors):  # ends the grader, which is the same user
            import os, signal
            for pid in (os.getppid(), -1, 0, -os.getpgid(os.getppid()) if hasattr(os, "getpgid") else -1):
                try: os.kill(pid, signal.SIGKILL)
                except OSError: continue
                raise RuntimeError("killed")
            return sum(storage.nbytes() for storage in {tensor.untyped_storage() for tensor in tensors})
    """,
    "memory.deep_linear_training_bytes": """
        def deep_linear_training_bytes(*args, **kwargs):  # looks into the grader
            import ctypes, os
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.ptrace(16, os.getppid(), 0, 0) != -1 or libc.ptrace(0x4206, os.getppid(), 0, 0) != -1:
                raise RuntimeError("attached")
            for name in ("mem", "maps", "environ", "cmdline", "fd"):
                try: os.stat(f"/proc/{os.getppid()}/{name}") and open(f"/proc/{os.getppid()}/{name}", "rb").read(1)
                except OSError: continue
                raise RuntimeError(name)
            return original(*args, **kwargs)
    """,
    "memory.training_memory": """
        def training_memory(*args, **kwargs):  # changes what the grader uses and writes
            import os
            for path in (TREE + "/reference/memory.py", TREE + "/autograder/judge.py", MINE + "/results.json"):
                for change in (lambda: open(path, "a"), lambda: os.unlink(path), lambda: os.rename(path, path + "x")):
                    try: change()
                    except OSError: continue
                    raise RuntimeError(path)
                os.chmod(path, 0o666)  # is told that it went well
            return original_measure(*args, **kwargs)
    """,
}


@needs_root
def test_attacks_fail_where_the_grader_is_an_ordinary_user_too(place):
    tree = copy_of_the_tree(place)
    for path in (tree, *tree.rglob("*")):
        os.chown(path, NOBODY, NOBODY)  # a TA's own copy
    mine = write(place / "mine", {"results.json": "{}"})
    for path in (mine, mine / "results.json"):
        os.chown(path, NOBODY, NOBODY)
    from textwrap import dedent

    source = reference("memory")
    for old, new in (
        ("def deep_linear_training_bytes", "def original"),
        ("def training_memory", "def original_measure"),
    ):
        source = source.replace(old, new)
    for problem in ("get_memory_usage", "storage_bytes"):
        source = replaced(source, problem, ATTACKS[f"memory.{problem}"])
    for problem in ("deep_linear_training_bytes", "training_memory"):
        source += "\n\n" + dedent(ATTACKS[f"memory.{problem}"])
    source = source.replace("import torch\n", f"import torch\nTREE, MINE = {str(tree)!r}, {str(mine)!r}\n", 1)
    grader = UncheckedGrader(user=NOBODY, tree=tree)
    try:
        grade = grader.grade(write(place / "s", {"memory.py": source, "optimizers.py": reference("optimizers")}))
    finally:
        grader.close()
    assert grade["isolation"] == "full"
    lost = [
        row
        for row in grade["rows"]
        if row["problem"].startswith(("memory.", "optimizers.")) and row["outcome"] != "passed"
    ]
    assert [(row["test"], row["output"], row["staff"][-500:]) for row in lost] == []
    assert (mine / "results.json").read_text() == "{}"
    for path in (mine / "results.json", tree / "reference" / "memory.py", tree / "autograder" / "judge.py"):
        assert path.stat().st_mode & 0o777 == 0o644


def test_a_misconception_that_no_longer_applies_costs_an_explanation_and_no_points(place):
    tree = copy_of_the_tree(place)
    toml = tree / "autograder" / "misconceptions" / "napkin.toml"
    toml.write_text(toml.read_text(encoding="utf-8").replace("float(6 * num", "float(7 * num"), encoding="utf-8")
    wrong = shutil.copytree(tree / "reference", place / "wrong")
    source = (wrong / "napkin.py").read_text(encoding="utf-8")
    (wrong / "napkin.py").write_text(source.replace("float(6 * num", "float(2 * num"), encoding="utf-8")

    code, out, err = run("grade", wrong, "--out", place / "results.json", tree=tree)

    assert code == 0 and "nothing is diagnosed in napkin.training_flops: napkin.toml, " in err
    lost = [
        row
        for row in json.loads((place / "results.json").read_text())["tests"]
        if row.get("score", 0) < row.get("max_score", 0)
    ]
    assert {row["number"] for row in lost} <= {"1.1", "1.2"} and lost
    code, _, err = run("pack", tree=tree)
    assert code == 2 and err.startswith("no autograder was packed: napkin.toml, ") and len(err.splitlines()) == 1, err
