"""Mutants: the reference with one small change each, as mutmut's operators make it.

A mutant is a mistake that nobody thought of. Where the hidden suites give one full marks, it is no mistake, or a test is missing.

mutmut brings the operators. They are applied to the functions, for what stands outside of them stands in the students' stubs too, and what
comes of that is a mutant if it differs in something that a test may see. A test sees no docstring, no annotation (but for part 5, whose
annotations are graded), no bonus function, no `strict` of a `zip` (which guards against our own mistakes), no name of an axis where any
other would do, and no wording of an error message: only the values in it.
"""

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, WhitespaceInclusivePositionProvider
from mutmut.mutation.mutators import mutation_operators

_ANNOTATIONS_GRADED = "einsums"
_EINOPS = ("einsum", "rearrange", "reduce")
_SPEAKERS = ("_require", "_check")  # functions called so take names for their error messages


@dataclass(frozen=True)
class Mutant:
    """A part's module with one change."""

    part: str
    function: str  # that it is in, "SGD.step"
    operator: str  # mutmut's name for this kind of change
    before: str  # the lines that change, without indentation and comments
    after: str
    nth: int  # of the changes of this function that look the same, from 1
    source: str

    @property
    def key(self) -> tuple[str | int, ...]:
        """What it is known by, wherever it stands in the file."""
        return self.part, self.function, self.operator, self.before, self.after, self.nth


def mutants(part: str, source: str, untested: Collection[str] = ()) -> Sequence[Mutant]:
    """Return all mutants of a part's module, in the order of its lines; those of the functions called `untested` are none."""
    module = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    ranges = module.resolve(WhitespaceInclusivePositionProvider)
    text = _Text(source)
    visible = _Visible(untested, annotations=part == _ANNOTATIONS_GRADED)
    counts: Counter[tuple[str, ...]] = Counter()
    found = []
    for statement in module.module.body:
        start, end = text.span(ranges[statement])
        seen = {visible.dump(source[start:end])}
        for function, node in _nodes(statement):
            a, b = text.span(ranges[node]) if node in ranges else (0, 0)
            for operator, code in _mutations(node):
                dump = visible.dump(source[start:a] + code + source[b:end])
                if dump in seen:
                    continue
                seen.add(dump)
                first, last = text.lines(ranges[node])
                before = _code(source[first:last])
                after = _code(source[first:a] + code + source[b:last])
                key = function, operator, before, after
                counts[key] += 1
                found.append(Mutant(part, *key, counts[key], source[:a] + code + source[b:]))
    return found


def _nodes(node: cst.CSTNode, scopes: tuple[str, ...] = (), inside: bool = False) -> Iterator[tuple[str, cst.CSTNode]]:
    """Yield all nodes of functions, each with the name of its function."""
    if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        scopes = (*scopes, node.name.value)
        inside = inside or isinstance(node, cst.FunctionDef)
    if inside:
        yield ".".join(scopes), node
    for child in node.children:
        yield from _nodes(child, scopes, inside)


def _mutations(node: cst.CSTNode) -> Iterator[tuple[str, str]]:
    """Yield what each operator puts in a node's place."""
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            for mutated in operator(node):
                yield operator.__name__.removeprefix("operator_"), cst.Module(()).code_for_node(mutated)


class _Text:
    """Finds the place of a node in the source."""

    def __init__(self, source: str) -> None:
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def span(self, range: CodeRange) -> tuple[int, int]:
        """Return where the text of a node begins and ends."""
        return (
            self._starts[range.start.line - 1] + range.start.column,
            self._starts[range.end.line - 1] + range.end.column,
        )

    def lines(self, range: CodeRange) -> tuple[int, int]:
        """Return where the lines that a node is on begin and end."""
        return self._starts[range.start.line - 1], self._starts[range.end.line]


def _code(lines: str) -> str:
    return "\n".join(line.split("  # ")[0].strip() for line in lines.strip().splitlines())


def _rename_axes(nodes: Sequence[ast.AST | None]) -> None:
    """Call the axes in strings by their order: what they are called tells only which are the same."""
    axes: dict[str, str] = {}
    for node in nodes:
        for string in ast.walk(node or ast.Pass()):
            if isinstance(string, ast.Constant) and isinstance(string.value, str):
                string.value = re.sub(r"\w+", lambda axis: axes.setdefault(axis[0], f"axis{len(axes)}"), string.value)


class _Visible(ast.NodeTransformer):
    """Takes out of a syntax tree what no test may see."""

    def __init__(self, untested: Collection[str], annotations: bool) -> None:
        self._untested = untested
        self._annotations = annotations
        self._speaking = 0

    def dump(self, source: str) -> str:
        """Return what is left of a piece of source."""
        return ast.dump(self.visit(ast.parse(source)))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        """Drop the docstring and what is returned by annotation, or the whole of an untested function."""
        if node.name in self._untested:
            return None
        if self._annotations:
            _rename_axes([argument.annotation for argument in node.args.args] + [node.returns])
        else:
            node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Drop an argument's annotation."""
        if not self._annotations:
            node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Drop a variable's annotation."""
        node.annotation = ast.Name("Any")
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Drop a docstring."""
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        """Drop the wording of a message."""
        return self._spoken(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Drop the names for a message, how strict a zip is, and what the axes of a pattern are called."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "zip":
            node.keywords = []
        if name in _EINOPS and not node.keywords:  # by a keyword an axis is called from outside
            _rename_axes([argument for argument in node.args if "->" in ast.unparse(argument)])
        return self._spoken(node) if name.startswith(_SPEAKERS) else self.generic_visit(node)

    def _spoken(self, node: ast.AST) -> ast.AST:
        self._speaking += 1
        self.generic_visit(node)
        self._speaking -= 1
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Drop the text itself."""
        wording = self._speaking and (node.value is None or isinstance(node.value, str))
        return ast.Constant("") if wording else node
