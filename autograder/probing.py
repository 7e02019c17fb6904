"""What probes may call on either side. Holds no test and no answer: it is loaded in the student's process too."""

import inspect
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import takewhile
from types import ModuleType
from typing import Any
from unittest import mock

from autograder.sandbox import accelerator, codec
from autograder.sandbox.package import Package
from tests.allowed import check_part
from tests.checks import says_which

# By the problem's id and the function's name: a right function for each of the same part that the problem's solution may call.
ReliesOn = Mapping[str, Mapping[str, Callable[..., Any]]]


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
        is "an error such as" the first where several will do. Wording is never compared.

    Raises:
        NotImplementedError: a stub has not refused anything, although this is a RuntimeError.
    """
    try:
        call()
    except NotImplementedError:
        raise
    except kinds as error:
        kind = kinds[0].__name__ if len(kinds) == 1 else f"an error such as {kinds[0].__name__}"
        return "refused", kind, names is None or says_which(str(error), names)
    except Exception as error:
        return "refused", type(error).__name__, names is None or says_which(str(error), names)
    return ("accepted",)


def relying(part: str, right: Mapping[str, Callable[..., Any]], probe: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a probe that runs while functions of the part which its problem's solution may call are right.

    So a mistake costs points in its own problem, and not where it is used. The student's answer is kept where it is right: it may say more
    than is asked.

    Args:
        part: the module.
        right: by the function's name, what answers in its place; answers are held together by `==`.
        probe: what is to run.
    """

    def relies(lib: Any) -> Any:
        module = getattr(lib, part)
        with ExitStack() as stack:
            for name, function in right.items():
                own = getattr(module, name, None)
                stand_in = _stand_in(own, function)
                for place, key in [(module, name), *(_names_of(own, module) if own else ())]:
                    stack.enter_context(mock.patch.object(place, key, stand_in, create=True))
            return probe(lib)

    return relies if right else probe


def _names_of(own: object, module: ModuleType) -> list[tuple[ModuleType, str]]:
    """Return where else a student's function can be called from: under other names, and in the files that they put beside."""
    package = module.__name__.partition(".")[0]
    # A package is there before its modules. Who looks at the thousands that were there before it copies each one's page.
    newest = takewhile(lambda name: name != package, reversed(sys.modules))
    files = [sys.modules[name] for name in newest if name.startswith(f"{package}.")]
    return [
        (file, key)
        for file in files
        if isinstance(file, ModuleType)
        for key, value in vars(file).items()
        if value is own
    ]


def _stand_in(own: Any, right: Callable[..., Any]) -> Callable[..., Any]:
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        try:
            inspect.signature(right).bind(*args, **kwargs)
        except TypeError:  # it has parameters that nobody asked for
            return own(*args, **kwargs)
        expected = right(*args, **kwargs)
        try:
            answer = own(*args, **kwargs)
            if answer == expected and (type(answer) is type(expected) or not isinstance(expected, (int, float))):
                return answer
        except Exception:  # of theirs: a mistake like any other
            pass
        return expected

    return stand_in


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
    sys.modules["imitation"] = ModuleType("imitation")
    sys.modules[module.__name__] = module  # where dataclasses look for the names in annotations
    exec(compile(source, f"{part}.py", "exec", dont_inherit=True), module.__dict__)
    package = Package("imitation")
    setattr(package, part, module)
    return pickle.loads(request)(package)


def stating(shown: Mapping[str, Sequence[str]]) -> "partial[dict[str, tuple[str, str]]]":
    """Return the probe that runs statements, by problem, among the names of a student's module.

    It answers with the type and the message of each exception: by part where its import raised, by problem else.
    """
    return partial(_state, shown)


def _state(shown: Mapping[str, Sequence[str]], lib: Any) -> dict[str, tuple[str, str]]:
    raised: dict[str, tuple[str, str]] = {}
    for problem, statements in shown.items():
        part = problem.split(".")[0]
        if part in raised:
            continue
        what = part
        try:
            names = dict(vars(getattr(lib, part)))
            what = problem
            for statement in statements:
                exec(compile(statement, "<example>", "exec", dont_inherit=True), names)
        except BaseException as error:
            told = codec.loads(b"".join(bytes(piece) for piece in codec.encode_error(error, 0)))
            raised[what] = told.type_names[0], told.message
    return raised
