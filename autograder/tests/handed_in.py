"""Submissions for the grader's own tests: the reference's files, with something in them gone wrong."""

import ast
import textwrap
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@cache
def reference(part: str) -> str:
    """Return the source of a part's solution."""
    return (ROOT / "reference" / f"{part}.py").read_text(encoding="utf-8")


def without(source: str, name: str) -> str:
    """Return `source` without the top-level function or class `name`."""
    return replaced(source, name, "")


def replaced(source: str, name: str, replacement: str) -> str:
    """Return `source` with other code in the place of the top-level function or class `name`, or of "Class.method"."""
    body: list[ast.stmt] = ast.parse(source).body
    for step in name.split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        node = next(node for node in body if isinstance(node, kinds) and node.name == step)
        body = node.body
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = source.splitlines(keepends=True)
    code = textwrap.indent(textwrap.dedent(replacement).strip() + "\n", " " * node.col_offset)
    assert node.end_lineno is not None
    return "".join([*lines[: first - 1], code, *lines[node.end_lineno :]])


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write `files` (paths to contents) below `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder
