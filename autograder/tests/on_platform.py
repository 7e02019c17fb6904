"""A machine that does what Gradescope does with the autograder's zip: unpack, set up, then a submission at a time.

Three machines, the first two with a file system of their own:

    Container  a Debian 12 from debootstrap in runc, with Docker's defaults (docker.py): `make container`
    Overlay    this machine's own file system, copied on write, under chroot: in CI always
    Folder     a folder of this machine, where mounts are not allowed; the scripts are the same
"""

import ast
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from autograder.costs import pss
from autograder.pack import autograder_files
from autograder.sandbox import uids
from autograder.tests import docker, written
from tests.submission import pack

METADATA = {
    "id": 1,
    "created_at": "2026-03-02T20:00:00.123456-08:00",
    "assignment": {"title": "Resource accounting", "total_points": "100.0", "late_due_date": None},
    "submission_method": "upload",
    "users": [{"email": "a@b.c", "id": 2, "name": "A"}],
    "previous_submissions": [],
}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Run:
    """One program, run to its end."""

    status: int
    seconds: float
    peak: float  # PSS of all its processes together, MB; 0 where it was not measured
    output: str


class Machine(Protocol):
    """Runs a program as root, where /autograder is the folder `autograder`."""

    autograder: Path

    def run(self, command: Sequence[str], *, small: bool, timeout: float) -> Run:
        """Run a program in /autograder; `small`: in the smallest container that the platform has, where that can be."""

    def remove(self) -> None:
        """Remove every trace."""


# What pip is told on this machine: a new system must be told the same


def pip_settings() -> tuple[dict[str, str], list[Path]]:
    """Return pip's settings here as variables, and the files and folders that they name."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], stdout=subprocess.PIPE, text=True, check=True
    )
    settings: dict[str, str] = {}
    for line in sorted(
        listed.stdout.splitlines(), key=lambda line: line.startswith(":env:")
    ):  # variables come last, and win
        name, _, value = line.partition("=")
        settings[f"PIP_{name.rpartition('.')[2].replace('-', '_').upper()}"] = str(ast.literal_eval(value))
    named = {word.removeprefix("file://") for value in settings.values() for word in value.split()}
    paths = [Path(word) for word in named if word.startswith("/") and Path(word).exists()]
    # An index's links lead to the folder beside it.
    return settings, sorted(path.parent if path.is_dir() and path.name == "simple" else path for path in paths)


# The machines


class Overlay:
    """This machine's file system, copied on write, with a private /tmp and an empty /autograder."""

    _SCRIPT = """
        set -e
        mount --make-rprivate /
        mount -t tmpfs none "$1/scratch"
        mkdir "$1/scratch/upper" "$1/scratch/work"
        mount -t overlay overlay -o "lowerdir=/,upperdir=$1/scratch/upper,workdir=$1/scratch/work" "$1/root"
        mount -t tmpfs -o mode=1777 none "$1/root/tmp"
        mount -t proc proc "$1/root/proc"
        mount --rbind /dev "$1/root/dev"
        mount --rbind /sys "$1/root/sys"
        mkdir -m 700 "$1/root$LOCKS"
        mount --bind "$LOCKS" "$1/root$LOCKS"
        mkdir "$1/root/autograder"
        mount --bind "$1/autograder" "$1/root/autograder"
        for path in $3; do
            mkdir -p "$1/root$path" 2>/dev/null && mount --bind "$path" "$1/root$path"
        done
        shift
        exec setpriv --bounding-set=-all,$1 --inh-caps=-all chroot "$ROOT" /usr/bin/env -C /autograder "${@:3}"
    """

    def __init__(self) -> None:
        """Make its folders."""
        self._place = Path(tempfile.mkdtemp(prefix="accounting-platform-"))
        self._place.chmod(0o755)
        for name in ("scratch", "root", "autograder"):
            (self._place / name).mkdir()
        self.autograder = self._place / "autograder"

    @staticmethod
    def works() -> bool:
        """Whether this machine allows the mounts."""
        if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv", "mount"))):
            return False
        machine = Overlay()
        try:
            return machine.run(["/bin/true"], small=False, timeout=30).status == 0
        finally:
            machine.remove()

    def run(self, command: Sequence[str], *, small: bool, timeout: float) -> Run:
        """Run a program under chroot, with Docker's capabilities and processes of its own."""
        kept = ",".join("+" + name.removeprefix("CAP_").lower() for name in docker.CAPABILITIES)
        settings, paths = pip_settings()
        variables = {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8", **settings}
        inside = ["-i", *(f"{name}={value}" for name, value in variables.items()), *command]
        mounted = shlex.join(str(path) for path in paths if os.path.ismount(path))
        outer = [
            "unshare",
            "--mount",
            "--pid",
            "--ipc",
            "--fork",
            "--kill-child",
            "bash",
            "-c",
            self._SCRIPT,
            "overlay",
        ]
        environment = {**os.environ, "ROOT": str(self._place / "root"), "LOCKS": str(_locks())}
        return _run([*outer, str(self._place), kept, mounted, *inside], environment, timeout)

    def remove(self) -> None:
        """Remove its folders: the mounts ended with each run."""
        shutil.rmtree(self._place)


class Folder:
    """A folder of this machine in the place of /autograder: nothing is hidden from the scripts, and nothing from them."""

    def __init__(self) -> None:
        """Make it."""
        self._place = Path(tempfile.mkdtemp(prefix="accounting-platform-"))
        self._place.chmod(0o755)
        self.autograder = self._place / "autograder"
        self.autograder.mkdir()

    def run(self, command: Sequence[str], *, small: bool, timeout: float) -> Run:
        """Run a program."""
        here = [word.replace("/autograder/", f"{self.autograder}/", 1) for word in command]
        return _run(here, {**os.environ, "PATH": _PATH}, timeout, cwd=self.autograder)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._place)


