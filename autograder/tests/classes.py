"""Small classes for tests: a copy of the grader with one part of few points, and exports of a handful of submissions."""

import csv
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autograder.tests.handed_in import reference, replaced, write
from autograder.tests.running import copy_of_the_tree

PART = "strides"  # the only one that is graded: its rows are quick, and every kind of mistake is easy to make in it
GOOD = {f"student/{PART}.py": reference(PART)}
WRONG = {
    f"student/{PART}.py": replaced(reference(PART), "flat_index", "def flat_index(*args, **kwargs):\n    return -1\n")
}
SLOW = {  # until it is killed: the child sleeps, so that a test has the time to do something meanwhile
    f"student/{PART}.py": "import time\n" + replaced(
        reference(PART), "flat_index", "def flat_index(*args, **kwargs):\n    while True:\n        sum(range(1000))\n"
    )
}  # fmt: skip


def small_tree(folder: Path) -> Path:
    """Copy the grader below `folder`, with all parts but one not graded."""
    tree = copy_of_the_tree(folder)
    problems = tree / "handout" / "problems.toml"
    text = problems.read_text(encoding="utf-8").replace("graded = true", "graded = false")
    changed = re.sub(rf'(id = "{PART}"\n(?:.*\n)??)graded = false', r"\1graded = true", text)
    assert changed != text
    problems.write_text(changed, encoding="utf-8")
    return tree


def export(folder: Path, submissions: Mapping[str, Mapping[str, str | bytes]]) -> Path:
    """Write an export with these submissions, each of one student, into `folder`."""
    lines = []
    for i, (id, files) in enumerate(submissions.items()):
        write(folder / id, files)
        sid = f"{i:04d}"
        lines += [
            f"{id}:",
            "  :submitters:",
            f"  - :name: Student {sid}",
            f"    :sid: '{sid}'",
            f"    :email: s{sid}@x.edu",
        ]
    (folder / "submission_metadata.yml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results in a run's folder, without the times, in which two runs differ."""
    found = {}
    for path in sorted((folder / "results").glob("*/results.json")):
        found[path.parent.name] = json.loads(path.read_text(encoding="utf-8"))
        del found[path.parent.name]["execution_time"]
    return found


def grades(folder: Path) -> dict[str, dict[str, str]]:
    """Return the lines of grades.csv by submission."""
    with (folder / "grades.csv").open(encoding="utf-8", newline="") as file:
        return {line["Submission ID"]: line for line in csv.DictReader(file)}
