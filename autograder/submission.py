"""Finds a student's package in what was handed in: a folder or a zip, as students really send them.

Only Python files are read, as bytes, and nothing is run. Links are never followed, since the grader may open what students
may not: a link called memory.py could otherwise show them any file of the machine.

Names are listed first, and only what lies in the package is read: a data set or a virtual environment beside it costs nothing.
"""

import errno
import os
import stat
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath

_MOST_ENTRIES = 200_000  # looked at, Python or not
_CUT = f"Only the first {_MOST_ENTRIES:,} files were looked at."
_MOST_FILES = 500  # read
_MOST_BYTES = 1 << 20  # of one file
_MOST_BYTES_IN_ALL = 16 << 20
_DEEPEST = 8
_MOST_NOTES = 20
_MOST_NAMED = 3
_LONGEST_NAME = 255  # bytes; what file systems allow
_NOISE = frozenset({"__MACOSX", "__pycache__", "site-packages", "node_modules", "dist", "build"})
ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".7z", ".rar")

# Each Python file, notebook and archive, with what reads so many bytes of it at most.
Listing = Mapping[PurePosixPath, Callable[[int], bytes]]


class UnreadableSubmission(Exception):
    """There is nothing to grade: no such path, or not a zip."""


class LeftOut(Exception):
    """Why a file cannot be read, for the student."""


class Damaged(LeftOut):
    """It is a file, and its bytes cannot be had: who is at fault depends on where it lies."""


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
    with listed(path, notes) as listing:
        return find_package(listing, modules, notes)


def find_package(listing: Listing, modules: frozenset[str], notes: list[str]) -> Submission:
    """Find the package among the files of `listing`, as `read_submission` does; add to `notes` what is left out."""
    sources = [name for name in listing if name.suffix == ".py"]
    archives = sorted(name for name in listing if name.name.lower().endswith(ARCHIVES))
    packed = [  # for those who have packed their files twice
        f"{shown(archive)} was not opened: if your files are in it, unpack it and hand in what it holds."
        for archive in archives
    ]
    counts = Counter(name.parent for name in sources if name.stem in modules)
    if not counts:
        # A Memory.py or a memory/__init__.py shows which folder is meant; neither is taken for memory.py.
        meant = (name.parent if name.name == "__init__.py" else name for name in sources)
        counts = Counter(name.parent for name in meant if name.stem.lower() in modules)
    if not counts:
        if others := sorted(listing.keys() - set(archives)):
            such = f"{min(modules)}.py"
            notes.append(f"No file is called as one of the assignment's is, such as {such}: there is {few(others)}.")
        return Submission({}, "", _bounded([*notes, *packed]))

    def preference(folder: PurePosixPath) -> tuple[bool, int, int, str]:
        return folder.name != "student", -counts[folder], len(folder.parts), str(folder)

    home, *others = sorted(counts, key=preference)
    files = _read(listing, home, modules, notes)
    for folder in others:
        if not folder.is_relative_to(home):
            notes.append(f"{shown(folder)}/ looks like the assignment too and was not graded; {shown(home)}/ was.")
    return Submission(files, "" if home == PurePosixPath() else shown(home), _bounded([*notes, *packed]))


def _bounded(notes: Sequence[str]) -> tuple[str, ...]:
    more = len(notes) - _MOST_NOTES
    return (*notes[:_MOST_NOTES], *([f"There are {more} more notes like these."] if more > 0 else []))


def _read(listing: Listing, home: PurePosixPath, modules: frozenset[str], notes: list[str]) -> dict[str, bytes]:
    """Read the files below `home`, the assignment's own first. What is read counts, whatever becomes of it."""
    names = [name.relative_to(home) for name in listing if name.suffix == ".py" and name.is_relative_to(home)]
    files: dict[str, bytes] = {}
    size = 0
    names.sort(key=lambda name: (len(name.parts) > 1 or name.stem not in modules, name))
    for count, name in enumerate(names):
        if count >= _MOST_FILES or size >= _MOST_BYTES_IN_ALL:
            notes.insert(0, f"Only the first {count} Python files were read: that is as much as a submission may hold.")
            break
        try:
            if not str(name).isprintable() or any(len(os.fsencode(part)) > _LONGEST_NAME for part in name.parts):
                raise LeftOut("cannot be imported under that name")
            if any(str(parent) in files for parent in name.parents):
                raise LeftOut("is in a folder that has the name of a file")
            content = listing[home / name](_MOST_BYTES + 1)
            size += len(content)
            if len(content) > _MOST_BYTES:
                raise LeftOut("is larger than 1 MiB")
        except LeftOut as reason:
            notes.append(f"{shown(name)} {reason}, and was left out.")
            continue
        files[str(name)] = content
    return files


