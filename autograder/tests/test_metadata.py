"""What the platform says about a submission, and the rate limit that is made from it."""

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from autograder.grade import Grade, Row
from autograder.gradescope import BadMetadata, over_the_limit, read_metadata, results
from autograder.settings import load_settings
from autograder.tests.written import Checker

NOW = datetime(2026, 3, 2, 20, 0, tzinfo=timezone(timedelta(hours=-7)))
LIMIT = replace(load_settings(), most_submissions=2, window_hours=24)
ROW = Row("8.3", "optimizers.AdamW", "t.py::t", "AdamW: a sentence.", 1.5, outcome="passed", output="")
BEFORE = results(Grade((ROW,), "full", ("a note",)), 3.0)


def metadata(tmp_path, *hours_ago, errors=(), latest=BEFORE, **other):
    """Write submission_metadata.json as the platform does, and read it."""
    previous = [
        {
            "submission_time": (NOW - timedelta(hours=hours)).isoformat(),
            "score": "1.0",
            "autograder_error": i in errors,
            **({"results": latest} if i == len(hours_ago) - 1 else {}),
        }
        for i, hours in enumerate(hours_ago)
    ]
    content = {"id": 1, "created_at": NOW.isoformat(), "users": [], "previous_submissions": previous, **other}
    path = tmp_path / "submission_metadata.json"
    path.write_text(json.dumps(content))
    return read_metadata(path)


def limited(*arguments, settings=LIMIT, **options):
    answer = over_the_limit(metadata(*arguments, **options), settings)
    return answer if answer is None else Checker().check(answer)


@pytest.mark.parametrize(
    ("hours_ago", "errors", "graded"),
    [
        ((), (), True),
        ((5,), (), True),
        ((10, 5), (), False),
        ((30, 5), (), True),  # one is outside the window
        ((24.001, 23.999, 5), (), False),
        ((10, 5, 3), (0,), False),
        ((10, 5), (0,), True),  # the grader's failure counts against nobody
        ((10, 5, 3), (2,), True),  # nothing to repeat
        (
            (10, 5, -1),
            (),
            True,
        ),  # a regrade: one that came later is no earlier one, and what came before has no results
    ],
)
def test_submissions_in_the_window_are_counted(tmp_path, hours_ago, errors, graded):
    assert (limited(tmp_path, *hours_ago, errors=errors) is None) == graded


def test_without_a_limit_all_are_graded(tmp_path):
    assert limited(tmp_path, *[1] * 50, settings=load_settings()) is None


def test_the_results_of_the_submission_before_are_repeated_with_a_note(tmp_path):
    answer = limited(tmp_path, 10, 5)
    assert answer["tests"] == BEFORE["tests"]
    note, told = answer["output"].split("\n\n")
    assert (
        "was not graded: at most 2 are within 24 hours" in note and "2026-03-03 10:00 UTC" in note and told == "a note"
    )


def test_a_note_is_not_repeated_in_the_next_note(tmp_path):
    once = limited(tmp_path, 10, 5)
    twice = limited(tmp_path, 10, 5, 3, latest=once)
    assert twice["output"].count("not graded") == 1 and twice["output"].endswith("a note")


@pytest.mark.parametrize(
    "latest",
    [
        None,
        {},
        {"score": 3},
        {"tests": []},
        {"tests": [{}]},
        {"tests": None, "extra_data": {}},
        [],
        "x",
        {**BEFORE, "extra_data": 3},
    ],
)
def test_results_that_are_none_of_ours_are_not_repeated(tmp_path, latest):
    assert limited(tmp_path, 10, 5, latest=latest) is None


def test_what_the_platform_has_added_is_left_out(tmp_path):
    latest = {**BEFORE, "stdout": "x", "tests": [{**test, "id": 5} for test in BEFORE["tests"]]}
    assert limited(tmp_path, 10, 5, latest=latest)["tests"] == BEFORE["tests"]


@pytest.mark.parametrize(
    "time", ["2026-03-02T20:00:00.123456789-07:00", "2026-03-03T03:00:00Z", "2026-03-02T20:00:00.5-07:00"]
)
def test_times_are_read_as_they_may_come(tmp_path, time):
    assert abs(metadata(tmp_path, created_at=time).created_at - NOW) < timedelta(seconds=1)


@pytest.mark.parametrize(
    "content",
    ["", "null", "[]", "{}", '{"created_at": 3}', '{"created_at": "today"}', '{"created_at": "2026-03-02T20:00:00"}',
     '{"created_at": "2026-03-02T20:00:00Z", "previous_submissions": [3]}',
     '{"created_at": "2026-03-02T20:00:00Z", "previous_submissions": [{}]}'],
)  # fmt: skip
def test_other_metadata_are_refused(tmp_path, content):
    path = tmp_path / "submission_metadata.json"
    path.write_text(content)
    with pytest.raises(BadMetadata, match="cannot be used"):
        read_metadata(path)


def test_missing_metadata_are_refused(tmp_path):
    with pytest.raises(BadMetadata):
        read_metadata(tmp_path / "nowhere.json")
