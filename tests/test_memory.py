"""What a student runs for part 3, `memory`."""

from functools import partial

import pytest
import torch
from torch import nn

from student import memory
from tests.checks import check_equal, check_raises


def fields_of(breakdown):
    """The five numbers of a MemoryBreakdown, by name."""
    names = ("parameters", "gradients", "optimizer_state", "activations", "total")
    return {name: getattr(breakdown, name) for name in names}


@pytest.mark.problem("memory.get_memory_usage")
def test_get_memory_usage_multiplies_elements_by_their_size():
    """A (4, 8) tensor of float32 takes 128 bytes, and half of that in bfloat16."""
    check_equal(memory.get_memory_usage(torch.zeros(4, 8)), 128, hint="bytes, not bits and not elements")
    check_equal(
        memory.get_memory_usage(torch.zeros(4, 8, dtype=torch.bfloat16)), 64, hint="ask the tensor for its element size"
    )
    check_equal(memory.get_memory_usage(torch.tensor(True)), 1, hint="a 0-d tensor has one element")
    check_equal(memory.get_memory_usage(torch.zeros(0, 8)), 0, hint="an empty tensor has none")


@pytest.mark.problem("memory.get_memory_usage")
def test_get_memory_usage_of_a_gpt3_matrix_is_2304_mib():
    """One feed-forward matrix of GPT-3 takes 2304 MiB; on the device "meta" it takes no memory to ask."""
    x = torch.empty(4 * 12288, 12288, device="meta")
    check_equal(
        memory.get_memory_usage(x), 2304 * 1024 * 1024, hint="no number of this tensor exists; do not copy or read it"
    )


@pytest.mark.problem("memory.storage_bytes")
def test_storage_bytes_counts_shared_memory_once():
    """However many views look at a storage, it counts once."""
    x = torch.zeros(4, 8)
    check_equal(
        memory.storage_bytes([x, x.T, x.view(8, 4), x[1:]]), 128, hint="x[1:] starts elsewhere in the same storage"
    )
    check_equal(memory.storage_bytes([x, x.clone()]), 256, hint="a clone has a storage of its own")
    check_equal(memory.storage_bytes([]), 0, hint="no tensors hold no memory")


@pytest.mark.problem("memory.storage_bytes")
def test_storage_bytes_counts_a_storage_whole():
    """One row keeps its whole matrix alive; an expanded tensor holds no more than what it was expanded from."""
    check_equal(
        memory.storage_bytes([torch.zeros(4, 8)[0]]), 128, hint="the row is a view: its storage is the matrix's"
    )
    check_equal(
        memory.storage_bytes([torch.zeros(1).expand(1_000_000)]), 4, hint="all these elements are one number in memory"
    )


@pytest.mark.problem("memory.storage_bytes")
def test_storage_bytes_tells_meta_tensors_apart():
    """Two tensors on the device "meta" have two storages, though both of these start at address 0."""
    x, y = torch.empty(10, device="meta"), torch.empty(20, device="meta")
    check_equal(memory.storage_bytes([x, y, y[5:]]), 120, hint="an address does not identify a storage on every device")


@pytest.mark.problem("memory.training_memory")
def test_training_memory_grows_as_training_starts():
    """Gradients exist after the first backward pass, the optimizer's state after its first step."""
    model = nn.Linear(8, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    expected = {"parameters": 128, "gradients": 0, "optimizer_state": 0, "activations": 0, "total": 128}
    check_equal(
        fields_of(memory.training_memory(model, optimizer)), expected, hint="nothing but the parameters exists yet"
    )

    model(torch.ones(2, 8)).sum().backward()
    expected = {"parameters": 128, "gradients": 128, "optimizer_state": 0, "activations": 0, "total": 256}
    check_equal(fields_of(memory.training_memory(model)), expected, hint="without an optimizer there is no state")

    optimizer.step()
    expected = {"parameters": 128, "gradients": 128, "optimizer_state": 128, "activations": 0, "total": 384}
    check_equal(
        fields_of(memory.training_memory(model, optimizer)), expected, hint="momentum is one tensor a parameter"
    )


@pytest.mark.problem("memory.training_memory")
def test_training_memory_counts_0d_state():
    """PyTorch's AdamW keeps two moments and a step counter, a 0-d tensor of 4 bytes, for each parameter."""
    model = nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    expected = {"parameters": 144, "gradients": 144, "optimizer_state": 296, "activations": 0, "total": 584}
    check_equal(
        fields_of(memory.training_memory(model, optimizer)),
        expected,
        hint="2 * 144 for the moments, 2 * 4 for the counters",
    )


@pytest.mark.problem("memory.training_memory")
def test_training_memory_counts_tied_parameters_once():
    """Two layers with one weight hold one weight; a buffer is not a parameter."""
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    model[1].weight = model[0].weight
    model.register_buffer("mask", torch.ones(8, 8))
    expected = {"parameters": 256, "gradients": 0, "optimizer_state": 0, "activations": 0, "total": 256}
    check_equal(fields_of(memory.training_memory(model)), expected, hint="count storages, as storage_bytes does")


@pytest.mark.problem("memory.saved_activation_bytes")
def test_saved_activation_bytes_counts_what_backward_needs():
    """The backward pass of exp needs its output; that of a sum needs no tensor."""
    x = torch.ones(10, dtype=torch.float64, requires_grad=True)
    check_equal(
        memory.saved_activation_bytes(lambda x: x.exp().sum(), x), 80, hint="10 elements of 8 bytes, counted once"
    )
    check_equal(memory.saved_activation_bytes(lambda x: x.sum(), x), 0)


@pytest.mark.problem("memory.saved_activation_bytes")
def test_saved_activation_bytes_leaves_out_inputs_and_parameters():
    """A layer saves its input and its transposed weight: neither is memory that the forward pass adds."""
    layers = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 4, bias=False))
    x = torch.ones(2, 8, requires_grad=True)
    bytes_saved = memory.saved_activation_bytes(layers, x, parameters=layers.parameters())
    check_equal(bytes_saved, 128, hint="only tanh's output is new: 2 * 16 * 4; weight.T shares the weight's storage")


