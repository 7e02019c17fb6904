"""Part 4: views are free, copies are not.

A tensor is a flat storage, an offset into it, and for each axis a size and a *stride*: how many elements to skip in
the storage for one step along that axis. Transposing, slicing, expanding and viewing only write new sizes and strides;
no element moves. This module works out those numbers by hand, and where it ends, `sliding_windows` uses them.

Strides are counted in elements, not in bytes. Sizes and strides are sequences of ints, tuples or lists; what comes back is a
tuple. No function changes what it is given.

`flat_index`, `contiguous_strides`, `is_contiguous` and `view_strides` are plain Python: no PyTorch or NumPy operation may
be used in them, since a tensor on the `meta` device would answer in their place.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor


def same_storage(x: Shaped[Tensor, "*x_shape"], y: Shaped[Tensor, "*y_shape"]) -> bool:
    """Say whether two tensors read the same storage.

    What counts is the storage itself, whatever the offsets, shapes and dtypes: two halves of one tensor share it
    although they have no element in common. Two tensors that were made apart never share, not even empty ones or ones
    on the `meta` device, all of whose data pointers are 0.

    Args:
        x: any tensor.
        y: any tensor.

    Returns:
        True if both are views of one storage.

    Example:
        >>> x = torch.arange(6.0)
        >>> same_storage(x[:3], x[3:]), same_storage(x, x.clone())
        (True, False)

    Source:
        PyTorch, "Tensor Views": https://docs.pytorch.org/docs/stable/tensor_view.html
    """
    # A data pointer would not do: it includes the offset, and every tensor without bytes says 0. But however many views
    # a storage has, PyTorch gives all of them one and the same Python object for it.
    return x.untyped_storage() is y.untyped_storage()


def flat_index(index: Sequence[int], strides: Sequence[int], offset: int = 0) -> int:
    """Compute where in its storage a tensor keeps the element at `index`.

    Formula: offset + Σᵢ index[i] · strides[i], in elements.

    Args:
        index: the element's place along each axis, counted from 0. Without the shape nobody knows where an axis ends,
            so a negative index cannot mean "from the end" and is an error.
        strides: the tensor's strides, as many as `index` has entries.
        offset: the tensor's `storage_offset()`, in elements.

    Returns:
        The position in the storage, in elements.

    Raises:
        ValueError: if `index` and `strides` differ in length, or a number in them or `offset` is negative (the
            message names that number).

    Example:
        Row 1, column 2 of a contiguous 4 x 4 matrix:

        >>> flat_index((1, 2), (4, 1))
        6

    Source:
        PyTorch, `torch.Tensor.stride`; NumPy's documentation of `ndarray` has the formula.
    """
    _require_same_length("index", index, "strides", strides)
    _require_no_negative("index", index)
    _require_no_negative("strides", strides)
    _require_no_negative("offset", (offset,))
    return offset + sum(i * stride for i, stride in zip(index, strides, strict=True))


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Compute the strides that PyTorch gives to a new tensor of this shape.

    The last axis has stride 1, and each axis before it steps over all that lies behind it. Formula: strides[i] is the
    product of max(shape[j], 1) over all j > i. (So an axis of size 0 counts as 1, as in PyTorch.)

    Args:
        shape: the sizes of the axes; () is the shape of a single number.

    Returns:
        As many strides as there are sizes, in elements.

    Raises:
        ValueError: if a size is negative; the message names it.

    Example:
        >>> contiguous_strides((4, 8)), contiguous_strides((3, 0, 2)), contiguous_strides(())
        ((8, 1), (2, 2, 1), ())

    Source:
        PyTorch, `torch.empty(shape).stride()`.
    """
    _require_no_negative("shape", shape)
    return _strides_of_new_tensor(shape)


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Say whether a tensor with these sizes and strides is contiguous.

    It is if its elements, read in order, lie one behind the other in the storage. The stride of an axis of size 1 does
    not matter, since nobody ever steps along it, and a tensor without elements is always contiguous.

    Args:
        shape: the sizes of the axes.
        strides: as many strides, in elements.

    Returns:
        What `Tensor.is_contiguous()` says.

    Raises:
        ValueError: if `shape` and `strides` differ in length, or a size or stride is negative (the message names it).

    Example:
        A matrix, its transpose, and a column whose second stride is never used:

        >>> is_contiguous((2, 3), (3, 1)), is_contiguous((3, 2), (1, 3)), is_contiguous((3, 1), (1, 99))
        (True, False, True)

    Source:
        PyTorch, `torch.Tensor.is_contiguous`.
    """
    _require_same_length("shape", shape, "strides", strides)
    _require_no_negative("shape", shape)
    _require_no_negative("strides", strides)
    if 0 in shape:
        return True
    expected = _strides_of_new_tensor(shape)
    return all(size == 1 or a == b for size, a, b in zip(shape, strides, expected, strict=True))


def view_strides(shape: Sequence[int], strides: Sequence[int], new_shape: Sequence[int]) -> tuple[int, ...] | None:
    """Compute the strides of `x.view(new_shape)`, or None where no view can have that shape.

    A view moves no element, so each new axis must be a part of one old axis, or of several neighbours that lie in the
    storage as if they were one: axes i and i + 1 do if strides[i] = shape[i + 1] · strides[i + 1].

    Args:
        shape: the sizes of x.
        strides: the strides of x, in elements.
        new_shape: the sizes asked for. One of them may be -1, and is then worked out from the number of elements.

    Returns:
        One stride for each new axis, in elements; the strides of axes of size 1 are arbitrary. None exactly where
        PyTorch says "view size is not compatible with input tensor's size and stride". Where there are no elements:
        the tensor's own strides if the shape stays as it is, else those of a new tensor.

    Raises:
        ValueError: if the new shape has another number of elements than the old one, if more than one size is -1, if a
            -1 cannot be worked out (the other sizes have a 0 among them, or do not divide the number of elements), if
            a new size is less than -1, if `shape` and `strides` differ in length, or a size or stride is negative. The
            message names the negative number.

    Example:
        Rows of 6 cut in halves; the columns of a transposed matrix, which no view can join:

        >>> view_strides((4, 6), (6, 1), (4, 2, -1))
        (6, 3, 1)
        >>> print(view_strides((3, 2), (1, 3), (6,)))
        None

    Source:
        PyTorch, `torch.Tensor.view`, whose documentation states the condition.
    """
    _require_same_length("shape", shape, "strides", strides)
    _require_no_negative("shape", shape)
    _require_no_negative("strides", strides)
    new_shape = _without_minus_one(math.prod(shape), new_shape)
    if 0 in shape:
        return tuple(strides) if new_shape == tuple(shape) else _strides_of_new_tensor(new_shape)

    # 1. Join neighbours that the storage holds as one axis, outermost first. Axes of size 1 join with anything.
    joined: list[tuple[int, int]] = []  # (size, stride)
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if joined and joined[-1][1] == size * stride:
            joined[-1] = (joined[-1][0] * size, stride)
        else:
            joined.append((size, stride))

    # 2. Cut them into the new axes, innermost first. A new axis may not reach across the end of a joined one.
    new_strides = []
    uncut, step = 1, 1  # how many elements of the joined axis are left, and how far apart they lie
    for size in reversed(new_shape):
        if uncut == 1 and size > 1:
            uncut, step = joined.pop()
        if uncut % size != 0:
            return None
        new_strides.append(step)
        uncut //= size
        step *= size
    return tuple(reversed(new_strides))


def sliding_windows(
    x: Shaped[Tensor, "*batch length"], size: int, step: int = 1
) -> Shaped[Tensor, "*batch windows {size}"]:
    """Return all windows of `size` neighbours along the last axis, without copying an element.

    Window w holds x[..., w·step : w·step + size], and there are (length - size) // step + 1 of them. The result is a
    view: it shares the storage of `x` (so that overlapping windows share elements), and gradients flow back to `x`.

    Args:
        x: any tensor with at least one axis, contiguous or not.
        size: elements in a window, from 1 to length.
        step: elements from the start of one window to the start of the next, at least 1.

    Returns:
        A view of `x`; the last axis is within the window, the one before it counts windows.

    Raises:
        ValueError: if `size` is not from 1 to length, or `step` is less than 1. (What PyTorch raises will do as well,
            but it lets size 0 pass.)

    Example:
        >>> sliding_windows(torch.arange(5), size=3).tolist()
        [[0, 1, 2], [1, 2, 3], [2, 3, 4]]

    Source:
        PyTorch, `torch.Tensor.unfold` and `torch.as_strided`.
    """
    length = x.shape[-1]
    if not 1 <= size <= length:
        raise ValueError(f"size must be from 1 to {length}, the length of the last axis, not {size}")
    if step < 1:
        raise ValueError(f"step must be at least 1, not {step}")
    # The same storage under one more axis: a step to the next window is `step` steps along the old last axis.
    return x.as_strided(
        size=(*x.shape[:-1], (length - size) // step + 1, size),
        stride=(*x.stride()[:-1], step * x.stride(-1), x.stride(-1)),
    )


def causal_mask(length: int, device: torch.device | str | None = None) -> Bool[Tensor, "query key"]:
    """Build the mask that keeps every position from looking ahead.

    Entry (query, key) is True where the query may attend to the key, that is where key ≤ query: a triangle, which
    `torch.triu` or `torch.tril` can make.

    Args:
        length: number of positions; queries and keys are the same positions. 0 gives an empty mask.
        device: where the mask is made; None is PyTorch's default device.

    Returns:
        A bool tensor of shape (length, length) on `device`.

    Raises:
        ValueError: if `length` is negative; the message names it.

    Example:
        >>> causal_mask(3).int().tolist()
        [[1, 0, 0], [1, 1, 0], [1, 1, 1]]

    Source:
        Vaswani et al., "Attention Is All You Need", section 3.2.3: https://arxiv.org/abs/1706.03762
    """
    _require_no_negative("length", (length,))
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def _strides_of_new_tensor(shape: Sequence[int]) -> tuple[int, ...]:
    strides = []
    elements_behind = 1
    for size in reversed(shape):
        strides.append(elements_behind)
        elements_behind *= max(size, 1)
    return tuple(reversed(strides))


def _require_same_length(name: str, values: Sequence[int], other_name: str, other_values: Sequence[int]) -> None:
    if len(values) != len(other_values):
        raise ValueError(
            f"{name} {tuple(values)} and {other_name} {tuple(other_values)} must have one number an axis, "
            f"but have {len(values)} and {len(other_values)}"
        )


def _require_no_negative(name: str, values: Sequence[int]) -> None:
    for value in values:
        if value < 0:
            raise ValueError(f"{name} must not be negative, but has {value}")


def _without_minus_one(num_elements: int, new_shape: Sequence[int]) -> tuple[int, ...]:
    """Put the size that makes the number of elements right in place of a -1."""
    for size in new_shape:
        if size < -1:
            raise ValueError(f"a new size must be at least -1, not {size}")
    known = math.prod(size for size in new_shape if size != -1)
    unknowns = sum(size == -1 for size in new_shape)
    if unknowns > 1:
        raise ValueError(f"only one size can be worked out, but {tuple(new_shape)} has {unknowns} times -1")
    if unknowns == 1:
        if known == 0 or num_elements % known != 0:
            raise ValueError(f"no size in place of -1 gives {tuple(new_shape)} {num_elements} elements")
        return tuple(num_elements // known if size == -1 else size for size in new_shape)
    if known != num_elements:
        raise ValueError(f"{tuple(new_shape)} has {known} elements, but there are {num_elements}")
    return tuple(new_shape)
