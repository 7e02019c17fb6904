"""The student release: whole, reproducible, without anything private, and working where the repository is not."""

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from autograder import release, stubs
from handout.problems import SPANNING_PROBLEMS, load_assignment
from tests import submission

ROOT = stubs.ROOT
STRANGER = 54321  # a user id that owns nothing


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    """The text of every file of the release, by its name below the folder that the zip unpacks to."""
    found = release.release_files()
    return {name.split("/", 1)[1]: data.decode() for name, data in found.items() if not name.endswith(".pdf")}


# --- what is in it ---


def test_the_release_holds_the_public_folders_and_nothing_else(files: dict[str, str]) -> None:
    tops = {name.split("/")[0] for name in files}

    assert tops == {
        "README.md",
        "LICENSE",
        "Makefile",
        "constraints.txt",
        "pyproject.toml",
        "handout",
        "student",
        "tests",
    }
    assert {f"student/{part.id}.py" for part in load_assignment().graded_parts} <= files.keys()
    assert "tests/__main__.py" in files


def test_everything_in_the_folder_of_public_tests_is_in_the_release(files: dict[str, str]) -> None:
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*") if path.is_file()}

    assert {name for name in there if "__pycache__" not in name} <= files.keys()


def test_rules_of_the_course_that_nobody_wrote_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "- #bi[*Late work:* _course staff: say what a day costs._][...]\n- #bi[*Questions:* Ask.][...]\n"
    assert release.unfilled_policies(source) == 1

    assert release.main(["--output", str(tmp_path / "student.zip"), "--languages"]) == 0
    assert capsys.readouterr().err == "", "no handout goes in"

    monkeypatch.setattr(release, "release_files", lambda languages: {})
    assert release.main(["--output", str(tmp_path / "student.zip"), "--languages", "en"]) == 0
    said = capsys.readouterr().err
    policies = (ROOT / release.POLICIES).read_text(encoding="utf-8")
    assert (f"fill in {release.POLICIES}" in said) == bool(release.unfilled_policies(policies))


def test_stubs_are_fresh_whatever_lies_in_the_student_folder(files: dict[str, str]) -> None:
    for name, text in files.items():
        if name.startswith("student/") and name != "student/__init__.py":
            reference = ROOT / "reference" / Path(name).name
            assert text == stubs.generate(reference.read_text(encoding="utf-8"), reference.stem)


def test_a_release_is_reproducible(tmp_path: Path) -> None:
    first, second = tmp_path / "first.zip", tmp_path / "new" / "second.zip"

    assert release.main(["--languages", "--output", str(first)]) == 0
    assert release.main(["--languages", "--output", str(second)]) == 0

    assert first.read_bytes() == second.read_bytes()
    assert zipfile.ZipFile(first).testzip() is None


def test_a_release_that_lacks_something_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "handout").mkdir()
    (tmp_path / release.STUDENT_README).touch()

    with pytest.raises(FileNotFoundError, match="the release needs LICENSE"):
        release.release_files(tmp_path)


# --- nothing private is in it ---


def lines_of(text: str) -> list[str]:
    """Return the lines of a file, without indentation and comments."""
    return [re.sub(r"\s+#.*", "", line).strip() for line in text.splitlines()]


# Lines that stand in solutions because they stand in everybody's code.
IDIOMS = frozenset(
    {
        "return func(*args, **(kwargs or {}))",  # the last line of any mode in PyTorch's documentation
    }
)


def solution_lines(module: Path) -> set[str]:
    """Return the lines of a reference module that its stub does not have and that are long enough to be nobody else's."""
    source = module.read_text(encoding="utf-8")
    return {
        line
        for line in set(lines_of(source)) - set(lines_of(stubs.generate(source, module.stem)))
        if len(line) > 30 and not line.startswith(("#", "def __", "except ")) and line not in IDIOMS
    }


def test_no_line_of_a_solution_is_in_the_release(files: dict[str, str]) -> None:
    solutions = {line: module.name for module in (ROOT / "reference").glob("*.py") for line in solution_lines(module)}
    assert len(solutions) > 20

    leaks = [f"{name}: {line}" for name, text in files.items() for line in lines_of(text) if line in solutions]

    assert leaks == []


RUN = (
    4  # lines in a row: shorter runs are alike by chance, since public and private tests are written by the same hands
)


def runs(text: str) -> set[tuple[str, ...]]:
    """Return every run of lines that says enough to be recognised; imports and closing brackets do not."""
    lines = [line for line in lines_of(text) if len(line) > 8 and not line.startswith(("import ", "from ", "#"))]
    return {tuple(lines[i : i + RUN]) for i in range(len(lines) - RUN + 1)}


def test_no_passage_of_the_autograder_is_in_the_release(files: dict[str, str]) -> None:
    private = {
        run: path.relative_to(ROOT).as_posix()
        for path in (ROOT / "autograder").rglob("*.py")
        for run in runs(path.read_text(encoding="utf-8"))
    }
    assert len(private) > 200

    # Stubs are left out: suites may repeat a public table, and a test above shows that stubs come from the reference alone.
    leaks = [
        f"{name} has what {private[run]} has: {run}"
        for name, text in files.items()
        for run in runs(text)
        if run in private and not name.startswith("student/")
    ]

    assert leaks == []


