"""What students and staff read about an answer that did not come: each kind of outcome, and names that are forged."""

import signal
from typing import Any

import pytest

from autograder.feedback import Reader
from autograder.sandbox.client import Died, OverDisk, Reply, Tampered, TimedOut
from autograder.sandbox.codec import Frame, RemoteError
from autograder.submission import Submission

STAGED = "/tmp/accounting-grader-x/submission/1f"
SOURCE = b"""\
import torch


class MineError(ValueError):
    pass


def get_memory_usage(x):
\treturn help_me(x

async def later(): ...
"""
FILES = {"memory.py": SOURCE, "extra/parts.py": b"def inner(): pass\n"}
READER = Reader(Submission(FILES, "hw/student", ()))


def raised(
    *type_names: str,
    message: str = "SECRET",
    frames: tuple[tuple[Any, ...], ...] = (("memory.py", 9, 0, "get_memory_usage"),),
) -> RemoteError:
    """Return an exception as it comes from a child; a file without a folder is one of the submission's."""
    bases = ("builtins.Exception", "builtins.BaseException", "builtins.object")
    places = tuple(Frame(file if "/" in file[:1] else f"{STAGED}/{file}", *rest) for file, *rest in frames)
    return RemoteError((*type_names, *bases), message, "Traceback SECRET", places)


def told(outcome: Any, problem: str = "memory.get_memory_usage") -> str:
    return READER.fault(problem, outcome, b"printed SECRET").student


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (TimedOut(waited=False), "took far longer than it needs and was stopped: look for a loop"),
        (TimedOut(waited=True), "waited, without computing, until it was stopped"),
        (OverDisk(), "wrote more than 256 MiB"),
        (Died(signal.SIGSEGV, None), "crashed the Python process (segmentation fault)"),
        (Died(signal.SIGBUS, None), "crashed the Python process (segmentation fault)"),
        (Died(signal.SIGKILL, None), "was killed by the system: most likely it used more memory"),
        (Died(signal.SIGXCPU, None), "used up its CPU time"),
        (Died(signal.SIGABRT, None), "ended the Python process with a signal"),
        (Died(None, 0), "ended the Python process: os._exit()"),
        (Died(None, 1), "ended the Python process: os._exit()"),
        (Died(None, None), "closed the connection to the grader"),
        (Tampered("SECRET"), "sent bytes to the grader that no answer consists of"),
    ],
)
def test_each_ending_is_named(outcome, words):
    assert told(outcome).startswith(f"`memory.get_memory_usage` {words}")
    assert READER.import_fault("memory", outcome, b"").student.startswith(
        f"memory.py could not be imported: importing it {words}"
    )


def test_an_exception_is_told_by_type_file_line_and_function():
    for kind in ("ValueError", "TypeError"):
        text = f"`memory.get_memory_usage` raised {kind} at memory.py line 9, in get_memory_usage."
        assert told(raised(f"builtins.{kind}")) == text


def test_the_innermost_line_of_their_own_counts_whatever_lies_below():
    frames = (
        ("/repo/autograder/sandbox/child.py", 170, 0, "_serve"),
        ("memory.py", 9, 0, "get_memory_usage"),
        ("extra/parts.py", 1, 0, "inner"),
        ("/usr/lib/python3/torch/functional.py", 400, 0, "einsum"),
    )
    assert told(raised("builtins.RuntimeError", frames=frames)).endswith(
        "raised RuntimeError at extra/parts.py line 1, in inner."
    )
    assert told(raised("builtins.TypeError", frames=frames)).endswith(
        "raised TypeError below extra/parts.py line 1, in inner."
    )


@pytest.mark.parametrize(
    ("kind", "words"), [("TypeError", "signature"), ("AttributeError", "returned"), ("RuntimeError", "returned")]
)
def test_an_exception_outside_their_code_points_to_the_docstring(kind, words):
    text = told(raised(f"builtins.{kind}", frames=(("/repo/autograder/sandbox/child.py", 1, 0, "_serve"),)))
    assert kind in text and words in text and "docstring" in text and "child.py" not in text


