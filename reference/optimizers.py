"""Part 8: from SGD to AdamW.

An optimizer turns gradients into steps. Each one here is a `torch.optim.Optimizer`, whose base class already keeps the
parameter groups (`self.param_groups`), the state of each parameter (`self.state[p]`), `zero_grad`, `state_dict`,
`load_state_dict` and `add_param_group`. What is missing is the constructor, which checks the hyper-parameters and hands
them on as defaults, and `step`.

What holds for all three:

- Hyper-parameters are read at each step from the parameter's own group, so that a group may override any of them and
  a learning-rate schedule may change them between two steps.
- A parameter whose gradient is None is left alone, and its state does not age.
- `step` may be given a closure that computes the loss anew. It is called once, before the update, with gradients
  enabled if they are where `step` is called, and its loss is returned.
- Parameters change in place: what shares their memory changes with them. No autograd graph is left behind, and gradients
  do not change.
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
    """Stochastic gradient descent, without momentum.

    At each step, for each parameter p with gradient g:

        p ← p - lr·g

    It keeps no state.

    Args:
        params: parameters, or parameter groups (dicts) that may override `lr`.
        lr: the learning rate, 0 or more.

    Raises:
        ValueError: `lr` is negative; the message names the value.

    Example:
        >>> p = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        >>> optimizer = SGD([p], lr=0.5)
        >>> (p**2).sum().backward()
        >>> p.grad
        tensor([2., 4.])
        >>> optimizer.step()
        >>> p.detach()
        tensor([0., 0.])

    Source:
        Robbins and Monro, "A Stochastic Approximation Method", Annals of Mathematical Statistics 22 (1951).
    """

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float = 1e-3) -> None:
        """Check the hyper-parameters and hand them to the base class as the groups' defaults."""
        _check_not_negative(lr=lr)
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(  # type: ignore[override]  # one signature for both of the base class's overloads
        self, closure: Callable[[], Float[Tensor, ""]] | None = None
    ) -> Float[Tensor, ""] | None:
        """Update every parameter that has a gradient.

        Args:
            closure: computes the loss and its gradients anew, and returns the loss.

        Returns:
            The closure's loss; None without one.
        """
        loss = _run_closure(closure)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p -= group["lr"] * p.grad
        return loss


