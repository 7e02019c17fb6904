"""The leaderboard: the loss of weights that come back, whatever the student's loop does with its time."""

import textwrap

import pytest

from autograder.tests.handed_in import reference, replaced, write
from autograder.tests.running import copy_of_the_tree, open_folder, run
from autograder.tests.written import read

SECONDS = 1


@pytest.fixture(scope="module")
def tree():
    with open_folder() as folder:
        tree = copy_of_the_tree(folder)
        settings = tree / "autograder" / "settings.toml"
        text = settings.read_text()
        settings.write_text(text.replace("leaderboard_cpu_seconds = 0", f"leaderboard_cpu_seconds = {SECONDS}"))
        yield tree


def loss(tree, tmp_path, body: str | None):
    """Return what the leaderboard shows for a train that is right but does this when it is asked for very many steps."""
    source = reference("training")
    if body is not None:
        first = "    if num_steps < 1:\n"
        code = textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
        assert source.count(first) == 1
        source = source.replace(first, f"    if num_steps > 10**6:\n{code}\n{first}")
    submission = write(tmp_path / "s", {"training.py": source})
    code, _, err = run("grade", submission, "--out", tmp_path / "results.json", tree=tree)
    assert code == 0, err
    entries = read(tmp_path / "results.json").get("leaderboard", [])
    return entries[0]["value"] if entries else None


def test_a_loop_that_trains_is_on_the_board_before_one_that_does_not(tree, tmp_path):
    trained = loss(tree, tmp_path / "trained", None)
    untrained = loss(tree, tmp_path / "untrained", "return None")
    assert trained is not None and untrained is not None and trained < 0.7 * untrained


@pytest.mark.thorough
def test_who_has_lost_a_row_of_it_is_not_on_the_board(tree, tmp_path):
    (tmp_path / "s").mkdir()
    source = replaced(reference("training"), "train", "def train(*args):\n    return None")
    run("grade", write(tmp_path / "s", {"training.py": source}), "--out", tmp_path / "results.json", tree=tree)
    assert "leaderboard" not in read(tmp_path / "results.json")


@pytest.mark.parametrize(
    "body",
    [
        "sum(iter(int, 1))",  # in C, where no handler of a signal runs: the kernel ends it
        pytest.param("raise ValueError", marks=pytest.mark.thorough),
        pytest.param("model[0] = torch.nn.Linear(2, 2)", marks=pytest.mark.thorough),
        "with torch.no_grad(): model[0].weight.fill_(float('nan'))",
    ],
    ids=["too long", "raises", "another shape", "not finite"],
)
def test_who_hands_no_weights_over_is_not_on_the_board(tree, tmp_path, body):
    assert loss(tree, tmp_path, body) is None
