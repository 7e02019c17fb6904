"""The staff's commands: `python -m autograder --help`.

Commands that run student code start over first, in a clean environment: what the shell had in its variables (keys, paths) stays out
of the memory that children are forked from, and glibc and Python take settings that make forks cheap.
"""

import os
import signal
import sys

_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/nonexistent",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "PYTHONHASHSEED": "0",
    "PYTHONMALLOC": "malloc",  # with huge pages from malloc, a fork copies 3 ms of page tables instead of 8
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
_KEPT = ("TERM", "COLUMNS", "LINES", "NO_COLOR", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
_SANDBOXED = ("grade", "verify", "class", "mutate", "soak")


def start_clean(program: str) -> None:
    """Replace this process by `program` in a clean environment, once, if its command runs student code."""
    if len(sys.argv) < 2 or sys.argv[1] not in _SANDBOXED or {"-h", "--help"} & set(sys.argv):
        return
    if any(
        argument.startswith("--cl") for argument in sys.argv
    ):  # it hands in jobs, whose commands need the shell's variables
        return
    environment = _ENVIRONMENT | {name: os.environ[name] for name in _KEPT if name in os.environ}
    if dict(os.environ) != environment:
        signal.pthread_sigmask(
            signal.SIG_BLOCK, {signal.SIGINT}
        )  # Python, starting over, would take it for KeyboardInterrupt
        os.execve(sys.executable, [sys.executable, "-s", os.path.abspath(program), *sys.argv[1:]], environment)
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # until `main` can say that it was stopped, Ctrl-C ends this without a word
    start_clean(__file__)
    from autograder.commands import main
    from autograder.terminal import outlive_readers

    outlive_readers()
    sys.exit(main(sys.argv[1:]))
