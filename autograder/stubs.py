"""Make the students' stubs from the reference: signatures and docstrings stay, solutions go.

Nobody edits `student/`: `make stubs` writes it, and a test fails when it differs from what would be written now. What
happens to each statement of a reference module:

| statement                                       | in the stub                                                        |
|-------------------------------------------------|--------------------------------------------------------------------|
| module docstring, imports, `__all__`            | as it is                                                           |
| public constant or alias                        | as it is                                                           |
| public function                                 | signature, docstring, `raise NotImplementedError("memory.f")`      |
| public class with methods                       | docstring, public attributes, public methods emptied as functions  |
| dataclass, NamedTuple, class without methods    | as it is: it is the part's vocabulary, not an exercise             |
| anything named `_like_this`, `if __name__ == …` | gone, with the comments above it                                   |
| any other statement                             | ValueError: nothing is dropped without someone having decided it   |
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import libcst as cst
import libcst.matchers as m

ROOT = Path(__file__).resolve().parent.parent

# Parts whose exercise is to write the shapes into the signatures: there the stub says `Tensor` where the reference
# says `Float[Tensor, "batch hidden"]`.
PARTS_WITH_PLAIN_ANNOTATIONS = frozenset({"einsums"})

# Decorators that a caller can see from the outside. Any other (`torch.no_grad()`, `cache`) is part of the solution.
INTERFACE_DECORATORS = frozenset(
    {
        "property",
        "setter",
        "getter",
        "deleter",
        "staticmethod",
        "classmethod",
        "abstractmethod",
        "overload",
        "contextmanager",
    }
)

# Classes built on these hold data and no solution.
RECORD_DECORATORS = frozenset({"dataclass"})
RECORD_BASES = frozenset({"NamedTuple", "TypedDict", "Enum", "IntEnum", "StrEnum", "Protocol"})

PACKAGE_SOURCE = '"""Your solutions, one file a part."""\n'

Statement: TypeAlias = cst.SimpleStatementLine | cst.BaseCompoundStatement


def generate(source: str, module: str) -> str:
    r"""Return the stub of a reference module.

    Args:
        source: text of the reference module.
        module: its name without `.py`; the stub of its function `f` raises "module.f".

    Raises:
        ValueError: if a statement has no rule, or if what stays needs something that goes (a private base class, a
            default taken from a private constant).

    >>> source = "def double(x: int) -> int:\n    return _scale(x, 2)\n\ndef _scale(x, by):\n    return x * by\n"
    >>> print(generate(source, "napkin"))
    def double(x: int) -> int:
        raise NotImplementedError("napkin.double")
    <BLANKLINE>
    """
    tree = cst.parse_module(source)
    stub = tree.with_changes(body=_kept(tree.body, lambda statement: _stub_of_statement(statement, module)), footer=())
    if module in PARTS_WITH_PLAIN_ANNOTATIONS:
        stub = stub.visit(_WithoutShapes(tree))
    _check_closed(tree, stub, module)
    return stub.code


def generate_all(reference: Path) -> dict[str, str]:
    """Return the text of every file that `student/` should hold, by name."""
    modules = [path for path in sorted(reference.glob("*.py")) if path.name != "__init__.py"]
    return {"__init__.py": PACKAGE_SOURCE} | {
        path.name: generate(path.read_text(encoding="utf-8"), path.stem) for path in modules
    }


def write_stubs(reference: Path = ROOT / "reference", student: Path = ROOT / "student") -> list[Path]:
    """Write `student/` from `reference/`; return the files that were changed, made or removed."""
    student.mkdir(parents=True, exist_ok=True)
    changed = [student / name for name in differing_stubs(reference, student)]
    stubs = generate_all(reference)
    for path in changed:
        if path.name in stubs:
            path.write_text(stubs[path.name], encoding="utf-8", newline="\n")
        else:
            path.unlink()
    return changed


def differing_stubs(reference: Path, student: Path) -> list[str]:
    """Return the names in `student/` that are missing, stale, or not what `reference/` gives."""
    stubs = generate_all(reference)
    present = {path.name: path.read_text(encoding="utf-8") for path in student.glob("*.py")}
    return sorted(name for name in stubs.keys() | present.keys() if stubs.get(name) != present.get(name))


def check_stubs() -> list[str]:
    """Return the files of this repository's `student/` that `make stubs` would change."""
    return differing_stubs(ROOT / "reference", ROOT / "student")


