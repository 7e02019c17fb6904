"""`make release`: pack what students get into `dist/student.zip`.

The list below names what goes in, so that nothing private can get in by being new. Stubs are generated on the spot: an
instructor who is solving a problem in `student/` gives nothing away.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from autograder import stubs
from autograder.terminal import BAD_INPUT, Parser
from handout.contract import commands
from handout.problems import load_assignment
from tests.submission import pack, write_atomically

ROOT = stubs.ROOT
FOLDER = "resource-accounting"  # what the zip unpacks to

# Patterns relative to the repository. Each must match something, unless it is in MAY_BE_MISSING.
PUBLIC = (
    "LICENSE",
    "Makefile",
    "constraints.txt",
    "pyproject.toml",
    "handout/__init__.py",
    "handout/problems.py",
    "handout/problems.toml",
    "tests/**/*.py",
)
POLICIES = "handout/text/policies.typ"
LANGUAGES = {"en": "in English", "zh": "中文版"}
STUDENT_README = "handout/student-readme.md"  # goes in as README.md


def release_files(root: Path = ROOT, languages: Sequence[str] = ()) -> dict[str, bytes]:
    """Return what students get, by its name in the zip.

    Args:
        root: the repository.
        languages: those of the handout that go in, built before by `make handout`.

    Raises:
        FileNotFoundError: if something that belongs in the release is not there.
    """
    files = {"README.md": student_readme((root / STUDENT_README).read_text(encoding="utf-8"), languages).encode()}
    for pattern in PUBLIC:
        paths = list(_matches(root, pattern))
        if not paths:
            raise FileNotFoundError(f"the release needs {pattern}, and nothing matches it in {root}")
        files |= {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
    for name in (f"handout-{language}.{kind}" for language in languages for kind in ("pdf", "html")):
        files[f"handout/{name}"] = (root / "handout" / "build" / name).read_bytes()
    files |= {f"student/{name}": text.encode() for name, text in stubs.generate_all(root / "reference").items()}
    return {f"{FOLDER}/{name}": data for name, data in files.items()}


def student_readme(template: str, languages: Sequence[str]) -> str:
    """Return the students' README, with the parts, their points, the commands and links to the handout where its marks stand."""
    rows = ["| part | file | points |", "|---|---|---|"]
    for part in load_assignment().graded_parts:
        points = sum(problem.points for problem in part.problems if not problem.bonus)
        rows.append(f"| {part.number}. {part.title} | `student/{part.id}.py` | {points:g} |")
    typed = ["| with make | without make | what it does |", "|---|---|---|"]
    typed += [f"| `{c['make']}` | `{c['python']}` | {c['says']} |" for c in commands()]
    links = [
        f"[{LANGUAGES[name]}](handout/handout-{name}.pdf) ([web page](handout/handout-{name}.html))"
        for name in languages
    ]
    handout = f"The handout teaches what you need: {', '.join(links)}.\n\n" if links else ""
    marks = {"<!-- handout -->\n": handout, "<!-- parts -->": "\n".join(rows), "<!-- commands -->": "\n".join(typed)}
    for mark, text in marks.items():
        template = template.replace(mark, text)
    return template


def unfilled_policies(source: str) -> int:
    """Return how many of the course's rules are still what the staff are asked to write.

    >>> unfilled_policies("- #bi[*Late work:* _course staff: say what a day costs._][...]")
    1
    """
    return len(re.findall(r"_course staff: say ", source))


def _matches(root: Path, pattern: str) -> Iterator[Path]:
    """Yield the files of a pattern, but not those that are hidden."""
    for path in root.glob(pattern):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts):
            yield path


def main(arguments: list[str] | None = None) -> int:
    """Write the zip and say what is in it; return 2 if something is missing."""
    parser = Parser(prog="python -m autograder.release", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "student.zip", help="the zip to write")
    parser.add_argument("--languages", nargs="*", choices=LANGUAGES, default=["en"], help="of the handout that goes in")
    options = parser.parse_args(arguments)
    try:
        files = release_files(languages=options.languages)
        data = pack(files)
        write_atomically(options.output, data)
    except OSError as error:
        print(f"no release was made: {error}", file=sys.stderr)
        return BAD_INPUT
    if options.languages and (unfilled := unfilled_policies((ROOT / POLICIES).read_text(encoding="utf-8"))):
        print(
            f"warning: students will read {unfilled} times 'course staff: say ...': fill in {POLICIES}, then make handout",
            file=sys.stderr,
        )
    print("\n".join(f"  {name}" for name in sorted(files)))
    print(f"{options.output}: {len(files)} files, {len(data) / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
