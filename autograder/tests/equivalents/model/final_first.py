"""Part 7: a model that is simple enough to account for.

A deep linear model is a product of matrices. It can learn no more than one matrix could, but it has what matters for
accounting: parameters, activations between the layers, and a backward pass through all of them.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Linear(nn.Module):
    def __init__(self, input_dim: int, output_dim: int) -> None:
        super().__init__()
        if input_dim < 1:
            raise ValueError(f"input_dim must be at least 1, not {input_dim}")
        if output_dim < 0:
            raise ValueError(f"output_dim must be 0 or more, not {output_dim}")
        std = 1 / math.sqrt(input_dim)
        self.weight = nn.Parameter(torch.empty(input_dim, output_dim))
        nn.init.trunc_normal_(self.weight, std=std, a=-3 * std, b=3 * std)  # a and b are values, not numbers of σ

    def forward(self, x: Float[Tensor, "... input_dim"]) -> Float[Tensor, "... output_dim"]:
        return x @ self.weight


class DeepLinear(nn.Module):
    def __init__(self, dim: int, num_layers: int) -> None:
        super().__init__()
        if num_layers < 0:
            raise ValueError(f"num_layers must be 0 or more, not {num_layers}")
        final = Linear(dim, 1)
        self.layers = nn.ModuleList([Linear(dim, dim) for _ in range(num_layers)])
        self.final = final

    def forward(self, x: Float[Tensor, "batch dim"]) -> Float[Tensor, " batch"]:
        for layer in self.layers:
            x = layer(x)  # (batch, dim)
        return self.final(x).squeeze(-1)  # (batch, 1) -> (batch,): only that axis, a batch may also be 1


def num_parameters(model: nn.Module) -> int:
    return sum(math.prod(p.shape) for p in {id(p): p for p in model.parameters()}.values())
