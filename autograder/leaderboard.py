"""The leaderboard, off unless the settings say otherwise: how far a student's `training.train` comes within a budget of CPU time.

The student's loop trains a small model until the kernel ends its time. Only the weights come back, and the loss that counts is
computed here, on data that the child never had. docs/threat-model.md says what this cannot defend.
"""

import math
import resource
import signal
import time
from dataclasses import dataclass
from types import FrameType
from typing import Any

import cloudpickle
import torch
from torch import Tensor, nn

from autograder.sandbox.client import Deadline, Reply, Sandbox
from autograder.sandbox.codec import plain

PROBLEM = "training.train"  # whoever has lost a row of it is not on the board
_WIDTH, _HIDDEN, _BATCH = 16, 64, 64
_HELD_OUT = 4096  # rows
_GRACE = 1  # CPU seconds between the signal and the end: to hand the weights over


class _TimeIsUp(BaseException):
    """The kernel's signal: no `except Exception` of the student's stops it."""


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(_WIDTH, _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, 1))


def _rows(count: int, generator: torch.Generator, teacher: Tensor) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, _WIDTH, generator=generator)
    return inputs, torch.sin(inputs @ teacher).sum(1, keepdim=True)


@dataclass(frozen=True)
class _Training:
    """The probe."""

    weights: dict[str, Tensor]
    teacher: Tensor
    cpu_seconds: float
    seed: int

    def __call__(self, lib: Any) -> list[Tensor]:
        """Train until the time is up, and return the weights."""
        model = _model()
        model.load_state_dict(self.weights)
        generator = torch.Generator().manual_seed(self.seed)

        def batches() -> Any:
            while True:
                yield _rows(_BATCH, generator, self.teacher)

        def end(number: int, frame: FrameType | None) -> None:
            raise _TimeIsUp

        # Nothing of the student's has run in this process yet. The second limit is hard: the kernel kills at it.
        signal.signal(signal.SIGXCPU, end)
        budget = math.ceil(time.process_time() + self.cpu_seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (budget, budget + _GRACE))
        try:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            lib.training.train(model, optimizer, nn.functional.mse_loss, batches(), 10**9, 1, 1.0)
        except _TimeIsUp:
            pass
        return [weight.detach() for weight in model.state_dict().values()]


cloudpickle.register_pickle_by_value(__import__(__name__, fromlist=["_"]))  # children can import nothing of ours


def held_out_loss(sandbox: Sandbox, cpu_seconds: float, seed: int) -> float | None:
    """Return the loss on held-out data of the weights that the loaded submission reaches; None: it handed none over.

    Args:
        sandbox: has loaded the submission.
        cpu_seconds: that its training may take.
        seed: of the held-out data. What is trained on is drawn from another.
    """
    generator = torch.Generator().manual_seed(seed)
    teacher = torch.randn(_WIDTH, 4, generator=generator) / _WIDTH**0.5
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = _model()
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    child = sandbox.child(None)
    child.send(_Training(weights, teacher, cpu_seconds, seed ^ 0x5EED))
    outcome = child.reply(Deadline(cpu=cpu_seconds + 4 * _GRACE, wall=20 + 10 * cpu_seconds))
    child.close()
    if not isinstance(outcome, Reply):
        return None
    reached = plain(outcome.value)
    shapes = [(weight.dtype, weight.shape) for weight in weights.values()]
    if type(reached) is not list or [(getattr(w, "dtype", None), getattr(w, "shape", None)) for w in reached] != shapes:
        return None
    model.load_state_dict(dict(zip(weights, reached, strict=True)))
    inputs, targets = _rows(_HELD_OUT, generator, teacher)
    with torch.no_grad():
        loss = nn.functional.mse_loss(model(inputs), targets).item()
    return loss if math.isfinite(loss) else None
