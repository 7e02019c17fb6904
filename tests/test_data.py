"""Part 9: batches from a file of tokens."""

from pathlib import Path

import numpy as np
import pytest
import torch

from student import data
from tests.checks import check_close, check_equal, check_raises

SHIFT = "the target of each token is the token after it"


def _written(path: Path, tokens: list[int], dtype: str) -> np.memmap:
    np.array(tokens, dtype=dtype).tofile(path)
    return np.memmap(path, dtype, "c")


@pytest.mark.problem("data.open_tokens")
@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_open_tokens_maps_the_file(tmp_path, dtype):
    """The answer is an np.memmap of the file's tokens."""
    path = tmp_path / "tokens.bin"
    np.array([3, 1, 4, 1, 5], dtype=dtype).tofile(path)
    tokens = data.open_tokens(path, dtype)
    check_equal(type(tokens).__name__, "memmap", hint="np.fromfile and np.load read the whole file; np.memmap does not")
    check_equal(tokens.dtype.name, dtype)
    check_equal(tokens.tolist(), [3, 1, 4, 1, 5])


@pytest.mark.problem("data.open_tokens")
def test_open_tokens_protects_the_file(tmp_path):
    """The array can't be written to."""
    path = tmp_path / "tokens.bin"
    np.array([3, 1, 4], dtype="uint16").tofile(path)
    tokens = data.open_tokens(str(path), np.uint16)
    check_equal(tokens.flags.writeable, False, hint="look at the mode argument: its default lets you change the file")


@pytest.mark.problem("data.open_tokens")
def test_open_tokens_refuses_a_file_that_cannot_be_right(tmp_path):
    """No file, no tokens, or half a token at the end."""
    check_raises(FileNotFoundError, lambda: data.open_tokens(tmp_path / "nowhere.bin", "uint16"))
    for content in (b"", b"abc"):
        (tmp_path / "tokens.bin").write_bytes(content)
        check_raises(ValueError, lambda: data.open_tokens(tmp_path / "tokens.bin", "uint16"))


@pytest.mark.problem("data.get_batch")
@pytest.mark.parametrize("dtype", ["uint16", "int32", "uint32"])
def test_get_batch_returns_windows_and_what_follows_each_token(tmp_path, dtype):
    """With one place to start, every row is the whole file: inputs without the last token, targets without the first."""
    tokens = _written(tmp_path / "tokens.bin", [7, 60000, 9, 10], dtype)
    inputs, targets = data.get_batch(tokens, 2, 3, "cpu")
    hint = "a window of sequence_length tokens, as int64 whatever the dtype of the file"
    check_close(inputs, torch.tensor([[7, 60000, 9]] * 2), hint=hint)
    check_close(targets, torch.tensor([[60000, 9, 10]] * 2), hint=SHIFT)


@pytest.mark.problem("data.get_batch")
def test_get_batch_starts_everywhere(tmp_path):
    """Each of the six places where a row of four tokens and its last target fit is drawn about equally often."""
    tokens = _written(tmp_path / "tokens.bin", list(range(100, 110)), "uint16")
    inputs, targets = data.get_batch(tokens, 6000, 4, "cpu", torch.Generator().manual_seed(0))
    check_equal(tuple(inputs.shape), (6000, 4))
    check_close(targets, inputs + 1, hint=SHIFT)
    counts = torch.bincount(inputs[:, 0] - 100).tolist()
    check_equal(len(counts), 6, hint="the starts go from 0 to len(tokens) - sequence_length - 1, both included")
    # A right answer's counts have a standard deviation of 29.
    assert all(800 < count < 1200 for count in counts), f"6000 starts at 6 places, about 1000 each; got {counts}"


@pytest.mark.problem("data.get_batch")
def test_get_batch_draws_with_replacement(tmp_path):
    """A batch may hold one window twice, even if there are as many places to start as rows."""
    tokens = _written(tmp_path / "tokens.bin", [0, 1, 2, 3], "uint16")
    generator = torch.Generator().manual_seed(0)
    starts = [data.get_batch(tokens, 2, 2, "cpu", generator)[0][:, 0].tolist() for _ in range(40)]
    assert any(a == b for a, b in starts), "each row draws its start independently of the other rows"


@pytest.mark.problem("data.get_batch")
def test_get_batch_draws_from_the_generator_that_it_is_given(tmp_path):
    """The same generator state gives the same batch, and PyTorch's global generator is left alone."""
    tokens = _written(tmp_path / "tokens.bin", list(range(1000)), "uint16")
    before = torch.get_rng_state()
    first, again = (data.get_batch(tokens, 8, 4, "cpu", torch.Generator().manual_seed(3))[0] for _ in range(2))
    check_close(again, first, hint="pass the generator on to what draws the starts")
    check_close(torch.get_rng_state(), before, hint="nothing is drawn from the global generator when another is given")
    torch.manual_seed(5)
    first = data.get_batch(tokens, 8, 4, "cpu")[0]
    torch.manual_seed(5)
    check_close(data.get_batch(tokens, 8, 4, "cpu")[0], first, hint="without a generator, torch.manual_seed decides")


@pytest.mark.problem("data.get_batch")
def test_get_batch_refuses_a_file_that_is_too_short(tmp_path):
    """A row of four tokens and the last one's target take five tokens."""
    tokens = _written(tmp_path / "tokens.bin", [1, 2, 3, 4], "uint16")
    check_raises(ValueError, lambda: data.get_batch(tokens, 2, 4, "cpu"), names=4)
    check_raises(ValueError, lambda: data.get_batch(tokens, -2, 3, "cpu"), names=-2)
