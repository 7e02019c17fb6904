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
    """What a training run holds in memory, in bytes.

    Attributes:
        parameters: bytes of the model's parameters.
        gradients: bytes of the parameters' gradients.
        optimizer_state: bytes of the tensors that the optimizer remembers from step to step.
        activations: bytes that the forward pass leaves behind for the backward pass.
        total: the sum of the four above.
    """

    parameters: int
    gradients: int
    optimizer_state: int
    activations: int
    total: int


def get_memory_usage(x: Shaped[Tensor, "..."]) -> int:
    """The bytes that the elements of one tensor take.

    bytes = number of elements · bytes per element

    This is a number about the tensor's shape and dtype, so it works without any memory as well: a tensor on the
    device "meta" has a shape and a dtype, but no numbers.

    Args:
        x: a tensor of any shape and dtype, on any device.

    Returns:
        The number of bytes, an `int`.

    Example:
        One matrix of GPT-3's feed-forward layers is 2304 MiB:

        >>> get_memory_usage(torch.zeros(4, 8))
        128
        >>> get_memory_usage(torch.empty(4 * 12288, 12288, device="meta")) // 1024**2
        2304

    Source:
        PyTorch's documentation of `torch.Tensor.numel` and `torch.Tensor.element_size`. GPT-3's sizes: Brown et al.,
        "Language Models are Few-Shot Learners" (2020), table 2.1.
    """
    raise NotImplementedError("memory.get_memory_usage")


def storage_bytes(tensors: Iterable[Shaped[Tensor, "..."]]) -> int:
    """The bytes that some tensors really hold in memory.

    Each storage under the tensors counts once, however many of them look at it, and counts whole, however little of
    it they look at: one row of a matrix keeps the whole matrix alive, and an expanded tensor of a million elements
    may hold four bytes.

    Args:
        tensors: tensors of any shape and dtype, on any device, in any iterable: a list, a tuple, a generator. All that
            a generator makes count, whether or not something else keeps them. Tensors on the device "meta" have
            storages with a size, too, though all of these start at address 0.

    Returns:
        The number of bytes, an `int`; 0 for no tensors.

    Example:
        >>> x = torch.zeros(4, 8)
        >>> storage_bytes([x, x.T, x[0]])
        128
        >>> storage_bytes([x[0]])
        128
        >>> storage_bytes([torch.zeros(1).expand(1_000_000)])
        4

    Source:
        PyTorch's documentation: "Tensor Views" and `torch.Tensor.untyped_storage`.
    """
    raise NotImplementedError("memory.storage_bytes")


def training_memory(model: nn.Module, optimizer: Optimizer | None = None) -> MemoryBreakdown:
    """The bytes that a model and its optimizer hold now, measured.

    Nothing is predicted here: what does not exist yet counts 0. Before the first backward pass there are no
    gradients; before the first optimizer step there is no state. Within each number a storage counts once and whole,
    as in `storage_bytes`, whether or not another number counts it too:

    - parameters: of the model's parameters, trainable or not; tied parameters once. Buffers are not parameters.
    - gradients: of the gradients that the model's parameters have, also those that are frozen by now or that the
      optimizer does not train. A gradient that is None holds nothing.
    - optimizer_state: of every tensor that `optimizer.state` has for a parameter, under any name, 0-d tensors such as
      PyTorch's own step counters too. A counter that is a Python int is not a tensor and counts 0. Its groups are
      no state: a learning rate in them counts 0, even if it is a tensor.
    - activations: 0, since none are alive between two steps.
    - total: the sum of these.

    Args:
        model: any module whose tensors have memory, so not on the device "meta".
        optimizer: an optimizer over some or all of the model's parameters, or None for no state. Its state is a dict of
            tensors, numbers and the like for each parameter; no tensors are in lists of it, as LBFGS has them.

    Returns:
        The breakdown; every field is an `int`, in bytes.

    Example:
        PyTorch's AdamW keeps two moments and a 4-byte step counter for each parameter tensor:

        >>> model = nn.Linear(8, 4, bias=False)
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> model(torch.ones(2, 8)).sum().backward()
        >>> optimizer.step()
        >>> training_memory(model, optimizer)
        MemoryBreakdown(parameters=128, gradients=128, optimizer_state=260, activations=0, total=516)

    Source:
        PyTorch's documentation of `torch.nn.Module.parameters` and `torch.optim.Optimizer`.
    """
    raise NotImplementedError("memory.training_memory")


