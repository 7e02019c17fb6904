"""Part 4: views are free, copies are not.

A tensor is a flat storage, an offset into it, and for each axis a size and a *stride*: how many elements to skip in
the storage for one step along that axis. Transposing, slicing, expanding and viewing only write new sizes and strides;
no element moves. This module works out those numbers by hand, and where it ends, `sliding_windows` uses them.

Strides are counted in elements, not in bytes. Sizes and strides are sequences of ints; what comes back is a tuple.

`flat_index`, `contiguous_strides`, `is_contiguous` and `view_strides` are plain Python: no PyTorch or NumPy operation may
be used in them, since a tensor on the `meta` device would answer in their place.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor


def same_storage(x: Shaped[Tensor, "*x_shape"], y: Shaped[Tensor, "*y_shape"]) -> bool:
    # A data pointer would not do: it includes the offset, and every tensor without bytes says 0. But however many views
    # a storage has, PyTorch gives all of them one and the same Python object for it.
    return x.untyped_storage() is y.untyped_storage()


def flat_index(index: Sequence[int], strides: Sequence[int], offset: int = 0) -> int:
    _require_same_length("index", index, "strides", strides)
    _require_no_negative("index", index)
    _require_no_negative("strides", strides)
    _require_no_negative("offset", (offset,))
    return offset + sum(i * stride for i, stride in zip(index, strides, strict=True))


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    _require_no_negative("shape", shape)
    return _strides_of_new_tensor(shape)


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    _require_same_length("shape", shape, "strides", strides)
    _require_no_negative("shape", shape)
    _require_no_negative("strides", strides)
    if 0 in shape:
        return True
    expected = _strides_of_new_tensor(shape)
    return all(size == 1 or a == b for size, a, b in zip(shape, strides, expected, strict=True))


def view_strides(shape: Sequence[int], strides: Sequence[int], new_shape: Sequence[int]) -> tuple[int, ...] | None:
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


def causal_mask(length,device=None):
    if length<0: raise ValueError(length)
    i=torch.arange(length,device=device)
    return i[:,None]>=i
