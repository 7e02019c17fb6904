"""An invented class, to try everything on that a TA does with a real one: `python -m autograder synthetic --out FOLDER`.

Its students are mixtures, drawn from a seed: of the reference, of right solutions written in other ways, of known mistakes, of stubs and of
files that are broken. Nobody of these names exists. The folder looks as Gradescope's export does, oddities included.
"""

import ast
import json
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path

from autograder.classroom.export import Student
from autograder.misconceptions import misconceptions
from handout.problems import load_assignment

ROOT = Path(__file__).parents[2]
_TESTS = ROOT / "autograder" / "tests"
_FIRST_NAMES = (
    "Adaeze Aiko Alba Amara Anders Anton Asel Ayşe Bao Beatriz Bohdan Caoimhe Chiara Dana Dilnoza Eero Elif Emeka Esra Fatou Feng "
    "Freya Gaspard Giang Hana Hiroshi Ilse Imani Ines Ivo Jaya Jonas Kaito Kateryna Keiko Lan Leila Linh Lotte Luca Maja Malik Marek "
    "Mei Milan Minh Nadia Nia Noor Oisín Olena Omar Pavel Priya Quynh Ragnar Renata Rosa Said Sana Siobhán Sofía Soren Tala Tariq "
    "Thandi Tomás Uma Valentina Wanjiru Xenia Yara Yusuf Zahra Zoltán Žofia 伟 静 太郎 서연"
)
_LAST_NAMES = (
    "Abara Aalto Bălan Berg Çelik Castell Dvořák Diallo Eze Fjeld Fontaine Gál Haddad Hóng Ibarra Ionescu Jansen Kaya Kovač Lý Lund "
    "Mbeki Moreau Nakano Ngũgĩ Novák Nuñez O'Shea Okoro Øst Petrov Quiroga Rao Rossi Saar Şahin Silva Tanaka Tóth Uchida Ungaro Vass "
    "Wójcik Xu Yılmaz Zhou Zelenko"
)
_FIRST, _LAST = _FIRST_NAMES.split(), _LAST_NAMES.split()
_OFTEN = 0.6  # of the mistakes in a part, the share made by its most popular ones


@dataclass(frozen=True)
class Handout:
    """One invented submission."""

    id: str
    students: tuple[Student, ...]
    files: Mapping[str, bytes]  # below its folder
    kind: str  # what was put together, for whoever wants to know