class Container:
    """A Debian 12 of its own, in runc."""

    SMALLEST = 768 << 20, 0.5  # bytes and cores of the platform's default

    def __init__(self) -> None:
        """Install the system."""
        self._place = Path(tempfile.mkdtemp(prefix="accounting-container-"))
        self._place.chmod(0o755)
        root = self._place / "root"
        made = subprocess.run(
            ["debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", str(root)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        if made.returncode:
            self.remove()
            raise RuntimeError(f"debootstrap failed:\n{made.stdout[-2000:]}")
        for file in ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt"):
            with suppress(FileNotFoundError):
                shutil.copy(Path("/", file), root / file)
        self.autograder = root / "autograder"
        self.autograder.mkdir()

    def run(self, command: Sequence[str], *, small: bool, timeout: float) -> Run:
        """Run a program in a new container on this system."""
        memory, cpus = self.SMALLEST if small else (None, None)
        name = f"accounting-{os.getpid()}-{time.monotonic_ns()}"
        settings, paths = ({}, []) if small else pip_settings()
        environment = {"PATH": _PATH, "HOME": "/root", **settings}
        config = docker.config(
            command, environment, paths, [_locks()], network=not small, cgroup=name, memory=memory, cpus=cpus
        )
        (self._place / "config.json").write_text(json.dumps(config), encoding="utf-8")
        runc = ["runc", "--root", str(self._place / "state")]
        try:
            return _run([*runc, "run", "--bundle", str(self._place), name], dict(os.environ), timeout, cgroup=name)
        finally:  # a container outlives a runc that was killed
            subprocess.run([*runc, "delete", "--force", name], stderr=subprocess.DEVNULL)

    def remove(self) -> None:
        """Remove the system."""
        shutil.rmtree(self._place)


def _locks() -> Path:
    """Return the folder by which graders of this machine share user ids.

    Every machine here must have it: a grader outside may end the processes of its users in all process namespaces below its own.
    """
    uids.LOCKS.mkdir(mode=0o700, exist_ok=True)
    return uids.LOCKS


def _run(
    command: Sequence[str], environment: Mapping[str, str], timeout: float, *, cwd: Path | None = None, cgroup: str = ""
) -> Run:
    """Run a program to its end, with an eye on the memory of all processes below it."""
    start, peak = time.monotonic(), 0.0
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=cwd
        )
        try:
            while process.poll() is None:
                if time.monotonic() - start > timeout:
                    raise TimeoutError(f"{command[-1]} has not ended after {timeout:g} s")
                peak = max(peak, pss(process.pid, cgroup))
                time.sleep(0.05)
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    return Run(process.returncode, time.monotonic() - start, peak, text)


# What the platform does


def set_up(machine: Machine) -> Run:
    """Unpack the zip and run setup.sh.

    Raises:
        RuntimeError: if it fails, with what it said.
    """
    source = machine.autograder / "source"
    packed = machine.autograder / "autograder.zip"
    packed.write_bytes(pack(autograder_files()))
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(source)
    packed.unlink()
    script = machine.autograder / "run_autograder"
    shutil.copy(source / "run_autograder", script)
    script.chmod(0o755)
    run = machine.run(["bash", "/autograder/source/setup.sh"], small=False, timeout=900)
    if run.status:
        raise RuntimeError(f"setup.sh ended with status {run.status}:\n{run.output[-4000:]}")
    return run


def submit(machine: Machine, files: Mapping[str, str | bytes], *, small: bool = True, timeout: float = 600) -> Run:
    """Put a submission in its place and run `run_autograder` on it."""
    for name in ("submission", "results"):
        shutil.rmtree(machine.autograder / name, ignore_errors=True)
        (machine.autograder / name).mkdir()
    for name, content in files.items():
        path = machine.autograder / "submission" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (machine.autograder / "submission_metadata.json").write_text(json.dumps(METADATA), encoding="utf-8")
    return machine.run(["/autograder/run_autograder"], small=small, timeout=timeout)


def results(machine: Machine) -> dict[str, Any]:
    """Read results.json as the platform does; what it would not take raises."""
    return written.read(machine.autograder / "results" / "results.json")
