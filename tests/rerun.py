"""Start a command again with `.venv`'s Python, when it was started with one that lacks what the command needs."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from tests import environment


def in_venv(module: str, extras: Iterable[str] = ()) -> NoReturn:
    """Make `.venv` if need be, run `python -m MODULE` there with the same arguments, and exit as it does.

    Raises:
        ModuleNotFoundError: from within `.venv`, where trying again would not help: the one that is being handled.
    """
    if Path(sys.prefix).resolve() == environment.venv_python().parent.parent.resolve():
        raise
    if status := environment.main(list(extras)):
        sys.exit(status)
    try:
        sys.exit(subprocess.call([str(environment.venv_python()), "-m", module, *sys.argv[1:]]))
    except KeyboardInterrupt:
        sys.exit(130)  # the command has said what there is to say
