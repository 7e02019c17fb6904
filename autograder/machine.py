"""What grading asks of the machine, and a place on it that student code is locked into."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from autograder.terminal import STOPPING

if TYPE_CHECKING:  # importing it imports PyTorch, which not every command needs
    from autograder.sandbox.client import Sandbox

_ROOT = Path(__file__).parents[1]
_ASK_FOR_CUDA = """
import sys, torch
if torch.version.cuda is None:
    sys.exit(f"version {torch.__version__} is built without CUDA")
torch.ones(1, device="cuda")
"""


class CannotGrade(Exception):
    """This machine, or its set-up, does not allow grading."""


def check_device(device: str) -> None:
    """Raise CannotGrade, with the reason, if `device` is not here. CUDA is started in a process of its own, not in this one."""
    if device != "cuda":
        return
    done = subprocess.run([sys.executable, "-s", "-c", _ASK_FOR_CUDA], capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise CannotGrade(f"DEVICE=cuda needs a GPU, and PyTorch has none here: {reason}")


@contextmanager
def open_sandbox(isolation: str) -> Iterator["Sandbox"]:
    """Yield a sandbox, made while this process holds nothing that a student may not read."""
    warm_up()
    from autograder.sandbox.client import Sandbox, SandboxBroken

    try:
        made = Sandbox()
    except SandboxBroken as error:
        raise CannotGrade(error) from None
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        check_isolation(made, isolation)
        yield made
    finally:
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave files behind
        made.close()


def warm_up() -> None:
    """Check that this machine can grade, and make this process a good parent for children; signals are blocked afterwards.

    Raises:
        CannotGrade: if it cannot.
    """
    from autograder.sandbox import syscalls

    if not syscalls.SUPPORTED:
        raise CannotGrade("grading needs Linux on x86_64 or aarch64: the sandbox is made of its kernel's parts")
    _check_interpreter()
    # An exception in the middle of PyTorch's import is swallowed there, and leaves half of it; in its start it aborts the process; and one
    # between the making of a sandbox's folder and the `try` that removes it leaves it behind. Signals wait until that is over.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    from autograder.sandbox.warm import warm

    warm()


def check_isolation(sandbox: "Sandbox", isolation: str) -> None:
    """Refuse to grade where student code could read the reference, unless `isolation` is "process"."""
    from autograder.plugin import isolation_level

    if isolation == "full" and isolation_level(sandbox) != "full":
        raise CannotGrade(
            "here student code could read the reference: this kernel lacks Landlock or seccomp. "
            "Grade on another machine, or say ISOLATION=process if that does not matter to you"
        )


def _check_interpreter() -> None:
    """Refuse a Python that the children's users cannot read, as those of pyenv and uv under /root are."""
    if os.geteuid() != 0:
        return
    for prefix in {sys.prefix, sys.base_prefix}:
        path = Path(prefix).resolve()
        shut = [folder for folder in (path, *path.parents) if not folder.stat().st_mode & 0o001]
        if shut:
            remedy = "remove .venv and run make with PYTHON=/usr/bin/python3"
            if _ROOT.is_relative_to(shut[-1]):
                remedy = "move this repository to a folder that everybody can enter"
            raise CannotGrade(
                f"{path} cannot be read by the users that student code runs as, since {shut[-1]} is closed to them: {remedy}"
            )
