"""The zip as the platform uses it: setup.sh and run_autograder in a file system of their own. `make container` is the thorough form."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from autograder import pack
from autograder.tests import on_platform, traces
from autograder.tests.container import BAD, REFERENCE, Case, mistakes, scored
from autograder.tests.handed_in import ROOT
from autograder.tests.running import copy_of_the_tree, open_folder

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="setup.sh is for root")


@pytest.fixture(scope="module")
def machine():
    """This machine's file system, copied on write; or, where mounts are not allowed, a folder, which is said."""
    kind = on_platform.Overlay if on_platform.Overlay.works() else on_platform.Folder
    print(f"\n/autograder is in: {kind.__doc__}")
    machine = kind()
    try:
        on_platform.set_up(machine)
        yield machine
    finally:
        machine.remove()


# Each part with a fault of its own: what the container tries one by one.
MIXED = Case(
    "a fault in each part",
    {
        **REFERENCE.files,
        **{f"student/{case}.py": bad.files[f"student/{case}.py"] for case, bad in zip(
            ("memory", "optimizers"), (BAD[0], BAD[2]), strict=True)},
        "student/napkin.py": "def f(:\n",
        "student/dtypes.py": "while True: pass\n",
        "student/model.py": "x = [0] * 10**11\n",
        "student/data.py": "raise SystemExit\n",
    },
    frozenset({"memory.get_memory_usage", "optimizers.AdamW", "napkin", "dtypes", "model", "data", "training.together"}),
)  # fmt: skip


@pytest.mark.parametrize("case", [REFERENCE, MIXED, BAD[-1]], ids=lambda case: case.name)
def test_a_submission_gets_what_it_must_from_run_autograder(machine, case):
    run = on_platform.submit(machine, case.files)
    results = on_platform.results(machine)
    assert mistakes(case, results, run.status) == [], run.output
    assert results["extra_data"]["isolation"] == "full"
    assert sorted(path.name for path in (machine.autograder / "results").iterdir()) == ["results.json"]


def test_students_can_read_python_and_nothing_of_ours(machine):
    source = machine.autograder / "source"
    for name in ("reference", "autograder"):
        assert (source / name).stat().st_mode & 0o077 == 0, name
    assert (source / ".venv" / "bin").stat().st_mode & 0o005 == 0o005
    installed = [path.name for path in (source / ".venv").glob("lib/python*/site-packages/*") if "nvidia" in path.name]
    assert installed == []  # no CUDA


def test_a_grader_that_is_killed_leaves_nothing_that_looks_like_a_mark(machine):
    """As when memory runs out and the kernel has ended the children already."""
    slow = {**REFERENCE.files, "student/training.py": "import time\ntime.sleep(600)\n"}
    status, output = kill(machine, slow, "grader")
    assert status == 137 and "was killed" in output
    assert [*(machine.autograder / "results").iterdir()] == []


def test_a_platform_that_kills_only_the_script_gets_the_rows_that_are_finished(machine):
    slow = {**REFERENCE.files, "student/training.py": "import time\ntime.sleep(600)\n"}
    kill(machine, slow, "script")
    results = on_platform.results(machine)
    assert not results["extra_data"]["finished"] and results["output"].startswith("Grading is not finished")
    assert sum(test["score"] for test in scored(results)) > 50


def kill(machine, files, whom):
    """Start a submission that waits in its last part; once it gets there, kill the script or the grader below it."""
    path = machine.autograder / "results" / "results.json"
    path.unlink(missing_ok=True)  # of the submission before
    runs = []
    thread = threading.Thread(target=lambda: runs.append(on_platform.submit(machine, files, timeout=120)))
    thread.start()

    def score() -> float:
        try:
            return sum(test["score"] for test in scored(on_platform.results(machine)))
        except FileNotFoundError:
            return 0

    assert traces.eventually(lambda: path.exists() and score() > 80, 100)
    below = traces.descendants(os.getpid())
    scripts = [
        pid for pid in below if b"/run_autograder" in command_line(pid)[:80] and command_line(pid).startswith(b"bash")
    ]
    script = scripts[-1]
    victim = script if whom == "script" else next(pid for pid in below if traces.parent(pid) == script)
    graders = [pid for pid in below if traces.parent(pid) == script]
    os.kill(victim, signal.SIGKILL)
    thread.join(100)
    assert traces.eventually(lambda: not any(traces.runs(pid) for pid in graders), 20)
    return runs[0].status, runs[0].output


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


# setup.sh itself


