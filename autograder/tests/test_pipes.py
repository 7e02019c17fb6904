"""A reply arrives in pieces, late, or not whole: it is taken once it is there, and nothing else is."""

import random

import pytest
import torch

from autograder.sandbox import codec
from autograder.sandbox.client import Died, Reply, Tampered, TimedOut
from autograder.sandbox.codec import RemoteError
from autograder.tests.pipes import OUTCOMES, exchange

VALUES = [[1, "a", None], list(range(5000)), {"k": (1.5, b"x")}]
FRAMES = [b"".join(codec.encode(value, 0)) for value in VALUES]


@pytest.mark.parametrize("cuts", [[], [1], [7], [16], [17, 1], [4096], [20, 1, 3]])
@pytest.mark.parametrize("value", range(len(VALUES)))
def test_where_a_frame_is_cut_makes_no_difference(value, cuts):
    assert exchange(FRAMES[value], cuts) == Reply(VALUES[value])


def test_a_frame_in_slow_pieces_is_waited_for():
    assert exchange(FRAMES[0], [1, 2], pause=0.005) == Reply(VALUES[0])


def test_tensors_and_exceptions_arrive_too():
    outcome = exchange(b"".join(codec.encode(torch.arange(1000.0), 0)), [100, 3])
    assert codec.plain(outcome.value).tolist() == list(range(1000))
    assert type(exchange(b"".join(codec.encode_error(ValueError("x"), 0)), [5])) is RemoteError


@pytest.mark.parametrize("kept", [0, 1, 15, 19, 20, 21, -1])
def test_a_frame_that_ends_early_is_an_end_without_an_answer(kept):
    assert exchange(FRAMES[0][:kept], [3]) == Died(None, 0)


def test_a_frame_that_stops_in_the_middle_runs_out_of_time():
    assert exchange(FRAMES[1], [100], pause=0.05, wall=0.3) == TimedOut(waited=True)


@pytest.mark.parametrize(
    "head",
    [
        codec.HEAD.pack(b"ACC0", 0, 1, 0),
        codec.HEAD.pack(codec.MAGIC, 0, codec.MAX_HEADER + 1, 0),
        codec.HEAD.pack(codec.MAGIC, 0, 1, codec.MAX_BLOBS + 1),
    ],
)
def test_a_head_that_no_child_writes_is_refused_before_its_body_is_there(head):
    assert exchange(head, [1]) == Tampered("head")


def test_random_bytes_in_random_pieces_are_an_answer_or_a_refusal():
    """A short run, always the same; `make fuzz` goes on from there."""
    generator = random.Random(11)
    seen = set()
    for _ in range(300):
        frame = bytearray(generator.choice([FRAMES[0], FRAMES[2]]))
        for _ in range(generator.choice((0, 1, 3))):
            frame[generator.randrange(len(frame))] = generator.randrange(256)
        if generator.random() < 0.3:
            del frame[generator.randrange(len(frame)) :]
        cuts = [generator.randrange(1, 40) for _ in range(3)]
        outcome = exchange(bytes(frame), cuts)
        assert isinstance(outcome, OUTCOMES)
        seen.add(type(outcome))
    assert {Reply, Died, Tampered} <= seen
