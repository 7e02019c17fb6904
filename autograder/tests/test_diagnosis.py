"""What a wrong answer is explained by. That each misconception is named, and no other in its place, is `make verify`'s to check."""

import pytest

from autograder.compare import Tolerance
from autograder.diagnosis import Question, _Likeness, _likeness
from autograder.misconceptions import Drifted, Edit, edited, misconceptions
from autograder.sandbox.codec import RemoteError
from autograder.tests.handed_in import reference, replaced, write

NAPKIN = {known.name: known for known in misconceptions("napkin")}


def lost(grader, folder, source):
    """Return the rows that a version of `napkin` loses, by the names of their functions."""
    grade = grader.grade(write(folder, {"napkin.py": source}))
    rows = [row for row in grade["rows"] if row["problem"].startswith("napkin.") and row["outcome"] == "failed"]
    return {row["test"].partition("::")[2]: row for row in rows}


def with_body(name, body):
    """Return the reference's `napkin` with another function of that name, which takes anything."""
    return replaced(reference("napkin"), name, f"def {name}(*args, **kwargs):\n    {body}\n")


def test_a_mistake_written_in_other_words_is_named_in_the_row_and_read_first(grader, tmp_path):
    body = "n, d = args or kwargs.values()\n    return n * d * 4.0 if min(n, d) >= 0 else 1 / 0"
    rows = lost(grader, tmp_path / "s", with_body("training_flops", body))
    row = rows["test_training_flops_are_those_that_pytorch_counts"]
    assert row["misconception"] == "backward_like_forward"
    assert row["output"].startswith(NAPKIN["backward_like_forward"].says + "\n")


@pytest.mark.parametrize(
    "body", ["return 17.25", "raise NotImplementedError", "raise KeyError", "return [1]", "import os; os._exit(3)"]
)
def test_what_no_misconception_answers_gets_no_name(grader, tmp_path, body):
    rows = lost(grader, tmp_path / "s", with_body("training_days", body))
    assert rows and not any(row["misconception"] for row in rows.values())


def test_a_misconception_that_loses_a_row_which_the_student_has_passed_is_not_theirs(grader, tmp_path):
    # Right until it is asked for no states at all, which only the second row does. From then on it answers as "one_state".
    right = "num_states * state_dtype.itemsize"
    assert reference("napkin").count(right) == 1
    source = reference("napkin").replace(right, "states(num_states) * state_dtype.itemsize") + (
        "\nasked = []\n\ndef states(number):\n    asked.append(number)\n    return 1 if 0 in asked else number\n"
    )
    rows = lost(grader, tmp_path / "s", source)
    assert {name: row["misconception"] for name, row in rows.items()} == {
        "test_bytes_per_parameter_counts_the_states_that_there_are": ""
    }


def test_the_one_that_explains_more_rows_is_named_in_all_of_them(grader, tmp_path):
    rows = lost(grader, tmp_path / "s", NAPKIN["one_state"].source())
    assert len(rows) == 2 and {row["misconception"] for row in rows.values()} == {"one_state"}


def test_a_second_mistake_behind_the_first_does_not_hide_it(grader, tmp_path):
    # Wrong where there are no square layers, as "first_input_gradient_counted" is; besides, negative counts are accepted.
    wrong = (
        "def deep_linear_flops(batch, dim, num_layers, input_requires_grad=False):\n"
        "    forward = 2 * batch * (num_layers * dim * dim + dim)\n"
        "    return StepFlops(forward, 2 * forward, 3 * forward)\n"
    )
    source = replaced(reference("flops"), "deep_linear_flops", wrong)
    grade = grader.grade(write(tmp_path / "s", {"flops.py": source}))
    rows = [row for row in grade["rows"] if row["test"].endswith("test_deep_linear_flops_of_the_whole_step")]
    assert [row["misconception"] for row in rows] == ["first_input_gradient_counted"]
    assert rows[0]["output"].endswith("An int differs (no square layers).")


def test_an_exception_of_the_same_type_with_other_words_is_another_mistake(grader, tmp_path):
    # "adagrad_none_crash" ends in a TypeError in one of these rows, too.
    right = "                g = p.grad\n                state = self.state[p]\n                if not state:\n"
    source = reference("optimizers").replace(right, right.replace("p.grad", "p.grad @ None"), 1)
    assert source != reference("optimizers")
    grade = grader.grade(write(tmp_path / "s", {"optimizers.py": source}))
    rows = {row["test"]: row for row in grade["rows"] if row["problem"] == "optimizers.AdaGrad"}
    assert "TypeError" in rows["test_optimizers.py::test_adagrad_is_a_proper_optimizer"]["output"]
    assert not any(row["misconception"] for row in rows.values())


@pytest.mark.parametrize(
    ("message", "alike"),
    [
        ("mfu must be in (0, 1], got 1.5", _Likeness.EXACT),
        ("the utilisation is too large: 1.5.", _Likeness.PARTLY),
        ("num_devices must be more than 0, got 0", _Likeness.NONE),
        ("", _Likeness.NONE),
    ],
)
def test_a_refusal_in_other_words_is_told_by_what_is_refused(message, alike):
    def refused(words: str) -> RemoteError:
        return RemoteError(("builtins.ValueError", "builtins.Exception"), words, "", ())

    question = Question(b"", refused(message), Tolerance())
    assert _likeness(question, refused("mfu must be in (0, 1], got 1.5"), "") is alike


def test_an_edit_that_no_longer_applies_is_an_error():
    with pytest.raises(Drifted, match="0 times"):
        edited("napkin", [Edit("never there", "")])
    with pytest.raises(Drifted, match="times instead of once"):
        edited("napkin", [Edit("return", "")])
    with pytest.raises(Drifted, match="overlap"):
        edited("napkin", [Edit("float(6 * num_parameters", ""), Edit("6 * num_parameters * num_tokens)", "")])