def test_a_stub_is_called_not_started():
    error = raised("builtins.NotImplementedError", "builtins.RuntimeError", message="memory.get_memory_usage")
    assert told(error).startswith(
        "Not started: `memory.get_memory_usage` still raises NotImplementedError at memory.py line 9"
    )
    assert told(raised("builtins.NotImplementedError", message="")).startswith("Not started")


def test_pytorchs_own_not_implemented_error_is_no_stub():
    error = raised(
        "builtins.NotImplementedError", "builtins.RuntimeError", message="\"addmm\" not implemented for 'Float8_e5m2'"
    )
    assert told(error).startswith("`memory.get_memory_usage` raised NotImplementedError at memory.py line 9")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (raised("builtins.SystemExit"), "called sys.exit() at memory.py line 9"),
        (raised("builtins.MemoryError"), "more memory than the limit of 2 GiB"),
        (
            raised("builtins.RuntimeError", message="DefaultCPUAllocator: can't allocate memory: you tried to"),
            "limit of 2 GiB",
        ),
        (raised("builtins.RecursionError", "builtins.RuntimeError"), "calls itself"),
        (raised("bdb.BdbQuit"), "Remove the breakpoint()"),
        (raised("student.memory.MineError", "builtins.ValueError"), "raised MineError at"),
        (raised("einops.EinopsError", "builtins.RuntimeError"), "raised EinopsError at"),
        (raised("elsewhere.Unknown", "builtins.KeyError", "builtins.LookupError"), "raised a kind of KeyError at"),
        (raised("elsewhere.Unknown"), "raised an exception at"),
    ],
)
def test_hints_for_common_mistakes(error, words):
    assert words in told(error)


@pytest.mark.parametrize(
    "name",
    [
        "student.memory.SECRET", "builtins.SECRET", "SECRET.ValueError", "SECRET", "", ".", "student.SECRET.MineError", "studentSECRET.X",
        "einops.SECRET", "SECRET.EinopsError", "builtins.print", "student.memory.get_memory_usage", "student.memory.MineErr", "student.memory.(.*", "student.memory.Mine\nSECRET",
    ],
)  # fmt: skip
def test_no_forged_type_name_is_shown(name):
    text = told(raised(name))
    if name == "student.SECRET.MineError":  # the class's name stands in their source
        assert "raised MineError at" in text
    else:
        assert text == "`memory.get_memory_usage` raised an exception at memory.py line 9, in get_memory_usage."


@pytest.mark.parametrize(
    "frame",
    [
        ("SECRET.py", 9, 0, "f"), ("/SECRET/memory.py", 9, 0, "f"), ("memory.py", 0, 0, "f"), ("memory.py", -1, 0, "f"),
        ("memory.py", 13, 0, "f"), ("memory.py", 2**40, 0, "f"), ("SECRET/memory.py", 9, 0, "f"), ("", 1, 0, "f"), ("/submission/", 1, 0, "f"),
    ],
)  # fmt: skip
def test_no_forged_place_is_shown(frame):
    text = told(raised("builtins.ValueError", frames=(frame,)))
    assert text.startswith("Using what `memory.get_memory_usage` returned raised ValueError outside your code.")
    assert "SECRET" not in text


@pytest.mark.parametrize(
    "name", ["SECRET", "get_memory", "MineError", "x", "<lambda>", "(.*", "get_memory_usage\nSECRET", ""]
)
def test_no_forged_function_name_is_shown(name):
    assert told(raised("builtins.ValueError", frames=(("memory.py", 9, 0, name),))).endswith(
        "raised ValueError at memory.py line 9."
    )


def test_neither_message_nor_output_is_shown_and_staff_see_both():
    for outcome in (raised("builtins.ValueError"), Died(None, 0), TimedOut(False), Tampered("SECRET")):
        for feedback in (
            READER.fault("memory.get_memory_usage", outcome, b"printed SECRET"),
            READER.import_fault("memory", outcome, b"printed SECRET"),
        ):
            assert "SECRET" not in feedback.student
            assert "printed SECRET" in feedback.staff
    assert "Traceback SECRET" in READER.fault("memory.get_memory_usage", raised("builtins.ValueError"), b"").staff


