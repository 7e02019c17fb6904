"""What the handout says about a problem, read from the places that decide it.

Titles and points come from `problems.toml`, commands from the Makefile, signatures, worked examples, AdamW's algorithm and the table of peak speeds from
the docstrings of `reference/`, which is parsed and never imported: building the handout needs no PyTorch. Function bodies are
not looked at.
"""

import ast
import doctest
import re
import textwrap
from pathlib import Path
from typing import Any

from handout.problems import Problem, load_assignment

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 96  # characters of code that a line of a signature may have

# Parts in which writing the axes is the exercise: their signatures are shown as the stubs have them, without.
WITHOUT_AXES = frozenset({"einsums"})
_COMMAND = re.compile(r"^#: {3}(make .*?) {2,}(.*?) {2,}\[(.*)\]$", re.MULTILINE)
AXES = re.compile(r'\b[A-Z]\w+\[Tensor, " ?[^"]*"\]')


def contract(root: Path = ROOT) -> dict[str, Any]:
    """Return titles, points, signatures, examples and commands of all problems, as plain data."""
    assignment = load_assignment()
    modules = {part.id: _Module(root / "reference" / f"{part.id}.py") for part in assignment.parts}
    return {
        "title": assignment.title,
        "parts": [
            {
                "id": part.id,
                "number": part.number,
                "title": part.title,
                "points": sum(p.points for p in part.problems if not p.bonus),
                "problems": [p.id for p in part.problems],
            }
            for part in assignment.parts
        ],
        "problems": {problem.id: _problem(problem, modules[problem.part]) for problem in assignment.problems},
        "points": sum(p.points for p in assignment.problems if not p.bonus),
        "bonus": sum(p.points for p in assignment.problems if p.bonus),
        "commands": commands(),
        "adamw": algorithm(modules["optimizers"].docstring("AdamW")),
        "peaks": markdown_table(modules["flops"].docstring("promised_flop_per_sec")),
    }


def _problem(problem: Problem, module: "_Module") -> dict[str, Any]:
    known = problem.name in module.definitions
    return {
        "number": problem.number,
        "title": problem.title,
        "points": problem.points,
        "bonus": problem.bonus,
        "part": problem.part,
        "name": problem.name,
        "file": f"student/{problem.part}.py",
        "command": command(problem),
        "signature": module.signature(problem.name) if known else None,
        "example": worked_example(module.docstring(problem.name)) if known else None,
    }


def commands(root: Path = ROOT) -> list[dict[str, str]]:
    """Return what students can have made: the first lines of the Makefile's help."""
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    names = ("make", "says", "python")
    return [dict(zip(names, found, strict=True)) for found in _COMMAND.findall(makefile)]


def command(problem: Problem) -> str:
    """Return what a student types to run the public tests of one problem."""
    name = f"test_{problem.name.lower()}"
    # pytest looks for a part of a name: test_train is in test_train_step too, and in test_training.py.
    longer = [f"test_{p.name.lower()}" for p in load_assignment().problems if p.name.startswith(f"{problem.name}_")]
    chosen = " and not ".join([f"{name}_", *longer])
    return f'python3 -m tests -k "{chosen}"' if longer else f"python3 -m tests -k {name}"


class _Module:
    """One file of `reference/`, seen from outside."""

    def __init__(self, path: Path) -> None:
        self.source = path.read_text(encoding="utf-8")
        self.with_axes = path.stem not in WITHOUT_AXES
        self.definitions = {
            node.name: node
            for node in ast.parse(self.source).body
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")
        }

    def docstring(self, name: str) -> str:
        return ast.get_docstring(self.definitions[name]) or ""

    def signature(self, name: str) -> str:
        node = self.definitions[name]
        if isinstance(node, ast.FunctionDef):
            return self._function(node)
        lines = [f"class {name}({', '.join(map(ast.unparse, node.bases))}):"]
        methods = [method for method in node.body if isinstance(method, ast.FunctionDef)]
        lines += [
            textwrap.indent(self._function(m), "    ") for m in methods if m.name == "__init__" or m.name[0] != "_"
        ]
        return "\n".join(lines)

    def _function(self, node: ast.FunctionDef) -> str:
        spec = node.args
        arguments = [*spec.posonlyargs, *spec.args]
        defaults = [None] * (len(arguments) - len(spec.defaults)) + [self._text(value) for value in spec.defaults]
        shown = [self._argument(a, value) for a, value in zip(arguments, defaults, strict=True)]
        if spec.vararg:
            shown.append(f"*{self._argument(spec.vararg, None)}")
        elif spec.kwonlyargs:
            shown.append("*")
        for a, value in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
            shown.append(self._argument(a, None if value is None else self._text(value)))
        returns = f" -> {self._text(node.returns)}" if node.returns else ""
        return fill(f"def {node.name}(", shown, f"){returns}")

    def _argument(self, argument: ast.arg, default: str | None) -> str:
        text = argument.arg
        if argument.annotation is not None:
            text += f": {self._text(argument.annotation)}"
        if default is not None:
            text += f"{' = ' if argument.annotation else '='}{default}"
        return text

    def _text(self, node: ast.expr) -> str:
        """Return an expression as it is written (1e-3, not 0.001), on one line."""
        text = " ".join((ast.get_source_segment(self.source, node) or "").split())
        return text if self.with_axes else AXES.sub("Tensor", text)


def fill(start: str, arguments: list[str], end: str) -> str:
    """Write a signature on one line, or with as many arguments a line as fit."""
    line = f"{start}{', '.join(arguments)}{end}"
    if len(line) <= WIDTH:
        return line
    lines, current = [start], "   "
    for argument in arguments:
        if len(current) + len(argument) + 2 > WIDTH and current.strip():
            lines.append(current)
            current = "   "
        current += f" {argument},"
    return "\n".join([*lines, current, end])


def section(docstring: str, title: str) -> str:
    """Return a section of a docstring, without its indentation; its first line may stand behind the title."""
    found = re.search(rf"^{title}:(.*(?:\n(?:[ \t].*)?)*)", docstring, re.MULTILINE)
    return textwrap.dedent(found[1]).strip("\n") if found else ""


def worked_example(docstring: str) -> str:
    """Return a docstring's example as a console shows it: what is typed and what is printed, without the words between."""
    shown = []
    for example in doctest.DocTestParser().get_examples(section(docstring, "Example")):
        if example.source.strip() == "import torch":
            continue
        first, *others = example.source.rstrip("\n").split("\n")
        shown += [f">>> {first}", *(f"... {line}" for line in others)]
        shown += [
            "" if line == "<BLANKLINE>" else line for line in example.want.rstrip("\n").split("\n") if example.want
        ]
    return "\n".join(shown)


def algorithm(docstring: str) -> list[str]:
    """Return the lines of the algorithm that a docstring states: its first indented block."""
    block = re.search(r"\n\n((?: {4}.+\n)+)", docstring)
    assert block, "the docstring states no algorithm"
    return [line.strip() for line in block[1].splitlines()]


def markdown_table(docstring: str) -> list[list[str]]:
    """Return the cells of a docstring's table, its header first, without backquotes and quotes."""
    rows = [line.strip("| ").split("|") for line in docstring.splitlines() if line.startswith("|")]
    return [[re.sub(r'[`"]', "", cell).strip() for cell in row] for row in rows if not set(row[0]) <= set("- ")]
