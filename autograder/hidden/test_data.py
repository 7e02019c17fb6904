"""Part 9, hidden: what is drawn is judged by properties, each with a chance below 1e-7 of refusing a right answer."""

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gradescope_utils.autograder_utils.decorators import number, weight
from torch.utils._python_dispatch import TorchDispatchMode

from autograder.probing import refusal

BATCH = (torch.zeros(0, 0, dtype=torch.int64), torch.zeros(0, 0, dtype=torch.int64))
BIG_FILE = 60 << 20  # below the size of file that a child may make, and sparse: it takes no room on the disk
SPARE_MEMORY = 32 << 20  # half of the big file, and far more than a batch takes
# Maps of the big file: its pages count in each that has read them. Who reads it all grows by 240 MiB; libraries' pages are 16 MiB.
MAPS = 4


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp())
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def written(path: Path, tokens: list[int], dtype: str) -> np.memmap:
    np.array(tokens, dtype=dtype).tofile(path)
    return np.memmap(path, dtype=dtype, mode="r")


def make_sparse(path: Path) -> None:
    """Make the big file: zeros, but for the last token."""
    with path.open("wb") as file:
        file.truncate(BIG_FILE - 2)
        file.seek(BIG_FILE - 2)
        file.write(np.array([77], dtype="uint16").tobytes())


@contextmanager
def little_memory() -> Iterator[None]:
    """Leave this process about SPARE_MEMORY of memory to allocate, so that whoever loads the big file can't.

    The kernel counts what is mapped private and writable, which a read-only map of a file is not.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (memory_in_use(soft) + SPARE_MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def peak() -> int:
    """The most bytes of memory that this process has held at once, the pages of files that it has read among them."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def memory_in_use(limit: int) -> int:
    """How many bytes count against RLIMIT_DATA already."""
    import mmap

    try:
        return int(Path("/proc/self/statm").read_text().split()[5]) * mmap.PAGESIZE
    except OSError:
        pass
    # A locked child may not read that. What is left below its limit is found by asking for it, without using it.
    left, too_much = 0, 8 << 30
    while too_much - left > 1 << 18:
        middle = (left + too_much) // 2
        try:
            mmap.mmap(-1, middle, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
        except OSError:
            too_much = middle
        else:
            left = middle
    return limit - left


def chi_squared(counts: torch.Tensor) -> float:
    """How far counts are from being equal: Σ (count - mean)² / mean."""
    mean = counts.double().mean()
    return ((counts - mean) ** 2 / mean).sum().item()


@number("9.1")
@weight(0.5)
@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int64", "refusals"])
def test_open_tokens_maps_the_file(compare, seed, dtype):
    """open_tokens: a read-only np.memmap of the tokens, or the error that says why there is none."""

    def probe(lib):
        open_tokens = lib.data.open_tokens
        with folder() as here:
            path = here / "tokens.bin"
            if dtype == "refusals":
                answers = {
                    "there is no file": [refusal(lambda: open_tokens(path, "uint16"), kinds=(FileNotFoundError,))]
                }
                for about, *files in (
                    ("an empty file", (b"", "uint16")),
                    ("a file with a part of a token at its end", (b"odd", "uint16"), (b"123456", "uint32")),
                ):
                    answers[about] = []
                    for content, kind in files:
                        path.write_bytes(content)
                        # NumPy's own ValueError does not name the file, and will do.
                        answers[about].append(refusal(partial(open_tokens, path, kind)))
                return answers
            drawn = random.Random(seed)
            tokens = [drawn.randrange(np.iinfo(dtype).max + 1) for _ in range(501)]  # no multiple of 8 bytes
            np.array(tokens, dtype=dtype).tofile(path)
            read: list[Any] = []
            swapped = np.dtype(dtype).newbyteorder()  # a file from a machine of the other kind
            for name, kind in (
                (path, dtype),
                (str(path), np.dtype(dtype)),
                (path, getattr(np, dtype)),
                (path, swapped),
            ):
                opened = open_tokens(name, kind)
                about = type(opened).__name__, opened.dtype.name, opened.shape, bool(opened.flags.writeable)
                read.append((*about, opened.tolist()))
            return read

    compare("data.open_tokens", probe)


@number("9.1")
@weight(0.5)
def test_open_tokens_never_loads_the_file(observe):
    """open_tokens: opens a file that is larger than the memory that is left."""

    def probe(lib):
        with folder() as here:
            make_sparse(here / "tokens.bin")
            with little_memory():
                before = peak()
                tokens, *_others = [lib.data.open_tokens(here / "tokens.bin", "uint16") for _ in range(MAPS)]
                read = peak() - before > MAPS * BIG_FILE // 2
            return len(tokens), int(tokens[0]), int(tokens[-1]), read

    *found, read = observe("data.open_tokens", probe, like=(0, 0, 0, False))
    assert found == [BIG_FILE // 2, 0, 77], "The array should hold all tokens of the file, the last one included."
    assert not read, "Opening the file reads all of it."


@number("9.2")
@weight(1)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "uint32", "int64"])
def test_get_batch_returns_windows_and_what_follows(observe, seed, dtype):
    """get_batch: each row is a window of the file, as int64, and its targets are one token ahead."""
    drawn = random.Random(seed)
    # All different, so that a row's first token says where it starts.
    tokens = drawn.sample(range(min(np.iinfo(dtype).max, 2**62) + 1), 200)
    sizes = [(8, 5), (1, 1), (3, 150), (5, 199), (64, 2)]

    def probe(lib):
        with folder() as here:
            mapped = written(here / "tokens.bin", tokens, dtype)
            batches = [
                lib.data.get_batch(mapped, rows, length, device, torch.Generator().manual_seed(seed + rows))
                for rows, length in sizes
                for device in ("cpu", torch.device("cpu"))
            ]
            # No other device is sure to be there, but this one takes part in every copy.
            elsewhere = [t.device.type for t in lib.data.get_batch(mapped, 2, 3, "meta")]
        return batches, elsewhere

    batches, elsewhere = observe("data.get_batch", probe, like=([BATCH], ["", ""]))
    place = {token: i for i, token in enumerate(tokens)}
    for (inputs, targets), (rows, length) in zip(batches, [size for size in sizes for _ in range(2)], strict=True):
        assert inputs.shape == targets.shape == (rows, length), "Both shapes are (batch_size, sequence_length)."
        for row, ahead in zip(inputs.tolist(), targets.tolist(), strict=True):
            start = place.get(row[0], -1)
            assert row == tokens[start : start + length], "A row of the inputs is not a window of the file."
            assert ahead == tokens[start + 1 : start + length + 1], "The targets are not the inputs' next tokens."
    assert elsewhere == ["meta", "meta"], "The batch is not on the device that was asked for."


