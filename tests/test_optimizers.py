"""What a student runs for part 8, `optimizers`.

Gradients are set by hand, so that every number can be followed with pencil and paper.
"""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from student import optimizers
from tests.checks import check_close, check_equal, check_raises


def parameter(*values):
    """A parameter in double precision."""
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def step_with(optimizer, *gradients):
    """Give the optimizer's parameters, in order, these gradients, and take a step."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for p, gradient in zip(parameters, gradients, strict=True):
        p.grad = None if gradient is None else torch.tensor(gradient, dtype=torch.float64)
    optimizer.step()


def check_values(p, *expected, hint="", rtol=1e-5):
    """Check a parameter's values relative to the largest one."""
    check_close(p.detach(), torch.tensor(expected, dtype=torch.float64), hint=hint, rtol=rtol)


def check_closure(optimizer_class):
    """Check that `step` calls its closure once, with gradients enabled, before the update, and returns its loss."""
    p = parameter(3.0)
    optimizer = optimizer_class([p])
    seen = []

    def closure():
        seen.append((torch.is_grad_enabled(), p.item()))
        loss = (p * p).sum()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    check_equal(seen, [(True, 3.0)], hint="call the closure once, before the update, under torch.enable_grad()")
    assert loss is not None, "step(closure) has to return what the closure returned"
    check_equal(torch.as_tensor(loss).item(), 9.0, hint="return what the closure returned")
    assert p.item() < 3.0, "the update has to use the gradient that the closure computed"


@pytest.mark.problem("optimizers.SGD")
def test_sgd_steps_against_the_gradient():
    """The parameter moves by lr times the gradient, downhill; the gradient stays as it was."""
    p = parameter(1.0, 2.0)
    optimizer = optimizers.SGD([p], lr=0.5)
    step_with(optimizer, [2.0, -4.0])
    check_values(p, 0.0, 4.0, hint="p - lr * g")
    check_close(p.grad, torch.tensor([2.0, -4.0], dtype=torch.float64), hint="the gradient is not yours to change")
    step_with(optimizer, [2.0, -4.0])
    check_values(p, -1.0, 6.0)