def write_class(folder: Path, count: int, seed: int) -> list[Handout]:
    """Write an export with `count` submissions into the new folder `folder` and return what is in it.

    Raises:
        FileExistsError: if there is something at `folder`.
    """
    folder.mkdir(parents=True)
    top = folder / f"assignment_{4000 + seed}_export"
    top.mkdir()
    try:
        submissions = list(generate(count, seed))
        for submission in submissions:
            for name, content in submission.files.items():
                path = top / submission.id / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            (top / submission.id).mkdir(exist_ok=True)
        (top / "submission_metadata.yml").write_text(_metadata(submissions, seed), encoding="utf-8")
        (top / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    except BaseException:
        shutil.rmtree(folder)
        raise
    return submissions


def generate(count: int, seed: int) -> Iterator[Handout]:
    """Yield `count` submissions. The first ones are as odd as submissions get; the rest are what most are like."""
    chance = random.Random(seed)
    written: list[dict[str, str]] = []
    for i in range(count):
        id = f"submission_{90_000_000 + seed * 1_000_000 + i * 37}"
        students = tuple(_student(chance, i, member) for member in range(1 + (i % 31 == 11)))
        odd = _ODD[i // 9] if i % 9 == 4 and i // 9 < len(_ODD) else None
        if odd:
            yield Handout(id, students, odd[1], odd[0])
        elif i > 20 and i % 40 == 25:  # two who worked too closely together
            source = chance.choice(written)
            files = {f"student/{part}.py": _renamed(text, chance).encode() for part, text in source.items()}
            yield Handout(id, students, files, "copy")
        else:
            parts = _mixture(chance)
            written.append(parts)
            where = chance.choice(("student/", "student/", "", "accounting-main/student/"))
            yield Handout(id, students, {f"{where}{part}.py": text.encode() for part, text in parts.items()}, "mixture")


def _student(chance: random.Random, i: int, member: int) -> Student:
    name = f"{chance.choice(_FIRST)} {chance.choice(_LAST)}"
    sid = f"{chance.randrange(10**8):08d}" if i % 23 != 7 else ""
    return Student(name, sid, f"student{i:04d}{'ab'[member]}@example.edu")


def _mixture(chance: random.Random) -> dict[str, str]:
    """Return the parts of one student, who is as able as chance has it."""
    able = chance.betavariate(3, 1.6)
    parts = {}
    for number, part in enumerate(load_assignment().graded_parts):
        keeps_going = able + 0.55 > chance.random() * (0.7 + number / 12)
        if not keeps_going and chance.random() < 0.3:
            continue  # the file was never touched, and not handed in
        parts[part.id] = _part(part.id, able if keeps_going else 0.0, keeps_going, chance)
    return parts


def _part(part: str, able: float, begun: bool, chance: random.Random) -> str:
    if not begun:
        return (ROOT / "student" / f"{part}.py").read_text(encoding="utf-8")
    if chance.random() < 0.12:
        return chance.choice(_equivalents(part))
    source = _reference(part)
    wrong = _known_wrong(part)
    for _ in range(sum(chance.random() > able for _ in range(3))):
        # Mistakes are not all as likely: a few are what everybody gets wrong.
        most = len(wrong) if chance.random() > _OFTEN else min(4, len(wrong))
        source = _edited(source, wrong[chance.randrange(most)])
    tree = ast.parse(source)
    stubs = {node.name: node for node in ast.parse((ROOT / "student" / f"{part}.py").read_text(encoding="utf-8")).body
             if isinstance(node, (ast.FunctionDef, ast.ClassDef))}  # fmt: skip
    for i, node in enumerate(tree.body):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in stubs and chance.random() > able + 0.35:
            tree.body[i] = stubs[node.name]
    text = ast.unparse(ast.fix_missing_locations(_Style(chance).visit(tree))) + "\n"
    return text[: len(text) * 2 // 3] if chance.random() < 0.01 else text  # cut off by a failed copy


class _Style(ast.NodeTransformer):
    """Writes some of the returned values to a variable first: as good, and each student has another set of them."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        if node.value is None or self._chance.random() < 0.6:
            return [node]
        name = self._chance.choice(("result", "out", "ret", "answer", "y"))
        return [ast.Assign([ast.Name(name, ast.Store())], node.value), ast.Return(ast.Name(name, ast.Load()))]


class _Renaming(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._names.get(node.id, node.id)
        return node


def _renamed(source: str, chance: random.Random) -> str:
    """Return a source with other names for its local variables, and without its comments and docstrings."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return source
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            stored = {
                node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
            # A name that an inner function or a global statement shares would need more care than a copyist takes.
            if not any(
                isinstance(node, (ast.FunctionDef, ast.Lambda, ast.Global, ast.Nonlocal)) for node in function.body
            ):
                _Renaming({name: f"{name}_{chance.randrange(9)}" for name in sorted(stored)}).visit(function)
    return "# my own work\n" + ast.unparse(tree) + "\n"


@cache
def _reference(part: str) -> str:
    return (ROOT / "reference" / f"{part}.py").read_text(encoding="utf-8")


@cache
def _equivalents(part: str) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted((_TESTS / "equivalents" / part).glob("*.py"))]


@cache
def _known_wrong(part: str) -> list[list[tuple[str, str]]]:
    """Return the mistakes of a part as edits of the reference, the likelier first."""
    found = [[(edit.old, edit.new) for edit in wrong.edits] for wrong in misconceptions(part) if "+" not in wrong.name]
    path = _TESTS / "known_wrong" / f"{part}.json"
    if path.exists():
        others = [variant["edits"] for variant in json.loads(path.read_text(encoding="utf-8")).values()]
        random.Random(part).shuffle(others)
        found += [[(old, new) for old, new in edits] for edits in others]
    return found


def _edited(source: str, edits: list[tuple[str, str]]) -> str:
    """Return the source with a mistake in it, or as it is if an earlier mistake stands in the way."""
    changed = source
    for old, new in edits:
        if changed.count(old) != 1:
            return source
        changed = changed.replace(old, new)
    try:
        ast.parse(changed)
    except SyntaxError:
        return source
    return changed


def _reference_with(part: str, old: str, new: str) -> dict[str, bytes]:
    files = {f"student/{other.id}.py": _reference(other.id).encode() for other in load_assignment().graded_parts}
    source = _reference(part)
    assert old in source, (part, old)
    return {**files, f"student/{part}.py": source.replace(old, new, 1).encode()}


_SIGNATURE = "def flat_index("
_ODD: tuple[tuple[str, Mapping[str, bytes]], ...] = (
    ("nothing but a corrupt zip", {"hw.zip": b"PK\x03\x04 this was cut off while it was uploaded"}),
    ("an empty folder", {}),
    ("another course's files", {"report.pdf": b"%PDF-1.4", "main.py": b"print('hello')\n", "__MACOSX/._main.py": b"\0"}),
    ("never returns", _reference_with("strides", _SIGNATURE, "def flat_index(*args, **kwargs):\n    while True:\n        pass\n\n\ndef _unused(")),
    ("ends the process", _reference_with("strides", _SIGNATURE, "def flat_index(*args, **kwargs):\n    raise SystemExit(0)\n\n\ndef _unused(")),
    ("loops at import", {"student/napkin.py": b"while True:\n    pass\n", "student/memory.py": b"raise SystemExit\n"}),
    ("looks for the answers", _reference_with(
        "strides", _SIGNATURE,
        "def flat_index(*args, **kwargs):\n    for path in ('/etc/shadow', '../../reference/strides.py'):\n"
        "        open(path).read()\n\n\ndef _unused(")),
    ("crashes the interpreter", _reference_with(
        "napkin", "def training_flops(", "def training_flops(*args, **kwargs):\n    x = ()\n    for _ in range(10**6):\n"
        "        x = (x,)\n    return hash(x)\n\n\ndef _unused(")),
    ("written on an old Mac, in Latin-1", {"student/napkin.py": "# Größe\rx = 1\r".encode("latin-1"), "student/.DS_Store": b"\0"}),
    ("deeply nested", {"student/flops.py": b"x = " + b"(" * 5000 + b")" * 5000 + b"\n"}),
)  # fmt: skip


# The metadata, as Ruby writes it


def _metadata(submissions: list[Handout], seed: int) -> str:
    chance = random.Random(f"metadata {seed}")
    start = datetime(2026, 10, 12, 9, tzinfo=timezone.utc)
    lines = []
    for i, submission in enumerate(submissions):
        when = start + timedelta(minutes=7 * i, microseconds=chance.randrange(10**6))
        lines += [f"{submission.id}:", "  :submitters:" if submission.students else "  :submitters: []"]
        for student in submission.students:
            lines.append(f"  - :name: {_quoted(student.name)}")
            if student.sid:
                lines.append(
                    f"    :sid: '{student.sid}'" if student.sid[0] == "0" or i % 3 else f"    :sid: {student.sid}"
                )
            lines.append(f"    :email: {student.email}")
        lines += [
            f"  :created_at: {when:%Y-%m-%d %H:%M:%S.%f}000 Z",
            f"  :score: {chance.randrange(100)}.0",
            "  :status: processed",
            "  :results:",
            "    output: |-",
            "      passed: 3",
            "    tests:",
            "    - name: 'what it printed: ",
            *(["..."] if i % 50 == 3 else []),
            "",
            "'",
            "      score: 1.0",
            "  :history: []",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return text if text.isascii() and "'" not in text else json.dumps(text, ensure_ascii=True)
