"""Part 8: from SGD to AdamW.

An optimizer turns gradients into steps. Each one here is a `torch.optim.Optimizer`, whose base class already keeps the
parameter groups (`self.param_groups`), the state of each parameter (`self.state[p]`), `zero_grad`, `state_dict`,
`load_state_dict` and `add_param_group`. What is missing is the constructor, which checks the hyper-parameters and hands
them on as defaults, and `step`.

What holds for all three:

- Hyper-parameters are read at each step from the parameter's own group, so that a group may override any of them and
  a learning-rate schedule may change them between two steps.
- A parameter whose gradient is None is left alone, and so is its state.
- `step` may be given a closure that computes the loss anew. It is called once, before the update, with gradients
  enabled, and what it returns is returned.
- Parameters change in place, without leaving an autograd graph behind; gradients do not change.
- State has the dtype and the device of its parameter.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer


def _check_not_negative(**hyperparameters: float) -> None:
    for name, value in hyperparameters.items():
        if not value >= 0:  # so written, it refuses NaN as well
            raise ValueError(f"{name} must be 0 or more, not {value}")


def _run_closure(closure: Callable[[], Float[Tensor, ""]] | None) -> Float[Tensor, ""] | None:
    if closure is None:
        return None
    with torch.enable_grad():  # step runs without gradients, but the closure calls backward
        return closure()


class SGD(Optimizer):
    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float = 1e-3) -> None:
        _check_not_negative(lr=lr)
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(
        self, closure: Callable[[], Float[Tensor, ""]] | None = None
    ) -> Float[Tensor, ""] | None:
        loss = _run_closure(closure)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p -= group["lr"] * p.grad
        return loss


class AdaGrad(Optimizer):
    def __init__(
        self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float = 1e-2, eps: float = 1e-10
    ) -> None:
        _check_not_negative(lr=lr, eps=eps)
        super().__init__(params, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(
        self, closure: Callable[[], Float[Tensor, ""]] | None = None
    ) -> Float[Tensor, ""] | None:
        loss = _run_closure(closure)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad
                state = self.state[p]
                if not state:
                    state["sum"] = torch.zeros_like(p)

                state["sum"] = state["sum"] + g * g  # G ← G + g²
                p -= group["lr"] * g / (state["sum"].sqrt() + group["eps"])  # p ← p - lr·g / (√G + eps)
        return loss


class AdamW(Optimizer):
    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        _check_not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        for beta in betas:
            if not 0 <= beta < 1:
                raise ValueError(f"each of betas must be at least 0 and below 1, not {beta}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(
        self, closure: Callable[[], Float[Tensor, ""]] | None = None
    ) -> Float[Tensor, ""] | None:
        loss = _run_closure(closure)
        for group in self.param_groups:
            lr, eps, weight_decay = group["lr"], group["eps"], group["weight_decay"]
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["m"] = torch.zeros_like(p)
                    state["v"] = torch.zeros_like(p)

                state["step"] += 1
                t, m, v = state["step"], state["m"], state["v"]
                m.mul_(beta1).add_((1 - beta1) * g)  # m ← beta1·m + (1 - beta1)·g
                v.mul_(beta2).add_((1 - beta2) * g**2)  # v ← beta2·v + (1 - beta2)·g²
                m_hat = m / (1 - beta1**t)
                v_hat = v / (1 - beta2**t)
                p -= lr * weight_decay * p  # the decay: decoupled, and before the step
                p -= lr * m_hat / (v_hat.sqrt() + eps)
        return loss


def optimizer_state_bytes(optimizer: Optimizer) -> int:
    # All tensors over one storage give the same Python object for it: a set counts each storage once.
    storages = {
        value.untyped_storage()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    }
    return sum(storage.nbytes() for storage in storages)
