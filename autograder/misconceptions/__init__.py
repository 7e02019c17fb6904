"""Misconceptions: what students get wrong, as edits of the reference, each with the sentence that its student reads.

One file a part, `<part>.toml`. In it, the likelier of two misconceptions that can look alike stands first:

    [[misconception]]
    name = "adamw_no_bias_correction"
    problem = "optimizers.AdamW"
    says = "Your updates are those of AdamW without bias correction."
    loses = ["test_adamw_follows_the_reference"]  # rows of that problem: all of them are lost
    tolerates = []  # rows of that problem that may be lost with them
    [[misconception.edit]]
    old = "a piece of reference/optimizers.py that stands there once"
    new = "what the student has written in its place"

They do three jobs: `make verify` grades each as a submission, so they test the tests; `diagnosis.py` finds the one that gives a
student's wrong answer, so they explain; and a report on a class counts them.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # Gradescope's Ubuntu 22.04
    import tomli as tomllib

_HERE = Path(__file__).parent
_REFERENCE = Path(__file__).parents[2] / "reference"


class Drifted(Exception):
    """An edit does not apply to the reference as it is."""


@dataclass(frozen=True)
class Edit:
    """One change of the reference's text."""

    old: str
    new: str


@dataclass(frozen=True)
class Misconception:
    """One known-wrong implementation, or two at once."""

    name: str  # unique in its part; "one+other" for two at once
    problem: str  # "optimizers.AdamW"
    says: str  # what the student reads
    loses: frozenset[str]  # names of hidden tests
    tolerates: frozenset[str]
    edits: tuple[Edit, ...]

    @property
    def part(self) -> str:
        """The module that it is a version of."""
        return self.problem.split(".")[0]

    def source(self) -> str:
        """Return the part's module with the misconception in it.

        Raises:
            Drifted: if the reference no longer has, exactly once, what an edit replaces.
        """
        try:
            return edited(self.part, self.edits)
        except Drifted as error:
            raise Drifted(f"{self.part}.toml, {self.name}: {error}") from None


@cache
def reference(part: str) -> str:
    """Return the source of a part's solution."""
    return (_REFERENCE / f"{part}.py").read_text(encoding="utf-8")


def edited(part: str, edits: Sequence[Edit]) -> str:
    """Return the reference of a part with each edit made.

    Raises:
        Drifted: if an edit's `old` does not stand there exactly once, or two edits touch the same text.
    """
    source = reference(part)
    done, end = "", 0
    for edit in sorted(edits, key=lambda edit: source.find(edit.old)):
        if source.count(edit.old) != 1:
            raise Drifted(
                f"reference/{part}.py has this {source.count(edit.old)} times instead of once: {edit.old!r:.200}"
            )
        place = source.index(edit.old)
        if place < end:
            raise Drifted(f"two edits of reference/{part}.py overlap at {edit.old!r:.200}")
        done += source[end:place] + edit.new
        end = place + len(edit.old)
    return done + source[end:]


@cache
def misconceptions(part: str) -> tuple[Misconception, ...]:
    """Return the misconceptions of a part, the likelier first; then those pairs of them that students have at once."""
    path = _HERE / f"{part}.toml"
    if not path.exists():
        return ()
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    singles = [_misconception(table) for table in content["misconception"]]
    named = {single.name: single for single in singles}
    if len(named) != len(singles):
        raise Drifted(f"{path.name} has two misconceptions of one name")
    return (*singles, *(_both(named[one], named[other]) for one, other in content.get("pairs", ())))


def check(part: str) -> None:
    """Check that each misconception of a part applies to the reference as it is.

    Raises:
        Drifted: with the first that does not.
    """
    for known in misconceptions(part):
        known.source()


def _misconception(table: dict[str, Any]) -> Misconception:
    return Misconception(
        table["name"],
        table["problem"],
        table["says"],
        frozenset(table["loses"]),
        frozenset(table.get("tolerates", ())),
        tuple(Edit(edit["old"], edit["new"]) for edit in table["edit"]),
    )


def _both(one: Misconception, other: Misconception) -> Misconception:
    """Return two misconceptions at once: what either loses is lost."""
    loses = one.loses | other.loses
    return Misconception(
        f"{one.name}+{other.name}",
        one.problem,
        f"Two things at once. {one.says} {other.says}",
        loses,
        (one.tolerates | other.tolerates) - loses,
        (*one.edits, *other.edits),
    )