def setup_with(folder: Path, pip: str, **variables: str) -> tuple[int, str]:
    """Run setup.sh where Python makes environments whose pip is a script, and the rest is not done."""
    source = folder / "source"
    source.mkdir()
    script = (ROOT / "autograder" / "platform" / "setup.sh").read_text()
    (source / "constraints.txt").write_text("torch==9.9\n")
    (source / "tests").mkdir()
    (source / "tests" / "environment.py").write_text(
        "import os\nprint('links:', os.environ.get('PIP_FIND_LINKS'))\nraise SystemExit(7)"
    )
    (source / "pip.sh").write_text(f"#!/bin/bash\n{pip}\n")
    (source / "python3").write_text(
        '#!/bin/bash\nif [ "$1 $2 $3" = "-I -m venv" ]; then mkdir -p "$4/bin"; cp pip.sh "$4/bin/python"; '
        'chmod +x "$4/bin/python"; else exec /usr/bin/python3 "$@"; fi\n'
    )
    (source / "python3").chmod(0o755)
    (source / "setup.sh").write_text(script.replace("/usr/bin/python3 -I -m venv", f"{source}/python3 -I -m venv"))
    environment = {"PATH": os.environ["PATH"], **variables}
    ran = subprocess.run(
        ["bash", source / "setup.sh"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return ran.returncode, ran.stdout


def test_a_wheel_at_hand_is_taken_with_plain_pip(place):
    _, said = setup_with(place, 'case "$*" in *--no-index*torch) exit 0;; esac; exit 1', PIP_FIND_LINKS="/at/hand")
    assert "a wheel of torch is at hand" in said and "links: /at/hand\n" in said


def test_without_one_it_comes_from_the_index_of_wheels_without_cuda(place):
    _, said = setup_with(
        place, 'case "$*" in *"--index-url https://download.pytorch.org/whl/cpu torch") exit 0;; esac; exit 1'
    )
    assert "taking torch without CUDA, from https://download.pytorch.org/whl/cpu" in said
    assert re.search(r"links: /tmp/\S+/wheels$", said, re.M)


@pytest.mark.parametrize("index", [None, ""])
def test_where_that_index_cannot_be_reached_it_is_plain_pip_and_said(place, index):
    _, said = setup_with(place, "exit 1", **({} if index is None else {"TORCH_CPU_INDEX": index}))
    assert (
        "cannot be reached: taking torch with plain pip and the pin, several GB more" in said and "links: None" in said
    )


def test_a_step_that_fails_fails_the_image_and_says_which(place):
    status, said = setup_with(place, "exit 1")
    assert status == 7 and re.search(r"^setup: FAILED in line \d+: .*environment.py grader", said, re.M)
    assert "done" not in said.splitlines()[-1]


def test_the_outside_host_is_named_once():
    folders = ("autograder", "docs", "handout", "reference", "student", "tests")
    files = [*ROOT.glob("*.*"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    texts = {path: path.read_bytes() for path in files if path.is_file() and path.suffix != ".pyc"}
    named = [path for path, text in texts.items() if b"download.pytorch.org" in text and path != Path(__file__)]
    assert [path.name for path in named] == ["setup.sh"]


# What is packed


def test_the_zip_is_the_same_twice_and_has_the_scripts_at_its_root():
    files = pack.autograder_files()
    assert pack.pack(files) == pack.pack(pack.autograder_files())
    assert {"setup.sh", "run_autograder"} <= files.keys()
    assert not any("/tests/test_" in name or name.startswith("autograder/tests/") for name in files)
    assert len(pack.pack(files)) < 4 << 20


@pytest.fixture
def tree(monkeypatch):
    with open_folder() as folder:
        yield copy_of_the_tree(folder)


SLOW = ("a suite does not import", "points do not add up")  # what they show is shown by others too
BROKEN = {
    "a file does not compile": ("reference/memory.py", "import torch\n", "import torch\n)\n", "reference/memory.py does not compile"),
    "a file is for a newer Python": ("autograder/judge.py", "class Lost(", "type X = int\n\n\nclass Lost(", "autograder/judge.py does not compile"),
    "a stub is of another day": ("student/memory.py", '"""', '"""Another. ', "student/memory.py is not what reference/memory.py gives"),
    "weights are not the points": ("autograder/hidden/test_memory.py", "@weight(1)", "@weight(7)", "weigh"),
    "a suite does not import": ("autograder/hidden/test_memory.py", "import torch\n", "import nowhere\n", "nowhere"),
    "points do not add up": ("handout/problems.toml", "points = 100", "points = 99", "add up to 100, not to 99"),
    "a folder is missing": ("autograder/sandbox", "", None, "the autograder needs autograder/sandbox/*.py"),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough) if name in SLOW else name for name in BROKEN]
)
def test_what_cannot_grade_is_not_packed(tree, name):
    file, old, new, words = BROKEN[name]
    path = tree / file
    if new is None:
        (tree / "kept").mkdir()
        command = "from autograder import pack; import sys, shutil; shutil.rmtree('autograder/sandbox'); sys.exit(pack.main())"
        arguments = ["-c", command]
    else:
        source = path.read_text()
        assert old in source
        path.write_text(source.replace(old, new, 1))
        arguments = ["-m", "autograder", "pack"]
    ran = subprocess.run([sys.executable, *arguments], cwd=tree, capture_output=True, text=True)
    assert ran.returncode == 2, ran.stderr
    assert (
        len(ran.stderr.splitlines()) == 1
        and words in ran.stderr
        and ran.stderr.startswith(("no autograder was packed: ", "pack: "))
    )
    assert not (tree / "dist").exists()


def test_constraints_are_met_by_every_python_that_may_grade():
    """One version of each package on each Python, and none is missing on the oldest, which alone may need more."""
    from packaging.requirements import Requirement

    lines = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()]
    pins = [Requirement(line) for line in lines if line]
    names = {}
    for minor in range(10, 15):
        environment = {"python_version": f"3.{minor}", "python_full_version": f"3.{minor}.1"}
        names[minor] = [pin.name for pin in pins if pin.marker is None or pin.marker.evaluate(environment)]
        assert len(names[minor]) == len({*names[minor]}), minor
        assert {*names[minor]} <= {*names[10]} and (minor < 12 or names[minor] == names[11]), minor
    assert all(len(pin.specifier) == 1 and str(pin.specifier).startswith("==") for pin in pins)