class Transfers(TorchDispatchMode):
    """Notes of each copy to another device whether it comes from pinned memory, and without blocking."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bool, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        target = (kwargs or {}).get("device")
        if func is torch.ops.aten._to_copy.default and target is not None and target.type != "cpu":
            self.seen.append((args[0].is_pinned(), bool(kwargs.get("non_blocking"))))
        return func(*args, **(kwargs or {}))


@number("9.2")
@weight(0.5)
def test_get_batch_brings_the_batch_to_an_accelerator(observe, seed, device):
    """get_batch: the same batch on an accelerator as on the CPU, drawn by the CPU's generator; to CUDA from pinned memory."""

    def probe(lib):
        def draw(tokens, place):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            return lib.data.get_batch(tokens, 8, 5, place, torch.Generator().manual_seed(seed))

        with folder() as here:
            tokens = written(here / "tokens.bin", list(range(400)), "uint16")
            expected = draw(tokens, "cpu")
            with Transfers() as transfers:
                batches = [draw(tokens, device), draw(tokens, torch.device(device))]
        places = [t.device.type for batch in batches for t in batch]
        same = [torch.equal(a, b.cpu()) for batch in batches for a, b in zip(expected, batch, strict=True)]
        return places, same, transfers.seen

    places, same, transfers = observe("data.get_batch", probe, like=([""], [True], [(True, True)]))
    assert places == [device] * 4, "The batch is not on the accelerator that was asked for."
    assert all(same), "With the same generator, another batch on an accelerator than on the CPU."
    if device == "cuda":
        assert len(transfers) >= 4 and all(pinned for pinned, _ in transfers), (
            "A batch goes to CUDA from pinned memory."
        )
        assert all(without_blocking for _, without_blocking in transfers), "A batch goes to CUDA without blocking."


