"""Bad submissions, each through the whole grader: it loses the rows that it should, keeps the others, and is told why.

What is graded here is the reference with one thing gone wrong. A fault in a function comes with its own part alone; one that could
reach further comes with another part beside it. After each, no process and no file is left.
"""

import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from autograder.tests import traces
from autograder.tests.grading import Grader
from autograder.tests.handed_in import ROOT, reference, replaced, without, write
from autograder.tests.unchecked import UncheckedGrader
from handout.problems import load_assignment

PROBLEM = "memory.get_memory_usage"  # one row, and nothing else in the reference calls it
PARTS = {"memory", "optimizers"}
ALL = frozenset({"memory", "optimizers"})
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Fault:
    """A submission, and what must become of it."""

    name: str
    files: Mapping[str, str | bytes]
    lost: frozenset[str]  # parts ("memory") and problems ("memory.storage_bytes") whose rows are all lost
    says: tuple[str, ...] = ()  # what each lost row's text contains
    never: tuple[str, ...] = ()  # what no text for the student contains
    seconds: float = field(default=30.0)  # far above what it takes; without a deadline it would never end


def in_function(name: str, body: str, *says: str, keeps: bool = False, more: str = "", **rest: Any) -> Fault:
    """Return the submission of memory.py whose get_memory_usage has this body; `more` precedes the function."""
    function = f"def get_memory_usage(x):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"
    source = replaced(reference("memory"), "get_memory_usage", f"{textwrap.dedent(more)}\n\n{function}")
    return Fault(name, {"memory.py": source}, NOTHING if keeps else frozenset({PROBLEM}), says, **rest)


def at_import(name: str, code: str, *says: str, keeps: bool = False, **rest: Any) -> Fault:
    """Return the submission of two parts in which memory.py runs `code` at its end."""
    source = reference("memory") + "\n\n" + textwrap.dedent(code)
    files = {"memory.py": source, "optimizers.py": reference("optimizers")}
    return Fault(name, files, NOTHING if keeps else frozenset({"memory"}), says, **rest)


def in_place_of(name: str, problem: str, code: str, *says: str, **rest: Any) -> Fault:
    """Return the submission of a part in which a function, class or method is other code."""
    part, _, target = problem.partition(".")
    lost = frozenset({f"{part}.{target.split('.')[0]}"})
    return Fault(name, {f"{part}.py": replaced(reference(part), target, code)}, lost, says, **rest)


RIGHT = "return x.numel() * x.element_size()"

# An answer of another type, from the fault battery's point of view: a wrong one.
LIAR = """
    class Liar:
        def __eq__(self, other): return True
        def __ne__(self, other): return False
        def __sub__(self, other): return 0
        def __abs__(self): return 0
        def __le__(self, other): return True
        def __bool__(self): return True
        def __hash__(self): return 0
"""

