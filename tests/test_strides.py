"""Part 4: views are free, copies are not."""

import pytest
import torch

from student import strides
from tests.checks import check_close, check_equal, check_raises


@pytest.mark.problem("strides.same_storage")
def test_same_storage_of_views_wherever_they_start():
    """Slices, transposes, expanded and detached tensors share the storage of what they were made from."""
    x = torch.arange(6.0).view(2, 3)
    check_equal(strides.same_storage(x, x.t()), True, hint="a transpose is the same storage with other strides")
    check_equal(strides.same_storage(x[0], x[1]), True, hint="two rows start at different places of one storage")
    check_equal(strides.same_storage(x, x[:, 1].detach()), True, hint="the offset does not matter")


@pytest.mark.problem("strides.same_storage")
def test_same_storage_of_copies():
    """Clones do not share, and neither does a reshape that had to copy."""
    x = torch.arange(6.0).view(2, 3)
    check_equal(strides.same_storage(x, x.clone()), False, hint="equal numbers, but each tensor has its own")
    check_equal(strides.same_storage(x, x.t().reshape(6)), False, hint="this reshape is no view: it copies")


@pytest.mark.problem("strides.same_storage")
def test_same_storage_of_tensors_without_bytes():
    """Two empty tensors, and two on the meta device, are not the same because both have no address."""
    x, y = torch.empty(0), torch.empty(0)
    check_equal(
        strides.same_storage(x, y), False, hint="the data pointers of both are 0; look at the storages themselves"
    )
    check_equal(strides.same_storage(x, x.view(0, 3)), True, hint="an empty tensor has views too")
    x, y = torch.empty(3, device="meta"), torch.empty(3, device="meta")
    check_equal(strides.same_storage(x, y), False, hint="on the device meta every data pointer is 0")


@pytest.mark.problem("strides.flat_index")
def test_flat_index_skips_strides_and_the_offset():
    """Row 1, column 2 of a 4 x 4 matrix is element 6, in its transpose element 9, and an offset comes on top."""
    check_equal(strides.flat_index((1, 2), (4, 1)), 6, hint="1 step of 4 and 2 steps of 1")
    check_equal(strides.flat_index((1, 2), (1, 4)), 9, hint="the transpose has its strides swapped")
    check_equal(strides.flat_index((1, 2), (4, 1), offset=5), 11, hint="the first element lies at the offset")
    check_equal(strides.flat_index((), (), 3), 3, hint="a tensor without axes has one element, at the offset")


@pytest.mark.problem("strides.flat_index")
def test_flat_index_refuses_what_cannot_be_right():
    """Lengths that differ and negative numbers are a ValueError."""
    check_raises(
        ValueError, lambda: strides.flat_index((1, 2), (4,)), hint="zip drops what is left over, unless strict=True"
    )
    check_raises(
        ValueError, lambda: strides.flat_index((1, -2), (4, 1)), names=-2, hint="nobody knows where the axis ends"
    )


@pytest.mark.problem("strides.contiguous_strides")
def test_contiguous_strides_grow_from_the_last_axis():
    """The last axis has stride 1; each other one steps over all that lies behind it."""
    check_equal(strides.contiguous_strides((2, 3, 4)), (12, 4, 1), hint="a step along an axis skips all axes behind it")
    check_equal(strides.contiguous_strides((5,)), (1,))
    check_equal(strides.contiguous_strides(()), (), hint="no axes, no strides")


@pytest.mark.problem("strides.contiguous_strides")
def test_contiguous_strides_of_empty_shapes():
    """An axis of size 0 counts as 1 in the strides of the axes before it."""
    check_equal(strides.contiguous_strides((3, 0, 2)), (2, 2, 1), hint="see torch.empty(3, 0, 2).stride()")


@pytest.mark.problem("strides.contiguous_strides")
def test_contiguous_strides_refuses_negative_sizes():
    """A negative size is a ValueError that names it."""
    check_raises(ValueError, lambda: strides.contiguous_strides((2, -3)), names=-3)


@pytest.mark.problem("strides.is_contiguous")
def test_is_contiguous_of_a_matrix_and_its_transpose():
    """A matrix is contiguous; its transpose, every other row of it, and an expanded row are not."""
    check_equal(strides.is_contiguous((2, 3), (3, 1)), True)
    check_equal(strides.is_contiguous((3, 2), (1, 3)), False, hint="read in order, the elements jump")
    check_equal(strides.is_contiguous((2, 3), (6, 1)), False, hint="there is a gap between the rows")
    check_equal(strides.is_contiguous((2, 3), (0, 1)), False, hint="the second row is the first one again")


@pytest.mark.problem("strides.is_contiguous")
def test_is_contiguous_with_axes_of_size_one_and_zero():
    """The stride of an axis of size 1 does not count, and a tensor without elements is always contiguous."""
    check_equal(strides.is_contiguous((3, 1), (1, 99)), True, hint="nobody ever steps along an axis of size 1")
    check_equal(strides.is_contiguous((2, 0), (5, 7)), True, hint="there is no element that could be out of place")


@pytest.mark.problem("strides.is_contiguous")
def test_is_contiguous_refuses_what_cannot_be_right():
    """Lengths that differ and negative numbers are a ValueError."""
    check_raises(ValueError, lambda: strides.is_contiguous((2, 3), (1,)))
    check_raises(ValueError, lambda: strides.is_contiguous((2, -3), (3, 1)), names=-3)
    check_raises(
        ValueError, lambda: strides.is_contiguous((2, 3), (-3, 1)), names=-3, hint="PyTorch has no negative strides"
    )


