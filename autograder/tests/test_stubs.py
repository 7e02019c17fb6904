"""Stubs hold what a student needs to start, and nothing of a solution."""

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

from autograder import stubs
from handout.problems import Problem, load_assignment

REFERENCE = stubs.ROOT / "reference"
MODULES = sorted(path.stem for path in REFERENCE.glob("*.py") if path.name != "__init__.py")
NOT_A_NAME = {"einsums.annotations", "training.together"}  # problems that are about several functions at once
PROBLEMS = [
    problem for problem in load_assignment().problems if problem.part in MODULES and problem.id not in NOT_A_NAME
]


def stub(source: str, module: str = "memory") -> str:
    """Return the stub of a dedented source."""
    return stubs.generate(dedent(source), module)


# --- this repository's stubs ---


def test_student_folder_is_what_the_reference_gives() -> None:
    assert stubs.check_stubs() == [], "run `make stubs`"


def test_writing_stubs_changes_nothing_the_second_time(tmp_path: Path) -> None:
    first = stubs.write_stubs(REFERENCE, tmp_path)

    assert [path.name for path in first] == sorted(["__init__.py", *(f"{module}.py" for module in MODULES)])
    assert stubs.write_stubs(REFERENCE, tmp_path) == []


def test_a_stub_edited_by_hand_differs_and_is_written_anew(tmp_path: Path) -> None:
    stubs.write_stubs(REFERENCE, tmp_path)
    edited = tmp_path / f"{MODULES[0]}.py"
    edited.write_text(edited.read_text(encoding="utf-8") + "x = 1\n", encoding="utf-8")

    assert stubs.differing_stubs(REFERENCE, tmp_path) == [edited.name]
    assert stubs.write_stubs(REFERENCE, tmp_path) == [edited]
    assert stubs.differing_stubs(REFERENCE, tmp_path) == []


def test_a_stub_without_its_reference_is_removed(tmp_path: Path) -> None:
    stubs.write_stubs(REFERENCE, tmp_path)
    (tmp_path / "renamed.py").write_text("", encoding="utf-8")
    (tmp_path / "figures").mkdir()

    assert stubs.write_stubs(REFERENCE, tmp_path) == [tmp_path / "renamed.py"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["__init__.py", "figures", *(f"{module}.py" for module in MODULES)]
    )


@pytest.fixture
def package(tmp_path: Path) -> Iterator[str]:
    """Name of an importable package that holds freshly generated stubs."""
    folder = tmp_path / "fresh_stubs"
    stubs.write_stubs(REFERENCE, folder)
    sys.path.insert(0, str(tmp_path))
    yield folder.name
    sys.path.remove(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] == folder.name]:
        del sys.modules[name]


def unfinished_calls(module: ModuleType, problem: Problem) -> list[Callable[..., object]]:
    """Return every function of a problem's stub; a class gives its own methods."""
    target = getattr(module, problem.name)
    if inspect.isfunction(target):
        return [target]
    return [getattr(target, name) for name, value in vars(target).items() if inspect.isfunction(value)]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id)