@pytest.mark.problem("memory.saved_activation_bytes")
def test_saved_activation_bytes_counts_a_leaf_that_is_no_parameter():
    """A mask is a leaf, since nothing was differentiated to make it, and yet is memory that the forward pass adds."""

    def masked(x):
        return x * (torch.arange(10.0) > 4).float()

    x = torch.ones(10, requires_grad=True)
    check_equal(memory.saved_activation_bytes(masked, x), 40, hint="compare storages; is_leaf says something else")


@pytest.mark.problem("memory.deep_linear_training_bytes")
def test_deep_linear_training_bytes_follows_the_formula():
    """Two layers of 4 x 4 and one of 4 x 1, on a batch of 3."""
    expected = {"parameters": 144, "gradients": 144, "optimizer_state": 288, "activations": 96, "total": 672}
    check_equal(fields_of(memory.deep_linear_training_bytes(batch=3, dim=4, num_layers=2)), expected)
    half = {name: number // 2 for name, number in expected.items()}
    got = memory.deep_linear_training_bytes(3, 4, 2, torch.bfloat16)
    check_equal(fields_of(got), half, hint="bfloat16 has 2 bytes an element")


@pytest.mark.problem("memory.deep_linear_training_bytes")
def test_deep_linear_training_bytes_agrees_with_a_measurement():
    """The activations are what autograd really saves: the inputs of all products but the first."""
    weights = [
        torch.ones(4, 4, requires_grad=True),
        torch.ones(4, 4, requires_grad=True),
        torch.ones(4, 1, requires_grad=True),
    ]
    saved = {}  # by address; all of them are alive until the graph goes

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor.detach()

    x = torch.ones(3, 4)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = x @ weights[0] @ weights[1] @ weights[2]
    for tensor in (x, *weights):
        saved.pop(tensor.untyped_storage().data_ptr(), None)
    assert y.requires_grad
    predicted = memory.deep_linear_training_bytes(3, 4, 2).activations
    check_equal(predicted, sum(saved.values()), hint="x itself is not an activation")


@pytest.mark.problem("memory.deep_linear_training_bytes")
def test_deep_linear_training_bytes_refuses_negative_counts():
    """A negative count is a ValueError that names it; 0 is a count like any other."""
    for arguments in ((-3, 4, 2), (4, -3, 2), (4, 2, -3)):
        check_raises(ValueError, partial(memory.deep_linear_training_bytes, *arguments), names=-3)
    check_equal(memory.deep_linear_training_bytes(0, 4, 2).activations, 0)


@pytest.mark.problem("memory.peak_cuda_bytes")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="a bonus problem: needs a CUDA GPU")
def test_peak_cuda_bytes_sees_what_was_freed_again():
    """Two tensors of 1 MiB live at once, then none: the peak is 2 MiB above what was there before."""
    before = torch.zeros(1024, 1024, device="cuda")

    def fn():
        x = torch.zeros(256, 1024, device="cuda")
        return (x + before[:256]).sum().item()

    peak = memory.peak_cuda_bytes(fn, "cuda")
    check_equal(type(peak), int)
    mib = 1024 * 1024
    assert 2 * mib <= peak <= 2 * mib + 64 * 1024, f"expected 2 MiB and a little, got {peak / mib:.3f} MiB"
    assert memory.peak_cuda_bytes(lambda: None, "cuda") == 0, "reset the peak counter before fn() runs"