@number("9.2")
@weight(0.5)
@pytest.mark.parametrize(("num_starts", "length"), [(10, 3), (7, 1), (2, 40)], ids=["ten places", "seven", "two"])
def test_get_batch_starts_everywhere(observe, seed, num_starts, length):
    """get_batch: every place where a row fits is equally likely as its start, the last one included."""

    def probe(lib):
        with folder() as here:
            tokens = written(here / "tokens.bin", list(range(num_starts + length)), "uint16")
            inputs, _ = lib.data.get_batch(tokens, 4000, length, "cpu", torch.Generator().manual_seed(seed))
        return inputs[:, 0].long()

    starts = observe("data.get_batch", probe, like=torch.zeros(0, dtype=torch.int64))
    assert len(starts) == 4000, "The batch has another number of rows than asked for."
    assert 0 <= starts.min() <= starts.max() < num_starts, "A row starts where it and its targets do not fit."
    counts = torch.bincount(starts, minlength=num_starts)
    # Each is expected 400 times or more: a place that right code could draw is missing with a chance of 1e-180.
    assert counts[-1] > 0, "The last place where a row fits is never drawn."
    assert bool((counts > 0).all()), "There are places where a row fits that are never drawn."
    # For ten places (nine degrees of freedom) a right answer is above 56 with a chance of 1e-8; less for fewer places.
    assert chi_squared(counts) < 60, "Some places are drawn more often than others."


@number("9.2")
@weight(0.5)
@pytest.mark.parametrize("case", ["one batch", "neighbouring rows", "calls"])
def test_get_batch_draws_with_replacement(observe, seed, case):
    """get_batch: each row draws its start independently of all other rows, so that a window may come twice."""

    rows, calls, num_places = {"one batch": (3, 48, 3), "neighbouring rows": (6000, 1, 7), "calls": (1, 96, 4)}[case]

    def probe(lib):
        generator = torch.Generator().manual_seed(seed)
        with folder() as here:
            tokens = written(here / "tokens.bin", list(range(num_places + 3)), "uint16")
            batches = [lib.data.get_batch(tokens, rows, 3, "cpu", generator) for _ in range(calls)]
        return [inputs[:, 0].tolist() for inputs, _ in batches]

    starts = observe("data.get_batch", probe, like=[[0]])
    if case == "one batch":
        # Three places, three rows: all different in 2 of 9 batches, all equal in 1 of 9. 48 alike: at most (2/9)^48.
        assert any(len(set(batch)) < rows for batch in starts), (
            "No window comes twice in a batch: drawn without replacement."
        )
        assert any(len(set(batch)) > 1 for batch in starts), "All rows of a batch start at one place."
    elif case == "neighbouring rows":
        places = torch.tensor(starts[0]).clamp(0, num_places - 1).view(-1, 2)
        pairs = (
            torch.bincount(places[:, 0] * num_places + places[:, 1], minlength=num_places**2)
            .view(num_places, -1)
            .double()
        )
        # Against independence, not against uniformity, which is judged above; 122 expected a pair.
        expected = (pairs.sum(0) * pairs.sum(1, keepdim=True) / pairs.sum()).clamp(min=1e-9)
        # 36 degrees of freedom: a right answer is above 105 with a chance of 1e-8.
        assert ((pairs - expected) ** 2 / expected).sum() < 115, "Where a row starts depends on the row before it."
    else:
        turns = sum(a != b for a, b in zip(starts, starts[1:], strict=False))
        assert turns > 30, "One call after the other starts at the same place."  # 71 expected, deviation 4
        assert turns < 95, "Where a batch starts depends on where the one before it started."  # by chance: 1e-12


