"""Part 5: names instead of -2 and -1.

`x @ y.transpose(-2, -1)` works, and whoever reads it a week later has to work out which axis -2 was. einops lets you write
the axes' names instead: `einsum(x, y, "... row inner, ... column inner -> ... row column")` is the same product and its own
documentation. Each docstring below shows the old way and says in words which axes go in and come out.

- `einsum(x, y, "... -> ...")` multiplies and sums over the axes that are not in the result;
- `reduce(x, "... -> ...", "mean")` takes the mean (or "sum", "max") over the axes that are not in the result;
- `rearrange(x, "... -> ...")` reorders axes, splits one in two, `(heads d)`, or merges two in one.

`...` stands for any number of leading axes, none included. All functions here work on tensors of float64, float32 or
bfloat16, where they live, give a result of the same dtype, and leave their arguments as they are. Where sizes must agree, an
axis of size 1 may pass for any: PyTorch, and einsum with it, stretches it.

What may be used: einops, softmax, `masked_fill` or `where`, arithmetic (but not `@`), and `.shape`. All other PyTorch is
the old way.

The signatures are an exercise too. jaxtyping writes axes into annotations, `Float[Tensor, "... row column"]` for any
floating dtype and `Bool[Tensor, "row column"]` for masks: give every tensor that goes in or comes out its axes. By itself this is
documentation, which nothing checks. With `jaxtyped(typechecker=beartype.beartype)` around a function it is enforced: the
tests do that, and then a tensor with too few axes, an axis that has one size here and another there, or an integer dtype
must be refused at the door. Its words are plain names: einops' parentheses mean nothing to it, so an axis that is split or merged
gets a name of its own.
"""

from einops import einsum, rearrange, reduce
from jaxtyping import Bool, Float
from torch import Tensor


def attention_scores(q: Float[Tensor, "... query d"], k: Float[Tensor, "... key d"]) -> Float[Tensor, "... query key"]:
    """Compute how well each query fits each key: their dot product, scaled by d^(-1/2).

    The old way:

        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5

    Args:
        q: any leading axes, then queries, then d.
        k: the same leading axes, then keys (as many as there are queries, or not), then d.

    Returns:
        The leading axes, then queries, then keys.

    Raises:
        Exception: what einops or PyTorch raises, if the sizes of d differ.

    Example:
        >>> import torch
        >>> q, k = torch.tensor([[4.0, 0, 0, 0]]), torch.tensor([[1.0, 9, 9, 9], [0, 5, 5, 5]])
        >>> attention_scores(q, k)
        tensor([[2., 0.]])

    Source:
        Vaswani et al., "Attention Is All You Need", section 3.2.1: https://arxiv.org/abs/1706.03762
    """
    d = q.shape[-1]
    return einsum(q, k, "... query d, ... key d -> ... query key") * d**-0.5


def mean_pool(x: Float[Tensor, "batch seq hidden"]) -> Float[Tensor, "batch hidden"]:
    """Average over the sequence: one vector for each example of the batch.

    The old way:

        pooled = x.mean(dim=1)

    Args:
        x: batch, then sequence (at least one position), then hidden. Three axes exactly.

    Returns:
        Batch, then hidden.

    Raises:
        Exception: what einops or PyTorch raises, if `x` has another number of axes.

    Example:
        >>> import torch
        >>> mean_pool(torch.tensor([[[1.0, 2.0], [3.0, 6.0]]]))
        tensor([[2., 4.]])

    Source:
        einops, `reduce`: https://einops.rocks/api/reduce/
    """
    return reduce(x, "batch seq hidden -> batch hidden", "mean")


def sum_hidden(x: Float[Tensor, "... hidden"]) -> Float[Tensor, "..."]:
    """Sum over the last axis.

    The old way:

        total = x.sum(dim=-1)

    Args:
        x: any leading axes, then hidden.

    Returns:
        The leading axes; a tensor without axes if there were none.

    Example:
        >>> import torch
        >>> sum_hidden(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
        tensor([ 6., 15.])

    Source:
        einops, `reduce`: https://einops.rocks/api/reduce/
    """
    return reduce(x, "... hidden -> ...", "sum")


