"""A simulated accelerator: the device `sim`, on any machine, which minds devices as CUDA does.

Its tensors are a subclass with a CPU tensor behind each, on PyTorch's PrivateUse1 backend: an operator runs on what is behind, so
values are the CPU's to the last bit, and what CUDA refuses is refused here, in CUDA's words. What CUDA makes a program wait for is
seen in `ACTIVITY`: host copies, synchronisations, and matrix products that take as long as a probe says, on a clock that moves on
only for those who wait for the device.

`register` changes PyTorch for the whole process, for good: `torch.accelerator` says that one is there. So it is called in the
children of rows that take place on `sim`, and nowhere else. Neither the process nor one that it was forked from may have run
autograd before: its threads, one a device, are made the first time.

What it does not do: it has one stream, no events that record and no generator of its own, and its storages, asked for their device,
say cpu. What it does not defend: a student's code runs in the same process and can look behind its tensors, count anew, or put
PyTorch back as it was. That wins the rows of the device, half a point a problem, for code that must know its way around here; no
row that judges values takes place on `sim`.
"""

import copy
import sys
import time
import timeit
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial, wraps
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch import library as operators
from torch.utils import backend_registration
from torch.utils._device import _device_constructors
from torch.utils._mode_utils import no_dispatch

NAME = "sim"
MIXED = "Expected all tensors to be on the same device, but found at least two devices, an accelerator (sim:0) and cpu!"
INDICES = "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
NUMPY = "can't convert a tensor on an accelerator (sim:0) to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
PINNED = "cannot pin a tensor on an accelerator (sim:0): only dense CPU tensors can be pinned"
GENERATOR = "Expected an accelerator's ('sim') device type for generator but found 'cpu'"
# What a student may read of a refusal, word for word. The last two are PyTorch's own.
REFUSALS = frozenset({
    *(MIXED, INDICES, NUMPY, PINNED, GENERATOR),
    "Torch not compiled with CUDA enabled",
    "attempting to assign a gradient with device type 'cpu' to a tensor with device type 'sim'. "
    "Please ensure that the gradient and the tensor are on the same device",
})  # fmt: skip