# --- it works for a stranger ---


class Stranger:
    """Someone who unpacked the release. Under root it is a user who can write nowhere else and has no repository."""

    def __init__(self, folder: Path) -> None:
        zipfile.ZipFile(io.BytesIO(submission.pack(release.release_files()))).extractall(folder)
        self.folder = folder / release.FOLDER
        self.user: int | None = None
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            folder.chmod(0o755)
            for path in [folder, *folder.rglob("*")]:
                os.chown(path, STRANGER, STRANGER)
            self.user = STRANGER
            try:
                can_run = self.run("-c", "import torch, pytest").returncode == 0
            except PermissionError:
                can_run = False
            if not can_run:  # the interpreter lies in a folder of root's own
                self.user = None

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the unpacked folder."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder), "OMP_NUM_THREADS": "1"},
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
            capture_output=True,
            text=True,
            timeout=120,
        )

    def scoreboard(self) -> tuple[int, dict[str, str], str]:
        """Run the tests; return the exit status, the state of each problem, and all that was printed."""
        done = self.run("-m", "tests")
        states = {}
        for problem in load_assignment().problems:
            row = re.search(rf"^\S+ +{re.escape(problem.id)} +\S+ +(.*)$", done.stdout, re.MULTILINE)
            if row:
                states[problem.id] = row[1].strip()
        return done.returncode, states, done.stdout + done.stderr


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    """A stranger in a folder of their own: pytest's folders cannot be entered by other users."""
    folder = Path(tempfile.mkdtemp(prefix="release-"))
    yield Stranger(folder)
    shutil.rmtree(folder)


def test_a_stranger_sees_every_problem_not_started_and_then_one_done(stranger: Stranger) -> None:
    assert "ModuleNotFoundError" in stranger.run("-c", "import autograder").stderr

    status, states, printed = stranger.scoreboard()

    assert status == 0, printed
    assert {"memory.storage_bytes", "optimizers.AdamW"} <= states.keys(), printed
    for problem in load_assignment().problems:
        if problem.id in states and not problem.bonus:
            # What is about several functions at once has no stub of its own, and waits for theirs.
            spanning = problem.id in SPANNING_PROBLEMS
            assert states[problem.id].startswith("waiting" if spanning else "not started"), printed

    shutil.copyfile(ROOT / "reference" / "optimizers.py", stranger.folder / "student" / "optimizers.py")
    status, states, printed = stranger.scoreboard()

    assert status == 0, printed
    assert states["optimizers.AdamW"] == "done", printed
    assert states["memory.storage_bytes"].startswith("not started"), printed


def test_a_stranger_can_pack_a_submission(stranger: Stranger) -> None:
    done = stranger.run("-m", "tests.submission")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Still stubs" in done.stdout


# --- the handout in it ---


def test_the_release_holds_the_handout_in_the_languages_asked_for() -> None:
    pytest.importorskip("typst", reason="the handout needs typst: the extra `handout`")
    from handout.build import Handout

    Handout().build(ROOT / "handout" / "build")

    files = release.release_files(languages=["zh"])

    documents = {name: data for name, data in files.items() if Path(name).suffix in {".pdf", ".html"}}
    assert {Path(name).name for name in documents} == {"handout-zh.pdf", "handout-zh.html"}
    assert documents[f"{release.FOLDER}/handout/handout-zh.pdf"].startswith(b"%PDF-")
    assert "handout/handout-zh.html" in files[f"{release.FOLDER}/README.md"].decode()


def test_a_release_without_the_handout_that_it_should_hold_is_not_made(tmp_path: Path) -> None:
    shutil.copytree(ROOT, tmp_path / "copy", ignore=shutil.ignore_patterns(".*", "build", "dist", "__pycache__"))

    with pytest.raises(FileNotFoundError, match=r"handout-en\.pdf"):
        release.release_files(tmp_path / "copy", languages=["en"])


def test_the_students_readme_lists_every_part_and_its_points(files: dict[str, str]) -> None:
    for part in load_assignment().parts:
        points = sum(problem.points for problem in part.problems if not problem.bonus)
        assert f"| {part.number}. {part.title} | `student/{part.id}.py` | {points:g} |" in files["README.md"]
    assert "<!--" not in files["README.md"]


def test_the_students_readme_lists_the_commands_that_the_makefile_offers(files: dict[str, str]) -> None:
    offered = re.findall(r"^#: {3}(make .*?) {2,}.*\[(.*)\]$", files["Makefile"], re.MULTILINE)
    targets = set(re.findall(r"^([a-z]+):", files["Makefile"], re.MULTILINE))

    assert {command.split()[1] for command, _ in offered} == targets - {"help"}
    for command, without_make in offered:
        assert f"| `{command}` | `{without_make}` |" in files["README.md"]
