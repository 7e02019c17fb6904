"""What a source mentions: every name as what it stands for, found without running anything.

`Package` cuts each of a student's files into *pieces*, its top-level statements. A piece binds names, uses names of the
student's own files, and mentions what lies outside of them. A name is followed to what it stands for: through imports, aliases
(`T = torch`), `getattr` with a literal name, and from file to file. "torch.optim.AdamW" is called that, however it was written.

A module that is bound to a plain name is not mentioned: what counts is where that alias is used. A module that is used in any
other way (in a list, as an argument, as an attribute) is mentioned by its own name, since nobody can follow it further.
"""

import ast
import builtins
import codecs
import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePosixPath
from typing import TypeAlias

from tests.libraries import canonical, is_module

_PACKAGE = "student"  # how files of the package are imported with their full name
_LIBRARIES = "<libraries>"  # where that lies which is changed in a library: sys.argv.append(...)

# How they are told to run what the file says: by what comes third, or under a name that the source does not show.
_PICKLE_MODULE_OR_FLAG = {
    "torch.load": "load without weights_only=True",
    "torch.serialization.load": "load without weights_only=True",
    "numpy.load": "allow_pickle",
}

# Libraries in which no rule refuses anything: all of it may be imported with *.
_STARS_ALLOWED = frozenset({"math", "einops", "typing", "jaxtyping", "collections", "collections.abc", "dataclasses"})


# Others can make a comment of what Python runs, or look like it.
_ENCODINGS = frozenset({"utf-8", "utf-8-sig", "iso8859-1", "ascii"})


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Methods and functions that change none of their arguments.
_READING = _names("get items keys values copy index count format join split startswith endswith shape size")
_PURE = _names(
    "abs all any bool dict enumerate filter float format frozenset getattr hasattr hash id int isinstance issubclass len list map "
    "max min print range repr reversed round set sorted str sum tuple type zip"
)


class Kind(Enum):
    """Of what kind something mentioned is."""

    LIBRARY = "a dotted name of a library, 'torch.optim.AdamW', or of Python itself, 'builtins.eval'"
    ATTRIBUTE = "an attribute of a value whose type the source does not say"
    OLD_WAY = "an operator or an index that takes axes by their place: '@', '[..., None]'"
    OTHER_PART = "another part's file"
    ANNOTATION = "a dotted name of a library, in an annotation"
    OWN_MODULE = "a file of the student's, used as a value"
    UNREADABLE = "why an imported file cannot be checked"


@dataclass(frozen=True)
class Mention:
    """Something that a piece uses and that lies outside of the student's files, or in another part's."""

    file: str
    line: int
    kind: Kind
    name: str
    called: bool = False


@dataclass(eq=False)
class Piece:
    """A top-level statement."""

    node: ast.stmt
    binds: set[str] = field(default_factory=set)
    mentions: list[Mention] = field(default_factory=list)
    uses: set[tuple[str, str]] = field(default_factory=set)  # (module, name) in the student's files; "*" is all of it
    touches: set[tuple[str, str]] = field(default_factory=set)  # those whose value the piece's code may change
    adds_to: set[tuple[str, str]] = field(default_factory=set)  # those whose value changes when the file is imported

    @property
    def runs_at_import(self) -> bool:
        """Whether the statement does something when its file is imported, other than to define names."""
        if isinstance(self.node, (ast.Assign, ast.AnnAssign)):
            targets = self.node.targets if isinstance(self.node, ast.Assign) else [self.node.target]
            return any(isinstance(target, (ast.Attribute, ast.Subscript)) for target in targets)
        return not isinstance(
            self.node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
        )


# What a name can stand for. "library": a dotted name. "own": a name in a file of the student's, or the file itself if that name is
# empty. "instance": an object of a class in such a file. "part", an import statement can also name another part's file.
@dataclass(frozen=True, order=True)
class _Library:
    name: str


@dataclass(frozen=True, order=True)
class _Own:
    module: str
    name: str = ""  # empty: the module itself


@dataclass(frozen=True, order=True)
class _Instance:
    module: str
    name: str  # of its class


_Target: TypeAlias = _Library | _Own | _Instance
_Origin: TypeAlias = "_Target | ast.expr | None"  # where a name has its value from; None: nobody knows
_Busy: TypeAlias = frozenset[tuple[int, str]]  # names that are being followed, so that a = b; b = a has an end
_RECORDS = frozenset({"torch.finfo", "torch.iinfo"})  # called, they give a record, whose fields count as theirs


class _Scope:
    """The names that a module, class or function binds, and where each has its value from."""

    def __init__(self, module: str, parent: "_Scope | None" = None, of: str = "function", class_name: str = "") -> None:
        self.module, self.parent, self.of, self.class_name = module, parent, of, class_name
        self.names: dict[str, list[_Origin]] = {}
        self.bound_elsewhere: set[str] = set()  # declared global or nonlocal
        # Of a module's or class's names, those that mean nothing else; not so with `if 0: exec = None`.
        self.sure: set[str] = set()

    def bind(self, name: str, origin: _Origin = None) -> None:
        self.names.setdefault(name, []).append(origin)

    def home(self, name: str) -> "_Scope | None":
        """Return the scope that binds a name as seen from here. A class's names are not seen in its methods."""
        return self if name in self.names else self.outside(name)

    def outside(self, name: str) -> "_Scope | None":
        """Return the scope around this one that binds a name."""
        scope = self.parent
        while scope is not None and (name not in scope.names or scope.of == "class"):
            scope = scope.parent
        return scope


