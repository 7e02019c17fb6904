"""`make submission`: pack what is handed in, and say what went in, what stayed out and what is still a stub.

Only Python files inside `student/` go in. Nothing is run: whether a problem is a stub, and what it uses, is read from the source.
"""

import argparse
import ast
import io
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tests.rerun import in_venv

try:
    from handout.problems import SPANNING_PROBLEMS, Assignment, Part, Problem, load_assignment
except ModuleNotFoundError:  # not the Python of .venv
    in_venv("tests.submission")

ROOT = Path(__file__).resolve().parent.parent

# Why a file stays out. Each is printed beside the file, so that nobody learns it from a lost point.
CACHES = "Python makes it anew"
HIDDEN = "hidden: made by the system or an editor"
FIGURES = "drawn by `make figures`"
CONFTEST = "test settings: the grader has its own"
LINK = "a link: copy the file here if it is needed"
NOT_PYTHON = "only .py files are handed in"


@dataclass(frozen=True)
class Contents:
    """What a submission would hold."""

    files: Mapping[str, bytes]  # by name in the zip, "student/memory.py"
    left_out: Mapping[str, str]  # the other files in the student's folder, and why each stays out


@dataclass(frozen=True)
class PartState:
    """What the source of one part's file says, without running it."""

    part: Part
    stubs: tuple[Problem, ...] = ()  # raise NotImplementedError("memory.storage_bytes")
    absent: tuple[Problem, ...] = ()  # nothing of that name is defined
    error: str = ""  # why the file cannot be read as Python


# --- what goes in ---


def gather(student: Path) -> Contents:
    """Sort every file in the student's folder into what goes in and what stays out.

    Raises:
        FileNotFoundError: if the folder is not there, or holds no Python file.
    """
    if not student.is_dir():
        raise FileNotFoundError(f"there is no folder {student}")
    files: dict[str, bytes] = {}
    left_out: dict[str, str] = {}
    for path in _walk(student):
        inside = PurePosixPath(path.relative_to(student).as_posix())
        name = f"student/{inside}"
        if reason := _reason_to_leave_out(path, inside):
            left_out[name] = reason
        else:
            files[name] = path.read_bytes()
    if not files:
        raise FileNotFoundError(f"there is no .py file in {student}")
    return Contents(files, left_out)


def _walk(folder: Path) -> Iterator[Path]:
    """Yield every file under the folder, and links to folders, in the order of their names."""
    for current, folders, names in os.walk(folder, onerror=_refuse):
        links = [name for name in folders if Path(current, name).is_symlink()]
        folders.sort()
        for name in sorted([*names, *links]):
            yield Path(current, name)


def _refuse(error: OSError) -> None:
    """Stop at a folder that cannot be read: walking on would leave its files out in silence."""
    raise error


def _reason_to_leave_out(path: Path, inside: PurePosixPath) -> str:
    """Return why a file of the student's folder stays out, or "" if it goes in."""
    if "__pycache__" in inside.parts or inside.suffix in {".pyc", ".pyo"}:
        return CACHES
    if any(part.startswith(".") for part in inside.parts):
        return HIDDEN
    if path.is_symlink():
        return LINK
    if inside.parts[0] == "figures" and inside.suffix != ".py":
        return FIGURES
    if inside.suffix != ".py":
        return NOT_PYTHON
    return CONFTEST if inside.name == "conftest.py" else ""


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return a zip of the files that is the same, byte for byte, wherever and whenever it is made.

    The files are stored, not compressed, since compressors differ from machine to machine.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3  # Unix, on Windows too
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, files[name])
    return buffer.getvalue()


def write_atomically(path: Path, data: bytes) -> None:
    """Write the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except BaseException:  # a full disk, Ctrl-C
        partial.unlink(missing_ok=True)
        raise


# --- what is still a stub ---


def part_state(part: Part, source: bytes) -> PartState:
    """Read from a part's source which of its problems are stubs and which are not there."""
    if error := why_no_python(source):
        return PartState(part, error=error)
    tree = ast.parse(source)
    raised = set(_unfinished_ids(tree))
    defined = _names_at_top(tree)
    named = [problem for problem in part.problems if problem.id not in SPANNING_PROBLEMS]
    return PartState(
        part,
        stubs=tuple(problem for problem in named if problem.id in raised),
        absent=tuple(problem for problem in named if problem.id not in raised and not defined & {problem.name, "*"}),
    )


def why_no_python(source: bytes) -> str:
    """Return why a file cannot be read as Python, or "" if it can."""
    try:
        ast.parse(source)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}" if error.lineno else error.msg
    except ValueError as error:  # null bytes
        return str(error)
    return ""


def _unfinished_ids(tree: ast.AST) -> Iterator[str]:
    """Yield the text of every `raise NotImplementedError("...")` that does not stand behind a return."""
    for _, value in ast.iter_fields(tree):
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.Return):
                break  # what follows in this block never runs: a stub's last line that was left below a solution
            match node:
                case ast.Raise(
                    exc=ast.Call(func=ast.Name(id="NotImplementedError"), args=[ast.Constant(value=str(text))])
                ):
                    yield text
            if isinstance(node, ast.AST):
                yield from _unfinished_ids(node)


