"""Two submissions cannot see each other, nor a test another: one leaves what it can wherever it can, and one looks for it."""

import os
import textwrap

import pytest

from autograder.tests.handed_in import reference, replaced, write
from autograder.tests.unchecked import UncheckedGrader

USER = 61_234
MARK = "accounting-left-behind"
ONCE = """
    DONE = []
    def once(function):
        if not DONE: DONE.append(function())
        if DONE[0]: raise SystemExit(repr(DONE[0]))
"""

LEAVE = f"""
    def leave():
        import builtins, ctypes, glob, os, socket, subprocess, sys, tempfile, threading, time
        MARK = {MARK!r}
        builtins.LEFT = MARK
        os.environ[MARK] = MARK
        torch.LEFT = MARK
        here = os.path.dirname(os.path.abspath(__file__))
        site = os.path.dirname(os.path.dirname(torch.__file__))
        places = ["/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run", "/run/lock", "/", ".", os.path.expanduser("~"), tempfile.gettempdir(),
                  here, os.path.dirname(here), os.path.dirname(os.getcwd()), os.path.join(here, "__pycache__"), site,
                  os.path.join(site, "torch", "__pycache__"), *glob.glob("/tmp/accounting-grader-*/*")]
        for place in places:
            for name in (MARK, MARK + ".py", "memory.cpython-311.pyc", "sitecustomize.py"):
                try:
                    os.makedirs(place, exist_ok=True)
                    with open(os.path.join(place, name), "x") as file: file.write(MARK)
                except OSError: pass
        libc = ctypes.CDLL(None)
        libc.shmget(0x1EF7, 4096, 0o1666)
        libc.msgget(0x1EF7, 0o1666)
        try: socket.socket(socket.AF_UNIX).bind("\\0" + MARK)
        except OSError: pass
        for start in (lambda: subprocess.Popen(["sleep", "300"]), os.fork):
            try: pid = start()
            except OSError: continue
            if pid == 0:
                os.setsid()
                time.sleep(300)
                os._exit(0)
        threading.Thread(target=time.sleep, args=(300,)).start()
"""
LOOK = f"""
    def look():
        import builtins, ctypes, glob, os, socket, sys, tempfile
        MARK = {MARK!r}
        found = [name for name, there in (
            ("builtins", hasattr(builtins, "LEFT")), ("environment", MARK in os.environ), ("torch", hasattr(torch, "LEFT")),
        ) if there]
        here = os.path.dirname(os.path.abspath(__file__))
        for pattern in ("/tmp/*", "/var/tmp/*", "/dev/shm/*", "/dev/mqueue/*", "/run/*", "/run/lock/*", "/*", "./*", "../*", "../*/*", "~/*",
                        here + "/*", here + "/../*", here + "/__pycache__/*", "/tmp/accounting-grader-*/*", "/tmp/accounting-grader-*/*/*"):
            for path in glob.glob(os.path.expanduser(pattern)):
                if MARK in path or path.endswith((".pyc", "sitecustomize.py")): found.append(path)
        if __import__("importlib").util.find_spec(MARK): found.append("module")
        libc = ctypes.CDLL(None)
        if libc.shmget(0x1EF7, 0, 0) != -1: found.append("shared memory")
        if libc.msgget(0x1EF7, 0) != -1: found.append("message queue")
        try:
            socket.socket(socket.AF_UNIX).connect("\\0" + MARK)
            found.append("socket")
        except OSError: pass
        for pid in range(max(1, os.getpid() - 2000), os.getpid() + 2000):
            try: command = open(f"/proc/{{pid}}/cmdline").read()
            except OSError: continue
            if command == "sleep\\x00300\\x00": found.append("process")
        return found
"""


def submission(*problems: str, code: str, then: str) -> dict[str, str]:
    """Return memory.py where `code` precedes each problem's function, whose right answer comes after it runs `then`."""
    source = reference("memory")
    for problem in problems:
        mine = f"def {problem}(*args, **kwargs):\n    {then}\n    return _right_{problem}(*args, **kwargs)\n"
        source = source.replace(f"def {problem}(", f"def _right_{problem}(", 1) + "\n\n" + mine
    assert replaced(source, f"_right_{problems[0]}", "")  # it is there
    return {"memory.py": f"{source}\n\n{textwrap.dedent(ONCE)}\n{textwrap.dedent(code)}"}


LEAVES = submission("get_memory_usage", code=LEAVE, then="once(leave)")
LOOKS = submission("storage_bytes", "get_memory_usage", code=LOOK, then="once(look)")
BOTH = submission("get_memory_usage", code=LEAVE, then="once(leave)")
BOTH["memory.py"] = (
    BOTH["memory.py"].replace("def storage_bytes(", "def _right_storage_bytes(", 1)
    + "\n\n"
    + textwrap.dedent(LOOK)
    + "\n\ndef storage_bytes(*args, **kwargs):\n    once(look)\n    return _right_storage_bytes(*args, **kwargs)\n"
)


@pytest.fixture(scope="module", params=["root", "user"])
def grader(request):
    """A warm grader: root's, whose children have user ids of their own, and an ordinary user's, whose children have not."""
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    grader = UncheckedGrader(user=USER if request.param == "user" and os.geteuid() == 0 else None)
    yield grader
    grader.close()


def looked(grade):
    """Return the rows of those that look, with what they found, which only staff read."""
    rows = [row for row in grade["rows"] if row["problem"] in ("memory.storage_bytes", "memory.get_memory_usage")]
    assert rows
    return [(row["problem"], row["outcome"], row["staff"][-300:]) for row in rows]


def test_nothing_of_a_submission_is_there_for_the_next(grader, place):
    grader.grade(write(place / "one", LEAVES))
    found = looked(grader.grade(write(place / "two", LOOKS)))
    assert [(problem, outcome) for problem, outcome, _ in found if outcome != "passed"] == [], found


def test_nothing_of_a_test_is_there_for_the_next(grader, place):
    found = [row for row in looked(grader.grade(write(place / "both", BOTH))) if row[0] == "memory.storage_bytes"]
    assert [row for row in found if row[1] != "passed"] == [], found


def test_who_looks_would_find_what_is_left(tmp_path, monkeypatch):
    """In one process, without a sandbox, all of it is there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    code = f"os.environ[{MARK!r}] = '1'\nopen({MARK!r}, 'w')\ntorch.LEFT = 1\nFOUND = look()"
    (tmp_path / "memory.py").write_text(f"import os, torch\n{textwrap.dedent(LOOK)}\n{code}")
    import importlib.util

    spec = importlib.util.spec_from_file_location("memory", tmp_path / "memory.py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        import torch

        del torch.LEFT
        os.environ.pop(MARK, None)
    assert {"environment", "torch", f"./{MARK}"} <= set(module.FOUND)
