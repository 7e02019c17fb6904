"""Part 7: a model that is simple enough to account for.

A deep linear model is a product of matrices. It can learn no more than one matrix could, but it has what matters for
accounting: parameters, activations between the layers, and a backward pass through all of them.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Linear(nn.Module):
    """A linear layer without bias, y = x·W.

    The weight is drawn from a normal distribution of mean 0 and standard deviation σ = 1/√input_dim, cut at ±3σ: what
    falls outside is drawn again, not moved to the border. So an output has about the same size as an input, whatever
    the width, and no weight is an outlier. It is drawn from PyTorch's global generator, so that `torch.manual_seed`
    decides it.

    Attributes:
        weight: the parameter W, of shape (input_dim, output_dim), in PyTorch's default dtype.

    Args:
        input_dim: size of the last axis of the input, 1 or more, since σ divides by its root.
        output_dim: size of the last axis of the output, 0 or more.

    Raises:
        ValueError: a dimension is too small; the message names the value.

    Example:
        >>> layer = Linear(4, 2)
        >>> layer.weight.shape
        torch.Size([4, 2])
        >>> layer(torch.ones(3, 5, 4)).shape
        torch.Size([3, 5, 2])

    Source:
        LeCun, Bottou, Orr and Müller, "Efficient BackProp" (1998), section 4.6: variance 1/input_dim.
    """

    def __init__(self, input_dim: int, output_dim: int) -> None:
        """Create the weight and draw its values."""
        raise NotImplementedError("model.Linear")

    def forward(self, x: Float[Tensor, "... input_dim"]) -> Float[Tensor, "... output_dim"]:
        """Multiply the last axis of x, which need not be contiguous, by the weight."""
        raise NotImplementedError("model.Linear")


class DeepLinear(nn.Module):
    """Layers of equal width, one after the other, and a last one that gives one number for each row.

        h_0 = x,  h_{i+1} = h_i·W_i for i = 0 … num_layers - 1,  y = h_{num_layers}·w

    Between the layers is nothing: no bias, no activation function.

    Attributes:
        layers: `num_layers` layers `Linear(dim, dim)`, each with a weight of its own.
        final: `Linear(dim, 1)`.

    The parameters are thus called `layers.0.weight`, `layers.1.weight`, …, `final.weight`, in this order.

    Args:
        dim: width of the input and of every layer, 1 or more.
        num_layers: number of layers before the last one, 0 or more.

    Raises:
        ValueError: `dim` or `num_layers` is too small; the message names the value.

    Example:
        >>> model = DeepLinear(dim=4, num_layers=2)
        >>> [(name, tuple(p.shape)) for name, p in model.named_parameters()]
        [('layers.0.weight', (4, 4)), ('layers.1.weight', (4, 4)), ('final.weight', (4, 1))]
        >>> model(torch.ones(3, 4)).shape
        torch.Size([3])

    Source:
        Saxe, McClelland and Ganguli, "Exact solutions to the nonlinear dynamics of learning in deep linear neural
        networks" (ICLR 2014).
    """

    def __init__(self, dim: int, num_layers: int) -> None:
        """Create the layers."""
        raise NotImplementedError("model.DeepLinear")

    def forward(self, x: Float[Tensor, "batch dim"]) -> Float[Tensor, " batch"]:
        """Predict one number for each row of x."""
        raise NotImplementedError("model.DeepLinear")


def num_parameters(model: nn.Module) -> int:
    """The number of elements of a model's parameters.

    A parameter that the model uses in two places (tied weights) counts once. Frozen parameters count; buffers do not.

    Args:
        model: any module.

    Returns:
        The number of elements, an `int`.

    Example:
        >>> num_parameters(DeepLinear(dim=8, num_layers=3))  # 3·8² + 8
        200
        >>> tied = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
        >>> tied[1].weight = tied[0].weight
        >>> num_parameters(tied)
        64

    Source:
        PyTorch's documentation of `torch.nn.Module.parameters`, which yields each parameter once.
    """
    raise NotImplementedError("model.num_parameters")