FAULTS = [
    # Time
    in_function("while True", "while True: pass", "took far longer", "loop"),
    in_function("endless C call", "import itertools\nreturn sum(itertools.repeat(0))", "took far longer", "loop"),
    in_function(
        "except BaseException: continue around a loop",
        """
        import time
        while True:
            try:
                while True: time.time()
            except BaseException:
                continue
        """,
        "took far longer",
    ),
    in_function(
        "shuts out every signal and loops",
        """
        import signal
        for number in range(1, 65):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        while True: pass
        """,
        "took far longer",
    ),
    in_function(
        "takes its time in threads",
        """
        import threading
        threads = [threading.Thread(target=lambda: sum(iter(int, 1))) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        """,
        "took far longer",
    ),
    in_place_of(
        "one problem's rows wait for one endless loop only once",
        "optimizers.AdamW.step",
        "def step(self, closure=None):\n    while True: pass",
        "took far longer",
        seconds=12.0,  # and 2 s and a bit for each of eleven rows would be 25
    ),
    at_import("loop at import", "while True: pass", "memory.py could not be imported", "took far longer", "loop"),
    at_import(
        "non-daemon thread that sleeps 40 s", "import threading, time\nthreading.Thread(target=time.sleep, args=(40,)).start()",
        keeps=True, seconds=35.0,
    ),
    # The end of the process
    in_function("os._exit(0)", "import os\nos._exit(0)", "ended the Python process", "os._exit()"),
    in_function("sys.exit(0)", "import sys\nsys.exit(0)", "called sys.exit()", "memory.py line", "in get_memory_usage"),
    in_function("raises KeyboardInterrupt", "raise KeyboardInterrupt", "raised KeyboardInterrupt", "memory.py line"),
    in_function("segfault", "import ctypes\nctypes.string_at(0)", "segmentation fault"),
    in_function("os.abort()", "import os\nos.abort()", "signal"),
    in_function("SIGKILL to itself", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "killed", "memory"),
    in_function("an alarm clock", "import signal, time\nsignal.alarm(1)\ntime.sleep(60)", "signal"),
    at_import("os._exit(0) at import", "import os\nos._exit(0)", "memory.py could not be imported", "ended the Python process"),
    at_import("sys.exit() at import", "import sys\nsys.exit()", "memory.py could not be imported", "SystemExit", "memory.py line", "sys.exit()"),
    at_import("segfault at import", "import ctypes\nctypes.string_at(0)", "memory.py could not be imported", "segmentation fault"),
    # Memory, disk, output, stack
    in_function("50 GB of tensor", "import torch\ntorch.empty(50 << 30, dtype=torch.uint8).fill_(0)", "2 GiB"),
    in_function("50 GB of Python", "return len(bytearray(50 << 30))", "MemoryError", "2 GiB"),
    in_function(
        "a list that grows for ever, MemoryError swallowed",
        """
        kept = []
        while True:
            try: kept.append(bytearray(1 << 24))
            except MemoryError: continue
        """,
        "took far longer",
    ),
    in_function("shared mappings", "import mmap\nreturn [mmap.mmap(-1, 1 << 30) for _ in range(50)]", "memory.py line"),
    in_function(
        "200 MB of output",
        f"""
        import sys
        while PRINTED.pop(): print("x" * (1 << 20)); print("y" * (1 << 20), file=sys.stderr)
        PRINTED.append(0)
        {RIGHT}
        """,
        keeps=True, more="PRINTED = [0] + [1] * 100",
    ),
    in_function("prints for ever", "while True: print(0)", "took far longer"),
    in_function("300 MB of files", "import time\nfor i in range(5): open(f'{i}', 'wb').write(bytes(60 << 20))\ntime.sleep(20)", "256 MiB", "files"),
    in_function("one file of 300 MB", "open('x', 'wb').write(bytes(300 << 20))", "OSError", "memory.py line"),
    in_function("very many files", "import time\nfor i in range(20_001): open(f'{i}', 'w').close()\ntime.sleep(20)", "256 MiB", "files"),
    at_import(
        "files that do not want to be deleted",
        """
        import os, tempfile
        inside = tempfile.mkdtemp()
        for depth in range(60):
            os.mkdir("d"); open("d/f", "w").close(); os.chdir("d")
        os.symlink("/etc", "link")
        os.mkdir("shut", 0); os.mkdir(".moved1", 0o500)
        for path in (".", inside):
            try: os.chmod(path, 0)
            except OSError: pass
        """,
        keeps=True,
    ),
    in_function("runs out of file descriptors", "return [open('/dev/null') for _ in range(10**4)]", "OSError", "memory.py line"),
    in_function("endless recursion", "return get_memory_usage(x)", "RecursionError", "calls itself"),
    in_function(
        "C stack overflow",
        "import sys\nsys.setrecursionlimit(10**9)\ndeep = lambda _: list(map(deep, [0]))\nreturn deep(0)",
        "segmentation fault", "recursion",
    ),
    # What is not there, or not as it should be
    Fault(
        "SyntaxError",
        {"memory.py": reference("memory").replace("def storage_bytes(", "def storage_bytes)("), "optimizers.py": reference("optimizers")},
        frozenset({"memory"}),
        ("memory.py could not be imported", "SyntaxError", "memory.py line", "    def storage_bytes)(", "\n    ", "^"),
    ),
    Fault(
        "IndentationError",
        {"memory.py": reference("memory") + "\n  x = 1\n", "optimizers.py": reference("optimizers")},
        frozenset({"memory"}),
        ("memory.py could not be imported", "IndentationError", "memory.py line"),
    ),
    Fault("missing file", {"optimizers.py": reference("optimizers")}, frozenset({"memory"}), ("memory.py was not found", "optimizers.py")),
    Fault(
        "missing function", {"memory.py": without(reference("memory"), "get_memory_usage")}, frozenset({PROBLEM}),
        ("memory.py does not define `get_memory_usage`",),
    ),
    Fault(
        "missing class", {"optimizers.py": without(reference("optimizers"), "SGD")}, frozenset({"optimizers.SGD"}),
        ("optimizers.py does not define `SGD`",),
    ),
    in_place_of("wrong signature", PROBLEM, "def get_memory_usage():\n    return 0", "TypeError", "signature"),
    in_place_of(
        "a keyword by another name", "optimizers.SGD.__init__", "def __init__(self, params, learning_rate):\n    super().__init__(params, {'lr': learning_rate})",
        "TypeError", "signature",
    ),
    in_function("a stub left as it is", "raise NotImplementedError('memory.get_memory_usage')", "Not started", "memory.py line"),
    at_import("a module that is not installed", "import tensorflow_of_mine", "ModuleNotFoundError", "memory.py line", "    import tensorflow_of_mine"),
    at_import("a name that is not defined", "print(undefined)", "NameError", "memory.py line", "    print(undefined)"),
    in_function("waits for input", "return int(input())", "EOFError", "memory.py line"),
    in_function("a breakpoint left in", "breakpoint()\n" + RIGHT, "breakpoint()", "memory.py line"),
    in_function("an assertion of the student's own", "assert False, 'mine'", "raised AssertionError", "memory.py line", never=("mine",)),
    in_function("skips the test", "import unittest\nraise unittest.SkipTest('not today')", "memory.py line", never=("not today",)),
    in_function("skips the test with pytest", "import pytest\npytest.skip('not today')", "memory.py line", never=("not today",)),
    # Answers of other types
    in_function("an object that equals everything", "return Liar()", "not plain data", "an int is expected", more=LIAR),
    in_function("an int that equals everything", "return Liar(0)", "not plain data", "an int is expected", more=LIAR.replace("Liar:", "Liar(int):")),
    in_function("a NumPy int", "import numpy as np\nreturn np.int64(x.numel() * x.element_size())", "NumPy scalar", "an int is expected"),
    in_function("a bool", "return bool(x.numel())", "A bool came back", "an int is expected"),
    in_function("a float", "return float(x.numel() * x.element_size())", "A float came back", "an int is expected"),
    in_function("a tensor for an int", "import torch\nreturn torch.tensor(x.numel() * x.element_size())", "A tensor came back", "an int is expected"),
    in_function("nothing", "x.numel() * x.element_size()", "None came back", "an int is expected"),
    in_function("a huge answer", "return HUGE", "not plain data", more="HUGE = [0] * 10**6"),
    in_function("a huge tensor", "return HUGE", "not plain data", more="HUGE = torch.zeros(10**7)"),
    in_function("a deep answer", "return DEEP", "not plain data", more="DEEP = []\nfor _ in range(10**5): DEEP = [DEEP]"),
    in_function("an answer that contains itself", "loop = []\nloop.append(loop)\nreturn loop", "not plain data"),
    in_function("an answer without an end", "return Endless()", "not plain data", more="""
        class Endless(tuple):
            def __iter__(self):
                while True: yield 0
    """),
    in_function("an answer that raises when looked at", "return Trap()", "raised ZeroDivisionError", more="""
        class Trap(dict):
            def items(self): return 1 / 0
    """),
    # Judged by what it did before
    in_function(
        "patches torch's comparisons",
        "return 0", "An int differs",
        more="""
        import builtins, math, operator
        import numpy as np
        torch.equal = torch.allclose = torch.Tensor.equal = torch.Tensor.allclose = lambda *a, **k: True
        torch.testing.assert_close = np.testing.assert_allclose = np.testing.assert_array_equal = lambda *a, **k: None
        np.allclose = np.array_equal = math.isclose = lambda *a, **k: True
        torch.isclose = lambda a, *r, **k: torch.ones_like(a, dtype=torch.bool)
        operator.eq = lambda a, b: True
        builtins.AssertionError = Exception
        """,
    ),
    in_function(
        "patches the grader in memory",
        "return 0", "An int differs",
        more="""
        import sys
        for name, module in list(sys.modules.items()):
            if name.startswith(("autograder", "_pytest", "pytest", "gradescope")):
                for attribute, value in list(vars(module).items()):
                    if "differ" in attribute or attribute in ("compare", "misfit", "print_grade", "write_results", "isfinite"):
                        setattr(module, attribute, lambda *a, **k: None)
        """,
    ),
    in_function(
        "reads the expected value from the callers' frames",
        """
        import sys
        frame = sys._getframe()
        while frame:
            for names in (frame.f_locals, frame.f_globals):
                for name in ("expected", "reply", "reference", "_memory", "answer", "want"):
                    if isinstance(names.get(name), (int, list)):
                        return names[name]
            frame = frame.f_back
        return 0
        """,
        "An int differs",
    ),
    in_function(
        "asks the garbage collector for the expected value",
        """
        import gc, sys
        for thing in gc.get_objects():
            if type(thing).__name__ in ("_Expected", "Grade", "Row", "Suites", "_Judge", "Submission", "Function", "Session"):
                raise SystemExit("found the grader")
        for name in sys.modules:
            if name.startswith(("reference", "autograder.hidden", "autograder.plugin", "autograder.compare", "_pytest")):
                raise SystemExit("found the grader")
        return 0
        """,
        "An int differs",
    ),
    in_function(
        "imports the reference",
        "import reference.memory\nreturn reference.memory.get_memory_usage(x)", "ModuleNotFoundError", "memory.py line",
    ),
    in_function(
        "finds the reference through the grader's modules and reads it",
        """
        import sys
        from pathlib import Path
        root = Path(sys.modules["autograder.sandbox.child"].__file__).parents[2]
        namespace = {}
        exec(compile((root / "reference" / "memory.py").read_text(), "memory", "exec"), namespace)
        return namespace["get_memory_usage"](x)
        """,
        "PermissionError", "memory.py line",
    ),
    in_function(
        "reads the hidden tests",
        f"open({str(ROOT / 'autograder' / 'hidden' / 'test_memory.py')!r}).read()\n{RIGHT}", "PermissionError", "memory.py line",
    ),
    in_function("lists the grader's folder", f"import os\nos.listdir({str(ROOT)!r})\n{RIGHT}", "PermissionError", "memory.py line"),
    in_function("reads the processes of the machine", f"import os\nos.listdir('/proc')\n{RIGHT}", "PermissionError", "memory.py line"),
    in_function("reads its own memory", f"open('/proc/self/mem', 'rb')\n{RIGHT}", "PermissionError", "memory.py line"),
    in_function("opens a socket", f"import socket\nsocket.socket()\n{RIGHT}", "PermissionError", "memory.py line"),
    in_function("runs a program", f"import subprocess\nsubprocess.run(['/bin/true'])\n{RIGHT}", "PermissionError", "memory.py line"),
    at_import(
        "forges the results at exit",
        """
        import atexit, glob, os
        def forge():
            for path in ["results.json", "/autograder/results/results.json", *glob.glob("/tmp/*/results.json")]:
                try:
                    with open(path, "w") as file: file.write('{"score": 100}')
                except OSError: pass
        atexit.register(forge)
        """,
        keeps=True,
    ),
    at_import(
        "starts 50 processes in the background",
        """
        import os, time
        for _ in range(50):
            try: pid = os.fork()
            except OSError: continue
            if pid == 0:
                os.setsid()
                time.sleep(600)
        """,
        keeps=True,
    ),
    at_import(
        "starts a process that detaches itself, by clone and by vfork",
        """
        import ctypes, os, platform
        libc = ctypes.CDLL(None)
        numbers = (56, 57, 58) if platform.machine() == "x86_64" else (220,)
        for number in numbers:
            if libc.syscall(number, 17, 0, 0, 0, 0) == 0:
                if libc.syscall(number, 17, 0, 0, 0, 0) == 0:
                    libc.sleep(600)
                os._exit(0)
        """,
        keeps=True,
    ),
    # The channel to the grader
    in_function("writes garbage to the grader", f"import os\nos.write(4, b'garbage ' * 100)\n{RIGHT}", "sent bytes to the grader"),
    in_function("a thread that writes garbage after the reply", f"""
        import os, threading
        def write():
            while True: os.write(4, b"garbage " * 100)
        threading.Thread(target=write, daemon=True).start()
        {RIGHT}
        """, "sent bytes to the grader"),
    in_function("closes the connection", f"import os\nos.close(4)\n{RIGHT}", "ended the Python process"),
    in_function("closes the connection and stays", "import os\nos.close(4)\nwhile True: pass", "closed the connection"),
    in_function("closes everything", "import os\nos.closerange(0, 256)\nreturn 0", "ended the Python process"),
    at_import(
        "forges the answer to its import",
        """
        import os, sys
        import numpy
        codec, frame = sys.modules["autograder.sandbox.codec"], sys._getframe()
        while "ticket" not in frame.f_locals:
            frame = frame.f_back
        os.write(4, b"".join(codec.encode([numpy.zeros(3), [[]], {}, None, torch.zeros(2)], frame.f_locals["ticket"])))
        """,
        "does not define",
    ),
    # What is to be ignored
    at_import(
        "changes dtype, device, seed, folder, modes",
        """
        import gc, os, random, sys, warnings
        import numpy as np
        torch.set_default_dtype(torch.float16)
        torch.set_default_device("meta")
        torch.manual_seed(1); random.seed(1); np.random.seed(1)
        torch.set_grad_enabled(False)
        torch.set_printoptions(profile="full")
        torch.set_num_threads(8)
        os.chdir("/")
        os.environ.clear()
        sys.argv.clear(); sys.path.clear()
        gc.disable()
        np.seterr(all="raise")
        """,
        keeps=True,
    ),
    at_import(
        "closes and replaces its output",
        "import os, sys\nsys.stdout = sys.stderr = None\nos.close(1); os.close(2)",
        keeps=True,
    ),
    at_import(
        "deletes its own files",
        """
        import os
        from pathlib import Path
        for path in [Path(__file__), Path(__file__).with_name("optimizers.py"), *Path(".").iterdir()]:
            try: path.unlink()
            except OSError: pass
        """,
        keeps=True,
    ),
    at_import("is another module than it was", "import sys\nsys.modules[__name__] = 7", "memory.py could not be imported"),
    Fault(
        "__init__.py of the student's own that fails",
        {"__init__.py": "1 / 0", "memory.py": reference("memory")},
        frozenset({"memory"}),
        ("ZeroDivisionError", "__init__.py line 1"),
    ),
]  # fmt: skip

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


