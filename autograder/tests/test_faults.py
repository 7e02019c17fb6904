"""Bad submissions, each through the whole grader: it loses the rows that it should, keeps the others, and is told why.

The battery is in faults.py. After each, no process and no file is left, and none took more of the machine than it may. `make faults`
grades all of them, also in processes without walls, and prints what became of each and how long that took.
"""

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from autograder.tests import traces
from autograder.tests.faults import FAULTS, NOTHING, PARTS, PEERS, REFUSED, WAITING, Fault, judge
from autograder.tests.grading import Grader
from autograder.tests.handed_in import ROOT, reference, replaced, write
from autograder.tests.unchecked import UncheckedGrader
from handout.problems import load_assignment

USER = 61_234

# What a hidden test knows, by every way in which an error could carry it to the student. `SECRET` is found as a student would: in
# the probe's code.
SPY = """
    def spy():
        import sys
        frame, found = sys._getframe(), []
        while frame:
            if frame.f_code.co_name == "probe":
                found += [*frame.f_code.co_consts, *frame.f_code.co_names, *frame.f_code.co_varnames, *frame.f_locals]
            frame = frame.f_back
        words = [word for word in found if isinstance(word, str)]
        assert "bases" in words, words  # a variable of that hidden test
        return words[words.index("bases")] * 3
"""
SECRET = "basesbasesbases"
LEAKS = {
    "in the message": "raise ValueError(spy())",
    "printed": "print(spy(), flush=True)\nraise ValueError",
    "as the type's name": "raise type(spy(), (Exception,), {})",
    "as the type's name, said to be the student's own": "raise type(spy(), (Exception,), {'__module__': 'student.memory'})",
    "as the type's name, said to be built in": "raise type(spy(), (Exception,), {'__module__': 'builtins'})",
    "as the type's qualified name": "raise type('ValueError', (Exception,), {'__module__': 'builtins', '__qualname__': spy()})",
    "as the module's name": "raise type('ValueError', (Exception,), {'__module__': spy()})",
    "as the base's name": "raise type('X', (type(spy(), (Exception,), {}),), {})",
    "as the function's name": "source = 'def ' + spy() + '(): 1 / 0'\nexec(compile(source, __file__, 'exec'))\nlocals()[spy()]()",
    "as the file's name": "exec(compile('1 / 0', __file__.replace('memory.py', spy() + '.py'), 'exec'))",
    "as the file's name, with the student's behind it": "exec(compile('1 / 0', '/' + spy() + __file__, 'exec'))",
    "as the line of a SyntaxError": "raise SyntaxError(spy(), (__file__, 3, 2, spy()))",
    "as the line of a SyntaxError in another file": "raise SyntaxError(spy(), (spy(), 3, 2, spy()))",
    "as a note": "error = ValueError()\nerror.__notes__ = [spy()]\nraise error",
    "as the cause": "raise ValueError from RuntimeError(spy())",
    "as a key": "return {}[spy()]",
    "as an attribute": "return getattr(torch, spy())",
    "as the exit's message": "raise SystemExit(spy())",
    "as a warning": "import warnings\nwarnings.warn(spy())\nraise ValueError",
    "as what is returned": "return spy()",
    "as the type of what is returned": "return type(spy(), (), {})()",
    "as the tensor's type that is returned": "return torch.zeros(2).as_subclass(type(spy(), (torch.Tensor,), {}))",
    "as a warning to staff from seccomp": "import os\nos.write(2, spy().encode())\nos._exit(0)",
}


Outcomes = list[tuple[str, str, float, float, str]]


@pytest.fixture(scope="module")
def outcomes() -> Iterator[Outcomes]:
    """Collect a line a fault; `make faults` shows the table."""
    lines: Outcomes = []
    yield lines
    print(f"\n{'isolation':9} {'seconds':>7} {'peak MB':>8}  fault: what its student reads first")
    for isolation, name, seconds, peak, text in lines:
        print(f"{isolation:9} {seconds:7.1f} {peak:8.0f}  {name}: {text}")