class Package:
    """The student's files that a part imports, parsed and read.

    Args:
        sources: each file's content by its path below the package, "einsums.py". Bytes are decoded as Python decodes them.
        part: the module to start from.
        parts: the names of the modules that may not import each other.
    """

    def __init__(self, sources: Mapping[str, str | bytes], part: str, parts: Collection[str]) -> None:
        self.part, self.parts = part, parts
        self.sources = sources
        self.names: dict[str, list[str]] = {}  # module "extra.axes" -> ["extra/axes.py"]
        self.files: dict[str, str] = {}  # of the modules that are read
        self.scopes: dict[str, _Scope] = {}
        self.imports: dict[str, set[str]] = {}  # module -> the student's modules that it imports
        self.stars: dict[str, list[str]] = {}  # module -> those of which it imports everything
        self.members: dict[tuple[str, str], set[str]] = {}  # (module, class) -> what the class defines
        self.unreadable: list[Mention] = []
        self._pieces: dict[str, list[Piece]] = {}
        self._homes: dict[tuple[str, str], list[Piece]] = {}  # (module, name) -> the pieces that give it its value
        self._resolved: dict[tuple[int, _Scope], set[_Target]] = {}
        for file in sources:
            self.names.setdefault(module_name(file), []).append(file)
        self._folders = {
            ".".join(parents[:i]) for name in self.names if (parents := name.split(".")) for i in range(1, len(parents))
        }
        self._trees: dict[str, ast.Module] = {}
        waiting = ["", part]
        while waiting:
            module = waiting.pop()
            if module not in self._trees and not self._is_other_part(module) and (tree := self._parse(module)):
                self._trees[module] = tree
                waiting += self._imported(module, tree)

    def read(self) -> None:
        """Note what each file mentions. This recurses as deeply as the source is nested."""
        for module, tree in self._trees.items():
            self.scopes[module], self.imports[module], self.stars[module] = _Scope(module, of="module"), set(), []
            self._pieces[module] = [Piece(node) for node in tree.body]
            for piece in self._pieces[module]:
                self._bind(module, piece)
            self.scopes[module].sure = _surely_bound(tree.body, self.scopes[module]) - set(_deleted(tree))
        for module, pieces in self._pieces.items():
            for piece in pieces:
                _Reader(self, self.scopes[module], piece).visit(piece.node)
                for name in piece.binds:
                    self._homes.setdefault((module, name), []).append(piece)
        for module, pieces in self._pieces.items():
            for piece in pieces:
                # TABLE.append(...) belongs to TABLE, and so does what fills it by way of a function
                if self._runs_code(piece.node, self.scopes[module]):
                    piece.adds_to = set(piece.touches)
                    for other in self._reached(piece.uses):
                        piece.adds_to |= other.touches
                    for place in piece.adds_to:
                        self._homes.setdefault(place, []).append(piece)

    def _runs_code(self, node: ast.stmt, scope: _Scope) -> bool:
        """Whether importing the file runs code of the student's own in a statement."""
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass)) or _is_docstring(node):
            return False
        called: list[ast.expr] = []
        read: list[ast.expr] = []
        if isinstance(node, ast.ClassDef):
            if any(self._runs_code(each, scope) for each in node.body):
                return True
            called = [*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            called = list(node.decorator_list)
            read = [*_defaults(node.args), *_annotations(node)]
        elif isinstance(node, ast.AnnAssign) and node.value is None:
            read = [node.annotation]
        else:
            return True
        for child in (child for value in read for child in ast.walk(value)):
            if isinstance(child, ast.Call):
                called.append(child)
            elif isinstance(child, ast.Subscript):  # may call __class_getitem__
                called.append(child.value)
        names = {each.id for value in called for each in ast.walk(value) if isinstance(each, ast.Name)}
        return any(not self.is_library(name, scope) for name in names)

    def is_library(self, name: str, scope: _Scope) -> bool:
        """Whether a name stands for something in a library and for nothing else."""
        targets = self.resolve_name(name, scope)
        return bool(targets) and all(isinstance(target, _Library) for target in targets)

    # --- files ---

    def _is_other_part(self, module: str) -> bool:
        root = module.split(".")[0]
        return root in self.parts and root != self.part

    def _parse(self, module: str) -> ast.Module | None:
        folder = module.replace(".", "/")
        candidates = [f"{folder}/__init__.py" if folder else "__init__.py", f"{folder}.py"]
        file = next((file for file in candidates if file in self.sources), None)
        if file is None:
            return None
        self.files[module] = file
        if len(self.names.get(module, [])) > 1:
            self._refuse(file, f"more than one file is called {module}")
        try:
            content = self.sources[file]
            data = content.encode("utf-8", "replace") if isinstance(content, str) else content
            if b"\0" in data:
                raise SyntaxError("no Python compiles a NUL byte; older ones call it a ValueError")
            encoding = codecs.lookup(tokenize.detect_encoding(io.BytesIO(data).readline)[0]).name
            if encoding not in _ENCODINGS:
                self._refuse(file, f"encoding {encoding}")
            return _take_imports_apart(ast.parse(content))
        except SyntaxError:
            if module != self.part:  # the part's own is reported by its import, which reads the same text
                self._refuse(file, "syntax error")
        except (ValueError, LookupError, RecursionError, MemoryError) as error:
            self._refuse(file, type(error).__name__)
        return None

    def _refuse(self, file: str, why: str) -> None:
        self.unreadable.append(Mention(file, 1, Kind.UNREADABLE, why))

    def _imported(self, module: str, tree: ast.Module) -> Iterator[str]:
        """Yield the modules of the student's that a file imports somewhere, and the packages that they are in."""
        for node in _walk(tree):
            found = []
            if isinstance(node, ast.Import):
                found = [self.locate(module, 0, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                own = self.locate(module, node.level, node.module)
                if own is not None:
                    found = [own, *(f"{own}.{alias.name}" if own else alias.name for alias in node.names)]
            for name in found:
                if name is not None:
                    steps = name.split(".")
                    yield from (".".join(steps[: i + 1]) for i in range(len(steps)))

    def reached_from(self, part: str, name: str) -> set[Piece]:
        """Return the pieces that bind a name of a part's file, or a name that those pieces use, and so on."""
        return self._reached([(part, name), (part, "__getattr__")])

    def _reached(self, places: Iterable[tuple[str, str]]) -> set[Piece]:
        found: set[Piece] = set()
        seen: set[tuple[str, str]] = set()
        waiting = list(places)
        while waiting:
            module, name = place = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            waiting += [(other, name) for other in self.stars.get(module, ())]
            for piece in self._pieces.get(module, ()) if name == "*" else self._homes.get(place, ()):
                if piece not in found:
                    found.add(piece)
                    waiting += piece.uses
        return found

    def pieces_imported(self) -> Iterator[Piece]:
        """Yield the pieces of the part's file and of the files that it imports."""
        for pieces in self._pieces.values():
            yield from pieces

    def stands_for(self, module: str, name: str) -> Iterator[Mention]:
        """Yield the library's names that a module's own name stands for: `SGD = torch.optim.SGD` solves nothing."""
        if module in self.scopes and name in self.scopes[module].names:
            line = next(piece.node.lineno for piece in self._pieces[module] if name in piece.binds)
            for target in self.resolve_name(name, self.scopes[module]):
                if isinstance(target, _Library):
                    yield Mention(self.files[module], line, Kind.LIBRARY, target.name)

    def _bind(self, module: str, piece: Piece) -> None:
        scope = _Scope(module)
        _Binder(self, scope).visit(piece.node)
        piece.binds = set(scope.names)
        for name, origins in scope.names.items():
            for origin in origins:
                self.scopes[module].bind(name, origin)

    # --- the student's own modules ---

    def locate(self, module: str, level: int, name: str | None) -> str | None:
        """Return the student's module ("" is the package) that an import in `module` names, or None for a library."""
        parts = name.split(".") if name else []
        if level:
            is_package = self.files.get(module, "").endswith("__init__.py") and module.split(".")[-1] != "__init__"
            above = module.split(".") if module else []
            return ".".join(above[: len(above) - level + is_package] + parts)
        return ".".join(parts[1:]) if parts[:1] == [_PACKAGE] else None

    def is_module(self, module: str) -> bool:
        """Whether the student has, or ought to have, a file or folder of this name."""
        return module == "" or module in self.parts or module in self.names or module in self._folders

    # --- what names stand for ---

    def resolve(self, node: ast.expr, scope: _Scope, busy: _Busy = frozenset()) -> set[_Target]:
        """Return all that an expression can stand for, as far as the source says."""
        if busy:
            return self._resolve(node, scope, busy)
        if (id(node), scope) not in self._resolved:
            self._resolved[id(node), scope] = self._resolve(node, scope, busy)
        return self._resolved[id(node), scope]

    def _resolve(self, node: ast.expr, scope: _Scope, busy: _Busy) -> set[_Target]:
        if isinstance(node, ast.Name):
            return self.resolve_name(node.id, scope, busy)
        if attribute := self.as_attribute(node, scope, busy):
            value, name = attribute
            return {
                found for target in self.resolve(value, scope, busy) for found in self._attribute(target, name, busy)
            }
        if isinstance(node, ast.IfExp):
            return self.resolve(node.body, scope, busy) | self.resolve(node.orelse, scope, busy)
        if isinstance(node, ast.BoolOp):
            return {target for value in node.values for target in self.resolve(value, scope, busy)}
        if isinstance(node, ast.NamedExpr):
            return self.resolve(node.value, scope, busy)
        if isinstance(node, ast.Call):
            return set(self._results(self.resolve(node.func, scope, busy)))
        return set()

    def resolve_name(self, name: str, scope: _Scope, busy: _Busy = frozenset()) -> set[_Target]:
        """Return all that a name can stand for."""
        return self._resolve_at(name, scope.home(name), scope.module, busy)

    def _resolve_at(self, name: str, home: _Scope | None, module: str, busy: _Busy) -> set[_Target]:
        found: set[_Target] = set()
        if home is not None:
            if (id(home), name) in busy:
                return set()
            busy |= {(id(home), name)}
            for origin in home.names[name]:
                if isinstance(origin, ast.expr):
                    found |= self.resolve(origin, home, busy)
                elif isinstance(origin, _Own) and origin.name and origin != _Own(home.module, name):
                    found |= self._member(origin.module, origin.name, busy)
                elif origin is not None:
                    found.add(origin)
            if home.of == "function" or name in home.sure:
                return found
            if home.of == "class":
                return found | self._resolve_at(name, home.outside(name), module, busy)
        for other in self.stars.get(module, ()):
            if other in self.scopes and name in self.scopes[other].names:
                return found | self._member(other, name, busy)
        is_builtin = hasattr(builtins, name) or name == "__builtins__"
        return found | {_Library(f"builtins.{name}")} if is_builtin else found

    def as_attribute(self, node: ast.expr, scope: _Scope, busy: _Busy = frozenset()) -> tuple[ast.expr, str] | None:
        """Return value and name of `value.name`, which may be written getattr(value, "name")."""
        if isinstance(node, ast.Attribute):
            return node.value, node.attr
        if isinstance(node, ast.Call) and len(node.args) in (2, 3) and isinstance(node.func, (ast.Name, ast.Attribute)):
            name = getattr(node.args[1], "value", None)
            if isinstance(name, str) and _Library("builtins.getattr") in self.resolve(node.func, scope, busy):
                return node.args[0], name
        return None

    def _attribute(self, target: _Target, name: str, busy: _Busy) -> set[_Target]:
        if isinstance(target, _Library):
            return {_Library(canonical(f"{target.name}.{name}"))}
        if isinstance(target, _Own) and not target.name:
            return self._member(target.module, name, busy)
        if name in self.members.get((target.module, target.name), ()):
            return {_Own(target.module, target.name)}  # a method: whoever uses it uses the class
        return set()

    def _member(self, module: str, name: str, busy: _Busy) -> set[_Target]:
        """Return what `module.name` stands for, where `module` is the student's."""
        if module in self.scopes and name in self.scopes[module].names:
            return {_Own(module, name)} | self.resolve_name(name, self.scopes[module], busy)
        below = f"{module}.{name}" if module else name
        return {_Own(below)} if self.is_module(below) else {_Own(module, name)}

    def _results(self, called: Iterable[_Target]) -> Iterator[_Target]:
        for target in called:
            if isinstance(target, _Own) and (target.module, target.name) in self.members:
                yield _Instance(target.module, target.name)
            elif isinstance(target, _Library) and target.name in _RECORDS:
                yield target


class _Binder(ast.NodeVisitor):
    """Notes which names a statement binds in its own scope, and from where they have their values."""

    def __init__(self, package: Package, scope: _Scope) -> None:
        self.package, self.scope = package, scope

    # --- definitions: scopes of their own, of which only the name is seen from outside ---

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self.scope.bind(node.name, _Own(self.scope.module, node.name))
        for child in ast.walk(node):
            if isinstance(child, ast.Global):
                for name in child.names:
                    self.scope.bind(name)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815  # ast's names

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        members = self.package.members.setdefault((self.scope.module, node.name), set())
        for child in ast.walk(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                members.add(child.name)
            elif isinstance(child, (ast.Name, ast.Attribute)) and isinstance(child.ctx, ast.Store):
                members.add(child.id if isinstance(child, ast.Name) else child.attr)
        self.visit_FunctionDef(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        pass

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        for child in ast.walk(node):
            if isinstance(child, ast.NamedExpr):  # binds outside of the comprehension
                self.scope.bind(child.target.id, child.value)

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp  # noqa: N815  # ast's names

    # --- assignments ---

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assign(target, node.value)
        self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._assign(node.target, node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._assign(node.target, node.value)
        self.visit(node.value)

    def _assign(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            self.scope.bind(target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            values = _values_of(target, value)
            for i, element in enumerate(target.elts):
                self._assign(element, values[i] if values else None)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, None)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):  # for, with
            self.scope.bind(node.id)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.scope.bind(node.name)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        if node.name:
            self.scope.bind(node.name)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        self.scope.bound_elsewhere |= set(node.names)

    visit_Nonlocal = visit_Global  # noqa: N815  # ast's names

    def visit_If(self, node: ast.If) -> None:
        for child in _run_by(node):
            self.visit(child)

    # --- imports ---

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            own = self.package.locate(self.scope.module, 0, alias.name)
            if own is not None:
                self.package.imports[self.scope.module].add(own)
                self.scope.bind(alias.asname or _PACKAGE, _Own(own if alias.asname else ""))
            elif alias.asname:
                self.scope.bind(alias.asname, _Library(canonical(alias.name)))
            else:
                root = alias.name.split(".")[0]
                self.scope.bind(root, _Library(root))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        own = self.package.locate(self.scope.module, node.level, node.module)
        for alias in node.names:
            bound = alias.asname or alias.name
            if own is None:
                if alias.name != "*":
                    self.scope.bind(bound, _Library(canonical(f"{node.module}.{alias.name}")))
                continue
            self.package.imports[self.scope.module].add(own)
            below = f"{own}.{alias.name}" if own else alias.name
            if alias.name == "*":
                self.package.stars[self.scope.module].append(own)
            elif self.package.is_module(below):
                self.package.imports[self.scope.module].add(below)
                self.scope.bind(bound, _Own(below))
            else:
                self.scope.bind(bound, _Own(own, alias.name))


class _Reader(ast.NodeVisitor):
    """Notes what a piece mentions and uses."""

    def __init__(self, package: Package, scope: _Scope, piece: Piece) -> None:
        self.package, self.scope, self.piece = package, scope, piece
        self.is_alias = False  # what is read is handed to a name, and followed there

    # --- scopes ---

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._touch_decorators(node)
        for child in [*node.decorator_list, *_type_parameters(node), *_defaults(node.args)]:
            self.visit(child)
        for annotation in _annotations(node):
            self._read_annotation(annotation)
        is_static = any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in node.decorator_list)
        self._read_function(node.args, node.body, has_self=self.scope.of == "class" and not is_static)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815  # ast's names

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for default in _defaults(node.args):
            self.visit(default)
        self._read_function(node.args, [node.body], has_self=False)

    def _read_function(self, arguments: ast.arguments, body: Iterable[ast.AST], has_self: bool) -> None:
        scope = _Scope(self.scope.module, self.scope)
        positional = [*arguments.posonlyargs, *arguments.args]
        for argument in [*positional, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
            if argument:
                scope.bind(argument.arg)
        if has_self and positional:
            scope.names[positional[0].arg] = [_Instance(self.scope.module, self.scope.class_name)]
        self._read_in(scope, body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._touch_decorators(node)
        for base in node.bases:  # calling the class makes what its base makes
            if isinstance(base, (ast.Name, ast.Attribute)):
                self._read_name(base, called=True)
            else:
                self.visit(base)
        for child in [*node.decorator_list, *_type_parameters(node), *node.keywords]:
            self.visit(child)
        self._read_in(_Scope(self.scope.module, self.scope, of="class", class_name=node.name), node.body)

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        scope = _Scope(self.scope.module, self.scope)
        for generator in node.generators:
            _Binder(self.package, scope).visit(generator.target)
        outer, self.scope = self.scope, scope
        self.generic_visit(node)
        self.scope = outer

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp  # noqa: N815  # ast's names

    def _read_in(self, scope: _Scope, body: Iterable[ast.AST]) -> None:
        body = list(body)
        for child in body:
            _Binder(self.package, scope).visit(child)
        for name in scope.bound_elsewhere:
            scope.names.pop(name, None)
        if scope.of == "class":
            scope.sure = _surely_bound(body, scope) - {name for child in body for name in _deleted(child)}
        outer, self.scope = self.scope, scope
        for child in body:
            self.visit(child)
        self.scope = outer

    def visit_If(self, node: ast.If) -> None:
        if _never_runs(node):
            name = node.test.left if isinstance(node.test, ast.Compare) else node.test
            if not self._is_false(name):
                self._mention(node, Kind.LIBRARY, "assignment to __name__ or TYPE_CHECKING")
        for child in _run_by(node):
            self.visit(child)

    def _is_false(self, name: ast.expr) -> bool:
        """Whether `__name__` or `TYPE_CHECKING` is what it is taken for, or False."""
        base = _base_name(name) or ""
        home = self.scope.home(base)
        origins = home.names[base] if home else []
        honest = all(
            isinstance(each, _Library) or (isinstance(each, ast.Constant) and each.value is False) for each in origins
        )
        targets = self.package.resolve(name, self.scope)
        return honest and bool(targets or origins) and targets <= _TRUE_TO_THEIR_NAMES

    # --- aliases ---

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self.visit(target)
        self._read_value(node.targets, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        if self.scope.of != "function":  # elsewhere nobody evaluates it
            self._read_annotation(node.annotation)
        if node.value:
            self._read_value([node.target], node.value)

    def _read_value(self, targets: list[ast.expr], value: ast.expr) -> None:
        [first, *others] = targets
        values = _values_of(first, value)
        if values and not others and isinstance(first, (ast.Tuple, ast.List)):
            for target, item in zip(first.elts, values, strict=True):
                self._read_value([target], item)
        elif all(isinstance(target, ast.Name) and self._is_followed(target.id) for target in targets):
            self._read_alias(value)
        else:
            self.visit(value)

    def _is_followed(self, name: str) -> bool:
        """Whether what is bound to a name here is found where the name is used."""
        return self.scope.of != "class" and name not in self.scope.bound_elsewhere

    def _read_alias(self, value: ast.expr) -> None:
        """Visit a value but for what it hands to its name."""
        if isinstance(value, ast.IfExp):
            self.visit(value.test)
            self._read_alias(value.body)
            self._read_alias(value.orelse)
        elif isinstance(value, ast.BoolOp):
            for each in value.values:
                self._read_alias(each)
        elif isinstance(value, (ast.Name, ast.Attribute)) or self.package.as_attribute(value, self.scope):
            self._read_name(value, only_use=True)
        else:
            self.visit(value)

    def _read_annotation(self, node: ast.expr) -> None:
        """Note the library's names in an annotation: they can be read back."""
        for child in ast.walk(node):
            if isinstance(child, ast.NamedExpr):
                self._mention(child, Kind.LIBRARY, "assignment in an annotation")
            elif isinstance(child, ast.Call):
                self.visit(child)
            elif isinstance(child, ast.Subscript) and self._is_own_class(child.value):
                self._touch(child)
            elif isinstance(child, ast.Subscript):
                self._read_shape(child)
            elif isinstance(child, (ast.Name, ast.Attribute)):
                for target in self.package.resolve(child, self.scope):
                    if isinstance(target, _Library):
                        self._mention(child, Kind.ANNOTATION, target.name)

    # --- names ---

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._read_name(node)
        elif node.id in self.scope.bound_elsewhere:
            self._touch(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._touch(node)
            self._note_assignment(node, node.value)
        self._read_name(node)

    def _touch(self, node: ast.expr) -> None:
        """Note that the value of a module's variable may change here: of TABLE in TABLE[0] = x, TABLE.append(x), f(TABLE)."""
        waiting, seen = [(node, self.scope)], set()
        while waiting:
            node, scope = waiting.pop()
            name = _base_name(node)
            home = scope.home(name) if name else None
            if name is None or (name, home) in seen:
                continue
            seen.add((name, home))
            if home is not None:  # table = TABLE; append = TABLE.append
                aliases = (ast.Name, ast.Attribute)
                waiting += [(origin, home) for origin in home.names[name] if isinstance(origin, aliases)]
                if home.of != "module":
                    continue
            if self.package.is_library(name, scope):
                held = (
                    self.package.resolve(node.value, scope) if isinstance(node, (ast.Attribute, ast.Subscript)) else ()
                )
                self.piece.touches |= {
                    (_LIBRARIES, each.name) for each in held if isinstance(each, _Library) and not is_module(each.name)
                }
                continue
            self.piece.touches.add((scope.module, name))
            for target in self.package.resolve(node, scope) | self.package.resolve_name(name, scope):
                if isinstance(target, (_Own, _Instance)) and target.name:
                    self.piece.touches.add((target.module, target.name))

    def _is_method(self, node: ast.expr) -> bool:
        """Whether a call of this may change what it is a method of."""
        return any(
            isinstance(each, ast.Attribute) and each.attr not in _READING
            for each in [node, *self._values_of_name(node)]
        )

    def _touch_decorators(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            targets = self.package.resolve(called, self.scope)
            is_own = isinstance(called, ast.Name) and any(isinstance(each, _Own) for each in targets)
            if not is_own or self._is_own_class(called):  # what a function of one's own touches is seen there
                self._touch(called)  # @TABLE.append

    def _is_own_class(self, node: ast.expr) -> bool:
        found = self.package.resolve(node, self.scope)
        return any(isinstance(each, _Own) and (each.module, each.name) in self.package.members for each in found)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        if not any(isinstance(target, _Own) for target in self.package.resolve(node.cls, self.scope)):
            for name in node.kwd_attrs:
                self._mention(node, Kind.ATTRIBUTE, name)
        self.generic_visit(node)

    def _read_name(self, node: ast.expr, called: bool = False, only_use: bool = False) -> None:
        """Note what a name, or an attribute of something, stands for.

        Args:
            node: the name or the attribute.
            called: whether it is called.
            only_use: note only which of the student's files it takes, since it stands for an alias.
        """
        targets = self.package.resolve(node, self.scope)
        self._note(node, targets, called, only_use)
        base = node
        while attribute := self.package.as_attribute(base, self.scope):
            base = attribute[0]
        if isinstance(base, ast.Name):
            self._use_name(base.id)
        if base is not node and not (targets and isinstance(base, ast.Name)):
            value, name = self.package.as_attribute(node, self.scope) or (base, "")
            self.visit(value)
            if not targets:
                self._mention(node, Kind.ATTRIBUTE, name)

    def _note(self, node: ast.AST, targets: set[_Target], called: bool = False, only_use: bool = False) -> None:
        for target in sorted(targets, key=repr):
            if not isinstance(target, _Library):
                self.is_alias = only_use
                self._use(node, target)
            elif not only_use:
                self._mention(node, Kind.LIBRARY, target.name, called)

    def _use_name(self, name: str) -> None:
        home = self.scope.home(name)
        if home is None or (home.of == "module" and name not in home.sure):
            self.piece.uses |= {(other, name) for other in self.package.stars[self.scope.module]}
        if home is not None and home.of == "module":
            self.piece.uses.add((home.module, name))

    def _use(self, node: ast.AST, target: _Own | _Instance) -> None:
        # A module that is named alone can be asked for anything.
        self.piece.uses.add((target.module, target.name or "*"))
        if not target.name and not self.is_alias:
            self._mention(node, Kind.OWN_MODULE, target.module or _PACKAGE)
        if target.module not in self.package.imports[self.scope.module]:  # else the import has been noted
            self._mention_part(node, target.module)

    def visit_Call(self, node: ast.Call) -> None:
        called = self.package.resolve(node.func, self.scope)
        names = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if self._is_method(node.func):
            self._touch(node.func)
        is_pure = isinstance(node.func, ast.Name) and node.func.id in _PURE
        for given in [*node.args, *(keyword.value for keyword in node.keywords)]:
            if self._is_method(given) or not (is_pure or isinstance(given, ast.Call)):  # map(TABLE.append, ...)
                self._touch(given.value if isinstance(given, ast.Starred) else given)
        self._read_way_of_calling(node, called)
        if self.package.as_attribute(node, self.scope):  # getattr(x, "name", default)
            self._read_name(node)
            for default in node.args[2:]:
                self.visit(default)
            return
        if _Library("builtins.hasattr") in called and names:
            self._read_alias(node.args[0])  # asks whether it is there and takes nothing
            return
        if {_Library("operator.attrgetter"), _Library("operator.methodcaller")} & called and names:
            for name in ".".join(names).split("."):
                self._mention(node, Kind.ATTRIBUTE, name)
        elif isinstance(node.func, (ast.Name, ast.Attribute)):
            self._read_name(node.func, called=True)
        else:
            self.visit(node.func)
        for argument in [*node.args, *node.keywords]:
            self.visit(argument)
        is_split = isinstance(node.func, ast.Attribute) and node.func.attr == "split" and not called
        if is_split and _splits_a_tensor(node):
            self._mention(node, Kind.OLD_WAY, ".split")

    def _read_way_of_calling(self, node: ast.Call, called: set[_Target]) -> None:
        """Note what a call does only by its arguments."""
        given = len(node.args) + len(node.keywords)
        for target in called:
            name = target.name if isinstance(target, _Library) else ""
            if name == "builtins.locals":
                self._note_locals(node)
            if name.endswith(("setattr", "setattr__")) and node.args:
                self._note_assignment(node, node.args[0])
            if name == "builtins.type" and given > 1:
                self._mention(node, Kind.LIBRARY, "type with three arguments")
            elif (name == "builtins.vars" and not given) or (name == "builtins.locals" and self.scope.of != "function"):
                self._mention(node, Kind.LIBRARY, "builtins.globals")
            elif name.startswith("timeit.") and not self._times_a_function(node):
                self._mention(node, Kind.LIBRARY, "timeit of a string")
            elif name in _PICKLE_MODULE_OR_FLAG and (
                len(node.args) > 2
                or any(isinstance(each, ast.Starred) for each in node.args)
                or any(each.arg in (None, "pickle_module") for each in node.keywords)
            ):
                self._mention(node, Kind.LIBRARY, _PICKLE_MODULE_OR_FLAG[name])
        for each in node.keywords:
            if each.arg == "allow_pickle" and getattr(each.value, "value", True):
                self._mention(node, Kind.LIBRARY, "allow_pickle")
            elif each.arg == "weights_only" and not getattr(each.value, "value", False):
                self._mention(node, Kind.LIBRARY, "load without weights_only=True")

    def _note_locals(self, node: ast.Call) -> None:
        """Note what can be had from locals() by its name."""
        scope: _Scope | None = self.scope
        while scope is not None and scope.of == "function":
            for name in scope.names:
                self._note(node, self.package.resolve_name(name, scope))
            scope = scope.parent

    def _note_assignment(self, node: ast.AST, value: ast.expr) -> None:
        for target in self.package.resolve(value, self.scope):
            if isinstance(target, _Library):
                self._mention(node, Kind.LIBRARY, f"assignment to {target.name}")

    def _times_a_function(self, node: ast.Call) -> bool:
        given = [*node.args[:1], *(each.value for each in node.keywords if each.arg == "stmt")]
        strings = [*node.args[1:2], *(each.value for each in node.keywords if each.arg in (None, "setup", "globals"))]
        if any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in [*given, *strings]):
            return False
        for each in given:
            if isinstance(each, ast.Name) and (home := self.scope.home(each.id)):
                if any(isinstance(origin, (ast.Constant, ast.JoinedStr, ast.BinOp)) for origin in home.names[each.id]):
                    return False
            elif not isinstance(each, (ast.Lambda, ast.Attribute, ast.Call)):
                return False
        return not strings

    def _mention(self, node: ast.AST, kind: Kind, name: str, called: bool = False) -> None:
        file = self.package.files[self.scope.module]
        self.piece.mentions.append(Mention(file, getattr(node, "lineno", 1), kind, name, called))
        if kind is Kind.LIBRARY:
            steps = name.split(".")
            self.piece.uses |= {(_LIBRARIES, ".".join(steps[: i + 1])) for i in range(1, len(steps))}

    def _mention_part(self, node: ast.AST, module: str) -> None:
        root = module.split(".")[0]
        if root in self.package.parts and root != self.scope.module.split(".")[0]:
            self._mention(node, Kind.OTHER_PART, root)

    # --- imports ---

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._mention_part(node, self.package.locate(self.scope.module, 0, alias.name) or "")
        self._read_imported(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._read_imported(node)
        own = self.package.locate(self.scope.module, node.level, node.module)
        if own is None:
            if any(alias.name == "*" for alias in node.names) and node.module not in _STARS_ALLOWED:
                self._mention(node, Kind.LIBRARY, f"from {node.module} import *")
            return
        self._mention_part(node, own)
        for alias in node.names:
            below = f"{own}.{alias.name}" if own else alias.name
            self._mention_part(node, below)
            if not self.package.is_module(below):
                self.piece.uses.add((own, alias.name))

    def _read_imported(self, node: ast.Import | ast.ImportFrom) -> None:
        imported = _Scope(self.scope.module)
        _Binder(self.package, imported).visit(node)
        for name in imported.names:
            if not self._is_followed(name):
                self._note(node, self.package.resolve_name(name, imported))

    # --- operators and indices ---

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.MatMult):
            self._mention(node, Kind.OLD_WAY, "@")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.op, ast.MatMult):
            self._mention(node, Kind.OLD_WAY, "@=")
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load) or self._is_own_class(node.value):  # __class_getitem__
            self._touch(node)
        by_place = any(_is_by_place(index) for index in [node.slice, *self._values_of_name(node.slice)]) and not any(
            isinstance(value, (ast.Dict, ast.DictComp)) for value in self._values_of_name(node.value)
        )
        is_type = any(isinstance(target, _Library) for target in self.package.resolve(node.value, self.scope))
        if by_place and not is_type:  # tuple[int, ...] takes no axis
            self._mention(node, Kind.OLD_WAY, "[" + ast.unparse(node.slice).strip("()") + "]")
        if is_type:
            self._read_shape(node)
        self.generic_visit(node)

    def _read_shape(self, node: ast.Subscript) -> None:
        """Note code in a shape: jaxtyping runs what stands in parentheses or braces, when a value is held against the type."""
        index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in [value for each in index for value in (each, *self._values_of_name(each))]:
            texts = (child.value for child in ast.walk(part) if isinstance(child, ast.Constant))
            if any(isinstance(text, str) and re.search(r"[({]", re.sub(r"\{[\w.]+\}", "", text)) for text in texts):
                self._mention(node, Kind.LIBRARY, "code in a shape")

    def _values_of_name(self, node: ast.expr) -> list[ast.expr]:
        if not isinstance(node, ast.Name) or (home := self.scope.home(node.id)) is None:
            return []
        return [value for value in home.names[node.id] if isinstance(value, ast.expr)]


def module_name(file: str) -> str:
    """Return the module that a file ("memory.py", "extra/__init__.py") is below the package, as the importer counts it."""
    parts = PurePosixPath(file).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _splits_a_tensor(node: ast.Call) -> bool:
    """Whether what `.split` is given fits no string: sizes, `dim`, an axis after a size."""
    numbers = (ast.List, ast.Tuple)
    literal = [each.value for each in node.args if isinstance(each, ast.Constant)]
    return (
        any(isinstance(each, numbers) for each in node.args)
        or any(keyword.arg == "dim" for keyword in node.keywords)
        or (len(node.args) > 1 and not any(isinstance(each, str) for each in literal))
        or any(isinstance(each, int) for each in literal[:1])
    )


def _is_by_place(index: ast.expr) -> bool:
    """Whether an index takes axes by their place: x[..., None], x[:, 0], x[None]."""
    indices = index.elts if isinstance(index, ast.Tuple) else [index]
    return any(
        (isinstance(each, ast.Constant) and each.value in (None, ...))
        or (len(indices) > 1 and (isinstance(each, ast.Slice) or "slice(" in ast.unparse(each)))
        for each in indices
    )


def _annotations(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    found = [argument.annotation for argument in every if argument] + [node.returns]
    return [annotation for annotation in found if annotation is not None]


def _surely_bound(body: Iterable[ast.AST], scope: _Scope) -> set[str]:
    """Return the names that a module's or class's body binds, whatever happens, before anything can ask for them."""
    own = {name for name, origins in scope.names.items() if not all(isinstance(each, _Library) for each in origins)}
    sure: set[str] = set()
    asked_for: set[str] = set()
    anywhere: set[str] = set()  # also in functions, which a statement may call
    for node in body:
        asked_for |= set(_loaded(node))
        names = set()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = {node.name}
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign) or (isinstance(node, ast.AnnAssign) and node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {
                each.id
                for target in targets
                for each in ast.walk(target)
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            }
        sure |= names - asked_for - (set() if own.isdisjoint(asked_for) else anywhere)
        anywhere |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return sure


def _loaded(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement asks for outside of functions."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            waiting += [*node.decorator_list, *_defaults(node.args)]
        else:
            waiting += ast.iter_child_nodes(node)


def _deleted(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
            yield node.id
        elif isinstance(node, ast.ExceptHandler) and node.name:  # except ValueError as e: deletes e
            yield node.name


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _defaults(arguments: ast.arguments) -> list[ast.expr]:
    return [default for default in [*arguments.defaults, *arguments.kw_defaults] if default is not None]


def _type_parameters(node: ast.AST) -> list[ast.AST]:
    """Return what stands in the brackets of `def f[T: bound]`, from Python 3.12 on."""
    return getattr(node, "type_params", [])


def _values_of(target: ast.expr, value: ast.expr | None) -> list[ast.expr]:
    """Return the value of each target in `a, b = x, y`; nothing where the source does not say which is whose."""
    several = (ast.Tuple, ast.List)
    if not isinstance(target, several) or not isinstance(value, several) or len(target.elts) != len(value.elts):
        return []
    return [] if any(isinstance(each, ast.Starred) for each in [*target.elts, *value.elts]) else value.elts


def _base_name(node: ast.expr) -> str | None:
    """Return the name that an expression starts with: TABLE in TABLE[0].x and in TABLE.get(0).x."""
    while isinstance(node, (ast.Attribute, ast.Subscript)) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but those that never run."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += _run_by(node) if isinstance(node, ast.If) else ast.iter_child_nodes(node)


def _run_by(node: ast.If) -> list[ast.expr | ast.stmt]:
    """Return what an `if` may run: not what stands under exactly `if __name__ == "__main__":` or `if TYPE_CHECKING:`."""
    return [node.test, *([] if _never_runs(node) else node.body), *node.orelse]


def _take_imports_apart(tree: ast.Module) -> ast.Module:
    """Give each imported name a statement of its own, so that who uses one of several does not answer for the others."""
    for node in ast.walk(tree):  # a NodeTransformer calls itself, too often for a long sum
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            if isinstance(statements, list):
                setattr(node, block, [one for statement in statements for one in _one_name_each(statement)])
    return tree


def _one_name_each(node: ast.stmt) -> list[ast.stmt]:
    if isinstance(node, ast.Import):
        return [ast.copy_location(ast.Import([alias]), node) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [ast.copy_location(ast.ImportFrom(node.module, [alias], node.level), node) for alias in node.names]
    return [node]


def _never_runs(node: ast.If) -> bool:
    return ast.dump(node.test) in _NEVER_TRUE


_TRUE_TO_THEIR_NAMES: set[_Target] = {
    _Library(name) for name in ("builtins.__name__", "typing.TYPE_CHECKING", "typing_extensions.TYPE_CHECKING")
}

_NEVER_TRUE = {
    ast.dump(ast.parse(test, mode="eval").body)
    for test in ('__name__ == "__main__"', "TYPE_CHECKING", "typing.TYPE_CHECKING")
}