_NOMINAL = 1 << 50  # bytes that a shell is said to have, so that it may be given any sizes; the memory is behind it
_INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"})
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
# Their answers, or the shapes of them, depend on values: the host waits.
_ANSWERS = frozenset({"_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "unique_dim"})
_NO_SCALARS = frozenset({"cat", "stack"})  # elsewhere a tensor without axes may be on the CPU
# What torch.autocast computes in the lower precision, and what in float32: as on the CPU, where CUDA has longer lists.
_LOWERED = (
    *("conv1d", "conv2d", "conv3d", "bmm", "mm", "linalg_vecdot", "baddbmm", "addmm", "addbmm", "linear", "matmul"),
    "scaled_dot_product_attention",
)
_RAISED = (
    *("mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss", "binary_cross_entropy", "nll_loss", "cross_entropy_loss"),
    *("binary_cross_entropy_with_logits", "kl_div", "soft_margin_loss", "multi_margin_loss", "prod", "trace", "cdist"),
)


@dataclass
class Activity:
    """What has happened on the device and, because of it, on the host."""

    host_copies: int = 0  # .cpu(), .item(), .tolist(), float() and the like: the host waited for values
    synchronizations: int = 0  # calls that only wait
    product_seconds: float = 0.0  # how long each matrix product takes the device, on the clock of this process
    copy_seconds: float = 0.0  # how long the host waits for a copy of more than one value, besides
    queued: float = 0.0  # seconds of work that nobody has waited for yet
    worked: float = 0.0  # seconds of work in all
    waited: float = 0.0  # seconds that the host has waited: the process's clocks are ahead of time by them

    def wait(self) -> None:
        """Let the device finish."""
        self.waited += self.queued
        self.queued = 0.0

    def synchronize(self, device: object = None) -> None:
        """Wait, as `torch.accelerator.synchronize` does."""
        self.synchronizations += 1
        self.wait()

    def copy_to_host(self, values: int = 1) -> None:
        """Wait for values."""
        self.host_copies += 1
        self.wait()
        if values > 1:
            self.waited += self.copy_seconds

    def multiply(self) -> None:
        """Queue a matrix product."""
        self.queued += self.product_seconds
        self.worked += self.product_seconds


ACTIVITY = Activity()


class SimTensor(Tensor):
    """A tensor on the device, and the CPU tensor behind it."""

    _behind: Tensor
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: "type[SimTensor]", behind: Tensor) -> "SimTensor":
        """Make the shell: it has sizes and strides, and no memory of its own."""
        shell: SimTensor = Tensor._make_wrapper_subclass(
            cls,
            behind.size(),
            strides=behind.stride(),
            storage_offset=behind.storage_offset(),
            dtype=behind.dtype,
            device=torch.device(NAME, 0),
            storage_size=_NOMINAL,
        )
        shell._behind = behind
        return shell

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # PyTorch's annotation leaves out the class and the operator
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator that has one of these among its arguments."""
        return _run(func, args, kwargs or {})

    # With these two, Module.to and Module.double change parameters in place, as they do on CUDA.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """Name the tensor behind."""
        return ["_behind"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: None, size: Any, stride: Any) -> "SimTensor":
        """Put a shell around it again."""
        return SimTensor(inner["_behind"])

    @property
    def data(self) -> Tensor:
        """The same numbers without history."""
        return self.detach()

    @data.setter
    def data(self, new: Tensor) -> None:
        if not isinstance(new, SimTensor) or new.dtype != self.dtype:
            raise RuntimeError(MIXED if not isinstance(new, SimTensor) else "incompatible tensor type")
        self._behind = new._behind
        _follow(self)

    # A storage is the one behind, so that views share one.
    def untyped_storage(self) -> torch.UntypedStorage:
        """Return the memory."""
        return self._behind.untyped_storage()

    def _typed_storage(self) -> Any:
        return self._behind._typed_storage()

    def storage(self) -> Any:
        """Return the memory, in the old way."""
        return self._behind.storage()

    def data_ptr(self) -> int:
        """Return where the first element is."""
        return self._behind.data_ptr()

    def pin_memory(self, device: object = None) -> NoReturn:
        """Refuse."""
        raise RuntimeError(PINNED)

    def new_tensor(
        self,
        data: Any,
        dtype: torch.dtype | None = None,
        device: Any = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> Tensor:
        """Make a tensor of this one's kind."""
        place = self.device if device is None else device
        return torch.tensor(
            data, dtype=dtype or self.dtype, device=place, requires_grad=requires_grad, pin_memory=pin_memory
        )

    def numpy(self, *, force: bool = False) -> Any:
        """Refuse, unless the copy is asked for."""
        if not force:
            raise TypeError(NUMPY)
        return self.detach().cpu().numpy()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numpy()

    def tolist(self) -> Any:
        """Copy to the host."""
        ACTIVITY.copy_to_host(self.numel())
        return self._behind.tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # PyTorch's is not annotated
        ACTIVITY.copy_to_host()
        return f"{repr(self._behind)[:-1]}, device='{NAME}:0')"

    def __format__(self, spec: str) -> str:
        return format(self.item() if self.dim() == 0 else repr(self), spec)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol"
            )
        if id(self) not in memo:
            memo[id(self)] = copied = self.detach().clone().requires_grad_(self.requires_grad)
            if isinstance(self, torch.nn.Parameter):
                copied._is_param = True
            copied.grad = copy.deepcopy(self.grad, memo)
        made: Tensor = memo[id(self)]
        return made

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Be saved as a tensor on CUDA is: its storage, marked with the device."""
        _mark(self.untyped_storage())
        storage = torch.storage.TypedStorage(wrap_storage=self.untyped_storage(), dtype=self.dtype, _internal=True)
        place = storage, self.storage_offset(), tuple(self.size()), self.stride()
        if isinstance(self, torch.nn.Parameter):
            return torch._utils._rebuild_parameter, (self.detach(), self.requires_grad, OrderedDict())
        return torch._utils._rebuild_tensor_v2, (*place, self.requires_grad, OrderedDict())


@dataclass(frozen=True)
class _Operator:
    """What has to be known of an operator before it runs."""

    name: str
    written: tuple[str | int, ...]  # arguments that it changes, by place or by keyword


@cache
def _operator(func: Any) -> _Operator:
    arguments = func._schema.arguments
    written = [
        argument.name if argument.kwarg_only else i
        for i, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return _Operator(func._schema.name.removeprefix("aten::"), tuple(written))


def _run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an operator on what is behind its arguments, if CUDA would run it on them."""
    operator = _operator(func)
    if operator.name == "_to_copy":
        return _copied(func, args[0], kwargs)
    if operator.name == "copy_":
        return _copied_into(*args[:2])
    found = [*_tensors(args), *_tensors(kwargs.values())]
    shells = [tensor for tensor in found if isinstance(tensor, SimTensor)]
    written = [kwargs.get(place) if isinstance(place, str) else args[place] for place in operator.written]
    if len(shells) < len(found):
        _check_devices(operator.name, args, found, written)
    device = kwargs.get("device")
    on_device = bool(shells) if device is None else device.type == NAME
    if on_device and (generator := kwargs.get("generator")) is not None and generator.device.type != NAME:
        raise RuntimeError(GENERATOR)
    if operator.name in _ANSWERS or (operator.name in _INDEXING and any(i.dtype in _MASKS for i in _tensors(args[1]))):
        ACTIVITY.copy_to_host()
    elif operator.name in PRODUCTS:
        ACTIVITY.multiply()
    behind = {key: _behind(value) for key, value in kwargs.items()}
    if device is not None and device.type == NAME:
        behind["device"] = torch.device("cpu")
        if behind.pop("pin_memory", False):
            raise RuntimeError(PINNED)
    result = func(*map(_behind, args), **behind)
    for tensor in _tensors(written):
        if isinstance(tensor, SimTensor):
            _follow(tensor)
    known: dict[int, Tensor] = {}
    for shell in shells:
        known.setdefault(id(shell._behind), shell)
    return _shelled(result, known, on_device)


