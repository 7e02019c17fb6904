"""What students run besides the tests: `make submission`, `make figures`, `make watch`."""

import importlib.util
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import TypeAlias

import pytest
from einops import rearrange
from jaxtyping import Float, Shaped
from torch import Tensor

from autograder import stubs
from handout.problems import SPANNING_PROBLEMS, Part, Problem, load_assignment
from tests import environment, figures, rerun, submission, test_einsums, watch
from tests.scoreboard import Tally

ROOT = stubs.ROOT

HandIn: TypeAlias = Callable[[], tuple[int, list[str], str]]

MEMORY = Part(
    id="memory",
    number=3,
    title="Where the bytes are",
    graded=True,
    problems=(
        Problem("memory.get_memory_usage", "3.1", "Bytes", 1, False),
        Problem("memory.storage_bytes", "3.2", "Storages", 2, False),
        Problem("memory.peak_cuda_bytes", "3.3", "Peak", 3, True),
    ),
)


@pytest.fixture
def student(tmp_path: Path) -> Path:
    """A folder of fresh stubs."""
    folder = tmp_path / "student"
    stubs.write_stubs(ROOT / "reference", folder)
    return folder


@pytest.fixture
def handed_in(student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> HandIn:
    """Runs `make submission` on the folder and returns the exit status, the zip's names and what was printed."""

    def hand_in() -> tuple[int, list[str], str]:
        output = tmp_path / "submission.zip"
        status = submission.main(["--student", str(student), "--output", str(output)])
        printed = capsys.readouterr()
        names = zipfile.ZipFile(output).namelist() if output.exists() else []
        return status, names, printed.out + printed.err

    return hand_in


# --- submission ---


def test_a_submission_of_stubs_names_every_problem_as_still_a_stub(handed_in: HandIn) -> None:
    status, names, printed = handed_in()

    assert status == 0
    assert "student/memory.py" in names
    for problem in load_assignment().graded_problems:
        if problem.id not in SPANNING_PROBLEMS:
            assert f"  {problem.number:<5}{problem.id}\n" in printed
    assert "memory.py      not started" in " ".join(printed.split(" "))
    stubs_named = [
        line.split()[1] for line in printed.split("Still stubs")[1].splitlines()[1:] if line.startswith("  ")
    ]
    assert stubs_named == [p.id for p in load_assignment().problems if p.id in stubs_named], (
        "not in the handout's order"
    )


def test_helper_files_go_in_wherever_they_lie_and_whatever_they_are_called(handed_in: HandIn, student: Path) -> None:
    for name in ("build_mask.py", "dist/build/setup.py", "figures/axes.py", "my file.py"):
        path = student / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n", encoding="utf-8")

    status, names, printed = handed_in()

    assert status == 0
    for name in ("build_mask.py", "dist/build/setup.py", "figures/axes.py", "my file.py"):
        assert f"student/{name}" in names
        assert f"student/{name}" in printed


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("notes.txt", submission.NOT_PYTHON),
        ("weights.pt", submission.NOT_PYTHON),
        ("memory.ipynb", submission.NOT_PYTHON),
        ("__pycache__/memory.cpython-311.pyc", submission.CACHES),
        (".DS_Store", submission.HIDDEN),
        (".ipynb_checkpoints/memory.py", submission.HIDDEN),
        ("figures/memory.png", submission.FIGURES),
        ("conftest.py", submission.CONFTEST),
    ],
)
def test_what_stays_out_is_printed_with_its_reason(handed_in: HandIn, student: Path, name: str, reason: str) -> None:
    (student / name).parent.mkdir(parents=True, exist_ok=True)
    (student / name).write_bytes(b"\x00")

    status, names, printed = handed_in()

    assert status == 0
    assert f"student/{name}" not in names
    assert any(f"student/{name}" in line and reason in line for line in printed.splitlines())


