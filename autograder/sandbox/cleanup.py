"""After a child: nothing that it started runs, and nothing that it wrote is left."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from autograder.sandbox.syscalls import uid_runs

_WRITABLE_BY_ALL = ("/tmp", "/var/tmp", "/dev/shm", "/run/lock", "/dev/mqueue")


def kill_uid(uid: int, expected: set[int]) -> None:
    """End every process of `uid`, whatever it forks meanwhile: kill(-1) holds the kernel's list of tasks.

    Those that it ends become children of this process, which must have no others but `expected`, and count until they are reaped.
    """
    while uid_runs(uid):
        pid = os.fork()
        if pid == 0:
            try:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
                os.kill(-1, signal.SIGKILL)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        kill_orphans(expected)


def kill_orphans(expected: set[int]) -> None:
    """End every child of this process but `expected`.

    The zygote is a subreaper, so what a dead child had started is its own child now. seccomp has refused fork already, so this
    finds something only without it.
    """
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as children:
            orphans = {int(pid) for pid in children.read().split()} - expected
        if not orphans:
            return
        for pid in orphans:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def disk_usage(top: str, most_entries: int) -> float:
    """Return the bytes below `top`, or infinity past `most_entries` files and folders."""
    total, entries, folders = 0, 0, [top]
    while folders:
        try:
            with os.scandir(folders.pop()) as scan:
                for entry in scan:
                    entries += 1
                    if entries > most_entries:
                        return float("inf")
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):  # the child removes what we look at
            continue
        except OSError:  # a path longer than the kernel takes, a folder shut against us: to hide what is below
            return float("inf")
    return total


def sweep(uid: int) -> None:
    """Remove what a dead child left where every user may write: without Landlock its own folder is not all that it reaches."""
    for folder in _WRITABLE_BY_ALL:
        with suppress(OSError), os.scandir(folder) as scan:
            for entry in scan:
                if entry.stat(follow_symlinks=False).st_uid != uid:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    empty(Path(entry.path))
                    os.rmdir(entry.path)
                else:
                    os.unlink(entry.path)


def remove(top: Path) -> None:
    """Remove a folder, if it is there, whose owners are dead."""
    with suppress(OSError):
        empty(top)
        os.rmdir(top)


def empty(top: Path) -> None:
    """Remove everything below `top`, whose owner is dead.

    Neither recursion (folders 3000 deep) nor symbolic links are followed: a folder's folders are moved up to `top` before it is
    removed, so that no path grows long. Folders without permissions (chmod 000) are opened again first.

    Raises:
        OSError: if something stays.
    """
    top.chmod(0o700)  # its owner may have shut it, or opened it to others
    while True:
        with os.scandir(top) as scan:
            entries = list(scan)
        if not entries:
            return
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            with suppress(OSError):  # most are empty, and one call is enough
                os.rmdir(entry.path)
                continue
            os.chmod(entry.path, 0o700)
            with os.scandir(entry.path) as scan:
                below = list(scan)
            for item in below:
                if item.is_dir(follow_symlinks=False):
                    os.chmod(item.path, 0o700)
                    os.rename(item.path, top / os.urandom(8).hex())  # a name that nobody can have taken
                else:
                    os.unlink(item.path)
            os.rmdir(entry.path)
