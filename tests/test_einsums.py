"""Part 5: names instead of -2 and -1."""

import beartype
import pytest
import torch
from jaxtyping import TypeCheckError, jaxtyped

from student import einsums
from tests.checks import check_close, check_equal, check_raises


@pytest.mark.problem("einsums.attention_scores")
def test_attention_scores_are_scaled_dot_products():
    """One query of four ones and a key of 4, 0, 0, 0: 4 / sqrt(4) = 2."""
    q = torch.ones(1, 1, 4)
    k = torch.tensor([[[4.0, 0, 0, 0], [1, 2, 3, 4], [0, 0, 0, 0]]])
    check_close(
        einsums.attention_scores(q, k), torch.tensor([[[2.0, 5.0, 0.0]]]), hint="divide by the root of d, which is 4"
    )


@pytest.mark.problem("einsums.attention_scores")
def test_attention_scores_with_any_leading_axes():
    """No leading axis, or two; queries come first in the result."""
    q, k = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [10.0], [100.0]])
    expected = torch.tensor([[1.0, 10.0, 100.0], [2.0, 20.0, 200.0]])
    check_close(einsums.attention_scores(q, k), expected, hint="start the pattern's shapes with ...")
    check_close(einsums.attention_scores(q.expand(2, 3, 2, 1), k.expand(2, 3, 3, 1)), expected.expand(2, 3, 2, 3))


@pytest.mark.problem("einsums.mean_pool")
def test_mean_pool_averages_the_sequence():
    """(1 + 3) / 2 and (2 + 6) / 2; with two axes only there is no batch to keep."""
    x = torch.tensor([[[1.0, 2.0], [3.0, 6.0]], [[0.0, 0.0], [0.0, 1.0]]])
    check_close(einsums.mean_pool(x), torch.tensor([[2.0, 4.0], [0.0, 0.5]]), hint="the sequence is the middle axis")
    check_raises(Exception, lambda: einsums.mean_pool(x[0]), hint="the pattern names three axes, and no ...")


@pytest.mark.problem("einsums.sum_hidden")
def test_sum_hidden_sums_the_last_axis():
    """1 + 2 + 3 and 4 + 5 + 6; the sum of a vector has no axes."""
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    check_close(einsums.sum_hidden(x), torch.tensor([6.0, 15.0]))
    check_close(einsums.sum_hidden(x[0]), torch.tensor(6.0), hint="... may stand for no axes at all")
    check_close(einsums.sum_hidden(x.expand(4, 5, 2, 3)), torch.tensor([6.0, 15.0]).expand(4, 5, 2))


@pytest.mark.problem("einsums.split_heads")
def test_split_heads_gives_neighbours_to_one_head():
    """Six numbers to two heads: the first three are head 0, the last three head 1."""
    x = torch.arange(12.0).view(1, 2, 6)
    expected = torch.tensor([[[[0.0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]]])
    check_close(
        einsums.split_heads(x, heads=2), expected, hint="(heads d), not (d heads): the first name varies slowest"
    )
    check_close(einsums.split_heads(x[0], heads=2), expected[0], hint="start the pattern's shapes with ...")


@pytest.mark.problem("einsums.split_heads")
def test_split_heads_refuses_an_uneven_cut():
    """Six numbers cannot be cut into four heads."""
    check_raises(Exception, lambda: einsums.split_heads(torch.zeros(1, 2, 6), heads=4))


@pytest.mark.problem("einsums.merge_heads")
def test_merge_heads_puts_heads_side_by_side():
    """Two heads of three numbers become six numbers, head 0 first."""
    x = torch.tensor([[[[0.0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]]])
    check_close(einsums.merge_heads(x), torch.arange(12.0).view(1, 2, 6), hint="the way back from split_heads")
    check_close(einsums.merge_heads(x[0]), torch.arange(12.0).view(2, 6), hint="start the pattern's shapes with ...")


@pytest.mark.problem("einsums.project_heads")
def test_project_heads_multiplies_each_head_by_the_same_matrix():
    """Heads (1, 2) and (3, 4), and a matrix that gives the sum, the difference and twice the first number."""
    x, w = torch.tensor([[1.0, 2, 3, 4]]), torch.tensor([[1.0, 1, 2], [1, -1, 0]])
    expected = torch.tensor([[3.0, -1, 2, 7, -1, 6]])
    check_close(einsums.project_heads(x, w, heads=2), expected, hint="head 0's three results, then head 1's")
    check_close(einsums.project_heads(x.expand(2, 3, 1, 4), w, heads=2), expected.expand(2, 3, 1, 6))


@pytest.mark.problem("einsums.bilinear")
def test_bilinear_multiplies_from_both_sides():
    """Row 0 of the matrix is (1, 2, 3); (1, 0) takes it, and (1, 1, 1) sums it."""
    x, a, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0, 2, 3], [4, 5, 6]]), torch.ones(2, 3)
    check_close(einsums.bilinear(x, a, y), torch.tensor([6.0, 30.0]), hint="one number for each pair of vectors")
    check_close(einsums.bilinear(x[0], a, y[0]), torch.tensor(6.0), hint="... may stand for no axes at all")


