"""Which libraries a solution may use: what is not named here is not needed, and so not allowed.

Names are looked up in the libraries themselves, so that a module counts as itself wherever it was found:
`torch.nn.functional.torch.optim` is `torch.optim`, and `dataclasses.sys` is `sys`.
"""

import importlib
import importlib.util
import sys
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Modules of which everything may be used but names with an underscore, and other modules.
MODULES = (
    _names(
        "__future__ abc array bisect builtins calendar cmath collections collections.abc contextlib copy csv dataclasses"
    )
    | _names(
        "datetime decimal enum errno fractions functools glob hashlib heapq io itertools json logging math mmap numbers"
    )
    | _names(
        "operator os os.path pathlib pprint queue random re secrets shutil statistics string struct tempfile textwrap"
    )
    | _names("threading time timeit typing uuid warnings weakref zlib argparse concurrent concurrent.futures")
    | _names("einops einops.layers einops.layers.torch jaxtyping beartype beartype.typing beartype.vale beartype.door")
    | _names("typeguard typing_extensions tqdm tqdm.auto")
    | _names("numpy numpy.random numpy.linalg numpy.typing numpy.dtypes numpy.fft numpy.lib numpy.lib.format")
    | _names("numpy.lib.stride_tricks numpy.exceptions")
    | _names("torch torch.accelerator torch.amp torch.autograd torch.autograd.anomaly_mode torch.autograd.forward_ad")
    | _names("torch.autograd.function torch.autograd.functional torch.autograd.grad_mode torch.autograd.gradcheck")
    | _names("torch.autograd.graph torch.autograd.variable torch.backends torch.backends.* torch.compiler")
    | _names(
        "torch.cpu torch.cpu.* torch.cuda torch.cuda.* torch.distributions torch.distributions.* torch.fft torch.func"
    )
    | _names(
        "torch.functional torch.linalg torch.mps torch.nested torch.nn torch.nn.* torch.ops torch.ops.aten torch.optim"
    )
    | _names("torch.optim.* torch.random torch.sparse torch.special torch.storage torch.testing torch.types")
    | _names("torch.utils torch.utils.checkpoint torch.utils.data torch.utils.data.dataloader torch.utils.data.dataset")
    | _names("torch.utils.data.distributed torch.utils.data.sampler torch.utils._python_dispatch")
    | _names(
        "torch.utils._pytree torch.version torch.xpu torch.xpu.* torch.accelerator.* torch.mps.* torch.serialization"
    )
)
_PATTERNS = [name for name in MODULES if name.endswith("*")]

# Of these modules, only so much.
ONLY = {
    "sys": _names(
        "argv byteorder exit float_info flags getrecursionlimit getsizeof hash_info int_info maxsize platform"
    )
    | _names("setrecursionlimit stderr stdin stdout version version_info"),
    "gc": _names("collect disable enable freeze get_count isenabled"),
    "types": _names(
        "SimpleNamespace MappingProxyType TracebackType FunctionType MethodType ModuleType NoneType GenericAlias"
    ),
    "traceback": _names("print_exc format_exc"),
    "platform": _names("machine node processor python_version release system"),
    "torch.overrides": _names("TorchFunctionMode handle_torch_function has_torch_function is_tensor_like"),
}
ONLY["types"] -= _names("FunctionType MethodType ModuleType")

# Of the modules above, not these: they run or find what the source does not name.
NOT = _names(
    "builtins.exec builtins.eval builtins.compile builtins.globals functools.singledispatch functools.singledispatchmethod "
    "typing.get_type_hints typing_extensions.get_type_hints typing.ForwardRef typing_extensions.ForwardRef "
    "typing.evaluate_forward_ref typing_extensions.evaluate_forward_ref enum.global_enum "
    "string.Formatter torch.compiler.wrap_numpy numpy.lib.format.read_array numpy.info numpy.lib.add_newdoc "
    "torch.get_device_module torch.backends.opt_einsum.get_opt_einsum torch.ops.import_module torch.ops.load_library "
    "torch.utils._pytree.enum_object_hook torch.utils._pytree.treespec_loads"
)

