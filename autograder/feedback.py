"""What a student may read about an answer that did not come, or came as an exception.

Of a hidden test that is the exception's type and the file, line and function of *their* code: neither the message, unless a public
example raises the same, nor what was printed, since both can carry a hidden input. A class can be named after a hidden input too, and a code object's name and
file forged, so each name is shown only if it is known here or stands in the student's own source. Staff read everything.
"""

import builtins
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from autograder.grade import Cause
from autograder.sandbox import sim
from autograder.sandbox.client import Died, Outcome, OverDisk, Reply, Tampered, TimedOut
from autograder.sandbox.codec import Frame, RemoteError
from autograder.submission import Submission

_LIBRARY_ERRORS = frozenset({
    "einops.EinopsError", "jaxtyping.TypeCheckError", "numpy.exceptions.AxisError", "pickle.UnpicklingError",
    "torch.OutOfMemoryError", "bdb.BdbQuit", "torch.AcceleratorError", "json.decoder.JSONDecodeError", "struct.error",
    "numpy.linalg.LinAlgError", "torch._C._LinAlgError", "zipfile.BadZipFile",
})  # fmt: skip


_MOST_LINES = 5_000
_MOST_MESSAGE = 500  # characters


@dataclass(frozen=True)
class Feedback:
    """One fault, for its two readers."""

    student: str
    staff: str
    cause: Cause = "wrong"


