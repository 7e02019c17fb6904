"""Part 7: a model that is simple enough to account for."""

import math

import pytest
import torch
from torch import Tensor, nn

from student import model
from tests.checks import check_close, check_equal, check_raises

X = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, -1.0]])


def _filled(module: nn.Module, weights: list[Tensor]) -> nn.Module:
    """Return the module with these values in its parameters."""
    parameters = list(module.parameters())
    check_equal(
        [tuple(p.shape) for p in parameters], [tuple(w.shape) for w in weights], hint="shapes of the parameters"
    )
    with torch.no_grad():
        for parameter, weight in zip(parameters, weights, strict=True):
            parameter.copy_(weight)
    return module


@pytest.mark.problem("model.Linear")
def test_linear_multiplies_by_its_weight():
    """y = x·W with a weight of shape (input_dim, output_dim), and nothing added."""
    layer = _filled(model.Linear(2, 3), [torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, -1.0]])])
    check_equal(
        [name for name, _ in layer.named_parameters()], ["weight"], hint="one parameter, called weight, no bias"
    )
    expected = torch.tensor([[1.0, 2.0, 0.0], [3.0, 4.0, 2.0], [0.0, -1.0, 1.0]])
    check_close(layer(X), expected, hint="the last axis of x times the weight: x @ W")
    check_close(layer(X.expand(4, 5, 3, 2)), expected.expand(4, 5, 3, 3), hint="any number of axes may stand in front")


@pytest.mark.problem("model.Linear")
def test_linear_draws_its_weight_with_standard_deviation_one_over_root_of_input_dim():
    """The weight's values have mean 0 and standard deviation about 1/√input_dim."""
    torch.manual_seed(0)
    [weight] = [p.detach().double() for p in model.Linear(100, 400).parameters()]
    # 40,000 values: the bounds are more than eight standard deviations of a right answer away.
    assert abs(weight.mean().item()) < 0.004, "the mean should be 0"
    assert 0.095 < weight.std().item() < 0.103, (
        f"σ is 1/√input_dim = 0.1 for input_dim 100; got {weight.std().item():.4f}"
    )


@pytest.mark.problem("model.Linear")
def test_linear_cuts_its_weight_at_three_standard_deviations():
    """No value lies beyond ±3σ, none is piled up at the border, and those between 2σ and 3σ are there."""
    torch.manual_seed(0)
    [weight] = [p.detach().double() for p in model.Linear(100, 400).parameters()]
    sigmas = weight.abs() * math.sqrt(100)
    assert sigmas.max().item() <= 3 + 1e-6, (
        f"the largest value is {sigmas.max().item():.2f} σ, and should be 3 σ at most"
    )
    at_the_border = int((sigmas > 3 - 1e-6).sum())
    assert at_the_border < 20, (
        f"{at_the_border} values lie exactly at 3σ: values outside are to be drawn again, not clamped"
    )
    assert 0.03 < (sigmas > 2).double().mean().item() < 0.06, "about 4.3 % of the values should lie between 2σ and 3σ"


@pytest.mark.problem("model.Linear")
def test_linear_refuses_dimensions_that_cannot_be():
    """Without inputs there is no 1/√input_dim."""
    check_raises(ValueError, lambda: model.Linear(0, 3), names=0)
    check_raises(ValueError, lambda: model.Linear(3, -2), names=-2)


@pytest.mark.problem("model.DeepLinear")
def test_deeplinear_names_its_parameters():
    """layers.0.weight, layers.1.weight, …, final.weight."""
    shapes = {name: tuple(p.shape) for name, p in model.DeepLinear(dim=5, num_layers=2).named_parameters()}
    hint = "layers is an nn.ModuleList (a plain list hides its layers from PyTorch), final is a Linear(dim, 1)"
    check_equal(shapes, {"layers.0.weight": (5, 5), "layers.1.weight": (5, 5), "final.weight": (5, 1)}, hint=hint)


@pytest.mark.problem("model.DeepLinear")
def test_deeplinear_applies_its_layers_one_after_the_other():
    """y = x·W_0·W_1·w, one number a row, also for a batch of one."""
    weights = [
        torch.tensor([[1.0, 1.0], [0.0, 1.0]]),
        torch.tensor([[0.0, 1.0], [2.0, 0.0]]),
        torch.tensor([[1.0], [-1.0]]),
    ]
    deep = _filled(model.DeepLinear(dim=2, num_layers=2), weights)
    # [1, 2] → [1, 3] → [6, 1] → 5
    expected = torch.tensor([5.0, 11.0, -2.0])
    check_close(deep(X), expected, hint="no activation function, no bias; the answer has shape (batch,)")
    check_close(deep(X[:1]), expected[:1], hint="squeeze only the last axis, or a batch of one loses its batch axis")


@pytest.mark.problem("model.num_parameters")
def test_num_parameters_counts_elements():
    """All elements of all parameters, frozen ones too, buffers not."""
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))  # 12 + 4, and 4 + 4 beside three buffers
    check_equal(model.num_parameters(network), 24, hint="numel of each parameter; buffers are no parameters")
    network[0].weight.requires_grad_(False)
    check_equal(model.num_parameters(network), 24, hint="a frozen parameter is still a parameter")
    check_equal(model.num_parameters(nn.ReLU()), 0)


@pytest.mark.problem("model.num_parameters")
def test_num_parameters_counts_tied_weights_once():
    """A parameter that is used in two places is one parameter."""
    network = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
    network[1].weight = network[0].weight
    check_equal(model.num_parameters(network), 40, hint="Module.parameters() gives each parameter once")
