"""`make container`: the autograder as the platform runs it, in a Debian 12 of its own and the smallest container.

Builds the system with debootstrap, runs setup.sh in it, then grades the reference, the stubs and bad submissions through
`run_autograder`, each in a new container with Docker's default capabilities and seccomp profile, 0.75 GB and half a core. Needs
root, debootstrap and runc (`apt-get install debootstrap runc`), and control groups that can be written.
"""

import html
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from autograder.tests import on_platform
from autograder.tests.faults import FAULTS, PROBLEM, REFUSED, in_function
from autograder.tests.handed_in import ROOT, reference
from autograder.tests.on_platform import Container, Machine
from handout.problems import load_assignment

MOST_PSS = 600  # MB
MOST_SECONDS = 120  # for the reference, at half a core


@dataclass(frozen=True)
class Case:
    """A submission and what must become of it."""

    name: str
    files: Mapping[str, str | bytes]
    lost: frozenset[str]  # parts and problems whose rows are all lost; all others are kept
    says: str = ""  # in what the student reads at the top or in the first lost row


def _whole(files: Mapping[str, str | bytes]) -> dict[str, str | bytes]:
    """Return a whole submission in which some files are others."""
    return {f"student/{part.id}.py": files.get(f"{part.id}.py", reference(part.id)) for part in load_assignment().parts}


def _faults(*names: str) -> list[Case]:
    """Return cases of the battery. Whether the sandbox or the allow-lists lose it its rows is not looked at."""
    named = {fault.name: fault for fault in [*FAULTS, *REFUSED]}
    return [Case(name, _whole(named[name].files), named[name].lost | _MORE.get(name, frozenset())) for name in names]


# What a whole submission loses beside: this problem trains the student's own model with their own optimizer.
_MORE = {"one problem's rows wait for one endless loop only once": frozenset({"training.together"})}


_PARTS = frozenset(part.id for part in load_assignment().parts)
_BIG = in_function(
    "more memory than the container has",
    "import torch\nkept = [torch.ones(1 << 26) for _ in range(7)]\nreturn len(kept)",
)
REFERENCE = Case("reference", _whole({}), frozenset())
STUBS = Case("stubs", {f"student/{part}.py": (ROOT / "student" / f"{part}.py").read_bytes() for part in _PARTS}, _PARTS)
BAD = [
    *_faults(
        "while True", "loop at import", "one problem's rows wait for one endless loop only once", "os._exit(0) at import",
        "50 GB of tensor", "prints for ever", "endless recursion", "SyntaxError", "missing function",
        "an object that equals everything", "subclasses torch.optim.AdamW", "reads the hidden tests", "runs a program",
    ),
    Case("nothing", {}, _PARTS, "was not found"),
    Case("a zip in what was handed in", {"student.zip": b"PK"}, _PARTS, "unpack it"),
    Case(
        "names and files that want to be more than a submission",
        {
            **_whole({}),
            "student/conftest.py": "raise SystemExit", "student/torch.py": "raise SystemExit", "student/\udcff.py": "x",
            "results.json": '{"score": 100}', "student/memory.py": reference("memory"), "run_autograder": "exit 1",
        },
        frozenset(),
    ),
]  # fmt: skip
BEYOND_THE_CONTAINER = Case(_BIG.name, _whole(_BIG.files), frozenset({PROBLEM}), "killed by the system")


def scored(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows that count: a bonus is a line without score here."""
    return [test for test in results["tests"] if "score" in test]


def mistakes(case: Case, results: Mapping[str, Any], status: int) -> list[str]:
    """Return what is not as it must be in the results of a case."""
    problems = {problem.number: problem.id for problem in load_assignment().graded_problems}
    points = sum(problem.points for problem in load_assignment().graded_problems)
    wrong = [] if status == 0 else [f"exit status {status}"]
    told = results["output"]
    for test in scored(results):
        problem = problems[test["number"]]
        lost = bool(case.lost & {problem, problem.split(".")[0]})
        if (test["score"] == 0) != lost or test["score"] not in (0, test["max_score"]):
            wrong.append(f"{problem}: {test['score']:g} points for {test['name']!r}: {test['output']}")
        told += test["output"] if lost else ""
    if sum(test["max_score"] for test in scored(results)) != points:
        wrong.append(f"the rows do not add up to {points:g}")
    if not results["extra_data"]["finished"]:
        wrong.append("not finished")
    if case.says not in html.unescape(told):
        wrong.append(f"nothing says {case.says!r}")
    return wrong


@contextmanager
def set_up(machine: Machine) -> Iterator[Machine]:
    """Yield a machine on which the autograder is installed, and remove it in the end."""
    try:
        on_platform.set_up(machine)
        yield machine
    finally:
        machine.remove()


def main() -> int:
    """Run everything, print a table; return 1 if something is not as it must be, 2 if it cannot be tried here."""
    missing = [name for name in ("debootstrap", "runc") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        print(f"container: needs {' and '.join(missing) or 'root'}", file=sys.stderr)
        return 2
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("submission", "points", "seconds", "peak PSS, MB", ""):
        table.add_column(column, justify="left" if column in ("submission", "") else "right")
    console.print("a Debian 12 by debootstrap, then setup.sh")
    failed = False
    try:
        with set_up(Container()) as machine:
            for case in (REFERENCE, STUBS, *BAD, BEYOND_THE_CONTAINER):
                run = on_platform.submit(machine, case.files)
                console.print(f"  {case.name}: {run.seconds:.1f} s, {run.peak:.0f} MB", markup=False)
                results = on_platform.results(machine)
                wrong = mistakes(case, results, run.status)
                if results["extra_data"]["isolation"] != "full":
                    wrong.append("isolation is not full")
                if run.peak > MOST_PSS and case is not BEYOND_THE_CONTAINER:
                    wrong.append(f"peak PSS over {MOST_PSS} MB")
                if case is REFERENCE and run.seconds > MOST_SECONDS:
                    wrong.append(f"over {MOST_SECONDS} s")
                score = sum(test["score"] for test in scored(results))
                verdict = "[red]wrong[/]" if wrong else "[green]ok[/]"
                table.add_row(case.name, f"{score:g}", f"{run.seconds:.1f}", f"{run.peak:.0f}", verdict)
                for line in wrong:
                    console.print(f"    {line}", markup=False)
                failed |= bool(wrong)
    except KeyboardInterrupt:
        print("container: stopped", file=sys.stderr)
        return 130
    except (RuntimeError, TimeoutError, OSError) as error:
        print(f"container: {error}", file=sys.stderr)
        return 1
    console.print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
