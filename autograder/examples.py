"""The public examples: what docstrings show, run before a submission is asked anything that is hidden.

A message that student code raises in a hidden test can carry a hidden input, so it is shown only if the same code has raised the same
message on what every student has in front of them. Asked afterwards, the student's code could have told itself what to say there
(through a lock on a file, or merely by the time at which it ends), so all examples are run first, in one child.
"""

import doctest
import importlib
from collections.abc import Iterable
from functools import cache

from autograder.probing import Shown, stating
from autograder.sandbox.client import Probe


def examples(problems: Iterable[str]) -> Probe:
    """Return the probe that runs these problems' examples, and answers with what raised: imports by part, examples by problem."""
    return stating({problem: _statements(problem) for problem in problems})


@cache
def _statements(problem: str) -> Shown:
    part, name = problem.split(".")
    described = getattr(
        importlib.import_module(f"reference.{part}"), name, None
    )  # the row of all parts has no function
    docstring = (described and described.__doc__) or ""
    shown = doctest.DocTestParser().get_examples(docstring)
    return tuple(statement.source for statement in shown if statement.exc_msg is None)
