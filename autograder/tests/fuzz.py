"""`make fuzz`: bytes that no child should send, steered by which lines of the decoder and of the grader's end of the pipe they reach.

`-max_total_time=60` and libFuzzer's other options may follow. What is found is written to the current folder as crash-*, and is a test
to be: add it to test_codec.py or test_pipes.py.
"""

import importlib
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
_MOST_SECONDS = 1.0
_OPTIONS = ("-timeout=10", "-malloc_limit_mb=64", "-rss_limit_mb=3000", "-max_len=65536", "-max_total_time=600")


def _prepare() -> None:
    """Import what the decoder stands on first: only our own code is to be steered by."""
    for name in ("cloudpickle", "msgspec", "numpy"):
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)


def _seeds(folder: Path) -> None:
    """Write honest frames for the fuzzer to begin with, as `one_input` reads them."""
    import numpy as np
    import torch

    from autograder.sandbox import codec

    x = torch.arange(24.0).view(4, 6)
    values = ([x, x.t()[1:]], (1, "a", {"k": None, 2: b"x"}), [np.arange(4), torch.bool, 2**70, torch.ones(0, 3) > 0])
    frames = [b"".join(codec.encode(value, 0)) for value in values]
    frames.append(b"".join(codec.encode_error(ValueError("x"), 0)))
    for i, frame in enumerate(frames):
        (folder / f"frame{i}").write_bytes(b"\0" + frame[codec.HEAD.size :])
        (folder / f"pipe{i}").write_bytes(bytes([1, 3, 20, 5]) + frame)


def one_input(data: bytes) -> None:
    """Decode a frame's body, or send bytes through a pipe in pieces: an answer or a refusal, in time; anything else is a find."""
    from autograder.sandbox import codec
    from autograder.tests.pipes import exchange

    if not data:
        return
    began = time.process_time()
    if data[0] % 4:
        cuts = data[1:4]
        exchange(data[4:], [cut + 1 for cut in cuts])
    else:
        body = data[1:]
        for split in {len(body), len(body) - len(body) % codec.ALIGNMENT, body[0] if body else 0}:
            with suppress(codec.BadFrame):
                codec.plain(codec.decode(body[:split], bytearray(body[split:])))
    assert time.process_time() - began < _MOST_SECONDS


def main() -> int:
    """Fuzz until the time is up."""
    try:
        import atheris
    except ImportError:
        print("fuzz: atheris is not installed: it has no release for this Python or system", file=sys.stderr)
        return 2
    _prepare()
    with atheris.instrument_imports(include=["autograder.sandbox.codec", "autograder.sandbox.client"]):
        importlib.import_module("autograder.sandbox.client")
    with tempfile.TemporaryDirectory(prefix="accounting-fuzz-") as folder:
        _seeds(Path(folder))
        atheris.Setup([sys.argv[0], *_OPTIONS, *sys.argv[1:], folder], one_input)
        os.environ["ASAN_OPTIONS"] = "detect_leaks=0"
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