def test_a_folder_of_files_that_stay_out_takes_one_line(handed_in: HandIn, student: Path) -> None:
    (student / "data").mkdir()
    for i in range(50):
        (student / "data" / f"{i}.bin").write_bytes(b"")

    _, _, printed = handed_in()

    assert "student/data/ (50 files)" in printed
    assert "7.bin" not in printed


@pytest.mark.skipif(not hasattr(os, "symlink") or os.name == "nt", reason="links need rights on Windows")
def test_links_stay_out_and_are_named(handed_in: HandIn, student: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (student / "linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (student / "gone.py").symlink_to(tmp_path / "nothing.py")

    status, names, printed = handed_in()

    assert status == 0
    assert "student/gone.py" not in names
    assert printed.count(submission.LINK) == 2


def test_two_submissions_of_the_same_files_are_the_same_bytes(student: Path) -> None:
    first = submission.pack(submission.gather(student).files)
    os.utime(student / "memory.py", (1, 1))
    (student / "memory.py").chmod(0o600)

    assert submission.pack(submission.gather(student).files) == first
    assert {entry.date_time for entry in zipfile.ZipFile(io.BytesIO(first)).infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_a_missing_part_is_said_loudly_and_the_rest_is_packed(handed_in: HandIn, student: Path) -> None:
    (student / "memory.py").rename(student / "memory2.py")

    status, names, printed = handed_in()

    assert status == 1
    assert "student/optimizers.py" in names
    assert "student/memory.py is missing, so its whole part is lost (did you mean student/memory2.py?)" in printed
    assert printed.splitlines()[-1].startswith("submission.zip was written, but student/memory.py is missing")


def test_a_part_that_is_not_python_is_said_loudly(handed_in: HandIn, student: Path) -> None:
    (student / "memory.py").write_text("import torch\ndef f(:\n", encoding="utf-8")
    (student / "optimizers.py").write_bytes(b"\x00")

    status, names, printed = handed_in()

    assert status == 1
    assert "student/memory.py" in names
    assert "student/memory.py is not valid Python, so its whole part is lost: line 2" in printed
    assert "student/optimizers.py is not valid Python" in printed
    assert printed.splitlines()[-1].startswith("submission.zip was written, but student/memory.py is not valid Python")
    assert printed.endswith(", and 1 more\n")


def test_an_import_from_beside_the_folder_is_said_loudly(handed_in: HandIn, student: Path) -> None:
    text = (student / "memory.py").read_text(encoding="utf-8")
    (student / "memory.py").write_text(text + "\nfrom tests.checks import check_equal\n", encoding="utf-8")

    status, _, printed = handed_in()

    assert status == 1
    assert "imports tests, which is outside student/ and stays behind" in printed


@pytest.mark.parametrize("what", ["no folder", "no Python file"])
def test_without_anything_to_hand_in_it_fails_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    folder, output = tmp_path / "student", tmp_path / "submission.zip"
    if what == "no Python file":
        folder.mkdir()
        (folder / "notes.txt").touch()

    status = submission.main(["--student", str(folder), "--output", str(output)])

    assert status == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not output.exists()


def test_what_the_handout_does_not_allow_is_said_before_it_costs_points(handed_in: HandIn, student: Path) -> None:
    (student / "einsums.py").write_text(
        "from student.axes import f\ndef sum_hidden(x):\n    return f(x)\n", encoding="utf-8"
    )
    (student / "axes.py").write_text("def f(x):\n    return x.sum(-1)\n", encoding="utf-8")
    (student / "unused.py").write_text("eval('1')\n", encoding="utf-8")

    status, names, printed = handed_in()

    assert status == 1
    assert "student/axes.py" in names
    assert (
        printed.split("Look at this")[1].split("submission.zip was")[0].count("student/axes.py:2: .sum: only einops")
        == 1
    )
    assert "eval" not in printed, "no part imports that file"


def test_a_helper_that_is_not_python_is_said_loudly(handed_in: HandIn, student: Path) -> None:
    (student / "broken.py").write_text("x = \n", encoding="utf-8")

    status, names, printed = handed_in()

    assert status == 1
    assert "student/broken.py" in names
    assert "  student/broken.py is not valid Python, so what imports it fails: line 1: invalid syntax\n" in printed


def test_a_submission_can_be_packed_with_a_python_that_lacks_pytorch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('torch')")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import tests.rerun as r; r.in_venv = lambda name: sys.exit(name)\n"
        "from tests import submission; submission.main(['--output', sys.argv[1] + '/submission.zip'])"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert finished.stderr == "tests.submission\n"


@pytest.mark.parametrize(
    ("source", "stub_names", "absent_names"),
    [
        (
            'def get_memory_usage(x):\n    """Doc."""\n    raise NotImplementedError("memory.get_memory_usage")\n',
            [0],
            [1],
        ),
        ('def get_memory_usage(x):\n    y = 1\n    raise NotImplementedError("memory.get_memory_usage")\n', [0], [1]),
        ('def get_memory_usage(x):\n    return 1\n    raise NotImplementedError("memory.get_memory_usage")\n', [], [1]),
        (
            'class get_memory_usage:\n    def f(self):\n        raise NotImplementedError("memory.get_memory_usage")\n',
            [0],
            [1],
        ),
        ("from student.helper import get_memory_usage, storage_bytes\n", [], []),
        ("from student.helper import *\n", [], []),
        ("get_memory_usage = storage_bytes = len\n", [], []),
        ("if True:\n    def get_memory_usage(x): return 1\n", [], [1]),
        ("def f():\n    get_memory_usage = 1\n", [], [0, 1]),
        ('# raise NotImplementedError("memory.storage_bytes")\nget_memory_usage = storage_bytes = 1\n', [], []),
    ],
    ids=[
        "stub",
        "begun",
        "below a return",
        "method",
        "imported",
        "star",
        "assigned",
        "conditional",
        "local",
        "comment",
    ],
)
def test_what_is_a_stub_and_what_is_absent_is_read_from_the_source(
    source: str, stub_names: list[int], absent_names: list[int]
) -> None:
    state = submission.part_state(MEMORY, source.encode())

    assert [MEMORY.problems.index(problem) for problem in state.stubs] == stub_names
    assert [MEMORY.problems.index(problem) for problem in state.absent if not problem.bonus] == absent_names


# --- what the test of the annotations says ---


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({"return": Float[Tensor, "... seq (heads d)"]}, ["a right call of merge_heads is refused", "no parentheses"]),
        ({}, ["merge_heads takes shapes that do not fit", "Float[Tensor, ...]"]),
        ({"x": Shaped[Tensor, "... heads seq d"]}, ["merge_heads takes integers"]),
    ],
    ids=["parentheses", "none", "any dtype"],
)
def test_a_wrong_annotation_is_said_in_three_lines(
    monkeypatch: pytest.MonkeyPatch, annotations: dict[str, object], said: list[str]
) -> None:
    def merge_heads(x):
        return rearrange(x, "... heads seq d -> ... seq (heads d)")

    merge_heads.__annotations__ = annotations
    monkeypatch.setattr(test_einsums.einsums, "merge_heads", merge_heads)

    with pytest.raises(pytest.fail.Exception) as failure:
        test_einsums.test_annotations_stop_wrong_axes("merge_heads")

    message = str(failure.value)
    assert all(text in message for text in said)
    assert "\n  hint: " in message and len(message.splitlines()) <= 4


# --- figures ---

needs_matplotlib = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is an extra")


@pytest.fixture
def solved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An importable package `solved` in a folder `student`, with the reference's solutions."""
    folder = tmp_path / "on_path" / "solved"
    shutil.copytree(ROOT / "reference", folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.syspath_prepend(str(folder.parent))
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "solved"]:
        del sys.modules[name]


@needs_matplotlib
def test_every_figure_is_drawn_from_complete_solutions(
    solved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert figures.draw_all(figures.Solution("solved"), tmp_path / "figures") == 0

    printed = capsys.readouterr().out
    assert [line.split()[:2] for line in printed.splitlines()] == [["drawn", name] for name in figures.DRAWINGS]
    for name in figures.DRAWINGS:
        assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 10_000


@needs_matplotlib
def test_figures_of_stubs_are_skipped_with_the_problem_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "memory.png").touch()

    assert figures.draw_all(figures.Solution("student"), tmp_path) == 0

    printed = capsys.readouterr().out
    assert printed.count("skipped") == len(figures.DRAWINGS)
    assert "memory.deep_linear_training_bytes is not done yet" in printed
    assert list(tmp_path.glob("*.png")) == [], "an old drawing would be taken for a new one"


@needs_matplotlib
def test_a_figure_whose_function_raises_takes_a_line_and_the_others_are_drawn(
    solved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (solved / "memory.py").write_text(
        dedent(
            """
            def deep_linear_training_bytes(batch, dim, num_layers):
                return 1 // 0
            """
        ),
        encoding="utf-8",
    )
    (solved / "flops.py").write_text("import this_is_not_installed\n", encoding="utf-8")

    monkeypatch.delitem(figures.DRAWINGS, "roofline")

    assert figures.draw_all(figures.Solution("solved"), tmp_path) == 2

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "ZeroDivisionError: integer division or modulo by zero  (solved/memory.py, line 3)" in lines[0]
    assert "this_is_not_installed" in lines[1]
    assert "drawn" in lines[2]


@needs_matplotlib
def test_losses_are_drawn_of_the_optimizers_that_are_done(
    solved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (solved / "optimizers.py").read_text(encoding="utf-8")
    (solved / "optimizers.py").write_text(text.replace("class AdamW(", "class Elsewhere("), encoding="utf-8")

    monkeypatch.setattr(figures, "DRAWINGS", {"losses": figures.draw_losses})

    assert figures.draw_all(figures.Solution("solved"), tmp_path) == 0

    printed = capsys.readouterr().out
    assert printed.split()[0] == "drawn"
    assert "(without some: solved/optimizers.py defines no AdamW)" in printed


def test_figures_without_matplotlib_fail_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    assert figures.main(["--folder", str(tmp_path)]) == 2

    assert capsys.readouterr().err == "drawing needs matplotlib: python -m pip install matplotlib\n"


def test_figures_without_the_students_folder_fail_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(figures, "ROOT", tmp_path)

    assert figures.main([]) == 2

    printed = capsys.readouterr()
    assert printed.err == f"there is no folder {tmp_path / 'student'}: the solutions go there\n"
    assert printed.out == ""


# --- watch ---


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ([watch.STUDENT / "memory.py"], ["memory"]),
        ([watch.TESTS / "test_memory.py"], ["memory"]),
        ([watch.STUDENT / "optimizers.py", watch.STUDENT / "memory.py"], ["memory", "optimizers"]),
        ([watch.STUDENT / "my_helper.py"], None),
        ([watch.TESTS / "checks.py"], None),
    ],
    ids=["a part", "its tests", "two parts", "a helper of the student's", "a helper of the tests"],
)
def test_a_saved_file_runs_the_tests_that_it_may_change(changed: list[Path], expected: list[str] | None) -> None:
    everything = watch.parts_to_run([watch.STUDENT], load_assignment())

    assert watch.parts_to_run(changed, load_assignment()) == (everything if expected is None else expected)
    assert {"memory", "optimizers"} <= set(everything)


def test_watch_can_be_told_one_part(capsys: pytest.CaptureFixture[str]) -> None:
    changes = [[watch.STUDENT], [watch.STUDENT / "memory.py"], [watch.STUDENT / "model.py"]]
    assert [watch.parts_to_run(paths, load_assignment(), "memory") for paths in changes] == [["memory"], ["memory"], []]

    assert watch.main(["--part", "foo"]) == 2
    assert capsys.readouterr().err.startswith("there is no part 'foo': choose from napkin, ")
    with pytest.raises(SystemExit) as refused:
        watch.main(["foo"])
    assert refused.value.code == 2


def test_a_new_run_replaces_what_was_known_of_its_parts_only() -> None:
    board = watch.Board({"memory.a": Tally(1), "flops.b": Tally(2)}, {"flops": "broken"}, {"flops": "line 3"})

    board.replace(["flops"], watch.Board({"flops.c": Tally(3)}))

    assert board == watch.Board({"memory.a": Tally(1), "flops.c": Tally(3)}, {}, {})


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """The public folders, in a place of their own."""
    for name in ("handout", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    stubs.write_stubs(ROOT / "reference", tmp_path / "student")
    return tmp_path


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something is so, and fail if it does not come."""
    deadline = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < deadline
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Watcher:
    """`make watch` in a session of its own, and what it has printed so far."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.watch"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"},
        )
        self.printed = ""
        self.seconds_to_start = 0.0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed += line

    def wait_for(self, text: str, after: int = 0, seconds: float = 60) -> float:
        """Wait until the text is printed; return how long that took."""
        start = time.perf_counter()
        while text not in self.printed[after:]:
            assert time.perf_counter() < start + seconds, f"no {text!r} in:\n{self.printed}"
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.printed}"
            time.sleep(0.01)
        return time.perf_counter() - start

    def state_of(self, problem_id: str, after: int = 0) -> str:
        """Return what the scoreboard says of a problem."""
        row = next(line for line in self.printed[after:].splitlines() if problem_id in line.split()[1:2])
        return " ".join(row.split()[3:])

    def is_gone(self) -> bool:
        """Whether no process of the session is left."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return True
        return False


@pytest.fixture
def watcher(release: Path) -> Iterator[Watcher]:
    """A watcher of the public folders that has drawn its first scoreboard."""
    running = Watcher(release)
    try:
        running.seconds_to_start = running.wait_for("Ctrl-C ends this")
        yield running
    finally:
        if not running.is_gone():
            os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()


posix_only = pytest.mark.skipif(os.name == "nt", reason="sessions and signals are those of Unix")


@posix_only
def test_ctrl_c_while_an_object_is_deleted_ends_the_watcher(release: Path) -> None:
    """Python drops what a signal's handler raises there."""
    (release / "race.py").write_text(
        "import os, signal, sys\n"
        "import tests.watch as watch\n"
        "class Deleted:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        sum(1 for _ in range(1000))\n"
        "result = watch.TestRun.result\n"
        "def with_a_signal(run):\n"
        "    board = result(run)\n"
        "    run.deleted = board and Deleted()\n"
        "    return board\n"
        "if __name__ == '__main__':\n"
        "    watch.TestRun.result = with_a_signal\n"
        "    sys.exit(watch.main(['--part', 'napkin']))\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "race.py"], cwd=release, capture_output=True, text=True, timeout=60,
        start_new_session=True, env={**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.endswith("stopped\n")
    assert "Exception ignored" in done.stderr


@posix_only
def test_a_save_redraws_the_scoreboard_and_ctrl_c_leaves_no_process(watcher: Watcher, release: Path) -> None:
    assert watcher.state_of("memory.storage_bytes") == "not started"

    def save(text: str) -> float:
        before = len(watcher.printed)
        (release / "student" / "memory.py").write_text(text, encoding="utf-8")
        return watcher.wait_for("Ctrl-C ends this", after=before)

    solution = (ROOT / "reference" / "memory.py").read_text(encoding="utf-8")
    before = len(watcher.printed)
    seconds = [save(solution), save(f"{solution}\n"), save(f"{solution}\n\n")]
    if sys.platform == "linux":
        # A second; on a busy machine, far less than the first run, for which PyTorch was imported.
        assert min(seconds) < max(1, watcher.seconds_to_start / 4), seconds
    news = watcher.printed[before:]
    assert "optimizers: 0 of 4 done" in news
    assert watcher.state_of("memory.storage_bytes", after=before) == "done"

    before = len(watcher.printed)
    save(re.sub(r"^    return ", "    exec('')\n    return ", solution, count=1, flags=re.MULTILINE))
    assert watcher.state_of("memory.get_memory_usage", after=before).startswith("failing not allowed: line ")

    before = len(watcher.printed)
    save("def f(:\n")
    assert "student/memory.py cannot be imported" in watcher.printed[before:]
    assert "def f(:" in watcher.printed[before:]

    os.killpg(watcher.process.pid, signal.SIGINT)
    assert watcher.process.wait(timeout=10) == 0
    wait_until(watcher.is_gone)


HANGS = """
import os
import re
from pathlib import Path
Path(__file__).with_name("pid.txt").write_text(str(os.getpid()))
while True:
    try:
        pass
    except BaseException:
        pass
"""


@posix_only
def test_a_run_that_hangs_or_dies_is_replaced_by_the_next_save(watcher: Watcher, release: Path) -> None:
    part, pid = release / "student" / "memory.py", release / "student" / "pid.txt"

    part.write_text(HANGS, encoding="utf-8")
    wait_until(lambda: pid.exists() and pid.read_text() != "")
    before = len(watcher.printed)
    part.write_text("import os\nos._exit(3)\n", encoding="utf-8")
    watcher.wait_for("the tests ended in the middle (exit status 3)", after=before)
    watcher.wait_for("Ctrl-C ends this", after=before)
    wait_until(lambda: not is_alive(int(pid.read_text())))
    before = len(watcher.printed)
    shutil.copyfile(ROOT / "reference" / "memory.py", part)
    watcher.wait_for("Ctrl-C ends this", after=before)

    assert watcher.state_of("memory.storage_bytes", after=before) == "done"
    watcher.process.terminate()
    assert watcher.process.wait(timeout=10) == 0


def test_tests_run_in_a_fresh_process_where_forking_is_not_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    context = watch.warm_context()
    monkeypatch.undo()
    monkeypatch.chdir(ROOT)

    run = watch.TestRun.start(["memory"], context)
    deadline = time.perf_counter() + 60
    while not (board := run.result()):
        assert time.perf_counter() < deadline
        time.sleep(0.05)

    assert context.get_start_method() == "spawn"
    assert board.broken == {}
    assert board.tallies["memory.storage_bytes"].stubs


# --- with a Python that lacks PyTorch ---


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The commands that would have been run; `.venv` is there already, elsewhere."""
    made: list[list[str]] = []

    def note(status: int, command: list[str]) -> int:
        made.append(command)
        return status

    monkeypatch.setattr(environment, "main", partial(note, 0))
    monkeypatch.setattr(environment, "venv_python", lambda: tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(subprocess, "call", partial(note, 7))
    monkeypatch.setattr(sys, "argv", ["figures.py", "--folder", "here"])
    return made


def test_a_command_without_pytorch_is_run_again_in_the_environment(calls: list[list[str]], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        rerun.in_venv("tests.figures", ["figures"])

    assert stopped.value.code == 7
    python = str(tmp_path / ".venv" / "bin" / "python")
    assert calls == [["figures"], [python, "-m", "tests.figures", "--folder", "here"]]


def test_what_is_missing_in_the_environment_itself_is_an_error(
    calls: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))

    with pytest.raises(ModuleNotFoundError, match="torch"):
        try:
            raise ModuleNotFoundError("No module named 'torch'")
        except ModuleNotFoundError:
            rerun.in_venv("tests.figures")

    assert calls == []
