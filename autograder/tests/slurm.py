"""A Slurm cluster of one node on this machine, for tests: munged, slurmctld and slurmd, in a folder and on ports of their own."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "squeue")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

# No cgroups and no accounting: a container has neither.
_CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
KillWait=5
MinJobAge=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=100000 State=UNKNOWN
PartitionName=class Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """Return what of Slurm is not installed."""
    return [name for name in NEEDED if shutil.which(name, path=PATH) is None]


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Run the cluster while the `with` block does; yield the environment that its commands need."""
    for name in ("run", "state", "spool"):
        (folder / name).mkdir(parents=True)
    host = socket.gethostname().split(".")[0]
    controller, daemon = _free_ports(2)
    text = _CONFIGURATION.format(folder=folder, host=host, controller=controller, daemon=daemon)
    (folder / "slurm.conf").write_text(text, encoding="utf-8")
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH}
    munge = {
        "key-file": "munge.key",
        "socket": "run/munge.socket",
        "pid-file": "run/munged.pid",
        "log-file": "munged.log",
    }
    options = [f"--{option}={folder / name}" for option, name in {**munge, "seed-file": "munge.seed"}.items()]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in (
            ["munged", "--foreground", "--force", *options],
            ["slurmctld", "-D", "-c"],
            ["slurmd", "-D", "-N", host],
        ):
            null = subprocess.DEVNULL
            daemons.append(subprocess.Popen(command, env=environment, stdin=null, stdout=null, stderr=null))
            time.sleep(0.3)
        until = time.monotonic() + 30
        while b"idle" not in subprocess.run(["sinfo", "-h", "-o", "%t"], env=environment, capture_output=True).stdout:
            logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("*.log"))
            assert time.monotonic() < until, f"the node did not come up:\n{logs}"
            time.sleep(0.2)
        yield {"SLURM_CONF": environment["SLURM_CONF"], "PATH": PATH}
    finally:
        for process in reversed(daemons):
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
