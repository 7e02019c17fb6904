"""The student's package inside a child: only the submission's own files, and none of them under another name.

Nothing of the submission is on `sys.path`, so a file called torch.py or numpy.py shadows nothing, and no conftest.py or
sitecustomize.py is ever looked for.
"""

import importlib
import importlib.abc
import importlib.machinery
import marshal
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from autograder.sandbox import accelerator


class Package:
    """A package whose modules are attributes, imported on first use: what a probe calls `lib`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, part: str) -> Any:
        module = importlib.import_module(f"{self._name}.{part}")
        setattr(self, part, module)
        return module


def importing(part: str, device: str = "cpu") -> "partial[list[str]]":
    """Return the probe that imports a part and returns the names that it defines: every child answers it first.

    Args:
        part: the module.
        device: where the row takes place, which the child makes ready before.
    """
    return partial(_import, part, device)


def _import(part: str, device: str, lib: Package) -> list[str]:
    accelerator.enter(device)
    return [name for name in vars(getattr(lib, part)) if name.isascii() and not name.startswith("_")]


def module_name(file: str) -> str:
    """Return the module that a file of the submission ("memory.py", "extra/__init__.py") is, below `student`."""
    parts = Path(file).with_suffix("").parts
    return ".".join(["student", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def compiled(root: Path) -> dict[str, bytes]:
    """Return the marshalled code of each module below `root`; what does not compile is left out.

    Compiling runs nothing, but a hostile source can crash the compiler: this runs in a locked child.
    """
    codes = {}
    warnings.simplefilter("ignore")  # thousands of them fill a pipe that nobody reads meanwhile
    for path in sorted(root.rglob("*.py")):
        try:
            code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
            continue  # the child that imports it will raise this again, for the student to read
        codes[module_name(str(path.relative_to(root)))] = marshal.dumps(code)
    return codes


class Finder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports `student` and its modules from `root`, from code that is compiled already where there is some."""

    def __init__(self, root: Path, codes: Mapping[str, bytes]) -> None:
        self._root = str(root)
        self._codes = codes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Answer for `student` and what is below it, for nothing else."""
        if fullname.split(".")[0] != "student":
            return None
        folder = self._folder(fullname)
        file = self._file(fullname)
        if os.path.isfile(file):
            spec = importlib.machinery.ModuleSpec(fullname, self, origin=file, is_package=self.is_package(fullname))
            spec.has_location = True
        elif os.path.isdir(folder):
            spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        else:
            return None
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations[:] = [folder]
        return spec

    def get_source(self, fullname: str) -> str:
        """Return a module's source, for tracebacks and `inspect`."""
        return Path(self._file(fullname)).read_text(encoding="utf-8", errors="replace")

    def get_code(self, fullname: str) -> CodeType:
        """Return a module's code."""
        if fullname in self._codes:
            return marshal.loads(self._codes[fullname])
        file = self._file(fullname)
        return compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)

    def is_package(self, fullname: str) -> bool:
        """Tell whether a module is a folder with an __init__.py."""
        return self._file(fullname).endswith("/__init__.py")

    # Strings: pathlib takes longer than all else that an import does here.
    def _folder(self, fullname: str) -> str:
        return "/".join([self._root, *fullname.split(".")[1:]])

    def _file(self, fullname: str) -> str:
        """Return where a module's code is, as Python looks for it: a mere folder never hides a file of its name."""
        folder = self._folder(fullname)
        package = f"{folder}/__init__.py"
        return package if fullname == "student" or os.path.isfile(package) else f"{folder}.py"
