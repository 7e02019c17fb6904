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
    num_bytes, token_bytes = Path(path).stat().st_size, np.dtype(dtype).itemsize
    if num_bytes == 0 or num_bytes % token_bytes != 0:
        raise ValueError(f"{path} has {num_bytes} bytes, which is not a whole number of tokens of {token_bytes} bytes")
    return np.memmap(path, dtype=dtype, mode="r")  # the default mode, "r+", could change the file


def get_batch(
    tokens: np.memmap,
    batch_size: int,
    sequence_length: int,
    device: str | torch.device,
    generator: torch.Generator | None = None,
) -> tuple[Int64[Tensor, "batch sequence"], Int64[Tensor, "batch sequence"]]:
    if batch_size < 1 or sequence_length < 1:
        raise ValueError(f"batch_size and sequence_length must be 1 or more, not {batch_size} and {sequence_length}")
    num_starts = len(tokens) - sequence_length  # a row and its last target take sequence_length + 1 tokens
    if num_starts < 1:
        raise ValueError(f"{len(tokens)} tokens are too few for a sequence_length of {sequence_length} and a target")

    rng = np.random.default_rng(int(torch.randint(2**31, (), generator=generator)))
    starts = torch.from_numpy(rng.integers(num_starts, size=batch_size))
    places = starts[:, None] + torch.arange(sequence_length)  # (batch, sequence)
    inputs, targets = (
        torch.from_numpy(tokens[(places + ahead).numpy()].astype(np.int64))  # indexes first: it reads the batch only
        for ahead in (0, 1)
    )
    if torch.device(device).type == "cuda":
        inputs, targets = inputs.pin_memory(), targets.pin_memory()  # else the copy could not run beside the GPU's work
    return inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
