"""Reads what Gradescope exports: a zip or a folder with everybody's files, and a YAML file that says whose they are.

The YAML is written by Ruby and holds what students printed, so it is not always YAML. Only who handed in is read from it; what it says
of scores is no concern of ours. Scalars are taken as text: an id of 00123 is no number.
"""

import base64
import io
import os
import re
import zipfile
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NoReturn

import yaml

from autograder.classroom.progress import printable
from autograder.submission import (
    ARCHIVES,
    Damaged,
    LeftOut,
    Listing,
    Submission,
    UnreadableSubmission,
    few,
    find_package,
    in_folder,
    in_zip,
    read_entry,
    shown,
)

_METADATA = "submission_metadata.yml"
_FOLDER = re.compile(r"submission_\d+")
_DEEPEST = 3  # folders above the metadata
_NOISE = "__MACOSX"
_MOST_METADATA = 1 << 30  # bytes
_MOST_LOOKED_AT = 10_000  # files of a submission, to see whether they change meanwhile
_MOST_NESTED = 128 << 20  # bytes of a zip that Gradescope has not unpacked; it takes 100 MB
_Loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_BINARY = "!binary"  # how Ruby writes a text that it does not know to be UTF-8: in base64
_NOTHING = frozenset({"", "~", "null", "Null", "NULL"})


class BadExport(Exception):
    """This is no export of Gradescope's, or it cannot be read."""


@dataclass(frozen=True)
class Student:
    """A person, as Gradescope's roster has them; what it does not say is empty."""

    name: str
    sid: str  # as it is written, with leading zeros
    email: str
    id_is_shared: bool = False  # with somebody who has another email, as "N/A" is: it is no id of a person

    @property
    def own_id(self) -> str:
        """The id, if it tells who it is."""
        return "" if self.id_is_shared else self.sid

    @property
    def names(self) -> frozenset[str]:
        """What tells who it is: the id, and the email, which may be spelled in capitals or not."""
        return frozenset((self.own_id, self.email.casefold())) - {""}

    @property
    def called(self) -> str:
        """The name, or what stands for it."""
        return self.name or self.email


NOBODY = Student("", "", "")  # of whom nothing is known


@dataclass(frozen=True)
class HandedIn:
    """One submission: a group's if there are several students."""

    id: str  # the name of its folder, "submission_123"
    students: tuple[Student, ...]
    created_at: str
    has_files: bool  # False: the metadata names it, but the export has no file of it


@dataclass(frozen=True)
class Export:
    """Who handed in what."""

    handed_in: tuple[HandedIn, ...]  # in the order of their ids
    warnings: tuple[str, ...]  # each a line