def test_every_problem_has_a_stub_that_raises_its_id(package: str, problem: Problem) -> None:
    module = importlib.import_module(f"{package}.{problem.part}")

    functions = unfinished_calls(module, problem)

    assert functions
    for function in functions:
        required = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        positional = [None for p in required if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        named = {p.name: None for p in required if p.kind is p.KEYWORD_ONLY}
        with pytest.raises(NotImplementedError) as error:
            function(*positional, **named)
        assert str(error.value) == problem.id


@pytest.mark.parametrize("module", MODULES)
def test_a_reference_module_shows_students_no_function_that_is_not_a_problem(package: str, module: str) -> None:
    text = (REFERENCE / f"{module}.py").read_text(encoding="utf-8")
    ids = {problem.id for problem in PROBLEMS}

    raised = {line.split('"')[1] for line in stubs.generate(text, module).splitlines() if "raise NotImpl" in line}

    assert raised <= ids, "give it a leading underscore, or list it in problems.toml"


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_of_a_stub_has_a_docstring(package: str, module: str) -> None:
    loaded = importlib.import_module(f"{package}.{module}")
    own = [value for value in vars(loaded).values() if getattr(value, "__module__", None) == loaded.__name__]

    assert own
    for value in own:
        assert inspect.getdoc(value), f"{value} has no docstring"


# --- functions ---


def test_a_function_keeps_signature_and_docstring_and_names_its_problem() -> None:
    assert stub(
        '''
        def get_memory_usage(x: Tensor, *, unit: int = 1) -> int:
            """Bytes of a tensor's elements.

            >>> get_memory_usage(torch.zeros(3))
            12
            """
            size = x.element_size()
            return x.numel() * size
        '''
    ) == dedent(
        '''
        def get_memory_usage(x: Tensor, *, unit: int = 1) -> int:
            """Bytes of a tensor's elements.

            >>> get_memory_usage(torch.zeros(3))
            12
            """
            raise NotImplementedError("memory.get_memory_usage")
        '''
    )


def test_a_function_on_one_line_is_emptied_too() -> None:
    assert stub("def f(x): return x + 1\n") == 'def f(x):\n    raise NotImplementedError("memory.f")\n'


def test_a_generator_a_coroutine_and_a_nested_function_are_emptied() -> None:
    text = stub(
        """
        def f(x):
            def inner(y):
                return secret(y)
            yield inner(x)

        async def g(x):
            await secret(x)
        """
    )

    assert "secret" not in text
    assert "inner" not in text
    assert "async def g(x):" in text


def test_comments_in_a_body_vanish_and_comments_in_a_signature_stay() -> None:
    text = stub(
        '''
        # what a caller should know
        def f(
            x: int,  # bytes
        ) -> int:  # secret one
            """Doc."""  # secret two
            # secret three
            return x  # secret four
            # secret five
        # secret no more: this stands in the module
        '''
    )

    assert "secret" not in text
    assert "# what a caller should know" in text
    assert "# bytes" in text


def test_a_remark_to_the_linter_stays_on_the_def_line() -> None:
    assert "def F(x):  # noqa: N802\n" in stub("def F(x):  # noqa: N802\n    return x\n")


def test_a_decorator_of_the_interface_stays_and_one_of_the_solution_goes() -> None:
    text = stub(
        """
        @torch.no_grad()
        @functools.cache
        def f(x):
            return x

        @contextlib.contextmanager
        def g(x):
            yield

        class C:
            @property
            def size(self): return 1

            @size.setter
            def size(self, value): self.x = value

            @classmethod
            def make(cls): return cls()
        """
    )

    assert "no_grad" not in text
    assert "cache" not in text
    for decorator in ("@contextlib.contextmanager", "@property", "@size.setter", "@classmethod"):
        assert f"{decorator}\n" in text


# --- what goes and what stays at module level ---


def test_private_functions_classes_and_constants_go_with_the_comments_above_them() -> None:
    text = stub(
        '''
        """Doc."""

        import math

        # secret: a helper, and
        # secret: why it exists
        _SECRET = 3
        """secret: what the constant means."""

        # a public fact
        BITS = 8
        """Bits in a byte."""


        # secret
        def _secret(x):
            return x


        class _Secret:
            pass


        def f(x):
            return _secret(x)


        if __name__ == "__main__":
            print("secret")
        # secret
        '''
    )

    assert "secret" not in text.lower()
    assert '# a public fact\nBITS = 8\n"""Bits in a byte."""\n' in text


def test_all_imports_stay_those_that_only_the_solution_used_too() -> None:
    source = """
    from __future__ import annotations

    import math
    from collections.abc import Callable
    from typing import TYPE_CHECKING

    import torch.nn.functional as F
    from torch import Tensor

    if TYPE_CHECKING:
        from pathlib import Path

    try:
        import tomllib
    except ImportError:
        import tomli as tomllib
    """

    assert stub(source) == dedent(source)


def test_blank_lines_stay_between_imports_and_what_follows_a_removed_constant() -> None:
    assert stub("import math\n\n_A = 1\nB = 2\n") == "import math\n\nB = 2\n"
    assert stub("import math\n\n_A = 1\n\n\nclass B:\n    x = 1\n") == "import math\n\n\nclass B:\n    x = 1\n"


def test_a_statement_without_a_rule_is_refused() -> None:
    with pytest.raises(ValueError, match=r"memory: no rule .*: torch.manual_seed\(0\)"):
        stub("torch.manual_seed(0)\n")
    with pytest.raises(ValueError, match="no rule .*: for i in range"):
        stub("for i in range(3):\n    print(i)\n")
    with pytest.raises(ValueError, match="no rule"):
        stub("if torch.cuda.is_available():\n    import a\n    b()\n")
    with pytest.raises(ValueError, match="no rule"):
        stub("if torch.cuda.is_available():\n    def f():\n        import a\n")


@pytest.mark.parametrize(
    "source",
    [
        "_BASE = 1\n\ndef f(x=_BASE):\n    return x\n",
        "class _Base:\n    pass\n\nclass C(_Base):\n    def f(self): pass\n",
        "_Alias = int\n\ndef f(x: _Alias):\n    return x\n",
        "def _g():\n    return 1\n\nSIZE = _g()\n",
    ],
    ids=["default", "base class", "annotation", "constant"],
)
def test_a_stub_that_would_need_what_is_removed_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="the stub would need _"):
        stub(source)


