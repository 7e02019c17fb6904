"""The public example of a problem, as a probe: what its docstring shows.

A message that student code raises in a hidden test can carry a hidden input, so it is not shown, unless the same call raises it on
what every student has in front of them.
"""

import doctest
import importlib
from functools import cache

from autograder.probing import stating
from autograder.sandbox.client import Probe


@cache
def example(problem: str) -> Probe:
    """Return the probe that runs the example in a problem's docstring, and answers None."""
    part, name = problem.split(".")
    described = getattr(
        importlib.import_module(f"reference.{part}"), name, None
    )  # the row of all parts has no function
    docstring = (described and described.__doc__) or ""
    shown = doctest.DocTestParser().get_examples(docstring)
    return stating(part, [statement.source for statement in shown if statement.exc_msg is None])
