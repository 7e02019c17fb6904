"""What staff may change without reading code: `settings.toml` beside this file."""

import sys
import zlib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # Gradescope's Ubuntu 22.04
    import tomli as tomllib

_PATH = Path(__file__).with_name("settings.toml")
_VISIBILITIES = ("visible", "after_due_date", "after_published", "hidden")
_MOST_SECONDS = 40 * 60 - 60  # the platform's longest limit, less a minute
_MOST_LEADERBOARD_SECONDS = 18  # a child's CPU time ends at 20


class BadSettings(ValueError):
    """`settings.toml` does not say what it should."""


@dataclass(frozen=True)
class Settings:
    """The file's content; what each key means stands there."""

    seed: int
    total_seconds: float
    row_visibility: str
    show_diagnosis: bool
    most_submissions: int
    window_hours: float
    leaderboard_cpu_seconds: float

    def __post_init__(self) -> None:
        """Refuse values of the right type that make no sense."""
        for holds, sentence in (
            (1 <= self.total_seconds <= _MOST_SECONDS, f"total_seconds must be from 1 to {_MOST_SECONDS}"),
            (self.row_visibility in _VISIBILITIES, f"row_visibility must be one of {', '.join(_VISIBILITIES)}"),
            (self.most_submissions >= 0, "most_submissions must not be negative"),
            (self.window_hours > 0, "window_hours must be more than 0"),
            (
                0 <= self.leaderboard_cpu_seconds <= _MOST_LEADERBOARD_SECONDS,
                f"leaderboard_cpu_seconds must be from 0 to {_MOST_LEADERBOARD_SECONDS}",
            ),
        ):
            if not holds:
                raise BadSettings(sentence)


@cache
def load_settings(path: Path = _PATH) -> Settings:
    """Read and check the settings.

    The seed is a secret: no child may be forked from a process that has read it.

    Raises:
        BadSettings: if a key is missing, unknown, or holds something else than it should.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        types = {field.name: field.type for field in fields(Settings)}
        for key in sorted(types.keys() ^ table.keys()):
            raise BadSettings(f"{key} is {'missing' if key in types else 'no setting'}")
        for key, value in table.items():
            accepted = (int, float) if types[key] is float else (types[key],)
            if type(value) not in accepted:  # a bool is no int here
                raise BadSettings(f"{key} must be of type {getattr(types[key], '__name__', '')}, not {value!r}")
        return Settings(**table)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, BadSettings) as error:
        raise BadSettings(f"{path.name}: {error}") from None


def case_seed(case: str, seed: int) -> int:
    """Return the number that a hidden test's case draws its inputs from: the same wherever the suites are run."""
    return zlib.crc32(f"{seed} {case}".encode())
