"""Make `.venv`, the environment that everything here runs in: `python -m tests.environment [EXTRA ...]`.

It holds the dependencies of `pyproject.toml` and those of the extras that are named, in the versions of `constraints.txt`.
When it is there and the pins are the same, nothing happens, within milliseconds. When they changed, or when it was left
half-made, it is made anew. `PYTHON` in the environment says which interpreter to make it from.

This runs before anything is installed, so it uses the standard library only; and on Pythons too old for the rest, so that
it can say so.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 10)
NAMES = ("python3", "python", "python3.14", "python3.13", "python3.12", "python3.11", "python3.10")

# Asked of every interpreter that is considered. One in a virtual environment answers for the one that it was made from.
QUESTIONS = """
import sys
print(getattr(sys, "_base_executable", None) or sys.executable)
print(sys.base_prefix)
print(sys.version_info[0], sys.version_info[1])
import ensurepip, venv
"""

# Run by the new environment's Python: Python 3.10 can read TOML only with the tomli that comes inside pip.
DEPENDENCIES = """
import sys
try:
    import tomllib
except ImportError:
    from pip._vendor import tomli as tomllib
with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in sys.argv[2:])]
print(*(dependency for dependencies in lists for dependency in dependencies), sep="\\n")
"""


class CannotMake(Exception):
    """No environment can be made; the text says why and what to do, in a line."""


class Interpreter(NamedTuple):
    """A Python that an environment could be made from."""

    executable: str
    prefix: str
    version: tuple[int, int]


# --- is it there? ---


def pins_hash(root: Path = ROOT) -> str:
    """Return a hash of all that decides what is installed."""
    # The tools' settings in the rest of the file change often, and install nothing.
    dependencies = (root / "pyproject.toml").read_text(encoding="utf-8").split("\n[tool.")[0]
    constraints = (root / "constraints.txt").read_text(encoding="utf-8")
    return hashlib.sha256(f"{dependencies}\0{constraints}".encode()).hexdigest()


def stamp_path(root: Path = ROOT) -> Path:
    """Return the file that is written when all is installed: the pins' hash, then the extras, a line each."""
    return root / ".venv" / "installed"


def venv_python(root: Path = ROOT) -> Path:
    """Return the interpreter of the environment."""
    return root / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def installed_extras(root: Path = ROOT) -> set[str] | None:
    """Return the extras that are installed, or None if there is no whole environment made from today's pins."""
    try:
        stamp, *extras = stamp_path(root).read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return None
    return set(extras) if stamp == pins_hash(root) and venv_python(root).exists() else None


# --- which Python? ---


def choose(candidates: Iterable[str], ask: Callable[[str], Interpreter | None], *, as_root: bool) -> Interpreter:
    """Return the first interpreter that is new enough and, for root, one that every user can read.

    Graded code runs as a user of its own, who must be able to import from it.

    Raises:
        CannotMake: if there is none that is new enough.
    """
    suitable, too_old = [], []
    for candidate in candidates:
        interpreter = ask(candidate)
        if interpreter is None:
            continue
        if interpreter.version < OLDEST:
            too_old.append(interpreter)
        elif not as_root or readable_by_all(interpreter):
            return interpreter
        else:
            suitable.append(interpreter)
    if suitable:
        return suitable[0]
    found = ", ".join(sorted({f"{python.executable} is {python.version[0]}.{python.version[1]}" for python in too_old}))
    raise CannotMake(
        f"Python {OLDEST[0]}.{OLDEST[1]} or newer is needed, with its modules venv and ensurepip "
        f"({found or 'none was found'}). Install one, or say where one is with PYTHON."
    )


