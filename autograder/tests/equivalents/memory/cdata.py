"""Part 3: where the bytes are.

A tensor is a small header (shape, strides, dtype, offset) and a pointer to a storage, the block of memory that holds
the numbers. Many tensors may look at one storage. What a training run costs is its storages: those of the parameters,
the gradients and the optimizer's state, and those that autograd keeps from the forward pass for the backward pass.

Every answer here is in bytes, and exactly an `int`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass(frozen=True)
class MemoryBreakdown:
    parameters: int
    gradients: int
    optimizer_state: int
    activations: int
    total: int


def get_memory_usage(x: Shaped[Tensor, "..."]) -> int:
    return x.numel() * x.element_size()


def storage_bytes(tensors: Iterable[Shaped[Tensor, "..."]]) -> int:
    # All tensors over one storage give the same Python object for it, as long as that object lives: a set tells
    # storages apart where addresses do not (on meta), and keeps alive what it has counted.
    storages = {}
    for t in tensors:
        storages[t.untyped_storage()._cdata] = t.untyped_storage()
    return sum(s.size() * s.element_size() if hasattr(s, 'element_size') else s.nbytes() for s in storages.values())


def training_memory(model: nn.Module, optimizer: Optimizer | None = None) -> MemoryBreakdown:
    parameters = storage_bytes(model.parameters())
    gradients = storage_bytes(p.grad for p in model.parameters() if p.grad is not None)
    optimizer_state = 0
    if optimizer is not None:
        optimizer_state = storage_bytes(
            value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)
        )
    return MemoryBreakdown(
        parameters=parameters,
        gradients=gradients,
        optimizer_state=optimizer_state,
        activations=0,
        total=parameters + gradients + optimizer_state,
    )


def saved_activation_bytes(
    fn: Callable[..., object],
    *inputs: Shaped[Tensor, "..."],
    parameters: Iterable[Shaped[Tensor, "..."]] = (),
) -> int:
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        # Detached, since a graph that holds its own output would never be freed; kept, since the storage would be freed
        # with the graph, and the next one could be taken for it.
        detached = tensor.detach()
        saved.append(detached)
        return detached

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        fn(*inputs)

    given = {tensor.untyped_storage() for tensor in (*inputs, *parameters)}
    return sum(storage.nbytes() for storage in {tensor.untyped_storage() for tensor in saved} - given)


def deep_linear_training_bytes(
    batch: int, dim: int, num_layers: int, dtype: torch.dtype = torch.float32
) -> MemoryBreakdown:
    for name, count in (("batch", batch), ("dim", dim), ("num_layers", num_layers)):
        if count < 0:
            raise ValueError(f"{name} must be 0 or more, not {count}")
    if not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating-point type, not {dtype}")

    parameters = (num_layers * dim**2 + dim) * dtype.itemsize
    gradients = parameters
    optimizer_state = 2 * parameters
    activations = num_layers * batch * dim * dtype.itemsize
    return MemoryBreakdown(
        parameters=parameters,
        gradients=gradients,
        optimizer_state=optimizer_state,
        activations=activations,
        total=parameters + gradients + optimizer_state + activations,
    )


def peak_cuda_bytes(fn: Callable[[], object], device: torch.device | str) -> int:
    device = torch.device(device)
    if device.type != "cuda":
        raise ValueError(f"device must be a CUDA device, not {device}")
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    fn()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