class AdaGrad(Optimizer):
    """AdaGrad: smaller steps where gradients have been large.

    At each step, for each parameter p with gradient g, and with G = 0 before p's first step, elementwise:

        G ← G + g²
        p ← p - lr·g / (√G + eps)

    Args:
        params: parameters, or parameter groups (dicts) that may override `lr` and `eps`.
        lr: the learning rate, 0 or more.
        eps: added to the root, against division by 0; 0 or more.

    Raises:
        ValueError: a hyper-parameter is negative; the message names the value.

    Example:
        >>> p = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
        >>> optimizer = AdaGrad([p], lr=0.5)
        >>> p.grad = torch.tensor([3.0, 0.1])
        >>> optimizer.step()
        >>> p.detach()
        tensor([0.5000, 0.5000])
        >>> p.grad = torch.tensor([4.0, 0.0])
        >>> optimizer.step()
        >>> p.detach()
        tensor([0.1000, 0.5000])

    Source:
        Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization",
        Journal of Machine Learning Research 12 (2011): the diagonal form, section 1.
    """

    def __init__(
        self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float = 1e-2, eps: float = 1e-10
    ) -> None:
        """Check the hyper-parameters and hand them to the base class as the groups' defaults."""
        _check_not_negative(lr=lr, eps=eps)
        super().__init__(params, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(  # type: ignore[override]  # one signature for both of the base class's overloads
        self, closure: Callable[[], Float[Tensor, ""]] | None = None
    ) -> Float[Tensor, ""] | None:
        """Update every parameter that has a gradient, and its G.

        Args:
            closure: computes the loss and its gradients anew, and returns the loss.

        Returns:
            The closure's loss; None without one.
        """
        loss = _run_closure(closure)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad
                state = self.state[p]
                if not state:
                    state["sum"] = torch.zeros_like(p)

                state["sum"] += g**2  # G ← G + g²
                p -= group["lr"] * g / (state["sum"].sqrt() + group["eps"])  # p ← p - lr·g / (√G + eps)
        return loss


class AdamW(Optimizer):
    """AdamW: Adam's bias-corrected moments, with decoupled weight decay.

    At each step, for each parameter p with gradient g, and with t = 0, m = 0, v = 0 before p's first step,
    elementwise and in this order:

        t ← t + 1
        m ← beta1·m + (1 - beta1)·g
        v ← beta2·v + (1 - beta2)·g²
        m_hat ← m / (1 - beta1^t)
        v_hat ← v / (1 - beta2^t)
        p ← p - lr·weight_decay·p
        p ← p - lr·m_hat / (√v_hat + eps)

    Three things to note: eps is added to the root of the *corrected* second moment; the decay is scaled by lr, touches
    neither g nor the moments, and is taken from the parameter before the step; each parameter counts its own steps.

    State: `self.state[p]["step"]` is t, a Python int. The two moments are two tensors of p's shape beside it, whose names
    are yours to choose.

    Args:
        params: parameters, or parameter groups (dicts) that may override any hyper-parameter.
        lr: the learning rate, 0 or more.
        betas: (beta1, beta2), how much of each moment is kept at a step; each at least 0 and below 1.
        eps: added to the root, against division by 0; 0 or more.
        weight_decay: the decay, 0 or more.

    Raises:
        ValueError: a hyper-parameter is outside its range; the message names the value.

    Example:
        In the first step m_hat = g and v_hat = g², so each element moves by lr against the sign of its gradient, after
        losing the fraction lr·weight_decay of itself:

        >>> p = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        >>> optimizer = AdamW([p], lr=0.1, weight_decay=0.5)
        >>> p.grad = torch.tensor([100.0, -0.01])
        >>> optimizer.step()
        >>> p.detach()
        tensor([0.8500, 2.0000])
        >>> optimizer.state[p]["step"]
        1

    Source:
        Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (ICLR 2019), algorithm 2, with the decay scaled
        by lr as in PyTorch. The moments: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (ICLR 2015).
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        """Check the hyper-parameters and hand them to the base class as the groups' defaults."""
        _check_not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        for beta in betas:
            if not 0 <= beta < 1:
                raise ValueError(f"each of betas must be at least 0 and below 1, not {beta}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(  # type: ignore[override]  # one signature for both of the base class's overloads
        self, closure: Callable[[], Float[Tensor, ""]] | None = None
    ) -> Float[Tensor, ""] | None:
        """Update every parameter that has a gradient, its moments and its step counter.

        Args:
            closure: computes the loss and its gradients anew, and returns the loss.

        Returns:
            The closure's loss; None without one.
        """
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
    """The bytes of the tensors that an optimizer remembers from step to step.

    Every tensor in `optimizer.state` counts, 0-d tensors too; each storage once and whole. A step counter that is a
    Python int is not a tensor and counts 0.

    Args:
        optimizer: any optimizer whose state holds dicts of tensors, numbers and the like; no tensors are in lists of
            it, as LBFGS has them, or on the device "meta". Most have no state before their first step.

    Returns:
        The number of bytes, an `int`.

    Example:
        PyTorch's AdamW keeps two moments, and a 4-byte counter, for a parameter:

        >>> p = torch.nn.Parameter(torch.zeros(10))
        >>> optimizer = torch.optim.AdamW([p])
        >>> optimizer_state_bytes(optimizer)
        0
        >>> p.grad = torch.ones(10)
        >>> optimizer.step()
        >>> optimizer_state_bytes(optimizer)
        84

    Source:
        PyTorch's documentation of `torch.optim.Optimizer`.
    """
    # All tensors over one storage give the same Python object for it: a set counts each storage once.
    storages = {
        value.untyped_storage()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    }
    return sum(storage.nbytes() for storage in storages)
