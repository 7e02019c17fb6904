"""How far a run is, on standard error."""

import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_EVERY = 10.0  # seconds between lines of progress where there is no terminal


class Progressing:
    """How far a run is, and how long it will take: a bar in a terminal, else a line now and then."""

    def __init__(self, total: int) -> None:
        """Prepare for `total` submissions."""
        self._console = Console(stderr=True, highlight=False)
        columns = (
            TextColumn("grading"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"),
            TimeRemainingColumn(),
        )  # fmt: skip
        # No thread that redraws: workers are forked from this process.
        self._bar = Progress(
            *columns, console=self._console, transient=True, auto_refresh=False, speed_estimate_period=300
        )
        self._task = self._bar.add_task("", total=total)
        self._total, self._done = total, 0
        self._start = self._said = time.monotonic()

    def __enter__(self) -> "Progressing":
        """Show the bar, where there is a terminal."""
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        if self._console.is_terminal:
            self._bar.stop()

    def result(self, id: str, status: str, detail: str) -> None:
        """Count a submission; say so in a line if it has no grade."""
        self._done += 1
        self._bar.update(self._task, completed=self._done)
        if status != "graded":
            self._console.print(escape(f"{id}: {status}{': ' if detail else ''}{printable(detail)}"), soft_wrap=True)

    def tick(self) -> None:
        """Show what has changed."""
        now = time.monotonic()
        if self._console.is_terminal:
            self._bar.refresh()
        elif now - self._said > _EVERY:
            self._said = now
            left = ""
            if self._done:
                left = f", about {_duration((self._total - self._done) * (now - self._start) / self._done)} left"
            self._console.print(f"{self._done} of {self._total} graded{left}")


def printable(text: str) -> str:
    """Return a text that a terminal shows and does not obey."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