@pytest.fixture(scope="module")
def unchecked() -> Iterator[Grader]:
    """A warm grader that lets attacks come as far as the sandbox."""
    grader = UncheckedGrader()
    yield grader
    grader.close()


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check after each test that children end and that their files go."""
    yield
    name = next((name for name in ("unchecked", "bare", "grader") if name in request.fixturenames), None)
    if name is None:
        return
    pid = request.getfixturevalue(name)._process.pid

    def clean() -> bool:  # the grader keeps two children ready, asleep in empty folders
        students = traces.students(pid)
        return (
            len(students) <= 2
            and not any(traces.runs_something(student) for student in students)
            and not any([*cell.iterdir()] for cell in traces.cells(pid))
        )

    assert traces.eventually(clean), (traces.students(pid), [[*cell.iterdir()] for cell in traces.cells(pid)])
    assert traces.left_files(traces.uids(pid)) == []


@pytest.fixture(scope="module")
def planned(unchecked: Grader, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the tests that the reference gets all rows of, in their order."""
    files = {f"{part}.py": reference(part) for part in PARTS}
    fault = Fault("reference", files, NOTHING)
    grade = unchecked.grade(write(tmp_path_factory.mktemp("reference"), files))
    judge(fault, grade)
    return [row["test"] for row in grade["rows"]]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_loses_its_own_rows_and_its_student_is_told(fault, unchecked, planned, outcomes, tmp_path):
    run(fault, unchecked, "full", outcomes, tmp_path, planned)


@pytest.fixture(scope="module")
def bare() -> Iterator[Grader]:
    """A grader without walls: an ordinary user's, on a kernel with neither Landlock nor seccomp."""
    grader = UncheckedGrader(user=USER if os.geteuid() == 0 else None, walls=False)
    yield grader
    grader.close()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[] if fault.name in PEERS.values() else pytest.mark.thorough)
        for fault in FAULTS
        if not fault.walls
    ],
    ids=lambda fault: fault.name,
)
def test_a_fault_is_judged_the_same_in_mere_processes(fault, bare, planned, outcomes, tmp_path):
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o711)
    run(fault, bare, "process", outcomes, tmp_path, planned)


def run(fault, grader, isolation, outcomes, folder, planned):
    start = time.monotonic()
    with traces.Usage(grader._process.pid) as usage:
        grade = grader.grade(write(folder, fault.files))
    took = time.monotonic() - start
    outcomes.append((isolation, fault.name, took, usage.memory, judge(fault, grade).partition("\n")[0]))
    assert grade["isolation"] == isolation
    assert [row["test"] for row in grade["rows"]] == planned
    assert took < fault.seconds
    assert usage.memory < 3000  # MB: a child's 2 GiB, and the grader
    assert usage.threads < 3 * 64 + 20  # those of a child that ends and of two that are ready
    assert usage.disk < 400  # MB: a child's 256, and what it writes until somebody looks


def test_every_fault_that_other_graders_were_measured_with_is_here():
    names = {fault.name for fault in [*FAULTS, *REFUSED]}
    assert {*PEERS.values()} <= names and len({*names}) == len([*FAULTS, *REFUSED])


@pytest.mark.parametrize("way", LEAKS)
def test_what_a_hidden_test_knows_reaches_no_student(way, unchecked, tmp_path):
    body = textwrap.indent(LEAKS[way], "    ")
    code = f"{textwrap.dedent(SPY)}\n\ndef storage_bytes(tensors):\n{body}\n"
    # Another function, whose hidden test has the variable that is to be found; training_memory calls it too.
    source = replaced(reference("memory"), "storage_bytes", code)
    rows = unchecked.grade(write(tmp_path, {"memory.py": source}))["rows"]
    told = [row["output"] for row in rows]
    assert any(row["outcome"] == "failed" and row["problem"] == "memory.storage_bytes" for row in rows)
    assert not any("bases" in text for text in told), told
    assert all(len(text) < 500 for text in told)