def split_heads(x: Float[Tensor, "... seq total"], heads: int) -> Float[Tensor, "... heads seq d"]:
    """Cut the last axis into heads, and bring the heads to the front of the sequence.

    The first d numbers of the last axis are head 0, the next d are head 1, and so on: the last axis is `(heads d)`.

    The old way:

        split = x.view(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(-3, -2)

    Args:
        x: any leading axes, then sequence, then heads times d.
        heads: the number of heads.

    Returns:
        The leading axes, then heads, then sequence, then d.

    Raises:
        Exception: what einops or PyTorch raises, if the last axis can't be cut into so many heads.

    Example:
        >>> import torch
        >>> split_heads(torch.tensor([[0.0, 1, 2, 3], [4, 5, 6, 7]]), heads=2)
        tensor([[[0., 1.],
                 [4., 5.]],
        <BLANKLINE>
                [[2., 3.],
                 [6., 7.]]])

    Source:
        einops, `rearrange`: https://einops.rocks/api/rearrange/
    """
    return rearrange(x, "... seq (heads d) -> ... heads seq d", heads=heads)


def merge_heads(x: Float[Tensor, "... heads seq d"]) -> Float[Tensor, "... seq total"]:
    """Put the heads side by side again: the way back from `split_heads`.

    The old way:

        merged = x.transpose(-3, -2).flatten(start_dim=-2)

    Args:
        x: any leading axes, then heads, then sequence, then d.

    Returns:
        The leading axes, then sequence, then heads times d; head 0 comes first.

    Raises:
        Exception: what einops or PyTorch raises, if `x` has fewer than three axes.

    Example:
        >>> import torch
        >>> merge_heads(torch.tensor([[[0.0, 1], [4, 5]], [[2, 3], [6, 7]]]))
        tensor([[0., 1., 2., 3.],
                [4., 5., 6., 7.]])

    Source:
        einops, `rearrange`: https://einops.rocks/api/rearrange/
    """
    return rearrange(x, "... heads seq d -> ... seq (heads d)")


def project_heads(
    x: Float[Tensor, "... seq total"], w: Float[Tensor, "d e"], heads: int
) -> Float[Tensor, "... seq out"]:
    """Multiply each head by the same matrix: split, multiply, merge.

    The old way:

        split = x.view(*x.shape[:-1], heads, x.shape[-1] // heads)
        projected = (split @ w).flatten(start_dim=-2)

    Args:
        x: any leading axes, then sequence, then heads times d; heads as in `split_heads`.
        w: d, then e. All heads share it.
        heads: the number of heads.

    Returns:
        The leading axes, then sequence, then heads times e; head 0 comes first.

    Raises:
        Exception: what einops or PyTorch raises, if the last axis can't be cut into so many heads, or d is not `w`'s.

    Example:
        Two heads of two numbers, and a matrix that adds the two:

        >>> import torch
        >>> project_heads(torch.tensor([[1.0, 2, 3, 4]]), torch.ones(2, 1), heads=2)
        tensor([[3., 7.]])

    Source:
        einops, `einsum`: https://einops.rocks/api/einsum/
    """
    split = rearrange(x, "... seq (heads d) -> ... seq heads d", heads=heads)
    projected = einsum(split, w, "... seq heads d, d e -> ... seq heads e")
    return rearrange(projected, "... seq heads e -> ... seq (heads e)")