def saved_activation_bytes(
    fn: Callable[..., object],
    *inputs: Shaped[Tensor, "..."],
    parameters: Iterable[Shaped[Tensor, "..."]] = (),
) -> int:
    """The bytes that autograd saves for the backward pass while `fn(*inputs)` runs.

    Autograd keeps, from the forward pass, the tensors that the backward pass will need. Each storage among them counts
    once and whole, whatever its dtype, except the storages of `inputs` and `parameters`: those exist anyway. With
    all in them that existed before, what is left is the memory that the forward pass adds.

    What belongs to the inputs and parameters is told by storage, not by `is_leaf`: a saved `weight.T` is no leaf, but
    looks at the weight's storage; a dropout mask is a leaf, but is new memory.

    Whatever autograd saves while `fn` runs counts, even if `fn` drops it again before it returns.

    Args:
        fn: a function or module, called once as `fn(*inputs)`; what it returns is dropped.
        *inputs: tensors of any shapes. Like all that `fn` uses, they have memory: none is on the device "meta".
        parameters: tensors that `fn` uses and that are no activations, such as `model.parameters()`, in any iterable.
            Others are not left out, not even the parameters of a module `fn`.

    Returns:
        The number of bytes, an `int`; 0 where nothing needs a gradient or the caller is under `torch.no_grad()`.

    Example:
        The backward pass of exp needs its output: 8 bytes an element here. That of the sum needs no tensor.

        >>> x = torch.ones(10, dtype=torch.float64, requires_grad=True)
        >>> saved_activation_bytes(lambda x: x.exp().sum(), x)
        80
        >>> saved_activation_bytes(lambda x: (x * x).sum(), x)
        0

    Source:
        PyTorch's documentation: "Hooks for autograd saved tensors" and `torch.autograd.graph.saved_tensors_hooks`.
    """
    raise NotImplementedError("memory.saved_activation_bytes")


def deep_linear_training_bytes(
    batch: int, dim: int, num_layers: int, dtype: torch.dtype = torch.float32
) -> MemoryBreakdown:
    """The bytes that training a deep linear model takes, predicted.

    The model is y = x @ W_1 @ ... @ W_L @ w, without biases: L = `num_layers` weights W of shape (D, D) and a last
    one, w, of shape (D, 1); x has the shape (B, D). All tensors have the dtype `dtype`, of s bytes an element. It is
    trained by AdamW, which keeps two moments for each parameter and its step counter in a Python int:

    - parameters = gradients = (L·D² + D)·s
    - optimizer_state = 2·(L·D² + D)·s
    - activations = L·B·D·s: the backward pass of each product needs the product's input. The first one's is x, which
      is not an activation. There is no loss here.
    - total: the sum of these

    Args:
        batch: B, the rows of x; 0 or more.
        dim: D, the columns of x; 0 or more.
        num_layers: L, the number of (D, D) weights; 0 or more.
        dtype: the floating-point type of everything.

    Returns:
        The breakdown; every field is an `int`, in bytes.

    Raises:
        ValueError: a count is negative, or `dtype` is not a floating-point type; the message names the value.

    Example:
        >>> deep_linear_training_bytes(batch=3, dim=4, num_layers=2)
        MemoryBreakdown(parameters=144, gradients=144, optimizer_state=288, activations=96, total=672)

    Source:
        The handout, part 3. The moments: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019).
    """
    raise NotImplementedError("memory.deep_linear_training_bytes")


def peak_cuda_bytes(fn: Callable[[], object], device: torch.device | str) -> int:
    """The most memory that `fn()` held at once on a GPU, above what was allocated before. A bonus problem.

    peak = largest number of allocated bytes while `fn()` ran - number of allocated bytes before it

    Allocated bytes are those that live tensors occupy, in blocks of 512 bytes; what PyTorch's allocator reserves beyond
    them does not count. A GPU works through its queue while Python runs on: the work before `fn` must have ended
    before the first number is read, and that of `fn` before the last. The device's peak counter is reset.

    Args:
        fn: called once, without arguments; what it returns is dropped.
        device: the CUDA device to watch, such as "cuda" or `torch.device("cuda", 0)`.

    Returns:
        The number of bytes, an `int`.

    Raises:
        ValueError: `device` is not a CUDA device; the message names it.

    Example:
        >>> if torch.cuda.is_available():
        ...     peak = peak_cuda_bytes(lambda: torch.zeros(1024, device="cuda"), "cuda")
        ... else:
        ...     peak = 4096
        >>> peak
        4096

    Source:
        PyTorch's documentation: "CUDA semantics", section "Memory management".
    """
    raise NotImplementedError("memory.peak_cuda_bytes")
