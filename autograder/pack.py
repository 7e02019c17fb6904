"""`make autograder`: pack what Gradescope gets into `dist/autograder.zip`, and a Dockerfile for its manual mode beside it."""

import ast
import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from handout.problems import BadProblems, load_assignment
from tests.environment import OLDEST
from tests.submission import pack, write_atomically

if TYPE_CHECKING:
    from autograder.sandbox.client import Sandbox

_ROOT = Path(__file__).parents[1]
_PLATFORM = ("setup.sh", "run_autograder")  # at the root of the zip, as the platform demands
# Patterns relative to the repository; each must match something. The first list decides about grades.
_GRADING = (
    "constraints.txt",
    "handout/__init__.py",
    "handout/problems.py",
    "handout/problems.toml",
    "reference/*.py",
    "tests/*.py",
    "autograder/*.py",
    "autograder/settings.toml",
    "autograder/hidden/*.py",
    "autograder/misconceptions/*",
    "autograder/sandbox/*.py",
)
_FILES = (
    *_GRADING,
    "LICENSE",
    "pyproject.toml",
    "student/*.py",  # setup.sh checks that the stubs get nothing
    "autograder/classroom/*.py",
)
_DOCKERFILE = """\
# Gradescope's manual Docker mode: unpack autograder.zip into source/ beside this file, build, and push the image.
FROM gradescope/autograder-base:ubuntu-22.04
COPY source /autograder/source
RUN bash /autograder/source/setup.sh \\
    && cp /autograder/source/run_autograder /autograder/run_autograder \\
    && chmod +x /autograder/run_autograder
"""


def autograder_files(root: Path = _ROOT) -> dict[str, bytes]:
    """Return what Gradescope gets, by its name in the zip.

    Raises:
        FileNotFoundError: if something that belongs there is missing.
    """
    return {name: (root / "autograder" / "platform" / name).read_bytes() for name in _PLATFORM} | _read(root, _FILES)


def _read(root: Path, patterns: Sequence[str]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for pattern in patterns:
        paths = [path for path in root.glob(pattern) if path.is_file()]
        if not paths:
            raise FileNotFoundError(f"the autograder needs {pattern}, and nothing matches it in {root}")
        files |= {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
    return files


@cache
def grader_version(root: Path = _ROOT) -> str:
    """Return the project's version and a hash of all files that decide about a grade: "1.0+3f9c02ab".

    So that results of a grader that somebody has edited in the middle of the term can be told from those before.
    """
    files = _read(root, _GRADING)
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    found = re.search(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    return f"{found[1] if found else '0'}+{digest.hexdigest()[:8]}"


class NotFit(Exception):
    """What would be packed cannot grade."""


def check(files: Mapping[str, bytes]) -> None:
    """Check what can be checked here, before it goes where nobody looks: Python, stubs, points.

    Raises:
        NotFit: with the first thing that is wrong, in a line.
    """
    for name, data in files.items():
        if name.endswith(".py"):
            try:
                compile(data, name, "exec", dont_inherit=True)
                ast.parse(data, name, feature_version=OLDEST)  # on the platform an older Python may run it
            except (SyntaxError, ValueError) as error:
                raise NotFit(f"{name} does not compile: {error}") from None
    from autograder import stubs  # not before it is known that it compiles
    from autograder.judge import SuiteBroken
    from autograder.misconceptions import Drifted
    from autograder.misconceptions import check as check_misconceptions
    from autograder.plugin import run_suites

    try:
        fresh = stubs.generate_all(_ROOT / "reference")
    except (ValueError, OSError) as error:
        raise NotFit(f"no stubs can be made from reference/: {error}") from None
    for name, text in fresh.items():
        if files.get(f"student/{name}") != text.encode():
            raise NotFit(f"student/{name} is not what reference/{name} gives: run `make stubs`")
    try:
        run_suites(cast("Sandbox", None), load_assignment(), lambda suites: None)  # planned, not run
    except SuiteBroken as error:
        raise NotFit(str(error).partition("\n")[0]) from None
    for part in load_assignment().graded_parts:
        try:
            check_misconceptions(part.id)
        except Drifted as error:
            raise NotFit(str(error)) from None


def main() -> int:
    """Check, write both files and say how large they are; return 2 if something is missing or wrong."""
    try:
        print("checking that it compiles, that the stubs are today's and that the points add up", flush=True)
        files = autograder_files()
        check(files)
        data = pack(files)
        write_atomically(_ROOT / "dist" / "autograder.zip", data)
        write_atomically(_ROOT / "dist" / "Dockerfile", _DOCKERFILE.encode())
    except (OSError, NotFit, BadProblems) as error:
        print(f"no autograder was packed: {error}", file=sys.stderr)
        return 2
    print(f"dist/autograder.zip: {len(files)} files, {len(data) / 1024:.0f} KiB; dist/Dockerfile for the manual mode")
    return 0