@pytest.mark.parametrize("fault", REFUSED, ids=lambda fault: fault.name)
def test_what_the_handout_does_not_allow_loses_its_problem(fault, grader, tmp_path):
    grade = grader.grade(write(tmp_path, fault.files))
    # What breaks a rule that holds everywhere costs what it stands in; the part's other problems may be lost with it.
    rows = [row for row in grade["rows"] if row["problem"] in fault.lost]
    assert rows and all(words in row["output"] for row in rows for words in fault.says), [row["output"] for row in rows]
    assert {row["outcome"] for row in rows} == {"failed"}


def test_the_reference_gets_every_row(grader):
    grade = grader.grade(ROOT / "reference")
    assert {row["outcome"] for row in grade["rows"]} == {"passed"}, [row for row in grade["rows"] if row["output"]]


def test_stubs_get_no_point_and_are_called_not_started(grader):
    grade = grader.grade(ROOT / "student")
    graded = {problem.id for problem in load_assignment().graded_problems}
    assert {row["problem"] for row in grade["rows"]} == graded
    assert {row["outcome"] for row in grade["rows"]} == {"failed"}
    assert all("Not started" in row["output"] for row in grade["rows"])


def test_a_tensor_that_equals_everything_is_refused(unchecked, tmp_path):
    code = """
    def mean_pool(*args, **kwargs):
        import torch
        class Liar(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                if function in (torch.equal, torch.allclose, torch.isclose): return True
                return super().__torch_function__(function, types, args, kwargs or {})
        return torch.zeros(3).as_subclass(Liar)
    """
    source = replaced(reference("einsums"), "mean_pool", code)
    rows = unchecked.grade(write(tmp_path, {"einsums.py": source}))["rows"]
    told = {row["output"] for row in rows if row["problem"] == "einsums.mean_pool"}
    assert {text.partition(" (")[0].rstrip(".") for text in told} == {
        "A subclass of torch.Tensor came back where a tensor is expected"
    }


def test_one_submission_gets_one_grade(grader, tmp_path):
    mixed = {
        "memory.py": replaced(reference("memory"), "storage_bytes", "def storage_bytes(tensors):\n    return {}[1]"),
        "optimizers.py": reference("optimizers").replace("(1 - beta2)", "(1 - beta1)"),
    }
    write(tmp_path, mixed)
    first = grader.grade(tmp_path)
    second = grader.grade(tmp_path)
    for grade in (first, second):
        for row in grade["rows"]:
            row["staff"] = ""  # names the folder
    assert first == second


# Two that wait for their wall-clock caps, in graders of their own, while the others are graded.


@pytest.fixture(scope="module", autouse=True)
def waiting(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Mapping[str, Any]]]:
    """Start grading the submissions that wait, before all other tests of this file; yield what returns their grades."""
    code = """
        import json, sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[1])
        from autograder.tests.unchecked import UncheckedGrader
        grader = UncheckedGrader()
        print(json.dumps(grader.grade(Path(sys.argv[2]))))
        grader.close()
    """
    running = {}
    for name, fault in WAITING.items():
        if not any(item.name.endswith(f"[{name}]") for item in request.session.items):
            continue
        folder = write(tmp_path_factory.mktemp("waiting"), fault.files)
        command = [sys.executable, "-c", textwrap.dedent(code), str(ROOT), str(folder)]
        running[name] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    yield lambda name: json.loads(running[name].communicate(timeout=200)[0])
    for process in running.values():
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", WAITING)
def test_a_submission_that_waits_is_ended(name, waiting):
    judge(WAITING[name], waiting(name))


HOARD = """
_right_train, _kept, _ballast = train, [], [torch.ones(60 << 20)]


def train(model, optimizer, loss_fn, batches, num_steps, *rest):
    if num_steps == 200:
        _ballast.clear()
    keeping = lambda *both: _kept.append(loss_fn(*both)) or _kept[-1]
    return _right_train(model, optimizer, keeping, batches, num_steps, *rest)
"""


def test_memory_that_is_freed_during_the_run_hides_no_growth(unchecked, place):
    grade = unchecked.grade(write(place / "hoard", {"training.py": f"{reference('training')}\n{HOARD}"}))
    (row,) = [row for row in grade["rows"] if row["test"].endswith("test_train_keeps_memory_flat")]
    assert row["outcome"] == "failed" and "Memory grows" in row["output"], row