_MASKS = (torch.bool, torch.uint8)


def _check_devices(name: str, args: Sequence[Any], found: Sequence[Tensor], written: Iterable[Any]) -> None:
    """Refuse CPU tensors beside the device's, but for indices and tensors without axes."""
    if name in _INDEXING:
        if not isinstance(args[0], SimTensor):
            raise RuntimeError(INDICES)
        found = [tensor for tensor in args[2:3] if isinstance(tensor, Tensor)]
    elsewhere = [tensor for tensor in found if not isinstance(tensor, SimTensor)]
    allowed = 0 if name not in _NO_SCALARS else -1
    if len(elsewhere) == len(found) and name not in _INDEXING:
        return  # a factory, which fills a tensor like these
    if any(tensor.dim() > allowed for tensor in elsewhere) or any(
        tensor is other for tensor in _tensors(written) for other in elsewhere
    ):
        raise RuntimeError(MIXED)


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    found = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors(value)
    return found


def _behind(value: Any) -> Any:
    if isinstance(value, SimTensor):
        return value._behind
    if isinstance(value, (list, tuple)):
        return type(value)(map(_behind, value))
    return value


def _shelled(value: Any, known: dict[int, Tensor], on_device: bool) -> Any:
    """Return what an operator returned as its caller knows it."""
    if isinstance(value, Tensor):
        if id(value) in known:
            return known[id(value)]
        return SimTensor(value) if on_device else value
    if isinstance(value, (list, tuple)):
        return type(value)(_shelled(item, known, on_device) for item in value)
    return value


def _follow(shell: SimTensor) -> None:
    """Give a shell the sizes that an operator in place has given to the tensor behind it."""
    behind = shell._behind
    if shell.size() == behind.size() and shell.stride() == behind.stride():
        return
    included = torch._C._meta_in_tls_dispatch_include()
    torch._C._set_meta_in_tls_dispatch_include(True)  # the shell's own operator moves no numbers
    try:
        with no_dispatch():
            shell.as_strided_(behind.size(), behind.stride(), behind.storage_offset())
    finally:
        torch._C._set_meta_in_tls_dispatch_include(included)


def _copied(func: Any, tensor: Tensor, kwargs: dict[str, Any]) -> Tensor:
    """Move a tensor between devices, or copy it on its own."""
    target = kwargs.get("device") or tensor.device
    if isinstance(tensor, SimTensor) and target.type == "cpu":
        ACTIVITY.copy_to_host(tensor.numel())
    kwargs = kwargs | {"device": torch.device("cpu") if target.type == NAME else target}
    copied: Tensor = func(_behind(tensor), **kwargs)
    return SimTensor(copied) if target.type == NAME else copied


