"""What solutions may use: the allow-lists of the handout, checked on the parsed source. Nothing is run.

`RULES` says in words and in names what may be used where. `check_part` reads a part's file, and the files of the student's own
that it imports, and returns what breaks a rule. A problem answers for what its function or class reaches, helpers included, and
for nothing else; what no problem reaches answers only to the rules that hold everywhere.

Comments and strings are no operations and are not looked at, nor is what stands under `if __name__ == "__main__":` or
`if TYPE_CHECKING:`; of annotations only functions and optimizers count. A name counts where it is used and not where it is
imported: an import that nobody uses breaks no rule. Of libraries only what `tests/libraries.py` names may be used at all.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch

from handout.problems import load_assignment
from tests import libraries
from tests.mentions import Kind, Mention, Package, Piece

# --- the rules ---


@dataclass(frozen=True)
class Rule:
    """What may be used in some parts or problems; a name that a rule does not speak of is free."""

    where: frozenset[str]  # parts ("einsums") and problems ("strides.flat_index"), or "*": everywhere
    says: str  # the rule in words, as students read it
    only: Mapping[str, frozenset[str]] = field(default_factory=dict)  # below these names, only what fits these patterns
    never: frozenset[str] = frozenset()  # patterns of dotted names
    never_attributes: frozenset[str] = frozenset()  # of values whose type the source does not say
    other_libraries: bool = True  # may libraries be used that are neither Python's own nor in `only`?
    old_way: bool = True  # may `@`, and indices such as x[..., None], be used?


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _with_in_place(names: frozenset[str]) -> frozenset[str]:
    """Add the names that PyTorch gives to the same operations in place."""
    return names | {f"{name}_" for name in names}


_DTYPES = frozenset(name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype))
_ARITHMETIC = _with_in_place(
    _names("add sub subtract mul multiply div divide true_divide neg negative pow square sqrt rsqrt reciprocal exp")
    | _names("logical_not bitwise_not")
)
_ALLOWED_OF_TENSORS = (
    _ARITHMETIC | _with_in_place(_names("softmax masked_fill")) | _names("where shape size ndim dim dtype device")
)
# Strings and lists have these too: whoever calls .index() may well hold a list.
_NOT_OF_TENSORS_ALONE = frozenset().union(*map(dir, (object, str, list, tuple, dict, set, int, float, bytes, range)))
_NO_OPERATIONS = _names("__dict__ __module__ __weakref__ __annotations__")
_TENSOR_OPERATIONS = frozenset(dir(torch.Tensor)) - _NOT_OF_TENSORS_ALONE - _NO_OPERATIONS

RULES = (
    Rule(
        where=frozenset({"*"}),
        says="what a solution uses must stand in its source: no exec, eval, importlib or getattr with a computed name, "
        "no * import, and no library handed around as a value",
        never=_names("builtins.exec builtins.eval builtins.__import__ builtins.getattr builtins.globals")
        | _names(
            "builtins.__builtins__ importlib importlib.* imp imp.* runpy runpy.* pkgutil pkgutil.* ctypes ctypes.*"
        )
        | _names("sys.modules sys._getframe gc.get_objects inspect.getmodule inspect.currentframe")
        | _names("operator.attrgetter operator.methodcaller torch.__dict__ torch.*.__dict__ numpy.__dict__")
        | {
            "* import [*]",
            "assignment in an annotation",
            "code in a shape",
            "assignment to __name__*",
            "type with three arguments",
        }
        | {"timeit of a string", "allow_pickle", "load without weights_only=True"}
        | _names("os.dup os.dup2 os.pipe os.pipe2"),
        never_attributes=libraries.HIDING | _names("_os _sys _module mro"),
    ),
    Rule(
        where=frozenset({"einsums"}),
        says="only einops, softmax, masked_fill or where, arithmetic without @, and .shape",
        only={
            "torch": _DTYPES
            | _ARITHMETIC
            | _names("Tensor dtype device inf finfo finfo.* softmax where masked_fill")
            | _names("nn.functional.softmax special.softmax nn.Softmax"),
            "torch.Tensor": _ALLOWED_OF_TENSORS,
            "numpy": _names("sqrt inf"),
            "einops": _names("*"),
        },
        never=_names("operator.matmul operator.imatmul operator.__matmul__ operator.__imatmul__"),
        never_attributes=_TENSOR_OPERATIONS - _ALLOWED_OF_TENSORS,
        other_libraries=False,
        old_way=False,
    ),
    Rule(
        where=_names("strides.flat_index strides.contiguous_strides strides.is_contiguous strides.view_strides")
        | _names("dtypes.float_limits napkin flops.matmul_flops flops.einsum_flops flops.elementwise_flops")
        | _names("flops.deep_linear_flops flops.training_step_flops flops.promised_flop_per_sec flops.mfu"),
        says="plain Python: no PyTorch operation and no NumPy array",
        only={
            "torch": _DTYPES | _names("Tensor Size Size.* dtype dtype.* device inf nan finfo finfo.* iinfo iinfo.*"),
            "numpy": _names("prod cumprod cumsum sum max min maximum minimum log2 ceil floor sqrt power exp2 ldexp")
            | _names("inf nan int64 float64 integer"),
        },
        other_libraries=False,
    ),
    Rule(
        where=frozenset({"dtypes.float_limits"}),
        says="the limits are to be computed: no finfo",
        never=_names("torch.finfo torch.finfo.* numpy.finfo numpy.finfo.*"),
    ),
    Rule(
        where=frozenset({"optimizers"}),
        says="of torch.optim only Optimizer, and no fused or multi-tensor optimizer (torch._foreach_add_ and the like are fine)",
        only={
            "torch.optim": _names("Optimizer Optimizer.* optimizer.Optimizer optimizer.Optimizer.*")
            | _names("optimizer.ParamsT optimizer.required")
        },
        never=_names("torch._fused_* torch.*._fused_* torch.distributed.optim torch.distributed.optim.*"),
    ),
    Rule(
        where=frozenset({"flops"}),
        says="no flop_counter: counting is the exercise",
        never=_names("torch.utils.flop_counter torch.utils.flop_counter.*"),
    ),
    Rule(
        where=frozenset(part.id for part in load_assignment().parts) - {"training"},
        says="no torch.load: only checkpoints are loaded",
        never=_names("torch.load torch.serialization torch.serialization.*"),
    ),
)

UNREADABLE = "cannot be read as Python, so it cannot be checked"
OTHER_PARTS = "a part imports no other part: what it needs comes as an argument"

# Packages beside Python's own that say something about code and compute nothing: free everywhere.
_ABOUT_CODE = _names("builtins jaxtyping beartype typeguard typing_extensions")
# Types that are welcome in an isinstance. Called, they make a tensor.
_NOT_TO_CALL = _names("torch.Tensor")

# What these do depends on where they are called, and on what.
_ONLY_TO_CALL = _names("builtins.locals builtins.setattr builtins.delattr")

# Modules that are honestly handed around as values.
_HANDED_ON = _names("random math numpy.random")
# As deep as the trees may be that Python parses. Before 3.11 each call takes room on C's stack.
_DEPTH = 100_000 if sys.version_info >= (3, 11) else 5_000

# --- checking ---


@dataclass(frozen=True)
class Violation:
    """A name that may not be used where it stands."""

    file: str  # below the student's folder: "einsums.py"
    line: int
    name: str  # what is used, whatever it is called in the source: "torch.optim.AdamW", ".transpose", "@"
    rule: str  # the rule in words
    problem: str | None = None  # the problem that loses by it; None: the whole part

    def __str__(self) -> str:
        """One line for the student."""
        return f"student/{self.file}:{self.line}: {self.name}: {self.rule}"


def rules_for(place: str) -> list[Rule]:
    """Return the rules that hold for a problem ("strides.flat_index"), for a part as a whole ("strides"), or everywhere ("*")."""
    return [rule for rule in RULES if rule.where & {"*", place, place.split(".")[0]}]


def check_part(part: str, sources: Mapping[str, str | bytes]) -> list[Violation]:
    r"""Return what breaks the rules of a part.

    Args:
        part: its name, "einsums".
        sources: the content of each Python file that is handed in, by its path below the student's folder ("einsums.py",
            "extra/axes.py"). Files that the part does not import are not looked at.

    Returns:
        The violations in the order of files and lines: one for each problem that reaches the place, or one for the part as a
        whole where no problem does.

    Example:
        >>> source = "import torch as t\ndef flat_index(index, strides):\n    return t.dot(index, strides)\n"
        >>> print(*check_part("strides", {"strides.py": source}))
        student/strides.py:3: torch.dot: plain Python: no PyTorch operation and no NumPy array
    """
    assignment = load_assignment()
    package = Package(sources, part, {part.id for part in assignment.parts})
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEPTH))  # after parsing: Python's own limit says what can be compiled
    try:
        package.read()
    finally:
        sys.setrecursionlimit(limit)
    found: set[Violation] = set(_violations(part, package.unreadable, rules_for("*"), None))
    reached_by_some: set[Piece] = set()
    for problem in assignment.problems:
        if problem.part == part:
            reached = package.reached_from(part, problem.name)
            reached_by_some |= reached
            mentions = [*package.stands_for(part, problem.name), *_mentions(reached)]
            found |= set(_violations(part, mentions, rules_for(problem.id), problem.id))
    for piece in package.pieces_imported():
        if piece not in reached_by_some:
            # A definition that no problem uses may be a student's own experiment. A statement runs when the file is imported.
            rules = rules_for(part) if piece.runs_at_import else rules_for("*")
            found |= set(_violations(part, piece.mentions, rules, None))
    return sorted(found, key=lambda v: (v.file, v.line, v.name, v.problem or ""))


def _mentions(pieces: Iterable[Piece]) -> Iterator[Mention]:
    for piece in pieces:
        yield from piece.mentions


def _violations(
    part: str, mentions: Iterable[Mention], rules: Iterable[Rule], problem: str | None
) -> Iterator[Violation]:
    for mention in mentions:
        if mention.kind is Kind.OTHER_PART and mention.name != part:
            yield Violation(mention.file, mention.line, f"import of {mention.name}", OTHER_PARTS, problem)
        broken = [rule.says for rule in rules if _breaks(mention, rule)]
        if not broken and (why := _refusal(mention)):
            broken = [why]
        dot = "." if mention.kind is Kind.ATTRIBUTE else ""
        for says in broken:
            name = f"{dot}{mention.name.removeprefix('builtins.')}"
            yield Violation(mention.file, mention.line, name, says, problem)


def _refusal(mention: Mention) -> str | None:
    """Return why something mentioned may be used in no part."""
    name = mention.name
    if mention.kind is Kind.UNREADABLE:
        return UNREADABLE
    if mention.kind is Kind.OWN_MODULE:
        return RULES[0].says
    if mention.kind is Kind.ANNOTATION:
        return libraries.refusal(name) if libraries.does_something(name) else None
    if mention.kind is not Kind.LIBRARY:
        return None
    if name.startswith("assignment to "):
        module = name.removeprefix("assignment to ")
        is_setting = module.startswith("torch.backends") or module == "sys"
        return None if is_setting else RULES[0].says
    if " " in name or name == "allow_pickle":
        return None
    if name in _ONLY_TO_CALL and not mention.called:
        return RULES[0].says
    if libraries.is_module(name) and not mention.called and name not in _HANDED_ON and not libraries.refusal(name):
        return RULES[0].says
    return libraries.refusal(name)


def _breaks(mention: Mention, rule: Rule) -> bool:
    if mention.kind is Kind.OLD_WAY:
        return not rule.old_way
    if mention.kind is Kind.ATTRIBUTE:
        return mention.name in rule.never_attributes
    if mention.kind is Kind.ANNOTATION:
        return libraries.does_something(mention.name) and _is_refused(mention, rule)
    return mention.kind is Kind.LIBRARY and (_is_refused(mention, rule) or _hands_on_too_much(mention, rule))


def _is_refused(mention: Mention, rule: Rule) -> bool:
    name = mention.name
    if any(fnmatchcase(name, pattern) for pattern in rule.never):
        return True
    if prefixes := [prefix for prefix in rule.only if name.startswith(f"{prefix}.")]:
        nearest = max(prefixes, key=len)
        below = name.removeprefix(f"{nearest}.")
        allowed = any(fnmatchcase(below, pattern) for pattern in rule.only[nearest])
        return not allowed or (mention.called and name in _NOT_TO_CALL)
    return not rule.other_libraries and name.split(".")[0] not in sys.stdlib_module_names | _ABOUT_CODE | set(rule.only)


def _hands_on_too_much(mention: Mention, rule: Rule) -> bool:
    """Whether a module is used as a value from which something could be taken that the rule refuses: `f(torch)`."""
    restricted = {pattern.removesuffix(".*") for pattern in rule.never} | set(rule.only) - _NOT_TO_CALL
    return not mention.called and any(
        name == mention.name or name.startswith(f"{mention.name}.") for name in restricted
    )
