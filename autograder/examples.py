"""The public examples: what docstrings show, run before a submission is asked anything that is hidden.

A message that student code raises in a hidden test can carry a hidden input, so it is shown only if the same code has raised the same
message on what every student has in front of them. Asked afterwards, the student's code could have told itself what to say there
(through a lock on a file, or merely by the time at which it ends), so all examples are run first, in one child.
"""

import doctest
from collections.abc import Mapping

from autograder.probing import stating
from autograder.sandbox.client import Probe


def examples(docstrings: Mapping[str, str]) -> Probe:
    """Return the probe that runs the examples in these docstrings, by problem, and answers with what raised: see `stating`."""
    return stating({problem: _statements(docstring) for problem, docstring in docstrings.items()})


def _statements(docstring: str) -> tuple[str, ...]:
    shown = doctest.DocTestParser().get_examples(docstring)
    return tuple(statement.source for statement in shown if statement.exc_msg is None)