def _copied_into(target: Tensor, source: Tensor) -> Tensor:
    if isinstance(source, SimTensor) and not isinstance(target, SimTensor):
        ACTIVITY.copy_to_host(source.numel())
    _behind(target).copy_(_behind(source))
    return target


# What follows is done by `register`, and undone by nothing.


def is_registered() -> bool:
    """Tell whether this process has the device already."""
    return bool(_libraries)


def register() -> None:
    """Bring the device into being in this process."""
    _device_constructors()  # torch.set_default_device finds those that are there now
    backend_registration._setup_privateuseone_for_python_backend(NAME, _device_module())
    # A tensor's own operators come through its class. What makes a tensor of none does so by one of these in the end. (A fallback for
    # all operators would do as well, and takes 30 ms to register.)
    library = operators.Library("aten", "IMPL", "PrivateUse1")
    for name in ("empty.memory_format", "empty_strided", "tril_indices", "triu_indices"):
        packet, _, overload = name.partition(".")
        library.impl(name, partial(_make, getattr(getattr(torch.ops.aten, packet), overload or "default")))
    _libraries.append(library)
    _meet_first_tensor()
    torch.serialization.register_package(0, _tag, _restored)
    replacements: tuple[tuple[Any, str, Any], ...] = (
        (torch.accelerator, "synchronize", ACTIVITY.synchronize),
        (torch.accelerator, "current_stream", _stream),
        (torch._utils, "_rebuild_tensor", _rebuilding(torch._utils._rebuild_tensor)),
        (torch.Tensor, "pin_memory", _pin),
        (torch.Tensor, "is_pinned", _is_pinned),
    )
    for owner, name, replacement in replacements:
        setattr(owner, name, replacement)
    for name in ("tensor", "as_tensor", "asarray"):
        setattr(torch, name, _moving(getattr(torch, name)))
    for name in ("empty", "zeros", "ones", "empty_like", "zeros_like", "tensor"):
        setattr(torch, name, _pinning(getattr(torch, name)))
    _set_clocks()


def _make(func: Any, *args: Any, **kwargs: Any) -> Any:
    return _run(func, args, kwargs)


def _meet_first_tensor() -> None:
    """Make the first tensor. PyTorch looks up DTensor then, for its own use: 500 modules, 0.5 s and 40 MB, for a class not in use here."""
    name = "torch.distributed.tensor"
    if name in sys.modules:
        return
    stand_in = ModuleType(name)
    vars(stand_in)["DTensor"] = type("DTensor", (), {})
    sys.modules[name] = stand_in
    try:
        torch.empty(0, device=NAME).zero_()
    finally:
        del sys.modules[name]


_libraries: list[operators.Library] = []  # one that is forgotten takes its kernels with it


def _device_module() -> ModuleType:
    """Return what becomes `torch.sim`."""
    module = ModuleType(f"torch.{NAME}")
    functions = (is_available, is_initialized, current_device, device_count, manual_seed_all, get_amp_supported_dtype)
    vars(module).update({function.__name__: function for function in functions})
    vars(module).update(_is_in_bad_fork=lambda: False, synchronize=ACTIVITY.synchronize, current_stream=_stream)
    return module


def is_available() -> bool:
    """Say yes."""
    return True


def is_initialized() -> bool:
    """Say yes."""
    return True


def current_device() -> int:
    """Return the only device's index."""
    return 0


def device_count() -> int:
    """Return how many there are."""
    return 1