def main() -> None:
    """Write this repository's stubs and say which changed."""
    changed = write_stubs()
    for path in changed:
        print(f"{'wrote' if path.exists() else 'removed'} {path.relative_to(ROOT).as_posix()}")
    if not changed:
        print("student/ is what reference/ gives: nothing to do")


# --- statements ---


def _kept(statements: Sequence[cst.BaseStatement], stub_of: Callable[[Statement], Statement | None]) -> list[Statement]:
    """Apply `stub_of` to each statement and return those that stay."""
    kept: list[Statement] = []
    last_went = False
    blank_lines = 0  # above removed statements: what follows an import block must still stand apart from it
    for statement in statements:
        assert isinstance(statement, cst.SimpleStatementLine | cst.BaseCompoundStatement)  # libcst has no other
        describes_removed = last_went and _is_string(
            statement
        )  # the string under a constant is the constant's docstring
        stub = None if describes_removed else stub_of(statement)
        last_went = stub is None
        if stub is None:
            blank_lines = max(blank_lines, _blank_lines_above(statement))
        else:
            kept.append(_with_blank_lines_above(stub, blank_lines))
            blank_lines = 0
    return kept


def _stub_of_statement(statement: Statement, module: str) -> Statement | None:
    """Return what stays of a module's statement, or None."""
    if _is_private(statement) or _is_main_guard(statement):
        return None
    if isinstance(statement, cst.FunctionDef):
        return _stub_of_function(statement, f"{module}.{statement.name.value}")
    if isinstance(statement, cst.ClassDef):
        return _stub_of_class(statement, f"{module}.{statement.name.value}")
    if _names_defined_by(statement) or _is_string(statement) or _only_imports(statement):
        return statement
    raise ValueError(f"{module}: no rule says whether this stays in the stub: {_first_line(statement)}")


def _stub_of_class(node: cst.ClassDef, problem_id: str) -> cst.ClassDef:
    """Return the class with its public methods emptied, or as it is where it is a record."""
    if _is_record(node) or not any(isinstance(statement, cst.FunctionDef) for statement in node.body.body):
        return node

    def stub_of(statement: Statement) -> Statement | None:
        if _is_private(statement):
            return None
        if isinstance(statement, cst.FunctionDef):
            return _stub_of_function(statement, problem_id)
        if isinstance(statement, cst.ClassDef):
            return _stub_of_class(statement, problem_id)
        if _names_defined_by(statement) or _is_string(statement) or _only_imports(statement):
            return statement
        raise ValueError(f"{problem_id}: no rule says whether this stays in the stub: {_first_line(statement)}")

    kept = _kept(cst.ensure_type(node.body, cst.IndentedBlock).body, stub_of)  # `class C: ...` has no methods
    if not any(isinstance(statement, cst.FunctionDef) for statement in kept):
        raise ValueError(f"{problem_id}: no public method is left that could say that it is not implemented")
    return node.with_changes(body=cst.IndentedBlock(body=kept))


def _stub_of_function(node: cst.FunctionDef, problem_id: str) -> cst.FunctionDef:
    """Return the function with its docstring and a body that names the problem."""
    statements = [cst.parse_statement(f'raise NotImplementedError("{problem_id}")')]
    first = node.body.body[0]
    if isinstance(first, cst.SimpleStatementLine) and _is_string(first):
        statements.insert(0, cst.SimpleStatementLine([first.body[0]]))  # without the comment behind it
    decorators = [decorator for decorator in node.decorators if _last_name(decorator.decorator) in INTERFACE_DECORATORS]
    return node.with_changes(
        decorators=decorators,
        lines_after_decorators=(),
        body=cst.IndentedBlock(body=statements, header=_only_pragma(node.body)),
    )


def _is_record(node: cst.ClassDef) -> bool:
    """Whether the class holds data: a dataclass, a NamedTuple, an Enum and their like."""
    return any(_last_name(decorator.decorator) in RECORD_DECORATORS for decorator in node.decorators) or any(
        _last_name(base.value) in RECORD_BASES for base in node.bases
    )


def _is_private(statement: cst.CSTNode) -> bool:
    """Whether all that the statement defines is named `_like_this`; `__init__` and `__all__` are public."""
    names = _names_defined_by(statement)
    return bool(names) and all(name.startswith("_") and not name.endswith("__") for name in names)


def _is_string(statement: cst.CSTNode) -> bool:
    """Whether the statement is a string alone: a docstring, or the description under a constant."""
    return m.matches(statement, m.SimpleStatementLine(body=[m.Expr(m.SimpleString() | m.ConcatenatedString())]))


