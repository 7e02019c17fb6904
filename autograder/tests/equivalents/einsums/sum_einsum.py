"""Part 5: names instead of -2 and -1.

`x @ y.transpose(-2, -1)` works, and whoever reads it a week later has to work out which axis -2 was. einops lets you write
the axes' names instead: `einsum(x, y, "... row inner, ... column inner -> ... row column")` is the same product and its own
documentation. Each docstring below shows the old way and says in words which axes go in and come out.

- `einsum(x, y, "... -> ...")` multiplies and sums over the axes that are not in the result;
- `reduce(x, "... -> ...", "mean")` takes the mean (or "sum", "max") over the axes that are not in the result;
- `rearrange(x, "... -> ...")` reorders axes, splits one in two, `(heads d)`, or merges two in one.

`...` stands for any number of leading axes, none included. All functions here work on tensors of any floating-point dtype,
where they live, and leave their arguments as they are.

What may be used: einops, softmax, `masked_fill` or `where`, arithmetic (but not `@`), and `.shape`. All other PyTorch is
the old way.

The signatures are an exercise too. jaxtyping writes axes into annotations, `Float[Tensor, "... row column"]` for any
floating dtype and `Bool[Tensor, "row column"]` for masks: give every tensor that goes in or comes out its axes. By itself this is
documentation, which nothing checks. With `jaxtyped(typechecker=beartype.beartype)` around a function it is enforced: the
tests do that, and then a tensor with too few axes, an axis that has one size here and another there, or an integer dtype
must be refused at the door.
"""

from einops import einsum, rearrange, reduce
from jaxtyping import Bool, Float
from torch import Tensor


def attention_scores(q: Float[Tensor, "... query d"], k: Float[Tensor, "... key d"]) -> Float[Tensor, "... query key"]:
    d = q.shape[-1]
    return einsum(q, k, "... query d, ... key d -> ... query key") * d**-0.5


def mean_pool(x: Float[Tensor, "batch seq hidden"]) -> Float[Tensor, "batch hidden"]:
    return einsum(x, "batch seq hidden -> batch hidden") / x.shape[1]


def sum_hidden(x: Float[Tensor, "... hidden"]) -> Float[Tensor, "..."]:
    return einsum(x, "... hidden -> ...")


def split_heads(x: Float[Tensor, "... seq total"], heads: int) -> Float[Tensor, "... heads seq d"]:
    return rearrange(x, "... seq (heads d) -> ... heads seq d", heads=heads)


def merge_heads(x: Float[Tensor, "... heads seq d"]) -> Float[Tensor, "... seq total"]:
    return rearrange(x, "... heads seq d -> ... seq (heads d)")


def project_heads(
    x: Float[Tensor, "... seq total"], w: Float[Tensor, "d e"], heads: int
) -> Float[Tensor, "... seq out"]:
    split = rearrange(x, "... seq (heads d) -> ... seq heads d", heads=heads)
    projected = einsum(split, w, "... seq heads d, d e -> ... seq heads e")
    return rearrange(projected, "... seq heads e -> ... seq (heads e)")


def bilinear(x: Float[Tensor, "... i"], a: Float[Tensor, "i j"], y: Float[Tensor, "... j"]) -> Float[Tensor, "..."]:
    return einsum(x, a, y, "... i, i j, ... j -> ...")


def patchify(images: Float[Tensor, "b c height width"], patch: int) -> Float[Tensor, "b patches values"]:
    return rearrange(images, "b c (h p) (w q) -> b (h w) (p q c)", p=patch, q=patch)


def causal_attention(
    q: Float[Tensor, "... query d"],
    k: Float[Tensor, "... key d"],
    v: Float[Tensor, "... key e"],
    mask: Bool[Tensor, "query key"],
) -> Float[Tensor, "... query e"]:
    scores = einsum(q, k, "... query d, ... key d -> ... query key") * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)  # over the keys
    return einsum(weights, v, "... query key, ... key e -> ... query e")
