"""What students read of a hidden test: tried by submissions that get hold of everything they can and say it in every way they can.

The allow-lists are off, so that nothing is refused unrun. Each function looks through the frames above it, where the probe's inputs
and constants are, and then raises, prints, or returns what it found. All of it is marked, so that what students read can be
searched for the mark; staff must find it there, or nothing was tried.
"""

import json
import re

import pytest

from autograder.grade import Grade, Row
from autograder.gradescope import results
from autograder.tests.handed_in import reference, write
from autograder.tests.unchecked import UncheckedGrader
from handout.problems import load_assignment

MARK = "CANARY"

FINDING = f'''
import sys

def found():
    """Return what the callers know, marked."""
    pieces, frame = [], sys._getframe(1)
    while frame is not None:
        pieces.append(frame.f_code.co_filename + frame.f_code.co_name)
        for value in [*frame.f_locals.values(), *frame.f_code.co_consts]:
            try:
                pieces.append(repr(value)[:500])
            except Exception:
                pass
        frame = frame.f_back
    return "{MARK} " + "{MARK}".join(pieces)[:60000]
'''

# How what was found is said, as the body of each function.
SAYING = {
    "as a message": "raise ValueError(found())",
    "as the messages of causes": """
try:
    raise KeyError(found())
except KeyError as error:
    raise ValueError(found()) from error""",
    "as a note": """
error = RuntimeError(found())
error.__notes__ = [found()]
raise error""",
    "as a class's name": "raise type(found()[:900], (Exception,), {'__module__': found()[:900]})()",
    "as a text that is made late": "raise type('Late', (Exception,), {'__str__': lambda self: found()})()",
    "as a function's and a file's name": """
name = 'CANARY_' + ''.join(c if c.isalnum() else '_' for c in found()[6:300])
space = {}
exec(compile(f'def {name}():\\n    raise ValueError({name!r})', found()[:300], 'exec'), space)
space[name]()""",
    "as output": """
text = found()
print(text)
print(text, file=sys.stderr)
raise ValueError""",
    "as a text that is returned": "return found()",
    "as keys and items": "return {found()[:900]: [found()], 'n': (found(),)}",
    "as an object": "return type(found()[:200].replace('\\0', ''), (), {'__repr__': lambda self: found()})()",
    "as SystemExit": "raise SystemExit(found())",
    "as a stub's message": "raise NotImplementedError(found())",
}

UNHEARD = ("as keys and items", "as an object", "as a stub's message")  # not even staff are told more than that it came


@pytest.fixture(scope="module")
def unchecked():
    grader = UncheckedGrader()
    yield grader
    grader.close()


def saying(body: str) -> dict[str, str]:
    """Return a submission of some parts whose every function and class says what it found."""
    indented = "\n".join(f"    {line}" for line in body.strip().splitlines())
    files = {}
    for part in (part for part in load_assignment().parts if part.id in ("memory", "data")):
        functions = "".join(f"\n\ndef {problem.name}(*args, **kwargs):\n{indented}\n" for problem in part.problems)
        files[f"{part.id}.py"] = FINDING + functions
    return files


@pytest.mark.parametrize("how", SAYING)
def test_students_read_nothing_of_what_a_submission_finds(unchecked, tmp_path, how):
    grade = unchecked.grade(write(tmp_path / "s", saying(SAYING[how])))
    rows = [Row(**row) for row in grade["rows"]]

    read = json.dumps(results(Grade(tuple(rows), "full"), 1.0))

    lost = [row for row in rows if row.outcome == "failed"]
    assert MARK not in read
    if how not in UNHEARD:
        assert sum(MARK in row.staff for row in lost) >= 5
    # Nor any number of many digits that it found: hidden inputs are full of those.
    hidden = {number for row in lost for number in re.findall(r"\d\.\d{4,}", row.staff)}
    assert not hidden & set(re.findall(r"\d\.\d{4,}", read))


def test_a_message_is_shown_where_a_public_example_raises_it_too_and_only_there(grader, tmp_path):
    memory = reference("memory") + (
        "\n\ndef get_memory_usage(x):\n    return x.numel() * item_size\n"
        "\n\ndef storage_bytes(tensors):\n    raise ValueError([tuple(x.shape) for x in tensors])\n"
    )
    grade = grader.grade(write(tmp_path / "s", {"memory.py": memory, "strides.py": "import torch.nothing\n"}))
    rows = {
        problem: [row for row in grade["rows"] if row["problem"] == problem]
        for problem in (row["problem"] for row in grade["rows"])
    }

    for row in rows["memory.get_memory_usage"]:
        assert "Python says: name 'item_size' is not defined" in row["output"]
    for row in rows["memory.storage_bytes"]:
        assert "ValueError" in row["output"] and "Python says" not in row["output"] and "ValueError: [(" in row["staff"]
    for row in rows["strides.view_strides"]:
        assert "Python says: No module named 'torch.nothing'" in row["output"]