def test_staff_see_the_end_of_a_long_output():
    staff = READER.fault("memory.get_memory_usage", Died(None, 0), b"x" * 10**6 + b"\xff END").staff
    assert staff.endswith("END") and len(staff) < 5000


def test_a_syntax_error_is_shown_with_its_line_and_a_caret():
    error = raised("builtins.SyntaxError", frames=(("memory.py", 9, 17, "<module>"),))
    text = READER.import_fault("memory", error, b"").student
    line, caret = text.split("\n")[1:3]
    assert text.startswith("memory.py could not be imported: SyntaxError at memory.py line 9.\n")
    assert line == "     return help_me(x"  # the tab is a space, so that the caret stands where it should
    assert line[caret.index("^")] == "x" or line[: caret.index("^")].endswith("help_me(")


@pytest.mark.parametrize("column", [0, -5, 19, 10**6, 2**62])
def test_a_column_out_of_the_line_gets_no_caret(column):
    text = READER.import_fault(
        "memory", raised("builtins.SyntaxError", frames=(("memory.py", 1, column, "<module>"),)), b""
    ).student
    assert "\n    import torch\n" in text and "^" not in text


@pytest.mark.parametrize("end", [b"\r\n", b"\r", b"\n"])
def test_lines_end_as_python_ends_them(end):
    content = b"\xef\xbb\xbfa = 1" + end + b"b = '\x0c\xe2\x80\xa8'" + end + b"c = = 1"
    reader = Reader(Submission({"memory.py": content}, "", ()))
    error = raised("builtins.SyntaxError", frames=(("memory.py", 3, 5, "<module>"),))
    assert "\n    c = = 1\n        ^\n" in reader.import_fault("memory", error, b"").student
    first = raised("builtins.NameError", frames=(("memory.py", 1, 0, "<module>"),))
    assert "\n    a = 1\n" in reader.import_fault("memory", first, b"").student


def test_a_very_long_line_is_cut():
    reader = Reader(Submission({"memory.py": b"x" * 10**6}, "", ()))
    error = raised("builtins.NameError", frames=(("memory.py", 1, 0, "<module>"),))
    assert len(reader.import_fault("memory", error, b"").student) < 500
    far = raised("builtins.SyntaxError", frames=(("memory.py", 1, 10**6, "<module>"),))
    assert len(reader.import_fault("memory", far, b"").student) < 1000


def test_a_file_of_another_encoding_is_called_that():
    reader = Reader(Submission({"memory.py": "x = 1".encode("utf-16")}, "", ()))
    assert "save it as UTF-8" in reader.import_fault("memory", raised("builtins.ValueError", frames=()), b"").student


def test_a_missing_file_is_told_with_what_was_found_and_where():
    assert (
        READER.missing_file("optimizers").student
        == "optimizers.py was not found in hw/student/. Found: extra/parts.py, memory.py."
    )
    nothing = Reader(Submission({}, "", ()))
    assert nothing.missing_file("memory").student == "memory.py was not found. Found: no Python file of the assignment."


def test_a_list_of_very_many_files_is_short():
    reader = Reader(Submission({f"{i:0200}.py": b"" for i in range(500)}, "", ()))
    assert len(reader.missing_file("memory").student) < 5000


def test_a_missing_name_is_told():
    assert (
        READER.missing_name("memory.storage_bytes").student
        == "memory.py does not define `storage_bytes`. Keep the stub's name for it."
    )


def test_a_reply_is_no_fault():
    assert "no answer" in told(Reply(1))  # never asked for; what matters is that nothing of it is shown


def test_a_message_is_told_only_if_a_public_call_raised_the_same_to_the_letter():
    feedback = READER.fault("memory.get_memory_usage", raised("builtins.ValueError"), b"")

    def with_message(public: Any, message: str = "SECRET") -> str:
        return READER.with_message(feedback, raised("builtins.ValueError", message=message), public).student

    assert with_message(("builtins.ValueError", "SECRET")) == f"{feedback.student}\nPython says: SECRET"
    for public in (("builtins.KeyError", "SECRET"), ("builtins.ValueError", "SECRET "), None):
        assert with_message(public) == feedback.student
    long = "x\n" * 10_000
    assert len(with_message(("builtins.ValueError", long), long)) < len(feedback.student) + 600
