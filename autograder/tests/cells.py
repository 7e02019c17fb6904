"""Grounds on which sandboxes are attacked: things worth stealing or breaking, and sandboxes with walls taken away.

A wall is a part of `Features`. An attack that succeeds once its walls are gone shows that the walls, and not some mistake of the
attack's, stop it.

The grounds live in a process of their own, so that they can belong to another user. Run as a program, this reads attacks from its
standard input and answers with what became of them.
"""

import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

ROOT = Path(__file__).parents[2]
WALLS = ("landlock", "seccomp", "own_uid")
SECRET = "the expected value"
Attack = Callable[[SimpleNamespace, Any], Any]


class Grounds:
    """The process of the grounds, seen from the tests."""

    def __init__(self, user: int | None = None) -> None:
        """Start it, as `user` if one is given."""
        from autograder.__main__ import _ENVIRONMENT

        switch: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        self._process = subprocess.Popen(
            [sys.executable, "-s", __file__],
            env=_ENVIRONMENT,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            **switch,
        )
        self._cache: dict[Any, Any] = {}

    def attack(
        self, attack: Attack, *, without: tuple[str, ...] = (), cpu: float = 5, wall: float = 20, **limits: int
    ) -> Any:
        """Return the outcome of an attack in a sandbox `without` some walls.

        Args:
            attack: run in a child, on the facts of the grounds and the student's package.
            without: names of features to leave out.
            cpu: seconds that it may compute.
            wall: seconds that it may take.
            limits: fields of `Limits` that are other than usual, with `limits_` before the name.
        """
        import cloudpickle

        other = {name.removeprefix("limits_"): value for name, value in limits.items()}
        return self._ask((cloudpickle.dumps(attack), without, cpu, wall, other))

    @property
    def facts(self) -> SimpleNamespace:
        """Where things are, as the attacks get it."""
        facts: SimpleNamespace = self._ask(None)
        return facts

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _ask(self, question: object) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        pickle.dump(question, self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)


class _Ground:
    """The same, seen from inside."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="accounting-attacked-"))
        self.folder.chmod(0o755)
        facts = self.facts = SimpleNamespace(folder=str(self.folder), secret=SECRET, grader=os.getpid())
        for name, mode in (("private", 0o600), ("reference", 0o644), ("results", 0o666)):
            file = self.folder / f"{name}.py"
            file.write_text(SECRET, encoding="utf-8")
            file.chmod(mode)
            setattr(facts, name, str(file))
        writable = self.folder / "writable"
        writable.mkdir()
        writable.chmod(0o777)
        facts.writable = str(writable)
        self._sockets: list[socket.socket] = []
        for name, kind in (("stream", socket.SOCK_STREAM), ("datagram", socket.SOCK_DGRAM)):
            for family in (socket.AF_UNIX, socket.AF_INET):
                address: Any = f"{facts.folder}/{name}" if family == socket.AF_UNIX else ("127.0.0.1", 0)
                self._listen(f"{name}_{'unix' if family == socket.AF_UNIX else 'internet'}", family, kind, address)
            self._listen(f"{name}_abstract", socket.AF_UNIX, kind, f"\0accounting-{name}-{os.getpid()}")
        # Dumpable, unlike the grader, and of its user.
        self._victim = subprocess.Popen(["sleep", "1000"], env={"SECRET": SECRET}, start_new_session=True)
        facts.victim = self._victim.pid

    def _listen(self, name: str, family: int, kind: int, address: Any) -> None:
        listener = socket.socket(family, kind)
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen(64)
        if family == socket.AF_UNIX and address[0] != "\0":
            Path(address).chmod(0o777)
        setattr(self.facts, name, listener.getsockname())
        self._sockets.append(listener)

    def close(self) -> None:
        self._victim.kill()
        self._victim.wait()
        shutil.rmtree(self.folder)


def _serve(questions: BinaryIO, answers: BinaryIO) -> None:
    import cloudpickle

    from autograder.sandbox import limits
    from autograder.sandbox.client import IMPORT_DEADLINE, Deadline, Died, Reply, Sandbox
    from autograder.sandbox.warm import warm
    from autograder.sandbox.zygote import Features

    warm()
    ground = _Ground()
    usual, everything = limits.apply, Features.of_this_machine()
    sandboxes: dict[Any, Sandbox] = {}

    def sandbox(without: tuple[str, ...], other: dict[str, int]) -> Sandbox:
        key = without, tuple(other.items())
        if key not in sandboxes:
            if other:
                limits.apply = partial(usual, limits=replace(limits.LIMITS, **other))
            made = sandboxes[key] = Sandbox(replace(everything, **dict.fromkeys(without, False)), ahead=0)
            limits.apply = usual
            package = made.staging / "one"
            package.mkdir(mode=0o755)
            (package / "honest.py").write_text("def answer():\n    return 42\n", encoding="utf-8")
            made.load(package)
        return sandboxes[key]

    while True:
        try:
            question = pickle.load(questions)
        except EOFError:
            break
        if question is None:
            answer: Any = ground.facts
        else:
            attack, without, cpu, wall, other = question
            child = sandbox(without, other).child("honest")
            answer = child.reply(IMPORT_DEADLINE)
            if isinstance(answer, Reply):
                child.send(partial(cloudpickle.loads(attack), ground.facts))
                answer = child.reply(Deadline(cpu, wall))
            if not isinstance(answer, Died):
                child.close()
        pickle.dump(answer, answers)
        answers.flush()
    for made in sandboxes.values():
        made.close()
    ground.close()


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    _answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _serve(sys.stdin.buffer, _answers)
