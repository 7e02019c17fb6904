"""The fault battery: submissions in which one thing has gone wrong, and what must become of each.

Each is the reference with that thing changed. A fault in a function comes with its own part alone; one that could reach further comes
with another part beside it.
"""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autograder.tests.handed_in import ROOT, reference, replaced, without

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
    walls: bool = False  # only Landlock or seccomp stop it: without them it is not tried
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
    in_function("very many files", "import time\nfor i in range(1_001): open(f'{i}', 'w').close()\ntime.sleep(20)", "256 MiB", "files"),
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
    in_function("an assertion of the student's own", "assert False, 'mine'", "raised AssertionError", "memory.py line", "Python says: mine"),
    in_function("skips the test", "import unittest\nraise unittest.SkipTest('not today')", "memory.py line", "Python says: not today"),
    in_function("skips the test with pytest", "import pytest\npytest.skip('not today')", "memory.py line", "Python says: not today"),
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
    in_function("an answer of memory that nobody has written", "return int(torch.empty(1, dtype=torch.int64))", "An int differs"),
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
        "raises the hidden test's source",
        """
        import inspect, sys
        frame = sys._getframe()
        while frame.f_code.co_name != "probe": frame = frame.f_back
        try: source = inspect.getsource(frame.f_code)
        except OSError: source = "cannot be read"
        print(source, flush=True)
        raise RuntimeError(source)
        """,
        "raised RuntimeError", "memory.py line", never=("def probe", "lib.", "cannot be read"),
    ),
    in_function(
        "rewrites the pickles of the machine",
        """
        import glob, os
        changed = 0
        for path in [*glob.glob("/tmp/*.p*kl*"), *glob.glob("/tmp/*/*.p*kl*"), *glob.glob("/dev/shm/*")]:
            try: changed += bool(open(path, "r+b"))
            except OSError: pass
        return changed or x.numel() * x.element_size() + 1
        """,
        "An int differs",
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
        "PermissionError", "memory.py line", walls=True,
    ),
    in_function(
        "reads the hidden tests",
        f"open({str(ROOT / 'autograder' / 'hidden' / 'test_memory.py')!r}).read()\n{RIGHT}", "PermissionError", "memory.py line", walls=True,
    ),
    in_function("lists the grader's folder", f"import os\nos.listdir({str(ROOT)!r})\n{RIGHT}", "PermissionError", "memory.py line", walls=True),
    in_function("reads the processes of the machine", f"import os\nos.listdir('/proc')\n{RIGHT}", "PermissionError", "memory.py line", walls=True),
    in_function("reads its own memory", f"open('/proc/self/mem', 'rb')\n{RIGHT}", "PermissionError", "memory.py line", walls=True),
    in_function("opens a socket", f"import socket\nsocket.socket()\n{RIGHT}", "PermissionError", "memory.py line", walls=True),
    in_function("runs a program", f"import subprocess\nsubprocess.run(['/bin/true'])\n{RIGHT}", "PermissionError", "memory.py line", walls=True),
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
    in_function(
        "a detached process overwrites the results after grading",
        """
        import glob, os, time
        try: detached = bool(ONCE) and os.fork() == ONCE.pop()
        except OSError: detached = False
        if detached:
            os.setsid()
            if os.fork() == 0:
                time.sleep(4)
                for path in ["results.json", "/autograder/results/results.json", *glob.glob("/tmp/*/results.json")]:
                    try: open(path, "w").write('{"score": 100}')
                    except OSError: pass
            os._exit(0)
        return 0
        """,
        "An int differs", more="ONCE = [0]",
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
        keeps=True, walls=True,
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
        keeps=True, walls=True,
    ),
    at_import("is another module than it was", "import sys\nsys.modules[__name__] = 7", "memory.py could not be imported"),
    Fault(
        "__init__.py of the student's own that fails",
        {"__init__.py": "1 / 0", "memory.py": reference("memory")},
        frozenset({"memory"}),
        ("ZeroDivisionError", "__init__.py line 1"),
    ),
]  # fmt: skip

REFUSED = [  # by the allow-lists, unrun, through the grader as it is
    in_place_of("subclasses torch.optim.AdamW", "optimizers.AdamW", "AdamW = torch.optim.AdamW", "Not allowed here", "torch.optim.AdamW"),
    in_place_of(
        "hands the work to torch.optim.SGD", "optimizers.SGD",
        "class SGD(torch.optim.SGD):\n    def __init__(self, params, lr=1e-3):\n        super().__init__(params, lr)",
        "Not allowed here", "torch.optim.SGD",
    ),
    in_function("walks the frames", f"import sys\nsys._getframe()\n{RIGHT}", "Not allowed here", "sys._getframe", "memory.py:40"),
]  # fmt: skip

# Those that wait for their wall-clock caps.
WAITING = {
    "SIGSTOP to itself": in_function("SIGSTOP to itself", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", "waited"),
    "sleeps at import": at_import("sleeps at import", "import time\ntime.sleep(10**6)", "memory.py could not be imported", "waited"),
}  # fmt: skip


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


# The rows of a table in which other graders were measured, and the fault of ours that is the same.
PEERS = {
    "`while True` in a function": "while True",
    "endless C call": "endless C call",
    "loop at import": "loop at import",
    "`os._exit(0)`": "os._exit(0)",
    "`sys.exit(0)` in a function": "sys.exit(0)",
    "segfault": "segfault",
    "50 GB allocation": "50 GB of tensor",
    "SIGKILL to itself, as by the OOM killer": "SIGKILL to itself",
    "prints 200 MB": "200 MB of output",
    "SyntaxError": "SyntaxError",
    "missing function": "missing function",
    "`atexit` forges the results": "forges the results at exit",
    "detached process overwrites results after grading": "a detached process overwrites the results after grading",
    "patches the grader in memory": "patches the grader in memory",
    "rewrites the pickle the grader loads": "rewrites the pickles of the machine",
    "patches torch's comparisons": "patches torch's comparisons",
    "reads `expected` from the caller's frame": "reads the expected value from the callers' frames",
    "subclasses `torch.optim.AdamW`": "subclasses torch.optim.AdamW",
    "prints / raises the hidden tests' source": "raises the hidden test's source",
    "`__eq__` always true": "an object that equals everything",
    "detached process": "starts a process that detaches itself, by clone and by vfork",
    "non-daemon thread sleeping 40 s": "non-daemon thread that sleeps 40 s",
    "default dtype and seed changed": "changes dtype, device, seed, folder, modes",
    "chdir · deletes files": "deletes its own files",
    "swallows the timeout exception": "except BaseException: continue around a loop",
    "50 sleeping forks": "starts 50 processes in the background",
    "C-stack overflow": "C stack overflow",
}
