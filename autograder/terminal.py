"""How a command meets who started it: bad arguments, an order to stop, a reader who is gone."""

import argparse
import errno
import io
import signal
import sys
from types import FrameType
from typing import Any, NoReturn, TextIO

BAD_INPUT = 2
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GONE = (errno.EPIPE, errno.EIO)  # what writing to a pipe, or to a terminal, says whose other end is closed
_stops: "list[Stopped]" = []  # the order to stop, once it came


class Stopped(BaseException):
    """SIGTERM, Ctrl-C, or a terminal that was closed: end with what is known."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_status = 128 + number


class Parser(argparse.ArgumentParser):
    """Says what is wrong with an argument in one line."""

    def error(self, message: str) -> NoReturn:
        """End with that line."""
        self.exit(BAD_INPUT, f"{self.prog}: {message}; --help says more\n")


def raise_stopped(number: int, frame: FrameType | None) -> NoReturn:
    """Take a signal for an order to stop, and raise it."""
    _stops.append(Stopped(number))
    raise _stops[0]


def heed_stops() -> None:
    """Raise orders to stop from now on; `nohup` has the closing of a terminal ignored, and so it stays."""
    for number in STOPPING:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, raise_stopped)


def end_if_stopped() -> None:
    """Raise the order to stop again, in case a library took it for an error of its own."""
    if _stops:
        raise _stops[0]


def refuse(command: str, text: object) -> int:
    """Say in one line why a command is not carried out, and return the exit status."""
    print(f"{command}: {text}", file=sys.stderr)
    return BAD_INPUT


class _Heedless(io.FileIO):
    """Takes what is written, whether or not somebody reads it."""

    def write(self, data: Any, /) -> int:
        """Write to the file while it has a reader."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return len(data)


def outlive_readers() -> None:
    """Go on when nobody reads what this process prints any more, as behind `| head` or once the terminal is closed: results are written all the same."""
    sys.stdout, sys.stderr = map(_heedless, (sys.stdout, sys.stderr))


def _heedless(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):  # it is closed
        return stream
    raw = io.BufferedWriter(_Heedless(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(
        raw,
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