def bilinear(x: Float[Tensor, "... i"], a: Float[Tensor, "i j"], y: Float[Tensor, "... j"]) -> Float[Tensor, "..."]:
    """Compute the bilinear form xᵀ A y of each pair of vectors.

    The old way:

        form = ((x @ a) * y).sum(dim=-1)

    Args:
        x: any leading axes, then i.
        a: i, then j. All pairs share it.
        y: the same leading axes as x, then j.

    Returns:
        The leading axes: one number a pair.

    Raises:
        Exception: what einops or PyTorch raises, if the sizes of i or of j differ.

    Example:
        >>> import torch
        >>> a = torch.tensor([[0.0, 1, 0], [0, 0, 10]])
        >>> bilinear(torch.tensor([1.0, 2.0]), a, torch.tensor([5.0, 6, 7]))
        tensor(146.)

    Source:
        einops, `einsum`: https://einops.rocks/api/einsum/
    """
    return einsum(x, a, y, "... i, i j, ... j -> ...")


def patchify(images: Float[Tensor, "b c height width"], patch: int) -> Float[Tensor, "b patches values"]:
    """Cut images into square patches, and write the pixels of each patch in a row.

    The patches stand in reading order: left to right, then top to bottom. So do the pixels within a patch, and the channels
    of a pixel stand together.

    The old way:

        b, c, height, width = images.shape
        h, w = height // patch, width // patch
        patches = images.view(b, c, h, patch, w, patch).permute(0, 2, 4, 3, 5, 1).reshape(b, h * w, patch * patch * c)

    Args:
        images: b images of c channels, then height, then width: (h p) rows and (w q) columns, where p and q are `patch`.
        patch: height and width of a patch, in pixels.

    Returns:
        b images, then patches (h w), then the numbers of a patch (p q c).

    Raises:
        Exception: what einops or PyTorch raises, if the height or the width is no multiple of `patch`.

    Example:
        >>> import torch
        >>> patchify(torch.arange(8.0).reshape(1, 1, 2, 4), patch=2)
        tensor([[[0., 1., 4., 5.],
                 [2., 3., 6., 7.]]])

    Source:
        Dosovitskiy et al., "An Image is Worth 16x16 Words", section 3.1: https://arxiv.org/abs/2010.11929
    """
    return rearrange(images, "b c (h p) (w q) -> b (h w) (p q c)", p=patch, q=patch)


def causal_attention(
    q: Float[Tensor, "... query d"],
    k: Float[Tensor, "... key d"],
    v: Float[Tensor, "... key e"],
    mask: Bool[Tensor, "query key"],
) -> Float[Tensor, "... query e"]:
    """Compute attention, where `mask` says which keys a query may attend to.

    softmax(scores) v, where the scores are those of `attention_scores`, and -inf where the mask is False; the softmax is
    taken over the keys. Scores may be large: a query's can all lie thousands above 0 or below.

    The old way:

        scores = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).masked_fill(~mask, float("-inf"))
        attended = scores.softmax(dim=-1) @ v

    Args:
        q: any leading axes, then queries, then d.
        k: the same leading axes, then keys, then d.
        v: the same leading axes, then keys, then e (which may be d, or not).
        mask: bool, queries, then keys: True where the query may attend to the key, at least once for each query. Any
            such mask will do; `strides.causal_mask` makes the usual one. The leading axes share it.

    Returns:
        The leading axes, then queries, then e, in the dtype of the arguments.

    Raises:
        Exception: what einops or PyTorch raises, if the sizes do not fit.

    Example:
        The first query sees only the first key; the second sees two that fit it equally well:

        >>> import torch
        >>> q, k, v = torch.zeros(2, 4), torch.ones(2, 4), torch.tensor([[2.0], [4.0]])
        >>> causal_attention(q, k, v, mask=torch.tensor([[True, False], [True, True]]))
        tensor([[2.],
                [3.]])

    Source:
        Vaswani et al., "Attention Is All You Need", section 3.2: https://arxiv.org/abs/1706.03762. With the causal mask and
        as many queries as keys this is PyTorch's `scaled_dot_product_attention(q, k, v, is_causal=True)`.
    """
    scores = einsum(q, k, "... query d, ... key d -> ... query key") * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)  # over the keys
    return einsum(weights, v, "... query key, ... key e -> ... query e")
