"""The grader's end of a child's pipes, with bytes of our choice at the other end, cut and delayed as we like."""

import os
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autograder.sandbox.child import READY
from autograder.sandbox.client import Child, Deadline, Died, OverDisk, Reply, Tampered, TimedOut
from autograder.sandbox.codec import HEAD, RemoteError

OUTCOMES = (Reply, RemoteError, TimedOut, Died, OverDisk, Tampered)
_FOLDER = Path(tempfile.gettempdir())


class _Zygote:
    """Stands in for the sandbox: a child that has closed its pipe has ended by itself."""

    def end(self, pid: int, dying: bool = False, last: bool = False, gpu: bool = False) -> dict[str, Any]:
        return {"ended": pid, "signal": None, "exit": 0}


def exchange(frame: bytes, cuts: Sequence[int], pause: float = 0.0, wall: float = 5.0) -> Any:
    """Return what the grader makes of `frame`, sent in pieces of these lengths, over and over, and then no more.

    A frame that begins as ours do answers the request's ticket; the rest of the bytes are sent as they are.
    """
    (requests, to_child), (replies, from_child), (output, printed) = os.pipe(), os.pipe(), os.pipe()
    child = Child(_Zygote(), os.getpid(), _FOLDER, False, to_child, replies, output)
    child._next_look = float("inf")  # its folder is not what is tried here
    child.send_pickled(b"")
    ticket = child._tickets[0].to_bytes(8, "little")
    magic = HEAD.size - 16
    data = READY + (frame[:magic] + ticket + frame[magic + 8 :] if len(frame) >= HEAD.size else frame)

    def send() -> None:
        rest, turn = data, 0
        try:
            while rest:
                size = cuts[turn % len(cuts)] if cuts else len(rest)
                rest = rest[os.write(from_child, rest[:size]) :]
                turn += 1
                if pause:
                    time.sleep(pause)
        except BrokenPipeError:
            pass
        finally:
            os.close(from_child)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        outcome = child.reply(Deadline(cpu=1e9, wall=wall))
    finally:
        if not isinstance(locals().get("outcome"), Died):  # which closes its ends itself
            child.close_pipes()
        sender.join()
        for fd in (requests, printed):
            os.close(fd)
    assert isinstance(outcome, OUTCOMES)
    return outcome
