"""The commands as staff type them: bad input is one line and exit status 2, and loses nothing; ordinary users can grade too."""

import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autograder.tests import traces
from autograder.tests.handed_in import reference, replaced, write
from autograder.tests.running import copy_of_the_tree, open_folder, run, started
from autograder.tests.unchecked import UncheckedGrader

NOBODY = 65534
GOOD = {f"{part}.py": reference(part) for part in ("memory", "optimizers")}

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that is not closed to other users."""
    with open_folder() as folder:
        yield folder


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
    assert (place / "results.json").read_text() == "old"


@pytest.mark.parametrize("content", [b"", b"PK\3\4 cut off", b"no zip"])
def test_a_corrupt_zip_is_refused(place, content):
    (place / "results.json").write_text("old")
    (place / "s.zip").write_bytes(content)
    refused("s.zip is neither a folder nor a zip", "grade", place / "s.zip", "--out", place / "results.json")
    assert (place / "results.json").read_text() == "old"


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
    refused("cannot be read", "grade", submission, "--out", place / "results.json", tree=tree, user=NOBODY)
    assert not (place / "results.json").exists()


@pytest.mark.parametrize(
    "arguments",
    [["mark"], [], ["grade"], ["grade", "a", "b"], ["grade", ".", "--isolation", "some"], ["grade", ".", "--nothing"]],
)
def test_a_command_that_does_not_exist_is_refused(arguments):
    code, out, err = run(*arguments)
    assert code == 2 and out == "" and "usage: python -m autograder" in err and "Traceback" not in err


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
    assert (place / "results.json").read_text() == "old"


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
    assert "memory.get_memory_usage" in out and "A float came back where an int is expected." in out
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
    code, out, err = run("verify", tree=tree, user=NOBODY)
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