@dataclass(frozen=True)
class Reader:
    """The student who handed in `submission`, whose own names may be shown."""

    submission: Submission

    # Looked for once, since the names in an answer are the student's choice: to search 16 MiB for each takes minutes.
    @cached_property
    def _classes(self) -> frozenset[bytes]:
        return self._named(rb"\bclass")

    @cached_property
    def _functions(self) -> frozenset[bytes]:
        return self._named(rb"\bdef")

    @cached_property
    def _lines(self) -> Mapping[str, Sequence[bytes]]:
        """The lines of each file as Python splits it, which ends them in the ways of Windows and of old Macs too."""
        return {name: re.split(rb"\r\n|\r|\n", content) for name, content in self.submission.files.items()}

    def _named(self, keyword: bytes) -> frozenset[bytes]:
        pattern = re.compile(keyword + rb"\s+([\w\x80-\xff]+)")
        return frozenset(name for content in self.submission.files.values() for name in pattern.findall(content))

    def import_fault(self, part: str, outcome: Outcome, printed: bytes) -> Feedback:
        """Explain why a module could not be imported: none of its tests can run."""
        file = f"{part}.py"
        if isinstance(outcome, RemoteError):
            frame = self._innermost(outcome)
            text = f"{file} could not be imported: {self._type_name(outcome)}{self._at(frame)}."
            text += self._caret(frame)
            if b"\0" in self.submission.files.get(file, b""):
                text += " The file holds NUL bytes: save it as UTF-8."
        else:
            text = f"{file} could not be imported: importing it {self._ending(outcome)}."
        return Feedback(
            f"{text}\nNo test of this part can run until it imports.", _staff(outcome, printed), cause(outcome)
        )

    def missing_file(self, part: str) -> Feedback:
        """Explain that a part's file was not handed in."""
        where = f" in {self.submission.origin}/" if self.submission.origin else ""
        names = sorted(self.submission.files)
        file = f"{part}.py"
        for name in names:
            if name == f"{part}/__init__.py":
                return Feedback(
                    f"{file} was not found{where}, but {name} was: hand in one file, {file}.", "", "missing"
                )
            if name.lower() == file:
                return Feedback(f"{file} was not found{where}, but {name} was: call it {file}.", "", "missing")
        found = ", ".join([*names[:20], "and more"] if len(names) > 20 else names) or "no Python file of the assignment"
        return Feedback(f"{file} was not found{where}. Found: {found}.", "", "missing")

    def missing_name(self, problem: str) -> Feedback:
        """Explain that a module does not define what it should."""
        part, name = problem.split(".")
        return Feedback(f"{part}.py does not define `{name}`. Keep the stub's name for it.", "", "missing")

    def not_allowed(self, violation: str) -> Feedback:
        """Explain that a problem's source uses what the allow-list leaves out."""
        return Feedback(
            f"Not allowed here: {violation}\nNo test of it was run. `make test` shows this too.", "", "not allowed"
        )

    def unparsable(self, part: str, outcome: Outcome) -> Feedback:
        """Explain that the checker of the allow-lists did not survive a file."""
        text = f"{part}.py, or a file that it imports, could not be parsed: is something nested very deeply?"
        return Feedback(f"{text} If not, tell the staff.", _staff(outcome, b""), cause(outcome))

    def fault(self, problem: str, outcome: Outcome, printed: bytes) -> Feedback:
        """Explain an answer that is none."""
        if not isinstance(outcome, RemoteError):
            return Feedback(f"`{problem}` {self._ending(outcome)}.", _staff(outcome, printed), cause(outcome))
        frame = self._innermost(outcome)
        name = self._type_name(outcome)
        of_pytorch = " " in outcome.message  # PyTorch raises NotImplementedError too, with words
        if "builtins.NotImplementedError" in outcome.type_names and not of_pytorch:
            stub = outcome.message  # as the stub has it, if it stands in their source
            own = re.fullmatch(r"[a-z]+\.\w+", stub) and self._mentions(stub)
            needs = f" needs `{stub}`, which" if own and stub != problem else ""
            text = f"Not started: `{problem}`{needs} still raises NotImplementedError{self._at(frame)}."
            return Feedback(text, "", "not started")
        elif "builtins.SystemExit" in outcome.type_names:
            text = f"`{problem}` called sys.exit(){self._at(frame)}. Return a value, or raise an error, instead."
        elif frame is not None and self._own(outcome.frames[-1]) is None and name in ("TypeError", "AttributeError"):
            # raised by the library that they called, or by the test when it used what they returned
            text = f"`{problem}` raised {name} below {self._place(frame)}."
        elif frame is None and name == "ModuleNotFoundError":
            text = f"`{problem}` needs a file that was not handed in."
        elif frame is None and name == "TypeError":
            text = (
                f"Calling `{problem}` as the handout says, or using what it returned, raised TypeError outside your code. "
                "Compare its signature and its return value with the stub's docstring."
            )
        elif frame is None:
            text = (
                f"Using what `{problem}` returned raised {name} outside your code. "
                "Compare what it returns with the stub's docstring."
            )
        else:
            text = f"`{problem}` raised {name}{self._at(frame)}."
        if "can't allocate memory" in outcome.message or name == "MemoryError":
            text += " It asked for more memory than the limit of 2 GiB."
        if name == "RecursionError":
            text += " Look for a function that calls itself without an end."
        if name == "BdbQuit":
            text += " Remove the breakpoint()."
        if outcome.message in sim.REFUSALS:  # of these words none can be a hidden input
            text += f" PyTorch says: {outcome.message.rstrip('.')}."
        return Feedback(text, _staff(outcome, printed), cause(outcome))

    def with_message(self, feedback: Feedback, outcome: Outcome, public: tuple[str, str] | None) -> Feedback:
        """Add an exception's message to the feedback, if it is to the letter what a public call has raised: a type and a message."""
        if not isinstance(outcome, RemoteError) or feedback.cause == "not started" or not outcome.message.strip():
            return feedback
        if (outcome.type_names[0], outcome.message) != public:
            return feedback
        message = " ".join(outcome.message[:_MOST_MESSAGE].split())
        return replace(feedback, student=f"{feedback.student}\nPython says: {message}")

    def _type_name(self, error: RemoteError) -> str:
        for i, full in enumerate(error.type_names):
            module, _, name = full.rpartition(".")
            known = module == "builtins" and isinstance(getattr(builtins, name, None), type)
            own = module.startswith("student") and name.encode() in self._classes
            if full in ("builtins.Exception", "builtins.BaseException") and i > 0:
                break  # says nothing
            if known or own or full in _LIBRARY_ERRORS:
                return name if i == 0 else f"a kind of {name}"
        return "an exception"

    def _mentions(self, text: str) -> bool:
        return any(text.encode() in content for content in self.submission.files.values())

    def _innermost(self, error: RemoteError) -> Frame | None:
        """Return the last frame of the student's own code."""
        return next((own for frame in reversed(error.frames) if (own := self._own(frame))), None)

    def _own(self, frame: Frame) -> Frame | None:
        """Return a frame of the student's own code under the name that they know its file by, None for any other."""
        for name, lines in self._lines.items():
            staged = frame.file.endswith(f"/submission/{_package_folder(frame.file)}/{name}")
            if staged and 1 <= frame.line <= len(lines):
                return Frame(name, frame.line, min(max(frame.column, 0), 200), frame.function)
        return None

    def _place(self, frame: Frame) -> str:
        inside = ""
        if frame.function.encode() in self._functions:
            inside = f", in {frame.function}"
        line = f" line {frame.line}" if frame.line <= _MOST_LINES else ""  # a number can be made to say something
        return f"{frame.file}{line}{inside}"

    def _at(self, frame: Frame | None) -> str:
        return f" at {self._place(frame)}" if frame else ""

    def _caret(self, frame: Frame | None) -> str:
        """Show the line of their file where the module broke."""
        if frame is None:
            return ""
        content = self._lines[frame.file][frame.line - 1]
        line = content.decode("utf-8-sig", "replace").expandtabs(1).rstrip()
        if not line.strip():
            return ""
        text = f"\n    {line[:200]}"
        if 0 < frame.column <= len(line) + 1:
            text += f"\n    {' ' * (frame.column - 1)}^"
        return text

    def _ending(self, outcome: Outcome) -> str:
        match outcome:
            case TimedOut(waited=False):
                return "took far longer than it needs and was stopped: look for a loop that does not end"
            case TimedOut():
                return "waited, without computing, until it was stopped: it must not sleep or wait for input"
            case OverDisk():
                return "wrote more than 256 MiB, or very many, files and was stopped"
            case Died(signal=signal.SIGSEGV | signal.SIGBUS):
                return (
                    "crashed the Python process (segmentation fault): endless recursion in C, or memory it does not own"
                )
            case Died(signal=signal.SIGKILL):
                return "was killed by the system: most likely it used more memory than there is"
            case Died(signal=signal.SIGXCPU):
                return "used up its CPU time and was stopped: look for a loop that does not end"
            case Died(signal=int()):
                return "ended the Python process with a signal"
            case Died(exit_code=int()):
                return "ended the Python process: os._exit() and the like end your answer too"
            case Died():
                return "closed the connection to the grader, so there is no answer"
        return "sent bytes to the grader that no answer consists of"


def cause(outcome: Outcome) -> Cause:
    """Return what an answer that is none counts as."""
    match outcome:
        case TimedOut() | Died(signal=signal.SIGXCPU):
            return "timeout"
        case Tampered() | Died(signal=signal.SIGSYS):
            return "escape"
        case RemoteError(type_names=names):
            return "escape" if "builtins.PermissionError" in names else "raised"
        case Reply():
            return "wrong"
    return "crash"


def _package_folder(file: str) -> str:
    """Return the name of the staged package's folder in a path such as /tmp/x/submission/3/memory.py."""
    _, _, rest = file.rpartition("/submission/")
    return rest.split("/")[0]


def _staff(outcome: Outcome, printed: bytes) -> str:
    """Return everything that is known."""
    text = outcome.traceback if isinstance(outcome, RemoteError) else repr(outcome)
    if printed:
        text += f"\nPrinted:\n{printed[-4000:].decode('utf-8', 'replace')}"
    return text
