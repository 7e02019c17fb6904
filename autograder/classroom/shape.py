"""A submission's syntax as a set of numbers, one for each piece of it, that survive renaming, comments, layout and reordering.

This parses what students wrote, which can crash or occupy the parser, so it runs in a locked child. It imports nothing of ours: a child
gets it by value.
"""

import ast
import builtins
import hashlib
from collections.abc import Mapping
from functools import partial

_SMALLEST = 10  # nodes of a piece: below it, everybody's are the same
_MOST = 3000  # numbers kept: the lowest, which are a fair sample, since they are hashes
_BITS = 48  # a JSON reader in another language keeps 53


def probe(sources: Mapping[str, bytes]) -> "partial[list[int]]":
    """Return the probe that a child answers with `shape(sources)`."""
    return partial(_answer, dict(sources))


def _answer(sources: dict[str, bytes], lib: object) -> list[int]:
    return shape(sources)


def shape(sources: Mapping[str, bytes]) -> list[int]:
    """Return a number for each statement and expression of a certain size; files that do not parse have none."""
    found: set[int] = set()
    for _, source in sorted(sources.items()):
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        imported = {
            (alias.asname or alias.name).split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }
        for statement in tree.body:
            if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
                _collect(statement, imported | set(dir(builtins)), found)
    return sorted(found)[:_MOST]


def _collect(node: object, known: set[str], found: set[int]) -> tuple[bytes, int]:
    """Add the numbers of the pieces of a tree to `found`; return its own text, and of how many nodes it is made."""
    if isinstance(node, list):
        parts = [_collect(child, known, found) for child in node if not _is_docstring(child)]
        return b"[" + b",".join(text for text, _ in parts) + b"]", sum(size for _, size in parts)
    if not isinstance(node, ast.AST):
        return repr(node).encode("utf-8", "backslashreplace"), 0
    if isinstance(node, ast.Name):
        return (node.id.encode() if node.id in known else b"_"), 1
    if isinstance(node, ast.arg):
        return b"_", 1
    if isinstance(node, ast.AnnAssign) and node.value:  # as if it had no annotation
        node = ast.Assign(targets=[node.target], value=node.value)
    text, total = type(node).__name__.encode(), 1
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list", "type_comment", "ctx", "type_params"):
            part, size = _collect(value, known, found)
            text += b"|" + part
            total += size
    digest = hashlib.blake2b(text, digest_size=8).digest()
    if total >= _SMALLEST:
        found.add(int.from_bytes(digest, "little") >> (64 - _BITS))
    return digest, total


def _is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