def manual_seed_all(seed: int) -> None:
    """Do nothing: the device draws from the CPU's generator, which is seeded as well."""


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return what torch.autocast may compute in; it asks before the first use, which is when kernels are made."""
    if len(_libraries) == 1:
        rest = operators.Library("_", "IMPL")
        rest.fallback(operators.fallthrough_kernel, "AutocastPrivateUse1")
        library = operators.Library("aten", "IMPL", "AutocastPrivateUse1")
        for name in _LOWERED:
            library.impl(name, partial(_cast, getattr(torch.ops.aten, name), None))
        for name in _RAISED:
            library.impl(name, partial(_cast, getattr(torch.ops.aten, name), torch.float32))
        _libraries.extend((rest, library))
    return [torch.bfloat16, torch.float16]


def _cast(operator: Any, dtype: torch.dtype | None, *args: Any, **kwargs: Any) -> Any:
    """Run an operator under autocast; None stands for the lower precision."""
    lower = torch.get_autocast_dtype(NAME)

    def cast(value: Any) -> Any:
        if isinstance(value, SimTensor) and value.is_floating_point() and value.dtype != torch.float64:
            return value.to(dtype or lower)
        return [cast(item) for item in value] if isinstance(value, (list, tuple)) else value

    key = torch._C._dispatch_key_parse("AutocastPrivateUse1")
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
        return operator(*map(cast, args), **{key: cast(value) for key, value in kwargs.items()})


def _stream(device: object = None) -> SimpleNamespace:
    return SimpleNamespace(
        device=torch.device(NAME, 0), synchronize=ACTIVITY.synchronize, query=lambda: not ACTIVITY.queued
    )


def _mark(storage: Any) -> None:
    storage._on_sim = True


def _tag(storage: Any) -> str | None:
    """Return what torch.save writes beside a storage."""
    return f"{NAME}:0" if getattr(storage, "_on_sim", False) else None


def _restored(storage: Any, location: str) -> Any:
    """Bring a storage that torch.load has read, and whose location is this device, there."""
    if not location.startswith(NAME):
        return None
    _mark(storage)
    return storage


def _rebuilding(rebuild: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that makes a tensor of what torch.load has read, where that is."""

    @wraps(rebuild)  # torch.load knows it by its name
    def rebuilt(storage: Any, *place: Any) -> Tensor:
        tensor = rebuild(storage, *place)
        return SimTensor(tensor) if getattr(storage._untyped_storage, "_on_sim", False) else tensor

    return rebuilt


def _pin(tensor: Tensor, device: object = None) -> Tensor:
    """Return a copy in pinned memory, as far as anyone can tell."""
    if tensor.device.type != "cpu":
        raise RuntimeError(PINNED if isinstance(tensor, SimTensor) else f"cannot pin a tensor on {tensor.device}")
    if _is_pinned(tensor):
        return tensor
    pinned = tensor.clone()
    memory: Any = pinned.untyped_storage()
    memory._pinned = True
    return pinned


def _is_pinned(tensor: Tensor, device: object = None) -> bool:
    return tensor.device.type == "cpu" and getattr(tensor.untyped_storage(), "_pinned", False)


def _pinning(factory: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that makes tensors, with a `pin_memory` that works."""

    @wraps(factory)
    def make(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        made = factory(*args, **kwargs)
        return made.pin_memory() if pin_memory else made

    return make


def _moving(factory: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that makes tensors of Python's numbers, on the CPU first: PyTorch's own asserts in C++ that it can't here."""

    @wraps(factory)
    def make(data: Any, *args: Any, device: Any = None, requires_grad: bool = False, **kwargs: Any) -> Tensor:
        if device is None and isinstance(data, Tensor) and factory.__name__ != "tensor":
            device = data.device  # these two keep a tensor where it is
        target = torch.empty(0).device if device is None else torch.device(device)
        if isinstance(data, SimTensor):
            made = (
                data.to(*args, **kwargs) if factory.__name__ != "tensor" else data.detach().clone().to(*args, **kwargs)
            )
        elif target.type == NAME:
            made = factory(data, *args, device="cpu", **kwargs)
        else:
            made = factory(data, *args, device=device, **kwargs)
        made = made.to(target)
        return made.requires_grad_() if requires_grad else made

    return make


def _set_clocks() -> None:
    """Have the clocks of this process show the seconds that the host has waited for the device."""

    def ahead(clock: Callable[[], float], unit: int) -> Callable[[], float]:
        return lambda: clock() + type(clock())(ACTIVITY.waited * unit)

    for name in ("time", "perf_counter", "monotonic"):
        setattr(time, name, ahead(getattr(time, name), 1))
        setattr(time, f"{name}_ns", ahead(getattr(time, f"{name}_ns"), 10**9))
    functions: tuple[Any, ...] = (timeit.timeit, timeit.repeat, timeit.Timer.__init__)
    for function in functions:  # their default was looked up when they were made
        function.__defaults__ = tuple(
            time.perf_counter if default is timeit.default_timer else default for default in function.__defaults__
        )
    timeit.default_timer = time.perf_counter