@pytest.mark.problem("strides.view_strides")
def test_view_strides_cuts_and_joins_axes():
    """A contiguous tensor can be viewed in any shape, and each single axis of any tensor can be cut."""
    check_equal(strides.view_strides((4, 6), (6, 1), (24,)), (1,))
    check_equal(strides.view_strides((24,), (1,), (2, 3, 4)), (12, 4, 1))
    check_equal(
        strides.view_strides((6, 4), (1, 6), (2, 3, 4)), (3, 1, 6), hint="a transposed matrix: its first axis is cut"
    )
    check_equal(
        strides.view_strides((4, 3), (6, 2), (12,)), (2,), hint="every other element, evenly spaced over all rows"
    )


@pytest.mark.problem("strides.view_strides")
def test_view_strides_is_none_where_a_copy_would_be_needed():
    """Axes that do not follow each other in the storage cannot be joined."""
    check_equal(strides.view_strides((3, 2), (1, 3), (6,)), None, hint="the columns of a transpose do not join")
    check_equal(strides.view_strides((2, 3), (4, 1), (3, 2)), None, hint="there is a gap behind each row")


@pytest.mark.problem("strides.view_strides")
def test_view_strides_does_not_mind_axes_of_size_one():
    """An axis of size 1 may lie anywhere between two others, whatever its stride."""
    answer = strides.view_strides((2, 1, 3), (3, 99, 1), (6, 1))
    # The stride of a new axis of size 1 is arbitrary: only the other one is looked at.
    check_equal(answer and answer[0], 1, hint="the stride of 99 is never used")


@pytest.mark.problem("strides.view_strides")
def test_view_strides_works_out_minus_one():
    """A -1 stands for the size that is left."""
    check_equal(strides.view_strides((4, 6), (6, 1), (4, 2, -1)), (6, 3, 1), hint="the -1 is a 3")


@pytest.mark.problem("strides.view_strides")
def test_view_strides_of_empty_tensors():
    """An empty tensor keeps its strides if it keeps its shape, and otherwise gets those of a new tensor."""
    check_equal(strides.view_strides((2, 0), (5, 7), (2, 0)), (5, 7), hint="what x.view(x.shape) does")
    check_equal(strides.view_strides((2, 0), (5, 7), (0, 2)), (2, 1), hint="what torch.empty(0, 2) has")


@pytest.mark.problem("strides.view_strides")
def test_view_strides_refuses_what_cannot_be_right():
    """Another number of elements, two -1s, a -1 that nothing decides, sizes below -1: a ValueError, and not None."""
    check_raises(ValueError, lambda: strides.view_strides((2, 3), (3, 1), (7,)), hint="6 elements are not 7")
    check_raises(ValueError, lambda: strides.view_strides((2, 3), (3, 1), (-1, 4)), hint="4 does not divide 6")
    check_raises(ValueError, lambda: strides.view_strides((2, 3), (3, 1), (-1, -1)))
    check_raises(ValueError, lambda: strides.view_strides((0,), (1,), (-1, 0)), hint="any size would do")
    check_raises(ValueError, lambda: strides.view_strides((2, 3), (3, 1), (-2, -3)), hint="although (-2) * (-3) is 6")


@pytest.mark.problem("strides.sliding_windows")
def test_sliding_windows_hold_the_neighbours():
    """Windows of 3 over 5 numbers, one step or two apart, also where the numbers lie apart in the storage."""
    x = torch.arange(10).view(2, 5)
    windows = torch.tensor([[[0, 1, 2], [2, 3, 4]], [[5, 6, 7], [7, 8, 9]]])
    check_close(strides.sliding_windows(x, 3, step=2), windows, hint="(5 - 3) // 2 + 1 windows of each row")
    columns = torch.tensor([[[0, 5]], [[1, 6]], [[2, 7]], [[3, 8]], [[4, 9]]])
    check_close(strides.sliding_windows(x.t(), 2), columns, hint="x.t() is not contiguous: neighbours lie 5 apart")


@pytest.mark.problem("strides.sliding_windows")
def test_sliding_windows_copies_nothing():
    """What is written to the input is seen in the windows."""
    x = torch.zeros(5)
    windows = strides.sliding_windows(x, 3)
    x[2] = 1.0
    expected = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    check_close(windows, expected, hint="a view: x[2] stands in all three windows, and only once in memory")


@pytest.mark.problem("strides.sliding_windows")
def test_sliding_windows_lets_gradients_flow():
    """The gradient of an element sums over the windows that hold it."""
    x = torch.zeros(5, requires_grad=True)
    strides.sliding_windows(x, 3).sum().backward()
    check_close(x.grad, torch.tensor([1.0, 2.0, 3.0, 2.0, 1.0]), hint="the middle element is in three windows")


@pytest.mark.problem("strides.sliding_windows")
def test_sliding_windows_refuses_what_cannot_be_right():
    """A window longer than the axis, or a size or step less than 1, is an error, yours or PyTorch's."""
    for size, step in [(6, 1), (0, 1), (2, 0)]:
        check_raises(Exception, lambda s=(size, step): strides.sliding_windows(torch.zeros(5), *s))


@pytest.mark.problem("strides.causal_mask")
def test_causal_mask_is_true_where_the_key_is_not_later():
    """Three positions: the first sees itself, the last sees all."""
    expected = torch.tensor([[True, False, False], [True, True, False], [True, True, True]])
    check_close(strides.causal_mask(3), expected, hint="bool; rows are queries, columns are keys")
    check_equal(tuple(strides.causal_mask(0).shape), (0, 0))
    check_raises(ValueError, lambda: strides.causal_mask(-3), names=-3)


@pytest.mark.problem("strides.causal_mask")
def test_causal_mask_is_made_on_the_device_asked_for():
    """On the device meta, for one."""
    check_equal(
        strides.causal_mask(3, device="meta").device.type, "meta", hint="pass device on to where the mask is made"
    )
