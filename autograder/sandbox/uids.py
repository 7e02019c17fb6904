"""A range of user ids for one zygote's children.

Two zygotes that handed out the same uid would kill each other's children. A lock on a file a range keeps them apart; the
kernel drops it when its holder dies, however it dies.
"""

import fcntl
import os
import pwd
import stat
from dataclasses import dataclass, field
from pathlib import Path

SIZE = 256  # ids a range: a fresh one a child, reused only when its last user is long gone
_RANGES = [range(start, start + SIZE) for start in range(40_000, 56_000, SIZE)]
LOCKS = Path("/tmp/accounting-grader-uids")  # root's own folder, checked before it is used


class NoRange(Exception):
    """Every range is taken."""


@dataclass
class UidRange:
    """User ids that only the holder of the lock hands out."""

    ids: range
    lock: int  # descriptor of the locked file
    _next: int = field(default=0)

    def take(self) -> int:
        """Return the next id, round and round."""
        self._next += 1
        return self.ids[self._next % len(self.ids)]


def claim() -> UidRange:
    """Lock a range that no other grader holds, no account owns and no process uses.

    Raises:
        NoRange: if there is none.
    """
    LOCKS.mkdir(mode=0o700, exist_ok=True)
    info = LOCKS.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != 0 or info.st_mode & 0o077:
        raise NoRange(f"{LOCKS} is not a folder that only root can use: remove it")
    taken = {account.pw_uid for account in pwd.getpwall()} | _running_uids()
    for ids in _RANGES:
        if taken.isdisjoint(ids):
            lock = os.open(LOCKS / str(ids.start), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
            else:
                return UidRange(ids, lock)
    raise NoRange(f"all {len(_RANGES)} ranges of user ids are in use by other graders or accounts")


def _running_uids() -> set[int]:
    uids = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                uids.add(process.stat().st_uid)
            except FileNotFoundError:
                continue
    return uids