def _is_main_guard(statement: cst.CSTNode) -> bool:
    """Whether the statement is `if __name__ == "__main__":`."""
    return m.matches(statement, m.If(test=m.Comparison(left=m.Name("__name__"))))


def _only_imports(statement: cst.CSTNode) -> bool:
    """Whether the statement imports and does nothing else, be it under `if TYPE_CHECKING:` or `try:`."""
    if isinstance(statement, cst.SimpleStatementLine):
        return all(isinstance(part, cst.Import | cst.ImportFrom | cst.Pass) for part in statement.body)
    if isinstance(statement, cst.If | cst.Try):
        lines = m.findall(statement, m.SimpleStatementLine())
        nested = m.findall(statement, m.FunctionDef() | m.ClassDef() | m.For() | m.While() | m.With())
        return not nested and all(_only_imports(line) for line in lines)
    return False


# --- names ---


def _names_defined_by(statement: cst.CSTNode) -> list[str]:
    """Return the names that a def, a class or an assignment binds; none for any other statement."""
    if isinstance(statement, cst.FunctionDef | cst.ClassDef):
        return [statement.name.value]
    if not isinstance(statement, cst.SimpleStatementLine):
        return []
    targets: list[cst.BaseExpression] = []
    for part in statement.body:
        if isinstance(part, cst.Assign):
            targets += [target.target for target in part.targets]
        elif isinstance(part, cst.AnnAssign):
            targets.append(part.target)
    elements = [element.value for target in targets if isinstance(target, cst.Tuple) for element in target.elements]
    return [target.value for target in [*targets, *elements] if isinstance(target, cst.Name)]


def _last_name(expression: cst.BaseExpression) -> str:
    """Return `dataclass` for `dataclasses.dataclass(frozen=True)`, and `setter` for `x.setter`."""
    while isinstance(expression, cst.Call | cst.Subscript):
        expression = expression.func if isinstance(expression, cst.Call) else expression.value
    if isinstance(expression, cst.Attribute):
        return expression.attr.value
    return expression.value if isinstance(expression, cst.Name) else ""


def _check_closed(source: cst.Module, stub: cst.Module, module: str) -> None:
    """Raise ValueError if the stub uses a name that only the reference defines."""
    gone = {name for statement in source.body for name in _names_defined_by(statement)}
    gone -= {name for statement in stub.body for name in _names_defined_by(statement)}
    used = {cst.ensure_type(node, cst.Name).value for node in m.findall(stub, m.Name())} & gone
    if used:
        names = ", ".join(sorted(used))
        raise ValueError(f"{module}: the stub would need {names}, which goes: make it public, or use it in bodies only")


class _WithoutShapes(cst.CSTTransformer):
    """Turns `Float[Tensor, "batch hidden"]` into `Tensor`."""

    def __init__(self, module: cst.Module) -> None:
        """Look up what the module imports from jaxtyping."""
        super().__init__()
        imports = m.findall(module, m.ImportFrom(module=m.Name("jaxtyping")))
        self.dtypes = {
            cst.ensure_type(alias, cst.ImportAlias).evaluated_name
            for node in imports
            for alias in m.findall(node, m.ImportAlias())
        }

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.BaseExpression:  # noqa: N802  # libcst's name
        """Replace a jaxtyping annotation by the type of its array."""
        if isinstance(updated_node.value, cst.Name) and updated_node.value.value in self.dtypes:
            return cst.ensure_type(updated_node.slice[0].slice, cst.Index).value
        return updated_node


# --- lines and comments ---


def _first_line(statement: Statement) -> str:
    """Return the code of a statement's first line, for a message."""
    return cst.Module([statement.with_changes(leading_lines=())]).code.splitlines()[0]


def _only_pragma(body: cst.BaseSuite) -> cst.TrailingWhitespace:
    """Return what stands behind a function's colon, without its comment unless that is for a tool (`# noqa`)."""
    header = body.header if isinstance(body, cst.IndentedBlock) else cst.TrailingWhitespace()
    comment = header.comment
    return header if comment and "noqa" in comment.value else cst.TrailingWhitespace()


def _blank_lines_above(statement: Statement) -> int:
    """Count the blank lines above a statement and its comments."""
    lines = statement.leading_lines
    return next((i for i, line in enumerate(lines) if line.comment), len(lines))


def _with_blank_lines_above(statement: Statement, count: int) -> Statement:
    """Return the statement with at least `count` blank lines above it and its comments."""
    missing = max(0, count - _blank_lines_above(statement))
    return statement.with_changes(leading_lines=[cst.EmptyLine(indent=False)] * missing + list(statement.leading_lines))
