"""settings.toml: a mistake in it is named, and never taken for something else."""

import pytest

from autograder.settings import BadSettings, load_settings
from autograder.tests.handed_in import ROOT

GOOD = (ROOT / "autograder" / "settings.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seed = 2026", "sede = 2026", "sede is no setting"),
        ("seed = 2026", "", "seed is missing"),
        ("seed = 2026", 'seed = "2026"', "seed must be of type int, not '2026'"),
        ("seed = 2026", "seed = true", "seed must be of type int, not True"),
        ("show_diagnosis = true", "show_diagnosis = 1", "show_diagnosis must be of type bool"),
        ("total_seconds = 480", "total_seconds = 0", "total_seconds must be from 1 to"),
        ("total_seconds = 480", "total_seconds = 10000", "total_seconds must be from 1 to"),
        ("total_seconds = 480", "total_seconds = nan", "total_seconds must be from 1 to"),
        ('row_visibility = "visible"', 'row_visibility = "shown"', "row_visibility must be one of visible, "),
        ("most_submissions = 0", "most_submissions = -1", "most_submissions must not be negative"),
        ("window_hours = 24", "window_hours = 0", "window_hours must be more than 0"),
        (
            "leaderboard_cpu_seconds = 0",
            "leaderboard_cpu_seconds = 600",
            "leaderboard_cpu_seconds must be from 0 to 18",
        ),
        ("seed = 2026", "seed = ", "Invalid value"),
    ],
)
def test_a_mistake_is_named(tmp_path, old, new, words):
    path = tmp_path / "settings.toml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(BadSettings, match="^settings.toml: ") as error:
        load_settings(path)
    assert words in str(error.value)


def test_settings_that_are_missing_are_named(tmp_path):
    with pytest.raises(BadSettings, match="No such file"):
        load_settings(tmp_path / "settings.toml")


def test_by_default_nothing_is_hidden_and_nothing_limited():
    settings = load_settings()
    assert (settings.row_visibility, settings.show_diagnosis) == ("visible", True)
    assert (settings.most_submissions, settings.leaderboard_cpu_seconds) == (0, 0)
    assert settings.total_seconds <= 540  # the platform ends a run after 10 minutes
