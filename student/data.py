"""Part 9: batches from a file of tokens.

The training data is one long row of token numbers in a file, far larger than memory. A memory map makes the file look
like an array: nothing is read before it is indexed, and then only the pages that the index touches.
"""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int64
from torch import Tensor


def open_tokens(path: str | os.PathLike[str], dtype: npt.DTypeLike) -> np.memmap:
    """Open a file of tokens as a read-only array, without reading it.

    The file holds the tokens one after the other, `dtype` each, and nothing else: no header.

    Args:
        path: the file.
        dtype: a NumPy dtype or its name; "uint16" is enough for vocabularies of up to 65,536 tokens.

    Returns:
        A one-dimensional `np.memmap` that refuses to be written to.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is empty, or its size is not a whole number of tokens. (NumPy's own error will do.)

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        ...     path = Path(folder) / "tokens.bin"
        ...     np.array([3, 1, 4, 1, 5], dtype=np.uint16).tofile(path)
        ...     tokens = open_tokens(path, "uint16")
        ...     len(tokens), int(tokens[2]), tokens.dtype, type(tokens).__name__
        (5, 4, dtype('uint16'), 'memmap')

    Source:
        NumPy's documentation of `numpy.memmap`.
    """
    raise NotImplementedError("data.open_tokens")


def get_batch(
    tokens: np.memmap,
    batch_size: int,
    sequence_length: int,
    device: str | torch.device,
    generator: torch.Generator | None = None,
) -> tuple[Int64[Tensor, "batch sequence"], Int64[Tensor, "batch sequence"]]:
    """Draw windows of tokens, and for each token the one that follows it.

    Each row begins at a place of its own, s, and holds

        inputs  = tokens[s],     …, tokens[s + sequence_length - 1]
        targets = tokens[s + 1], …, tokens[s + sequence_length]

    The starts are drawn independently and with replacement, and every s for which both windows lie inside the file is
    equally likely, the first and the last one included. Only the tokens of the batch are read from the file.

    Args:
        tokens: a one-dimensional array of tokens of any integer dtype, in this machine's byte order.
        batch_size: number of rows, 1 or more.
        sequence_length: number of tokens in a row, 1 or more.
        device: where the batch shall be. To a CUDA device it goes from pinned memory and without blocking.
        generator: the CPU generator that decides the starts; the global ones stay as they are. None: PyTorch's global one.

    Returns:
        `(inputs, targets)`, each int64 whatever the dtype of the tokens, of shape (batch_size, sequence_length).

    Raises:
        ValueError: there are fewer than `sequence_length + 1` tokens (the message names `sequence_length`), or
            `batch_size` or `sequence_length` is less than 1 (it names the value).

    Example:
        With four tokens and rows of three there is one place to start:

        >>> inputs, targets = get_batch(np.array([7, 8, 9, 10], dtype=np.uint16), 2, 3, "cpu")
        >>> inputs
        tensor([[7, 8, 9],
                [7, 8, 9]])
        >>> targets
        tensor([[ 8,  9, 10],
                [ 8,  9, 10]])

    Source:
        Bengio, Ducharme, Vincent and Jauvin, "A Neural Probabilistic Language Model" (2003): predict the next word.
    """
    raise NotImplementedError("data.get_batch")