class Files:
    """The submissions' folders of an export. A zip is read in place; each process opens it for itself."""

    def __init__(self, path: Path) -> None:
        """Look where the folders are.

        Raises:
            BadExport: if there is no metadata at or below `path`, or more than one, or it cannot be read.
        """
        self.path = path
        try:
            if path.is_dir():
                self._archive: zipfile.ZipFile | None = None
                self._top = path / self._only(PurePosixPath(found.relative_to(path)) for found in _exports(path))
            elif path.is_file():
                self._archive = zipfile.ZipFile(path)
                self._prefix, self._metadata, self._entries = self._index(self._archive)
            else:
                raise BadExport(f"there is no folder and no file at {path}")
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise BadExport(f"{path} is neither a folder nor a zip that can be read ({error})") from None
        except (OSError, ValueError) as error:
            raise BadExport(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from None

    def ids(self) -> frozenset[str]:
        """Return the names of the folders that hold a file, of whatever kind: not every zip knows of empty ones.

        Raises:
            BadExport: if they cannot be looked up.
        """
        if self._archive is not None:
            return frozenset(self._entries)
        try:
            folders = [child for child in self._top.iterdir() if child.is_dir() and not child.is_symlink()]
        except OSError as error:
            raise BadExport(f"{self.path} cannot be read: {error.strerror}") from None
        return frozenset(folder.name for folder in folders if _holds_a_file(folder))

    def metadata(self) -> bytes:
        """Return the YAML."""
        try:
            if self._archive is None:
                return (self._top / _METADATA).read_bytes()
            return read_entry(self._archive, self._metadata, _MOST_METADATA)
        except (OSError, LeftOut) as error:
            raise BadExport(f"{_METADATA} in {self.path} cannot be read: {error}") from None

    def read(self, id: str, modules: frozenset[str]) -> Submission:
        """Return one submission's package.

        Raises:
            UnreadableSubmission: if its files may be in what cannot be opened, or if the export is damaged.
            BadExport: if there is none of that name, though there was one before.
        """
        notes: list[str] = []
        listing = _watched(self._listed(id, notes), _damaged)
        submission = find_package(listing, modules, notes)
        zips = [name for name in listing if name.name.lower().endswith(".zip")]
        if not submission.files and len(zips) == 1:
            nested = _read_nested(zips[0], listing.pop(zips[0]), modules)
            if nested.files:
                return nested
            submission = find_package(listing, modules, list(nested.notes))  # what lies beside the zip
        if not submission.files:
            _check_opened(listing)
        return submission

    def state(self, id: str) -> Hashable:
        """Return what tells whether a submission's files are those of before: names, sizes and times; in a zip, the zip's."""
        try:
            if self._archive is not None:
                now = self.path.stat()
                return now.st_ino, now.st_size, now.st_mtime_ns
            top = self._top / id
            if not top.is_dir():
                return None
            files = islice(top.rglob("*"), _MOST_LOOKED_AT)
            return frozenset(
                (str(path), found.st_size, found.st_mtime_ns) for path in files for found in [path.lstat()]
            )
        except OSError:
            return None

    def _listed(self, id: str, notes: list[str]) -> Listing:
        if self._archive is None:
            return in_folder(self._top / id, notes, lambda folder: _damaged(f"{shown(folder)}/ cannot be read"))
        if id not in self._entries:
            raise BadExport(f"there is no {id} in {self.path}")
        return in_zip(self._archive, self._entries[id], f"{self._prefix}{id}/")

    def _index(self, archive: zipfile.ZipFile) -> tuple[str, zipfile.ZipInfo, dict[str, list[zipfile.ZipInfo]]]:
        """Return the name of the folder that the metadata is in, its entry, and the entries of each folder beside it."""
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        for entry in entries:  # some programs begin each name so
            entry.filename = re.sub(r"^(\./+)+", "", entry.filename)
        named = [(PurePosixPath(each.filename), each) for each in entries if each.filename.endswith(_METADATA)]
        metadata = {
            path.parent: entry
            for path, entry in named
            if path.name == _METADATA and len(path.parts) <= _DEEPEST and _NOISE not in path.parts
        }
        inside = {place for place in metadata if metadata.keys() & set(place.parents)}  # a student's file of that name
        top = self._only(sorted(metadata.keys() - inside))
        prefix = "" if top == PurePosixPath() else f"{top}/"
        folders: dict[str, list[zipfile.ZipInfo]] = {}
        for entry in entries:
            if entry.filename.startswith(prefix):
                folder, below, _ = entry.filename[len(prefix) :].partition("/")
                if below and folder != _NOISE:
                    folders.setdefault(folder, []).append(entry)
        return prefix, metadata[top], folders

    def _only(self, found: Iterable[PurePosixPath]) -> PurePosixPath:
        """Return the one place of an export."""
        places = list(found)
        if not places:
            raise BadExport(
                f'there is no {_METADATA} in {self.path}: is it what Gradescope\'s "Export Submissions" gave?'
            )
        if len(places) > 1:
            named = " and in ".join(map(shown, places[:2]))
            raise BadExport(f"{self.path} holds more than one export, in {named}: name one of them")
        return places[0]


def _exports(folder: Path, levels: int = _DEEPEST) -> Iterator[Path]:
    """Yield the folders with metadata, of so many levels at most, and none that is inside of another."""
    if (folder / _METADATA).is_file():
        yield folder
    elif levels > 1:
        for child in filter(_may_hold, sorted(folder.iterdir())):
            yield from _exports(child, levels - 1)


def _watched(listing: Listing, tell: Callable[[str], None]) -> dict[PurePosixPath, Callable[[int], bytes]]:
    """Return a listing that tells of each file that is damaged, when it is read."""

    def read(name: PurePosixPath, original: Callable[[int], bytes], most: int) -> bytes:
        try:
            return original(most)
        except Damaged as reason:
            tell(f"{shown(name)} {reason}")
            raise

    return {name: partial(read, name, original) for name, original in listing.items()}


def _damaged(what: str) -> NoReturn:
    """Refuse a submission of which the export has lost something: the rest would be graded as if it were all."""
    raise UnreadableSubmission(f"in the export {what}")


def _read_nested(name: PurePosixPath, read: Callable[[int], bytes], modules: frozenset[str]) -> Submission:
    """Return the package in a zip that Gradescope has not unpacked."""
    try:
        content = read(_MOST_NESTED + 1)
        if len(content) > _MOST_NESTED:
            raise UnreadableSubmission(f"{shown(name)} is larger than {_MOST_NESTED >> 20} MiB")
        damaged: list[str] = []
        with zipfile.ZipFile(io.BytesIO(content)) as nested:
            listing = _watched(in_zip(nested, nested.infolist()), damaged.append)
            submission = find_package(listing, modules, [])
        if not submission.files:
            if damaged:
                raise UnreadableSubmission(f"in {shown(name)} {damaged[0]}")
            _check_opened(listing, f"in {shown(name)} ")
        return submission
    except LeftOut as reason:
        raise UnreadableSubmission(f"{shown(name)} {reason}") from None
    except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError) as error:
        raise UnreadableSubmission(f"{shown(name)} is not a zip that can be read ({error})") from None