@number("9.2")
@weight(0.5)
def test_get_batch_draws_from_its_generator_only(observe, seed):
    """get_batch: draws from the generator that it is given and from no other; without one, from PyTorch's global one."""

    def state():
        numpy_state: Any = np.random.get_state()
        return torch.get_rng_state().tolist(), list(random.getstate()[1]), [*numpy_state[1].tolist(), numpy_state[2]]

    def probe(lib):
        with folder() as here:
            tokens = written(here / "tokens.bin", list(range(1000)), "uint16")

            def starts(generator=None):
                return lib.data.get_batch(tokens, 32, 4, "cpu", generator)[0][:, 0].tolist()

            before = state()
            generator = torch.Generator().manual_seed(seed)
            own = [starts(generator), starts(generator), starts(torch.Generator().manual_seed(seed))]
            after = state()
            shared = []
            for number_of_calls in (2, 1):
                torch.manual_seed(seed)
                random.seed(number_of_calls)
                np.random.seed(number_of_calls)
                shared += [starts() for _ in range(number_of_calls)]
        return own, [a == b for a, b in zip(before, after, strict=True)], shared

    own, unchanged, shared = observe("data.get_batch", probe, like=([[0]], [True], [[0]]))
    # 32 starts among 996 agree by chance with a chance of 1e-95.
    assert own[0] == own[2], "The generator's state does not decide the batch."
    assert own[0] != own[1], "A second batch from the same generator is the first one again."
    assert unchanged == [True, True, True], "A global generator was drawn from, although another one was given."
    assert shared[0] == shared[2], "Without a generator, torch.manual_seed does not decide the batch."
    assert shared[0] != shared[1], "Without a generator, a second batch is the first one again."


@number("9.2")
@weight(0.5)
def test_get_batch_refuses_a_file_that_is_too_short(compare):
    """get_batch: a file without room for one row and its targets is refused, one with room for just that is not."""

    def probe(lib):
        def attempt(num_tokens, rows, length, names=None):
            tokens = np.arange(num_tokens, dtype=np.uint16)
            drawn: list[Any] = []
            refused = refusal(lambda: drawn.append(lib.data.get_batch(tokens, rows, length, "cpu")), names=names)
            # The inputs alone, and no dtype: the targets are judged elsewhere.
            return refused, [inputs.tolist() for inputs, _ in drawn]

        return {
            "just long enough": [attempt(38, 3, 37), attempt(2, 5, 1)],
            "just long enough for one row of one token": attempt(2, 1, 1),
            "too short": [attempt(37, 3, 37, names=37), attempt(36, 3, 37), attempt(1, 1, 1), attempt(0, 1, 5)],
            "a negative size": [
                attempt(50, -3, 37, names=-3),
                attempt(50, 3, -37, names=-37),
                attempt(50, -1, -1, names=-1),
            ],
            "a size of 0": [attempt(50, 0, 37, names=0), attempt(50, 3, 0, names=0), attempt(50, 0, 0)],
            "a size of 0 beside a negative one": [attempt(50, 0, -37), attempt(50, -3, 0)],
        }

    compare("data.get_batch", probe)


@number("9.2")
@weight(0.5)
def test_get_batch_reads_only_its_batch(observe, seed):
    """get_batch: works on a file that is larger than the memory that is left."""

    def probe(lib):
        with folder() as here:
            make_sparse(here / "tokens.bin")
            maps = [np.memmap(here / "tokens.bin", dtype="uint16", mode="r") for _ in range(MAPS)]
            generator = torch.Generator().manual_seed(seed)
            with little_memory():
                before = peak()
                batches = [lib.data.get_batch(tokens, 16, 64, "cpu", generator) for tokens in maps]
                read = peak() - before > MAPS * BIG_FILE // 2
        return [tuple(t.shape) for batch in batches for t in batch], read

    shapes, read = observe("data.get_batch", probe, like=([(0, 0)], False))
    assert shapes == [(16, 64)] * (2 * MAPS), "Both shapes are (batch_size, sequence_length)."
    assert not read, "To draw a batch, all of the file is read."
