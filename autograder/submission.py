"""Finds a student's package in what was handed in: a folder or a zip, as students really send them.

Only Python files are read, as bytes, and nothing is run. Links are never followed, since the grader may open what students
may not: a link called memory.py could otherwise show them any file of the machine.
"""

import os
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_MOST_FILES = 500
_MOST_ENTRIES = 20_000  # looked at, Python or not
_MOST_BYTES = 1 << 20  # of one file
_DEEPEST = 8
_NOISE = frozenset({"__MACOSX", "__pycache__", "site-packages", "node_modules", "dist", "build"})


class UnreadableSubmission(Exception):
    """There is nothing to grade: no such path, or not a zip."""


@dataclass(frozen=True)
class Submission:
    """The student's package."""

    files: Mapping[str, bytes]  # path below the package ("memory.py", "extra/parts.py") to content
    origin: str  # where in what was handed in the package was found; "" for the top
    notes: tuple[str, ...]  # what was left out, for the student to read

    def write(self, folder: Path) -> None:
        """Write the package's files into the new `folder`, readable by everybody and by nobody writable."""
        folder.mkdir(mode=0o755)
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o444)
        for path in (folder, *folder.rglob("*/")):
            path.chmod(0o755)


def read_submission(path: Path, modules: frozenset[str]) -> Submission:
    """Find the package in the folder or zip at `path`.

    Args:
        path: what was handed in.
        modules: the names of the assignment's modules ("memory"), by which the package is recognised.

    Returns:
        The package: a folder called `student` that holds any of the modules, else the folder that holds most of them, the
        shallowest first. Without any, a submission without files.

    Raises:
        UnreadableSubmission: if there is nothing at `path`, or it is neither a folder nor a zip.
    """
    notes: list[str] = []
    if path.is_dir():
        found = dict(_in_folder(path, notes))
    elif path.is_file():
        found = dict(_in_zip(path, notes))
    else:
        raise UnreadableSubmission(f"there is no folder and no file at {path}")

    counts: dict[PurePosixPath, int] = {}
    for name in found:
        if name.stem in modules:
            counts[name.parent] = counts.get(name.parent, 0) + 1
    if not counts:
        return Submission({}, "", tuple(notes))

    def preference(folder: PurePosixPath) -> tuple[bool, int, int, str]:
        return folder.name != "student", -counts[folder], len(folder.parts), str(folder)

    home = min(counts, key=preference)
    files = {str(name.relative_to(home)): content for name, content in found.items() if name.is_relative_to(home)}
    for folder in sorted(counts, key=preference)[1:]:
        if not folder.is_relative_to(home):
            notes.append(f"{folder}/ looks like the assignment too and was not graded; {home}/ was.")
    return Submission(files, "" if home == PurePosixPath() else str(home), tuple(notes))


def _wanted(name: PurePosixPath) -> bool:
    """Tell whether a path could be part of a package: no hidden folders, no noise of macOS, no virtual environments."""
    if any(part in _NOISE or part.startswith(".") for part in name.parts):
        return False
    return name.suffix == ".py" and len(name.parts) <= _DEEPEST


def _in_folder(top: Path, notes: list[str]) -> Iterator[tuple[PurePosixPath, bytes]]:
    entries = files = 0
    for folder, subfolders, names in os.walk(top):
        entries += len(subfolders) + len(names)
        if entries > _MOST_ENTRIES:
            notes.append(f"Only the first {_MOST_ENTRIES} files were looked at.")
            return
        subfolders[:] = sorted(name for name in subfolders if name not in _NOISE and not name.startswith("."))
        for file in sorted(names):
            name = PurePosixPath(Path(folder, file).relative_to(top).as_posix())
            if not _wanted(name):
                continue
            content = _read_regular(Path(folder, file), name, notes)
            if content is not None:
                files += 1
                if files > _MOST_FILES:
                    notes.append(f"Only the first {_MOST_FILES} Python files were read.")
                    return
                yield name, content


def _read_regular(path: Path, name: PurePosixPath, notes: list[str]) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        notes.append(f"{name} is a link or cannot be read, and was left out.")
        return None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            notes.append(f"{name} is not a plain file, and was left out.")
            return None
        return _bounded(file.read(_MOST_BYTES + 1), name, notes)


def _bounded(content: bytes, name: PurePosixPath, notes: list[str]) -> bytes | None:
    if len(content) > _MOST_BYTES:
        notes.append(f"{name} is larger than 1 MiB, and was left out.")
        return None
    return content


def _in_zip(path: Path, notes: list[str]) -> Iterator[tuple[PurePosixPath, bytes]]:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise UnreadableSubmission(f"{path} is neither a folder nor a zip that can be read ({error})") from None
    with archive:
        files = 0
        for entry in archive.infolist()[:_MOST_ENTRIES]:
            name = PurePosixPath(entry.filename.replace("\\", "/"))
            if entry.is_dir() or name.is_absolute() or ".." in name.parts or not _wanted(name):
                continue
            if stat.S_ISLNK(entry.external_attr >> 16):
                notes.append(f"{name} is a link, and was left out.")
                continue
            files += 1
            if files > _MOST_FILES:
                notes.append(f"Only the first {_MOST_FILES} Python files were read.")
                return
            try:
                with archive.open(entry) as file:  # bounded here: the size in the directory is the sender's word
                    content = _bounded(file.read(_MOST_BYTES + 1), name, notes)
            except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, NotImplementedError, ValueError):
                notes.append(f"{name} is damaged or encrypted in the zip, and was left out.")
                continue
            if content is not None:
                yield name, content