def candidates(environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Yield the interpreters to consider: PYTHON alone if it is set, else this one and those on the PATH."""
    import shutil

    if wanted := environment.get("PYTHON"):
        yield shutil.which(wanted) or wanted
        return
    yield sys.executable
    for name in NAMES:
        for folder in os.get_exec_path(environment):
            if found := shutil.which(name, path=folder):
                yield found


def ask(executable: str) -> Interpreter | None:
    """Return what an interpreter says about itself, or None if it does not run or cannot make environments."""
    import subprocess

    try:
        # A version manager leaves commands on the PATH that run nothing: only an answer counts.
        answer = subprocess.run(
            [executable, "-I", "-c", QUESTIONS], capture_output=True, text=True, timeout=30, check=True
        )
        base, prefix, version = answer.stdout.splitlines()
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    major, minor = version.split()
    return Interpreter(base, prefix, (int(major), int(minor)))


def readable_by_all(interpreter: Interpreter) -> bool:
    """Whether every user may run this interpreter and import its library."""
    try:
        paths = [Path(interpreter.executable).resolve(strict=True), Path(interpreter.prefix).resolve(strict=True)]
        folders = {folder for path in paths for folder in path.parents}
        return all(path.stat().st_mode & 0o005 == 0o005 for path in paths) and all(
            folder.stat().st_mode & 0o001 for folder in folders
        )
    except OSError:
        return False


# --- making it ---


def make(extras: Iterable[str] = (), root: Path = ROOT) -> None:
    """Bring `.venv` to today's pins, with these extras and those that it has.

    Raises:
        CannotMake: if there is no suitable Python, or pip fails.
    """
    import shutil
    import time

    start = time.monotonic()
    if sys.platform == "darwin" and os.uname().machine == "x86_64":
        raise CannotMake(
            "PyTorch has had no release for Macs with Intel processors since 2.2, and 2.6 is needed: "
            "use a Linux or Windows machine, or a notebook service in the browser."
        )
    installed = installed_extras(root)
    if installed is None:
        python = choose(candidates(), ask, as_root=_is_root())
        print(f"Making .venv with Python {python.version[0]}.{python.version[1]} ({python.executable})", flush=True)
        if _is_root() and not readable_by_all(python):
            print(
                f"warning: only root can read {python.prefix}, so sandboxed code cannot import from it: "
                "set PYTHON to an interpreter outside such folders, for example /usr/bin/python3",
                file=sys.stderr,
            )
        if (root / ".venv").exists():
            shutil.rmtree(root / ".venv")
        _run([python.executable, "-I", "-m", "venv", str(root / ".venv")])
    else:
        stamp_path(root).unlink()  # from here to the end it is half-made
    wanted = sorted({*extras, *(installed or ())})
    pip = [str(venv_python(root)), "-I", "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    dependencies = _run([str(venv_python(root)), "-I", "-c", DEPENDENCIES, str(root / "pyproject.toml"), *wanted])
    added = f" with {', '.join(wanted)}" if wanted else ""
    print(f"Installing what constraints.txt pins{added}: a minute or two, once ", end="", flush=True)
    _run([*pip, "--constraint", str(root / "constraints.txt"), *dependencies.splitlines()], ticking=True)
    stamp_path(root).write_text("\n".join([pins_hash(root), *wanted]) + "\n", encoding="utf-8")
    print(f" done in {time.monotonic() - start:.0f} s", flush=True)


def _run(command: list[str], ticking: bool = False) -> str:
    """Run a command and return what it printed; its last lines are shown only if it fails."""
    import subprocess

    # Not our caller's: a PYTHONHOME of another Python breaks the new one.
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONHOME", "PYTHONPATH"}}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    )
    try:
        while True:
            try:
                output, _ = process.communicate(timeout=2)
                break
            except subprocess.TimeoutExpired:
                print("." if ticking else "", end="", flush=True)
    except KeyboardInterrupt:
        process.wait()  # Ctrl-C reached it too
        raise
    if process.returncode:
        last_lines = "\n".join(output.splitlines()[-15:])
        raise CannotMake(f"this failed:\n  {' '.join(command[:6])} ...\n{last_lines}")
    return output


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def main(arguments: list[str] | None = None) -> int:
    """Make the environment if need be; with `--check`, only say by the exit status whether it is there."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m tests.environment", description="Make .venv, or bring it up to date."
    )
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help="extras of pyproject.toml to install as well")
    parser.add_argument("--check", action="store_true", help="change nothing: exit with 1 if there is something to do")
    options = parser.parse_args(arguments)
    installed = installed_extras()
    ready = installed is not None and installed.issuperset(options.extras)
    if options.check:
        return 0 if ready else 1
    try:
        if not ready:
            make(options.extras)
    except CannotMake as problem:
        print(f"\nThe environment could not be made: {problem}", file=sys.stderr)
        return 2
    except OSError as problem:
        print(f"\nThe environment could not be made: {problem}. Does another program use .venv?", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nStopped: .venv is half-made, and will be made anew next time.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