@pytest.fixture(scope="module")
def outcomes() -> Iterator[list[tuple[str, float, str]]]:
    """Collect a line a fault; `pytest -s` shows the table."""
    lines: list[tuple[str, float, str]] = []
    yield lines
    print(f"\n{'seconds':>7}  fault: what its student reads first")
    for name, seconds, text in lines:
        print(f"{seconds:7.1f}  {name}: {text}")


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
    name = next((name for name in ("unchecked", "grader") if name in request.fixturenames), None)
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


def judge(fault: Fault, grade: Mapping[str, Any]) -> str:
    """Check a grade against what must become of a fault, and return what the student reads of the first lost row."""
    first = "all rows kept"
    for row in grade["rows"]:
        part = row["problem"].split(".")[0]
        where = f"{row['test']}: {row['output']}\n{row['staff']}"
        if f"{part}.py" not in fault.files:
            assert row["outcome"] == "failed", where
            assert f"{part}.py was not found" in row["output"], where
        elif part not in fault.lost and row["problem"] not in fault.lost:
            assert row["outcome"] == "passed", where
        else:
            assert row["outcome"] == "failed", where
            for words in fault.says:
                assert words in row["output"], where
            if first == "all rows kept":
                first = row["output"]
        for words in fault.never:
            assert words not in row["output"], where
    for words in fault.never:
        assert not any(words in note for note in grade["notes"])
    return first


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
    start = time.monotonic()
    grade = unchecked.grade(write(tmp_path, fault.files))
    took = time.monotonic() - start
    outcomes.append((fault.name, took, judge(fault, grade).partition("\n")[0]))
    assert [row["test"] for row in grade["rows"]] == planned
    assert took < fault.seconds


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


REFUSED = [  # by the allow-lists, unrun, through the grader as it is
    in_place_of("subclasses torch.optim.AdamW", "optimizers.AdamW", "AdamW = torch.optim.AdamW", "Not allowed here", "torch.optim.AdamW"),
    in_place_of(
        "hands the work to torch.optim.SGD", "optimizers.SGD",
        "class SGD(torch.optim.SGD):\n    def __init__(self, params, lr=1e-3):\n        super().__init__(params, lr)",
        "Not allowed here", "torch.optim.SGD",
    ),
    in_function("walks the frames", f"import sys\nsys._getframe()\n{RIGHT}", "Not allowed here", "sys._getframe", "memory.py:40"),
]  # fmt: skip


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
    assert told == {"A subclass of torch.Tensor came back where a tensor is expected."}


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

WAITING = {
    "SIGSTOP to itself": in_function("SIGSTOP to itself", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", "waited"),
    "sleeps at import": at_import("sleeps at import", "import time\ntime.sleep(10**6)", "memory.py could not be imported", "waited"),
}  # fmt: skip


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
