"""What probes may call on either side. Holds no test and no answer: it is loaded in the student's process too."""

import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from autograder.sandbox import accelerator
from autograder.sandbox.package import Package
from tests.allowed import check_part


def refusal(
    call: Callable[[], Any], *, names: object = None, kinds: tuple[type[BaseException], ...] = (ValueError,)
) -> tuple[str] | tuple[str, str, bool]:
    """Run `call`, which should refuse its input, and say how it did.

    Args:
        call: does what must be refused.
        names: the value that the error's text must contain; None if no value needs to be named.
        kinds: the exceptions that will do.

    Returns:
        ("accepted",) if nothing was raised, else ("refused", the error's kind, whether its text contains `names`); the kind
        is "an error" where several will do. Wording is never compared.

    Raises:
        NotImplementedError: a stub has not refused anything, although this is a RuntimeError.
    """
    try:
        call()
    except NotImplementedError:
        raise
    except kinds as error:
        kind = kinds[0].__name__ if len(kinds) == 1 else "an error"
        return "refused", kind, names is None or str(names) in str(error)
    except Exception as error:
        return "refused", type(error).__name__, names is None or str(names) in str(error)
    return ("accepted",)


def nothing(lib: object) -> None:
    """Return None: the probe that shows that a child is there."""


def inspecting(parts: Sequence[str], sources: Mapping[str, bytes]) -> "partial[list[tuple[str, str]]]":
    """Return the probe that holds a submission's source against the allow-lists, without running any of it.

    It answers with a pair for each violation: the problem, or the part, that it costs, and a line for the student.
    """
    return partial(_inspect, parts, sources)


def _inspect(parts: Sequence[str], sources: Mapping[str, bytes], lib: object) -> list[tuple[str, str]]:
    return [(violation.problem or part, str(violation)) for part in parts for violation in check_part(part, sources)]


def imitating(part: str, source: str, request: bytes, device: str) -> "partial[Any]":
    """Return the probe that puts a pickled probe to a module of ours, given as source, in the place of the student's."""
    return partial(_imitate, part, source, request, device)


def _imitate(part: str, source: str, request: bytes, device: str, lib: object) -> Any:
    accelerator.enter(device)
    module = ModuleType(f"imitation.{part}")
    sys.modules[module.__name__] = module  # where dataclasses look for the names in annotations
    exec(compile(source, f"{part}.py", "exec", dont_inherit=True), module.__dict__)
    package = Package("imitation")
    setattr(package, part, module)
    return pickle.loads(request)(package)


def stating(part: str, statements: Sequence[str]) -> "partial[None]":
    """Return the probe that runs statements among the names of a student's module."""
    return partial(_state, part, statements)


def _state(part: str, statements: Sequence[str], lib: Any) -> None:
    names = dict(vars(getattr(lib, part)))
    for statement in statements:
        exec(compile(statement, "<example>", "exec", dont_inherit=True), names)