def shown(name: PurePosixPath) -> str:
    """Return a path that a terminal and a JSON file can hold."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in str(name))[:1000]


def few(names: Sequence[PurePosixPath]) -> str:
    """Return some of these paths, as `shown`, and how many more there are."""
    more = len(names) - _MOST_NAMED
    return ", ".join(map(shown, names[:_MOST_NAMED])) + (f" and {more} more" if more > 0 else "")


def _of_interest(name: str) -> bool:
    return name.lower().endswith((".py", ".ipynb", *ARCHIVES))


def _wanted(name: PurePosixPath) -> bool:
    """Tell whether a path could be part of a package: no hidden folders and no "..", no noise of macOS, no libraries."""
    if name.is_absolute() or any(part in _NOISE or part.startswith(".") for part in name.parts):
        return False
    return len(name.parts) <= _DEEPEST


@contextmanager
def listed(path: Path, notes: list[str]) -> Iterator[Listing]:
    """Yield the Python files, notebooks and archives in the folder or zip at `path`, which stays open as long; add to `notes` what cannot be looked at.

    Raises:
        UnreadableSubmission: if there is nothing at `path`, or it is neither a folder nor a zip.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            next(path.iterdir(), None)  # os.walk says nothing about a folder that it cannot read
    except (FileNotFoundError, NotADirectoryError):
        raise UnreadableSubmission(f"there is no folder and no file at {path}") from None
    except (OSError, ValueError) as error:
        raise UnreadableSubmission(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from None
    if stat.S_ISDIR(mode):
        yield in_folder(path, notes, lambda folder: notes.append(f"{shown(folder)}/ cannot be read, and was left out."))
    elif stat.S_ISREG(mode):
        try:
            archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise UnreadableSubmission(f"{path} is neither a folder nor a zip that can be read ({error})") from None
        with archive:
            entries = archive.infolist()
            if len(entries) > _MOST_ENTRIES:
                notes.append(_CUT)
            yield in_zip(archive, entries)
    else:
        raise UnreadableSubmission(f"{path} is neither a folder nor a zip")


def in_folder(top: Path, notes: list[str], unreadable: Callable[[PurePosixPath], None]) -> Listing:
    """List the Python files, notebooks and archives in the folder `top`; `unreadable` is told of each folder in it that cannot be looked into."""

    def tell(error: OSError) -> None:
        unreadable(PurePosixPath(Path(error.filename).relative_to(top).as_posix()))

    listing = {}
    entries = 0
    for folder, subfolders, names in os.walk(top, onerror=tell):
        entries += len(subfolders) + len(names)
        if entries > _MOST_ENTRIES:
            notes.append(_CUT)
            break
        subfolders[:] = sorted(name for name in subfolders if name not in _NOISE and not name.startswith("."))
        if len(Path(folder).relative_to(top).parts) >= _DEEPEST:
            subfolders.clear()
        for file in filter(_of_interest, names):
            path = Path(folder, file)
            name = PurePosixPath(path.relative_to(top).as_posix())
            if _wanted(name):
                listing[name] = partial(_read_file, path)
    return listing


def _read_file(path: Path, most: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise LeftOut("is not a plain file")
            return file.read(most)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise LeftOut("is a link") from None
        if error.errno == errno.ENXIO:  # a socket
            raise LeftOut("is not a plain file") from None
        raise Damaged("cannot be read") from None


def in_zip(archive: zipfile.ZipFile, entries: Iterable[zipfile.ZipInfo], below: str = "") -> Listing:
    """List the Python files, notebooks and archives among `entries` of a zip, all of whose names begin with `below`, by the rest of their names."""
    listing = {}
    for entry in islice(entries, _MOST_ENTRIES):
        if _of_interest(entry.filename):
            name = PurePosixPath(entry.filename[len(below) :].replace("\\", "/"))
            if _wanted(name):
                listing[name] = partial(read_entry, archive, entry)
    return listing


def read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> bytes:
    """Return `most` bytes of a file in a zip, or all if there are fewer.

    Raises:
        LeftOut: if it is none, or cannot be read.
    """
    if stat.S_ISLNK(entry.external_attr >> 16):
        raise LeftOut("is a link")
    # Of others zipfile undoes 4 KiB at once, which may be gigabytes.
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Damaged("is compressed in a way that few programs read")
    try:
        with archive.open(entry) as file:
            return file.read(most)  # bounded here: the size in the directory is the sender's word
    except Exception:  # each decompressor has errors of its own, and newer Pythons have more of them
        raise Damaged("is damaged or encrypted in the zip") from None