# --- classes ---


def test_methods_name_their_class_and_private_methods_go() -> None:
    assert stub(
        '''
        class AdamW(torch.optim.Optimizer):
            """Adam, decay decoupled."""

            DEFAULT = 1e-3
            _secret = 0

            def __init__(self, params, lr: float = 1e-3) -> None:
                """Check."""
                super().__init__(params, dict(lr=lr))

            @torch.no_grad()
            def step(self, closure=None):
                return self._loss(closure)

            # secret
            def _loss(self, closure):
                return closure()
            # secret
        ''',
        "optimizers",
    ) == dedent(
        '''
        class AdamW(torch.optim.Optimizer):
            """Adam, decay decoupled."""

            DEFAULT = 1e-3

            def __init__(self, params, lr: float = 1e-3) -> None:
                """Check."""
                raise NotImplementedError("optimizers.AdamW")

            def step(self, closure=None):
                raise NotImplementedError("optimizers.AdamW")
        '''
    )


@pytest.mark.parametrize(
    "source",
    [
        """
        @dataclass(frozen=True)
        class MemoryBreakdown:
            '''Bytes.'''

            parameters: int  # of weights
            gradients: int = 0

            @property
            def total(self) -> int:
                return self.parameters + self.gradients
        """,
        """
        class StepFlops(NamedTuple):
            '''FLOPs of a step.'''

            forward: int
            backward: int

            @property
            def total(self) -> int:
                return self.forward + self.backward
        """,
        """
        class Stop(Exception):
            '''Enough.'''
        """,
    ],
    ids=["dataclass", "NamedTuple", "no methods"],
)
def test_a_class_that_only_holds_data_stays_whole(source: str) -> None:
    assert stub(source) == dedent(source)


def test_a_class_whose_methods_are_all_private_is_refused() -> None:
    with pytest.raises(ValueError, match="memory.C: no public method"):
        stub("class C:\n    def _f(self): pass\n")


# --- parts where writing the shapes is the exercise ---

WITH_SHAPES = """
from jaxtyping import Bool, Float
from torch import Tensor


def attention(q: Float[Tensor, "... query d"], mask: Bool[Tensor, "q k"] | None = None) -> list[Float[Tensor, "b d"]]:
    return [q]
"""


def test_shapes_are_taken_from_the_annotations_of_the_part_that_asks_for_them() -> None:
    text = stub(WITH_SHAPES, "einsums")

    assert "def attention(q: Tensor, mask: Tensor | None = None) -> list[Tensor]:\n" in text
    assert "from jaxtyping import Bool, Float\n" in text


def test_shapes_stay_in_every_other_part() -> None:
    assert 'q: Float[Tensor, "... query d"]' in stub(WITH_SHAPES, "strides")