@pytest.mark.problem("optimizers.SGD")
def test_sgd_reads_lr_from_the_group_at_each_step():
    """A group may have its own learning rate, and a schedule may change it."""
    a, b = parameter(1.0), parameter(1.0)
    groups: list[dict[str, Any]] = [{"params": [a], "lr": 0.25}, {"params": [b]}]
    optimizer = optimizers.SGD(groups, lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    step_with(optimizer, [1.0], [1.0])
    check_values(a, 0.75, hint='use group["lr"]')
    check_values(b, 0.5)
    scheduler.step()
    step_with(optimizer, [1.0], [1.0])
    check_values(a, 0.625, hint="read the learning rate at each step: a scheduler changes it in the group")
    check_values(b, 0.25)


@pytest.mark.problem("optimizers.SGD")
def test_sgd_leaves_a_parameter_without_gradient_alone():
    """A gradient that is None means that there is nothing to do."""
    a, b = parameter(1.0), parameter(1.0)
    step_with(optimizers.SGD([a, b], lr=0.5), None, [1.0])
    check_values(a, 1.0)
    check_values(b, 0.5)


@pytest.mark.problem("optimizers.SGD")
def test_sgd_returns_the_loss_of_its_closure():
    """The closure computes the loss anew, and its gradients."""
    check_closure(optimizers.SGD)


@pytest.mark.problem("optimizers.SGD")
def test_sgd_refuses_a_negative_lr():
    """A negative learning rate is a ValueError that names it; 0 is a learning rate."""
    check_raises(ValueError, lambda: optimizers.SGD([parameter(1.0)], lr=-0.5), names=-0.5)
    p = parameter(1.0)
    step_with(optimizers.SGD([p], lr=0.0), [1.0])
    check_values(p, 1.0)


@pytest.mark.problem("optimizers.AdaGrad")
def test_adagrad_divides_by_the_root_of_all_squares_so_far():
    """Three steps of two elements: roots of 9, 9 + 16 and 9 + 16 + 144 for the first one."""
    p = parameter(0.0, 0.0)
    optimizer = optimizers.AdaGrad([p], lr=0.5)
    step_with(optimizer, [3.0, -1.0])
    check_values(p, -0.5, 0.5, hint="in the first step every element moves by lr")
    step_with(optimizer, [4.0, 0.0])
    check_values(p, -0.9, 0.5, hint="squares add up, for each element by itself")
    step_with(optimizer, [12.0, 1.0])
    check_values(p, -1.3615384615, 0.1464466094)


@pytest.mark.problem("optimizers.AdaGrad")
def test_adagrad_adds_eps_to_the_root():
    """With eps = 1: 3 / (3 + 1), then 4 / (5 + 1)."""
    p = parameter(0.0)
    optimizer = optimizers.AdaGrad([p], lr=0.5, eps=1.0)
    step_with(optimizer, [3.0])
    check_values(p, -0.375, hint="eps is added after the root is taken, and the squares start at 0")
    step_with(optimizer, [4.0])
    check_values(p, -0.7083333333)


@pytest.mark.problem("optimizers.AdaGrad")
def test_adagrad_leaves_a_parameter_without_gradient_alone():
    """A parameter that gets its first gradient later starts then; its group's own lr counts."""
    a, b = parameter(0.0), parameter(0.0)
    groups: list[dict[str, Any]] = [{"params": [a]}, {"params": [b], "lr": 0.25}]
    optimizer = optimizers.AdaGrad(groups, lr=0.5)
    step_with(optimizer, [3.0], None)
    step_with(optimizer, [4.0], [7.0])
    check_values(a, -0.9)
    check_values(b, -0.25)


@pytest.mark.problem("optimizers.AdaGrad")
def test_adagrad_resumes_from_its_state_dict():
    """Saved after a step and loaded into a new optimizer, it goes on where it was."""
    p = parameter(0.0)
    first = optimizers.AdaGrad([p], lr=0.5)
    step_with(first, [3.0])
    second = optimizers.AdaGrad([p], lr=0.1)
    second.load_state_dict(first.state_dict())
    step_with(second, [4.0])
    check_values(p, -0.9, hint="keep the sum in self.state[p]: state_dict() saves that, and the groups")


@pytest.mark.problem("optimizers.AdaGrad")
def test_adagrad_returns_the_loss_of_its_closure():
    """The closure computes the loss anew, and its gradients."""
    check_closure(optimizers.AdaGrad)


@pytest.mark.problem("optimizers.AdaGrad")
def test_adagrad_refuses_negative_hyperparameters():
    """A negative lr or eps is a ValueError that names it."""
    check_raises(ValueError, lambda: optimizers.AdaGrad([parameter(1.0)], lr=-0.5), names=-0.5)
    check_raises(ValueError, lambda: optimizers.AdaGrad([parameter(1.0)], eps=-0.25), names=-0.25)


@pytest.mark.problem("optimizers.AdamW")
def test_adamw_follows_four_steps():
    """Four steps of two elements, without decay: the moments and their bias correction."""
    p = parameter(0.0, 0.0)
    optimizer = optimizers.AdamW([p], lr=0.1, betas=(0.5, 0.75), weight_decay=0.0)
    step_with(optimizer, [1.0, -2.0])
    check_values(
        p, -0.1, 0.1, hint="in the first step m_hat = g and v_hat = g * g, so every element moves by lr", rtol=1e-4
    )
    step_with(optimizer, [-0.5, -2.0])
    check_values(p, -0.1, 0.2, hint="correct m by 1 - beta1**t and v by 1 - beta2**t, t being 2 by now", rtol=1e-4)
    step_with(optimizer, [0.25, 4.0])
    step_with(optimizer, [2.0, 0.5])
    check_values(p, -0.2113910188, 0.1145139334, rtol=1e-4)


@pytest.mark.problem("optimizers.AdamW")
def test_adamw_decays_weights_apart_from_the_gradient():
    """Where the gradient is 0, nothing but the decay moves the parameter: by lr * weight_decay of itself a step."""
    p = parameter(8.0, -4.0)
    optimizer = optimizers.AdamW([p], lr=0.1, weight_decay=0.5)
    step_with(optimizer, [0.0, 0.0])
    check_values(p, 7.6, -3.8, hint="the decay is scaled by lr, and is no part of the gradient")
    step_with(optimizer, [0.0, 0.0])
    check_values(p, 7.22, -3.61)


@pytest.mark.problem("optimizers.AdamW")
def test_adamw_follows_the_algorithm_line_by_line():
    """With a large eps and a large decay, where and when each is applied shows."""
    p = parameter(1.0, 2.0)
    optimizer = optimizers.AdamW([p], lr=0.5, eps=1.0, weight_decay=0.4)
    step_with(optimizer, [3.0, -1.0])
    check_values(p, 0.425, 1.85, hint="decay first, then lr * m_hat / (sqrt(v_hat) + eps)")
    step_with(optimizer, [3.0, -1.0])
    check_values(p, -0.035, 1.73)


@pytest.mark.problem("optimizers.AdamW")
def test_adamw_counts_each_parameters_steps():
    """A parameter that gets its first gradient later takes its first step then."""
    a, b = parameter(0.0), parameter(0.0)
    optimizer = optimizers.AdamW([a, b], lr=0.1, weight_decay=0.0)
    step_with(optimizer, [1.0], None)
    check_values(b, 0.0, hint="a gradient that is None: nothing to do")
    step_with(optimizer, [1.0], [5.0])
    check_values(
        b, -0.1, hint="keep the step counter in self.state[p], and do not count steps without a gradient", rtol=1e-4
    )
    check_equal([optimizer.state[p]["step"] for p in (a, b)], [2, 1], hint="a Python int for each parameter")


@pytest.mark.problem("optimizers.AdamW")
def test_adamw_reads_hyperparameters_from_the_group():
    """A group may override any hyper-parameter, and may be added later."""
    a, b = parameter(0.0), parameter(8.0)
    optimizer = optimizers.AdamW([a], lr=0.1, weight_decay=0.0)
    step_with(optimizer, [1.0])
    optimizer.add_param_group({"params": [b], "lr": 0.5, "weight_decay": 0.25})
    step_with(optimizer, [1.0], [0.0])
    check_values(a, -0.2, rtol=1e-4)
    check_values(b, 7.0, hint="read lr, betas, eps and weight_decay from the parameter's group")


@pytest.mark.problem("optimizers.AdamW")
def test_adamw_keeps_moments_in_the_parameters_dtype():
    """A bfloat16 parameter has moments in bfloat16, and its gradient does not change."""
    p = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = optimizers.AdamW([p])
    p.grad = torch.full((3,), 2.0, dtype=torch.bfloat16)
    optimizer.step()
    moments = [value for value in optimizer.state[p].values() if isinstance(value, torch.Tensor)]
    check_equal(
        [moment.dtype for moment in moments], [torch.bfloat16] * 2, hint="two moments, and a counter that is no tensor"
    )
    check_close(p.grad, torch.full((3,), 2.0, dtype=torch.bfloat16), hint="the gradient is not yours to change")


@pytest.mark.problem("optimizers.AdamW")
def test_adamw_resumes_from_its_state_dict():
    """Saved in mid-run and loaded into a new optimizer, it goes on where it was."""
    p = parameter(0.0, 0.0)
    first = optimizers.AdamW([p], lr=0.1, betas=(0.5, 0.75), weight_decay=0.0)
    step_with(first, [1.0, -2.0])
    step_with(first, [-0.5, -2.0])
    second = optimizers.AdamW([p])
    second.load_state_dict(first.state_dict())
    step_with(second, [0.25, 4.0])
    step_with(second, [2.0, 0.5])
    check_values(
        p, -0.2113910188, 0.1145139334, hint="keep all state in self.state[p]: state_dict() saves that", rtol=1e-4
    )


@pytest.mark.problem("optimizers.AdamW")
def test_adamw_returns_the_loss_of_its_closure():
    """The closure computes the loss anew, and its gradients."""
    check_closure(optimizers.AdamW)


@pytest.mark.problem("optimizers.AdamW")
def test_adamw_refuses_wrong_hyperparameters():
    """A hyper-parameter outside its range is a ValueError that names it; a beta of 0 is right, a beta of 1 is not."""
    wrong: list[tuple[dict[str, Any], float]] = [
        ({"lr": -0.5}, -0.5),
        ({"eps": -0.25}, -0.25),
        ({"weight_decay": -0.125}, -0.125),
        ({"betas": (1.0, 0.5)}, 1.0),
        ({"betas": (0.5, -0.75)}, -0.75),
    ]
    for hyperparameters, value in wrong:
        check_raises(ValueError, partial(optimizers.AdamW, [parameter(1.0)], **hyperparameters), names=value)
    optimizers.AdamW([parameter(1.0)], lr=0.0, betas=(0.0, 0.0), weight_decay=0.0)


@pytest.mark.problem("optimizers.optimizer_state_bytes")
def test_optimizer_state_bytes_is_0_before_the_first_step():
    """What does not exist yet counts 0; SGD without momentum never keeps anything."""
    p = nn.Parameter(torch.zeros(10))
    p.grad = torch.ones(10)
    check_equal(optimizers.optimizer_state_bytes(torch.optim.AdamW([p])), 0)
    optimizer = torch.optim.SGD([p], lr=0.1)
    optimizer.step()
    check_equal(optimizers.optimizer_state_bytes(optimizer), 0)


@pytest.mark.problem("optimizers.optimizer_state_bytes")
def test_optimizer_state_bytes_counts_all_tensors():
    """PyTorch's AdamW keeps two moments of 40 bytes here, and a step counter of 4 bytes, a 0-d tensor."""
    p = nn.Parameter(torch.zeros(10))
    p.grad = torch.ones(10)
    optimizer = torch.optim.AdamW([p])
    optimizer.step()
    check_equal(optimizers.optimizer_state_bytes(optimizer), 84, hint="bytes of every tensor in optimizer.state")
