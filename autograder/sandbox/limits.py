"""What one child may use. Each limit names the attack, or the accident, that it stops."""

import resource
from dataclasses import dataclass, replace

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Sizes in bytes, times in seconds."""

    cpu: int = 20  # a loop that blocks every signal: the kernel's own end, above every deadline of ours
    memory: int = 2048 * MIB  # torch.empty(10**11).fill_(0); beyond what the zygote holds already
    # Beyond the zygote's: absolute values of 3 GB and less break PyTorch itself. None: no limit.
    address_space: int | None = 4096 * MIB
    file: int = 64 * MIB  # one endless file
    disk: int = 256 * MIB  # many files; looked at every tenth of a second
    # Very many empty folders: to remove one takes the grader longer than the child needs to make it. Looked at like `disk`.
    entries: int = 1_000
    open_files: int = 256  # running the machine out of file descriptors
    processes: int = 64  # a thousand threads; only where the child has a uid of its own, since the count is the uid's
    stack: int = 8 * MIB
    output: int = 64 << 10  # printing without end: the rest is drained and dropped


LIMITS = Limits()
# CUDA reserves hundreds of GB of addresses for all memory that there is, the GPU's too, and opens a file a device and purpose.
# Its start takes seconds, and one child serves all rows of a part.
GPU_LIMITS = replace(LIMITS, cpu=300, memory=16 << 30, address_space=None, open_files=1024, processes=256)


@dataclass(frozen=True)
class Footprint:
    """What the zygote occupies before a child asks for anything, in bytes."""

    data: int
    address_space: int

    @classmethod
    def of_this_process(cls) -> "Footprint":
        """Read the sizes from the kernel."""
        with open("/proc/self/status", encoding="ascii") as status:  # pathlib costs more than the read
            fields = dict(line.split(":", 1) for line in status)
        data, address_space = (int(fields[name].split()[0]) << 10 for name in ("VmData", "VmSize"))
        return cls(data, address_space)


def apply(footprint: Footprint, own_uid: bool, limits: Limits = LIMITS) -> None:
    """Limit the calling process, for good."""
    ceilings = {
        resource.RLIMIT_CPU: (limits.cpu, limits.cpu + 2),
        resource.RLIMIT_DATA: footprint.data + limits.memory,
        resource.RLIMIT_FSIZE: limits.file,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_STACK: (limits.stack, 8 * limits.stack),
        resource.RLIMIT_CORE: 0,  # a core dump would hold the probe
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_SIGPENDING: 256,
    }
    if limits.address_space is not None:
        ceilings[resource.RLIMIT_AS] = (
            footprint.address_space + limits.address_space
        )  # shared mappings, which DATA misses
    if own_uid:
        ceilings[resource.RLIMIT_NPROC] = limits.processes
    for kind, ceiling in ceilings.items():
        soft, hard = ceiling if isinstance(ceiling, tuple) else (ceiling, ceiling)
        allowed = resource.getrlimit(kind)[1]
        if allowed != resource.RLIM_INFINITY:
            soft, hard = min(soft, allowed), min(hard, allowed)
        resource.setrlimit(kind, (soft, hard))