@pytest.mark.problem("einsums.patchify")
def test_patchify_reads_patches_line_by_line():
    """A 2 x 4 image of one channel is two patches of 2 x 2."""
    images = torch.arange(8.0).view(1, 1, 2, 4)
    expected = torch.tensor([[[0.0, 1, 4, 5], [2, 3, 6, 7]]])
    check_close(einsums.patchify(images, patch=2), expected, hint="(h p) rows: h counts patches, p rows within one")


@pytest.mark.problem("einsums.patchify")
def test_patchify_keeps_the_channels_of_a_pixel_together():
    """Two channels: 0 and 10 belong to the first pixel."""
    images = torch.tensor([[[[0.0, 1], [2, 3]], [[10, 11], [12, 13]]]])
    expected = torch.tensor([[[0.0, 10, 1, 11, 2, 12, 3, 13]]])
    check_close(einsums.patchify(images, patch=2), expected, hint="(p q c): the last name varies fastest")
    check_raises(Exception, lambda: einsums.patchify(torch.zeros(1, 1, 2, 3), patch=2), hint="3 is no multiple of 2")


@pytest.mark.problem("einsums.causal_attention")
def test_causal_attention_averages_what_the_mask_allows():
    """All keys fit equally well, so that a query gets the mean of the values that it may see."""
    q, k, v = torch.zeros(1, 3, 4), torch.ones(1, 3, 4), torch.tensor([[[3.0, 0.0], [6.0, 0.0], [0.0, 9.0]]])
    mask = torch.tensor([[True, False, False], [True, True, False], [True, True, True]])
    expected = torch.tensor([[[3.0, 0.0], [4.5, 0.0], [3.0, 3.0]]])
    check_close(einsums.causal_attention(q, k, v, mask), expected, hint="True means: may attend")


@pytest.mark.problem("einsums.causal_attention")
def test_causal_attention_weighs_by_scaled_scores():
    """Scores of ln 3 and 0 after scaling by 1/2 give weights of 3/4 and 1/4."""
    q, k = torch.tensor([[2.0, 0, 0, 0]]), torch.tensor([[1.0986122886681098, 5, 5, 5], [0, 5, 5, 5]])
    v, mask = torch.tensor([[4.0], [8.0]]), torch.tensor([[True, True]])
    check_close(
        einsums.causal_attention(q, k, v, mask), torch.tensor([[5.0]]), hint="softmax over the keys, scale d^(-1/2)"
    )


# Shapes of a right call, and of one where an axis is missing or has two sizes.
CALLS = {
    "attention_scores": ([(2, 4, 5), (2, 7, 5)], [(2, 4, 5), (2, 7, 6)]),
    "mean_pool": ([(2, 3, 4)], [(3, 4)]),
    "sum_hidden": ([(2, 3, 4)], [()]),
    "split_heads": ([(2, 5, 6), 3], [(6,), 3]),
    "merge_heads": ([(2, 3, 5, 2)], [(3, 5)]),
    "project_heads": ([(2, 5, 6), (3, 4), 2], [(2, 5, 6), (3,), 2]),
    "bilinear": ([(2, 3), (3, 4), (2, 4)], [(2, 3), (5, 4), (2, 4)]),
    "patchify": ([(2, 3, 4, 6), 2], [(3, 4, 6), 2]),
    "causal_attention": ([(2, 4, 5), (2, 7, 5), (2, 7, 3), "mask"], [(2, 4, 5), (2, 7, 5), (2, 6, 3), "mask"]),
}


@pytest.mark.problem("einsums.annotations")
@pytest.mark.parametrize("name", CALLS)
def test_annotations_stop_wrong_axes(name):
    """Under jaxtyping's checker with beartype a right call passes; a wrong rank or size and integers do not."""
    enforced = jaxtyped(typechecker=beartype.beartype)(getattr(einsums, name))
    right, wrong = CALLS[name]

    def arguments(shapes, dtype=torch.float32):
        mask = torch.ones(4, 7, dtype=torch.bool)
        make = {int: lambda number: number, tuple: lambda shape: torch.ones(shape, dtype=dtype), str: lambda _: mask}
        return [make[type(shape)](shape) for shape in shapes]

    def is_refused(*values):
        try:
            result = enforced(*values)
        except TypeCheckError as error:
            return str(error)
        except NotImplementedError:
            raise
        except Exception:
            return ""  # by the function itself, and not at its door
        check_equal(isinstance(result, torch.Tensor), True, hint="a right call returns a tensor")
        return ""

    if why := is_refused(*arguments(right)):
        facts = "\n  ".join(line for line in why.splitlines()[:3] if "(" in line or "Expected" in line)
        hint = (
            "each word names an axis: no parentheses. Where two are merged write one new name, or heads*d as one word"
        )
        pytest.fail(f"a right call of {name} is refused\n  {facts}\n  hint: {hint}", pytrace=False)
    hint = f"annotate what {name} takes and returns: Float[Tensor, ...] with the names of its axes"
    if not is_refused(*arguments(wrong)):
        pytest.fail(f"{name} takes shapes that do not fit: {wrong}\n  hint: {hint}", pytrace=False)
    if not is_refused(*arguments(right, torch.int64)):
        pytest.fail(f"{name} takes integers\n  hint: Float, so that integers do not pass", pytrace=False)