def _names_at_top(tree: ast.Module) -> set[str]:
    """Return the names that the module binds outside functions and classes; "*" if it imports all of another's."""
    names: set[str] = set()
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
            continue
        if isinstance(node, ast.alias):
            names.add(node.asname or node.name.split(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        pending += ast.iter_child_nodes(node)
    return names


def imports_from_outside(files: Mapping[str, bytes], root: Path) -> list[str]:
    """Say which files import something that lies beside `student/`, and so does not go in."""
    found = []
    for name, source in files.items():
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            continue  # said elsewhere
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module]
            else:
                continue
            for top in sorted({module.split(".")[0] for module in modules} - {"student"}):
                if (root / f"{top}.py").is_file() or (root / top).is_dir():
                    found.append(
                        f"{name}, line {node.lineno}: imports {top}, which is outside student/ and stays behind"
                    )
    return found


def not_allowed(files: Mapping[str, bytes], assignment: Assignment) -> list[str]:
    """Say what breaks the rules of the handout in the parts, and in the helper files that they import."""
    try:
        from tests.allowed import check_part  # PyTorch, which those who only pack a zip need not wait for
    except ModuleNotFoundError:
        in_venv("tests.submission")
    sources = {name.removeprefix("student/"): source for name, source in files.items()}
    found: dict[str, None] = {}  # a line once, however many problems it is a part of
    for part in assignment.graded_parts:
        found |= dict.fromkeys(str(violation) for violation in check_part(part.id, sources))
    return list(found)


# --- what is said ---


def report(contents: Contents, assignment: Assignment, root: Path) -> tuple[list[str], list[str]]:
    """Return the lines that describe a submission, and the lines about what is wrong with it."""
    lines: list[str] = []
    wrong: list[str] = []
    unfinished: set[Problem] = set()
    parts = {f"student/{part.id}.py": part for part in assignment.graded_parts}
    rows: list[tuple[str, str, str]] = []
    for name, source in contents.files.items():
        if name not in parts:
            rows.append(("in", name, "" if name == "student/__init__.py" else "yours"))
            if error := why_no_python(source):
                wrong.append(f"{name} is not valid Python, so what imports it fails: {error}")
            continue
        state = part_state(parts[name], source)
        rows.append(("in", name, _summary(state)))
        unfinished.update(state.stubs)
        if state.error:
            wrong.append(f"{name} is not valid Python, so its whole part is lost: {state.error}")
        wrong += [f"{name} defines no {problem.name}" for problem in state.absent if not problem.bonus]
    for name in parts.keys() - contents.files.keys():
        wrong.append(f"{name} is missing, so its whole part is lost{_lookalike(name, contents)}")
    rows += [("out", name, reason) for name, reason in _grouped(contents.left_out)]
    width = max((len(name) for _, name, _ in rows), default=0)
    lines += [f"  {way:<4}{name:<{width}}  {remark}".rstrip() for way, name, remark in rows]
    if unfinished:
        points = sum(problem.points for problem in unfinished if not problem.bonus)
        lines += ["", f"Still stubs ({points:g} points):"]
        lines += [
            f"  {p.number:<5}{p.id}{'  (bonus)' if p.bonus else ''}" for p in assignment.problems if p in unfinished
        ]
    wrong += imports_from_outside(contents.files, root)
    wrong += not_allowed(contents.files, assignment)
    return lines, sorted(wrong)


def _summary(state: PartState) -> str:
    """Return a part's remark: how many of its problems are written."""
    if state.error:
        return "not valid Python"
    named = [problem for problem in state.part.problems if problem.id not in SPANNING_PROBLEMS]
    written = len(named) - len(state.stubs) - len(state.absent)
    return "not started" if written == 0 else f"{written} of {len(named)} problems written"


def _lookalike(name: str, contents: Contents) -> str:
    """Name the file that may have been meant by a missing one."""
    stem = PurePosixPath(name).stem.lower()
    for other in [*contents.files, *contents.left_out]:
        if other != name and PurePosixPath(other).name.lower().startswith(stem):
            return f" (did you mean {other}?)"
    return ""


def _grouped(left_out: Mapping[str, str]) -> list[tuple[str, str]]:
    """Give each folder whose files stay out for one reason a single line."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, reason in left_out.items():
        folder = "/".join(PurePosixPath(name).parts[:2])
        groups.setdefault((folder, reason), []).append(name)
    lines: list[tuple[str, str]] = []
    for (folder, reason), names in groups.items():
        if len(names) == 1:
            lines.append((names[0], reason))
        else:
            lines.append((f"{folder}/ ({len(names)} files)", reason))
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Pack `student/` into `submission.zip`; return 0, 1 if something in it is wrong, 2 if nothing could be packed."""
    parser = argparse.ArgumentParser(prog="python -m tests.submission", description=__doc__.splitlines()[0])
    parser.add_argument("--student", type=Path, default=ROOT / "student", help="the folder to hand in")
    parser.add_argument("--output", type=Path, default=ROOT / "submission.zip", help="the zip to write")
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may have what a Windows console has not
    try:
        contents = gather(options.student)
        lines, wrong = report(contents, load_assignment(), ROOT)
        data = pack(contents.files)
        write_atomically(options.output, data)
    except OSError as error:
        print(f"no submission was made: {error}", file=sys.stderr)
        return 2
    print(f"{options.output.name}: {len(contents.files)} files, {len(data) / 1024:.0f} KiB")
    print("\n".join(lines))
    if wrong:
        print("\nLook at this before you hand it in:")
        print("\n".join(f"  {line}" for line in wrong))
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        print(f"\n{options.output.name} was written, but {wrong[0]}{more}")
        return 1
    print(f"\nUpload {options.output.name} to Gradescope. `make test` says what works.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
