"""What staff may change without reading code: `settings.toml` beside this file."""

import sys
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # Gradescope's Ubuntu 22.04
    import tomli as tomllib


@dataclass(frozen=True)
class Settings:
    """The file's content."""

    seed: int  # hidden inputs derive from it
    total_seconds: float  # for one submission


SETTINGS = Settings(**tomllib.loads(Path(__file__).with_name("settings.toml").read_text(encoding="utf-8")))