def _check_opened(listing: Listing, place: str = "") -> None:
    """Refuse a submission without files if there are archives that may hold them."""
    if archives := sorted(name for name in listing if name.name.lower().endswith(ARCHIVES)):
        raise UnreadableSubmission(
            f"{place}{few(archives)} was not opened: a zip is, if it is the only one and in no other"
        )


def _holds_a_file(folder: Path) -> bool:
    """Tell whether there is a file in a folder, or part of it cannot be looked into, which is seen when it is read."""
    unreadable: list[OSError] = []
    return any(names for _, _, names in os.walk(folder, onerror=unreadable.append)) or bool(unreadable)


def _may_hold(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and path.name != _NOISE and not path.name.startswith(".")


def read_export(files: Files) -> Export:
    """Return who handed in what.

    Raises:
        BadExport: if the metadata cannot be read at all, or names no submission.
    """
    entries, warnings = parse_metadata(files.metadata().decode("utf-8-sig", "replace"))
    there = files.ids()
    for id in sorted(there - set(entries)):
        if _FOLDER.fullmatch(id):
            warnings.append(f"{id} is not in {_METADATA}: it is graded, but nobody knows whose it is")
            entries[id] = ((), "")
        elif not id.startswith((".", "__")):
            warnings.append(f"the folder {id} is not in {_METADATA}: it is not graded")
    handed_in = []
    for id, (students, created_at) in entries.items():
        if not _names_a_folder(id):
            warnings.append(f"{id[:100]!r} in {_METADATA} names no folder of the export: it is left out")
            continue
        if id not in there:
            warnings.append(f"{id} is in {_METADATA}, but the export has no file of it")
        handed_in.append(HandedIn(id, students, created_at, id in there))
    if not handed_in:
        raise BadExport(f"{_METADATA} in {files.path} names no submission")
    emails: dict[str, set[str]] = {}  # by id
    for submission in handed_in:
        for each in submission.students:
            emails.setdefault(each.sid, set()).update({each.email.casefold()} - {""})
    shared = {sid for sid, own in emails.items() if sid and len(own) > 1}
    warnings += [f"{len(emails[sid])} emails share the id {sid}, which is not used" for sid in sorted(shared)]
    handed_in = [
        replace(one, students=tuple(replace(each, id_is_shared=each.sid in shared) for each in one.students))
        for one in handed_in
    ]
    seen: dict[str, str] = {}  # by id and by email: a name may be spelled in two ways
    for submission in handed_in:
        own = {name for each in submission.students for name in each.names}
        for other in sorted({seen[name] for name in own if name in seen}):
            warnings.append(f"{submission.id} and {other} are of the same student")
        seen |= dict.fromkeys(own, submission.id)
    in_order = sorted(handed_in, key=lambda submission: _order(submission.id))
    return Export(tuple(in_order), tuple(map(printable, warnings)))


def _names_a_folder(id: str) -> bool:
    """Tell whether a name can be that of a submission's folder, in the export and in a run's, and leads out of neither."""
    return id.isprintable() and "/" not in id and not id.startswith(".") and 0 < len(os.fsencode(id)) < 256


def _order(id: str) -> tuple[int, str]:
    """Sort submission_9 before submission_10."""
    return len(id), id


_Entry = tuple[tuple[Student, ...], str]


def parse_metadata(text: str) -> tuple[dict[str, _Entry], list[str]]:
    """Return the students and the time of each submission, and what could not be read.

    A line of three dots, which a student's output can bring into the file, ends a YAML document for every parser, wherever it stands.
    Such lines are dropped. If the file is still not YAML, each submission's lines are read for themselves, so that a broken one costs
    only its own names.

    Raises:
        BadExport: if nothing can be read.
    """
    lines = text.replace("\r\n", "\n").splitlines(keepends=True)
    text = "".join(line for line in lines if line.rstrip() not in ("...", "---"))
    try:
        found = list(_entries(text))
        if len({id for id, _ in found}) == len(found):
            return dict(found), []
    except yaml.YAMLError:
        pass
    entries: dict[str, _Entry] = {}
    warnings = []
    pieces = re.split(r"^(?=submission_\d+:[ \t]*(?:!\S*)?[ \t]*$)", text, flags=re.MULTILINE)
    for piece in pieces[1:]:
        id = piece.split(":")[0]
        try:
            ((id, entry),) = _entries(piece)
            if id in entries:  # a student can print a line that looks like one of these
                raise ValueError("it is there twice")
            entries[id] = entry
        except (yaml.YAMLError, ValueError) as error:
            why = " ".join(str(getattr(error, "problem", None) or error).split())
            warnings.append(f"{id} in {_METADATA} cannot be read, so it has no names: {why}")
            entries[id] = ((), "")
    if not any(students for students, _ in entries.values()):
        raise BadExport(f"{_METADATA} is not YAML that can be read")
    return entries, warnings


def _entries(text: str) -> Iterator[tuple[str, _Entry]]:
    """Yield each submission of a YAML document. Only what is needed becomes objects: the results that stand beside it are long."""
    root = yaml.compose(text, Loader=_Loader)
    if root is None:
        return
    if not isinstance(root, yaml.MappingNode):
        raise yaml.YAMLError("the file is no mapping")
    for key, value in root.value:
        fields = _fields(value)
        if "submitters" in fields:
            people = fields["submitters"]
            nodes = people.value if isinstance(people, yaml.SequenceNode) else []
            # Who is named twice in a group is one.
            yield _scalar(key), (tuple(dict.fromkeys(map(_student, nodes))), _scalar(fields.get("created_at")))


def _student(node: yaml.Node) -> Student:
    fields = _fields(node)
    name, sid, email = (" ".join(_scalar(fields.get(key)).split()) for key in ("name", "sid", "email"))
    return Student(name, sid, email)


def _fields(node: yaml.Node | None) -> dict[str, yaml.Node]:
    """Return a mapping's values by their keys, without the colon that Ruby puts before them."""
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {_scalar(key).lstrip(":"): value for key, value in node.value}


def _scalar(node: yaml.Node | None) -> str:
    """Return a scalar's text; a null, which only a plain scalar can be, is empty."""
    if not isinstance(node, yaml.ScalarNode):
        return ""
    if node.tag == _BINARY:
        with suppress(ValueError):
            return base64.b64decode("".join(node.value.split()), validate=True).decode("utf-8", "replace")
    return "" if not node.style and node.value in _NOTHING else str(node.value)
