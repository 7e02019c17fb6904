"""A mistake costs its own problem: where others build on the function, they find a right one."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from autograder.probing import relying


def right(size: float) -> float:
    if size < 0:
        raise ValueError(f"{size} is negative")
    return 2.0 * size


def asked(own: Any, *arguments: Any, **named: Any) -> Any:
    """Return what is found in the place of `own`, as a function of the same module would call it."""
    module = ModuleType("flops")
    if own is not None:
        vars(module)["own"] = own
    before = dict(vars(module))
    probe = relying("flops", {"own": right}, lambda lib: lib.flops.own(*arguments, **named))
    try:
        return probe(SimpleNamespace(flops=module))
    finally:
        assert vars(module) == before


def fails(size: float) -> float:
    raise KeyError(size)


@pytest.mark.parametrize("own", [lambda size: size, fails, lambda: 6.0, None, lambda size: 6, lambda size: [6.0]])
def test_a_wrong_function_is_stood_in_for(own):
    answer = asked(own, 3.0)

    assert type(answer) is float and answer == 6.0


def test_a_wrong_function_is_stood_in_for_under_every_name_and_in_every_file(monkeypatch):
    def own(size: float) -> float:
        return size

    module, helper = ModuleType("student.flops"), ModuleType("student.helper")
    for place, name in ((module, "own"), (module, "_alias"), (helper, "own")):
        setattr(place, name, own)
        monkeypatch.setitem(sys.modules, place.__name__, place)
    probe = relying("flops", {"own": right}, lambda lib: (module._alias(3.0), helper.own(3.0)))

    assert probe(SimpleNamespace(flops=module)) == (6.0, 6.0)
    assert module.own is module._alias is helper.own is own


def test_what_is_right_to_refuse_is_refused():
    with pytest.raises(ValueError, match="-3 is negative"):
        asked(lambda size: 2.0 * size, -3)


def test_parameters_of_the_students_own_reach_their_function():
    assert asked(lambda size, times=1: 2.0 * size * times, 3.0, times=5) == 30.0


def test_a_right_answer_that_says_more_is_kept():
    class Limits:
        def __init__(self, value: float) -> None:
            self.value = value

        def __eq__(self, other: object) -> bool:
            return getattr(other, "value", None) == self.value

    own = SimpleNamespace(value=6.0, note="of the student's own")
    probe = relying("dtypes", {"limits": lambda: Limits(6.0)}, lambda lib: lib.dtypes.limits())

    module = ModuleType("dtypes")
    vars(module)["limits"] = lambda: own
    assert probe(SimpleNamespace(dtypes=module)) is own