_EXCEPTIONS = _names("torch._C._is_alias_of")
UNDERSCORED = (
    "torch.utils._python_dispatch",
    "torch.utils._pytree",
    "torch._foreach_*",
    "builtins.__debug__",
    "*._asdict",
    "*._replace",
    "*._fields",
    "torch._fused_*",
    "torch.ops.aten._*",
)
_HONEST_DUNDERS = (
    set(dir(int))
    | set(dir(float))
    | set(dir(list))
    | set(dir(dict))
    | set(dir(set))
    | set(dir(str))
    | set(dir(torch.Tensor))
) | _names(
    "__name__ __qualname__ __module__ __doc__ __class__ __dict__ __file__ __version__ __post_init__ __torch_dispatch__ __all__ "
    "__torch_function__ __call__ __iter__ __next__ __enter__ __exit__ __init__ __new__ __slots__ __name__ __match_args__ "
    "__dataclass_fields__ __debug__ __index__ __fspath__ __missing__ __aenter__ __aexit__ __await__ __annotations__"
)
# Attributes by which a value leads to all that is loaded.
HIDING = frozenset(
    _names(
        "__getattribute__ __globals__ __subclasses__ __builtins__ __getattr__ __self__ __func__ __code__ __closure__ __bases__"
    )
    | _names(
        "__base__ __mro__ __defaults__ __kwdefaults__ __annotations__ __annotate__ __loader__ __spec__ __wrapped__ __import__"
    )
    | _names(
        "__traceback__ __reduce__ __reduce_ex__ __signature__ __objclass__ __prepare__ __weakref__ tb_frame f_globals"
    )
    | _names(
        "f_locals f_builtins f_back f_code gi_frame cr_frame ag_frame gi_code tb_next __type_params__ __orig_bases__ _evaluate"
    )
) - _names("__reduce__ __weakref__ __traceback__")


def is_dunder(name: str) -> bool:
    """Whether a name is Python's own, like `__init__`."""
    return name.startswith("__") and name.endswith("__")


def listed() -> dict[str, list[str]]:
    """Return the modules that may be used, by their library, Python's own first and under "Python"."""
    found: dict[str, list[str]] = {"Python": []}
    for module in sorted(MODULES):
        if f"{module}.*" not in MODULES:  # the star's line says both
            library = module.split(".")[0]
            found.setdefault("Python" if library in sys.stdlib_module_names else library, []).append(module)
    return found


def may_be_imported(module: str) -> bool:
    """Whether a module is on the list, or below a name that is listed with a star."""
    if module in MODULES or module in ONLY:
        return True
    parts = module.split(".")
    private = any(part.startswith("_") for part in parts)
    return not private and any(fnmatchcase(module, pattern) for pattern in _PATTERNS)


@cache
def _find(name: str) -> tuple[str, Any, str | None]:
    """Return a dotted name as it is really called, what it is (None: unknown), and the module that may not be imported."""
    parent, _, last = name.rpartition(".")
    if not parent:
        if not may_be_imported(name):
            return name, None, name
        try:
            return name, importlib.import_module(name), None
        except ImportError:
            return name, None, None
    above, value, refused = _find(parent)
    here = f"{above}.{last}"
    if refused or value is None:
        return here, None, refused
    if isinstance(value, ModuleType) and may_be_imported(here):
        with suppress(ImportError):  # no module, or not in this release
            importlib.import_module(here)
    try:
        found = getattr(value, last)
    except Exception:  # a library's own __getattr__ may raise anything
        found = sys.modules.get(here) if may_be_imported(here) else None  # torch.optim deletes the names of its files
    if isinstance(found, ModuleType):
        itself = {"posixpath": "os.path", "ntpath": "os.path"}.get(found.__name__, found.__name__)
        if here != itself and sys.modules.get(here) is not found:
            here = itself
        return here, found, None if may_be_imported(here) else here
    if found is None and isinstance(value, ModuleType) and _is_module(here):
        return here, None, here
    return here, found, None


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, AttributeError, ValueError):
        return False


def canonical(name: str) -> str:
    """Return what a dotted name is called where it is at home: "torch.optim" for "torch.nn.functional.torch.optim"."""
    return _find(name)[0]


def is_module(name: str) -> bool:
    """Whether a dotted name is a module's."""
    return isinstance(_find(name)[1], ModuleType) or name in MODULES


def does_something(name: str) -> bool:
    """Whether a dotted name is that of a function or an optimizer, and so no honest annotation of a value."""
    value = _find(name)[1]
    is_function = isinstance(value, (FunctionType, BuiltinFunctionType, type(torch.Tensor.add), type(str.join)))
    return is_function or (isinstance(value, type) and issubclass(value, torch.optim.Optimizer))


@cache
def _refused_values() -> list[Any]:
    found = [_find(name)[1] for name in NOT]
    return [value for value in found if value is not None]


@cache
def refusal(name: str) -> str | None:
    """Return why a library's dotted name may be used nowhere, or None."""
    here, value, refused = _find(name)
    if name in _EXCEPTIONS:
        return None
    if refused:
        return f"import of {refused}: not needed here, and so not allowed"
    if here in NOT or any(value is each for each in _refused_values()):  # typing's has other names too
        return "not needed here, and so not allowed"
    parts = here.split(".")
    for i, part in enumerate(parts[1:], 2):
        prefix = ".".join(parts[:i])
        if part not in ONLY.get(".".join(parts[: i - 1]), {part}):
            return "not needed here, and so not allowed"
        if part in HIDING or (is_dunder(part) and part not in _HONEST_DUNDERS):
            return "not needed here, and so not allowed"
        if part == "__dict__":
            return "not needed here, and so not allowed"
        private = part.startswith("_") and not is_dunder(part) and part != "_"
        if private and not any(fnmatchcase(prefix, pattern) for pattern in UNDERSCORED):
            return "a library's private name, and so not allowed"
    return None
