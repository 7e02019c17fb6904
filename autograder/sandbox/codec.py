"""A child's reply as bytes, and back: data only.

    frame   = HEAD(magic, ticket, header length, blob length)  header  blobs
    header  = msgpack [kind, tree, blob sizes]

`encode` runs in the child and need only be correct; a student who replaces it can still only send bytes. `decode` runs in
the grader, so it looks nothing up by name, builds no object of a class that the frame chooses, and bounds every size
before it allocates. `torch.load(weights_only=True)` will not do here: 940 bytes made it allocate 2 GB.
"""

import gc
import struct
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

MAGIC = b"ACC1"
HEAD = struct.Struct("<4sQII")
MAX_HEADER = 3 << 18  # bytes; an empty msgpack list is one byte and becomes 64, so this bounds the decoder at 50 MB
MAX_BLOBS = 32 << 20  # bytes
MAX_COPIED = MAX_BLOBS + MAX_BLOBS // 2  # bytes: a blob is copied once as bools and once as anything else
MAX_NODES = 200_000
MAX_DEPTH = 64
MAX_KEYS = 4_000  # of all dicts in a frame: keys whose hashes collide make a dict quadratic
MAX_DIMENSIONS = 16  # what walks over a tensor element by element takes minutes at 32
MAX_BIG_INTS = 1_000  # those beyond 64 bits can be made to share a hash, as the keys above
MAX_ELEMENTS = 1 << 22  # logical elements of all tensors in a frame: a stride of 0 makes them out of nothing
MAX_HEX = 3_500  # digits of an int: Python refuses to print one of more than 4300 decimal digits
MAX_TEXT = 20_000  # characters of an exception's message or traceback
ALIGNMENT = 64

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    )
}
_DEVICES = frozenset({"cpu", "cuda", "sim"})
_NUMPY_DTYPES = frozenset(np.dtype(code).name for code in "?bBhHiIqQefdFD")
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


class BadFrame(Exception):
    """Bytes that `encode` never writes: the child was tampered with."""


@dataclass(frozen=True)
class TensorReply:
    """A tensor that crossed, with what its bytes do not say."""

    value: torch.Tensor  # on the CPU, with the sender's strides; views of one storage still share one
    device: str  # type of the device where it lived
    kind: str  # name of its type: "Tensor", "Parameter" or a subclass's own


@dataclass(frozen=True)
class NumpyScalar:
    """A NumPy scalar, kept apart from the Python number that it equals."""

    dtype: str


@dataclass(frozen=True)
class Opaque:
    """An object that does not cross: its type's name, as the child gave it."""

    type_name: str


@dataclass(frozen=True)
class Frame:
    """A line of a traceback."""

    file: str
    line: int
    column: int  # 0 where it is not known
    function: str


@dataclass(frozen=True)
class RemoteError:
    """An exception that left the probe, as text that the child gave."""

    type_names: tuple[str, ...]  # its class and the bases, "module.name", the class itself first
    message: str
    traceback: str
    frames: tuple[Frame, ...]


def encode(value: object, ticket: int) -> list[bytes | memoryview]:
    """Return the parts of the frame that carries `value` under the request's `ticket`."""
    encoder = _Encoder()
    try:
        header = _pack(["value", encoder.node(value, 0), [len(blob) for blob in encoder.blobs]])
        if len(header) > MAX_HEADER or sum(len(blob) + -len(blob) % ALIGNMENT for blob in encoder.blobs) > MAX_BLOBS:
            raise _TooLarge
    except _TooLarge:
        encoder, header = _Encoder(), _pack(["value", ["opaque", "something too large"], []])
    parts: list[bytes | memoryview] = [b"", header]
    size = 0
    for blob in encoder.blobs:
        padding = -len(blob) % ALIGNMENT
        parts += [blob, bytes(padding)]
        size += len(blob) + padding
    parts[0] = HEAD.pack(MAGIC, ticket, len(header), size)
    return parts


def encode_error(error: BaseException, ticket: int) -> list[bytes | memoryview]:
    """Return the parts of the frame that carries an exception as text, whatever its `__str__` does."""

    def text(make: Any) -> str:
        try:
            return _clean(make())[:MAX_TEXT]
        except BaseException:  # the class is the student's own
            return "<no text>"

    type_names = [f"{_clean(cls.__module__)}.{_clean(cls.__qualname__)}"[:200] for cls in type(error).__mro__[:20]]
    frames = [
        [_clean(frame.filename)[:500], frame.lineno or 0, 0, _clean(frame.name)[:200]]
        for frame in traceback.extract_tb(error.__traceback__, limit=-50)
    ]
    message = text(lambda: str(error))
    trace = text(lambda: "".join(traceback.format_exception(error, limit=-30)))
    if isinstance(error, SyntaxError) and error.filename:  # its place is in its fields, not in its traceback
        frames.append([_clean(error.filename)[:500], error.lineno or 0, error.offset or 0, "<module>"])
    header = _pack(["error", [type_names, message, trace, frames], []])
    return [HEAD.pack(MAGIC, ticket, len(header), 0), header]


def _clean(text: object) -> str:
    return str(text).encode("utf-8", "replace").decode()


class _TooLarge(Exception):
    """The decoder would refuse this, as it would a forgery."""


class _Encoder:
    """Turns one value into a tree of msgpack nodes and the blobs that it points to."""

    def __init__(self) -> None:
        self.blobs: list[memoryview] = []
        self._storages: dict[int, tuple[int, torch.UntypedStorage]] = {}  # held, so that no address is used twice
        self._nodes = self._keys = self._elements = self._big_ints = 0

    def node(self, value: Any, depth: int) -> Any:
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            raise _TooLarge
        kind = type(value)
        if value is None or kind in (bool, float, bytes):
            return value
        if kind is int:
            return value if -(2**63) <= value < 2**63 else self._big_int(value)
        if kind is str:
            return _clean(value)
        if kind is list:
            return ["list", *(self.node(item, depth + 1) for item in value)]
        if isinstance(value, tuple):  # named tuples and torch.Size too
            return ["tuple", *(self.node(item, depth + 1) for item in value)]
        if isinstance(value, dict):
            return self._dict(value, depth)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if kind is np.ndarray and value.dtype.name in _NUMPY_DTYPES:
            self._count(value.size, value.shape)
            flat = np.ascontiguousarray(value, value.dtype.newbyteorder("=")).reshape(-1)
            return ["array", value.dtype.name, list(value.shape), self._blob(flat.view(np.uint8).data)]
        if isinstance(value, np.generic):
            return ["numpy", value.dtype.name]
        if isinstance(value, torch.dtype):
            return ["dtype", str(value).removeprefix("torch.")]
        return ["opaque", _clean(kind.__qualname__)[:200]]

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        self._keys += len(value)
        if self._keys > MAX_KEYS:
            raise _TooLarge
        items = [self.node(item, depth + 1) for pair in value.items() for item in pair]
        if list in map(type, items[::2]):  # a node, and so no plain value
            return ["opaque", "dict with keys that are not plain"]
        return ["dict", *items]

    def _big_int(self, value: int) -> Any:
        self._big_ints += 1
        if self._big_ints > MAX_BIG_INTS:
            raise _TooLarge
        return ["int", hex(value)[:MAX_HEX]]

    def _count(self, elements: int, sizes: Sequence[int]) -> None:
        self._elements += elements
        if self._elements > MAX_ELEMENTS or len(sizes) > MAX_DIMENSIONS or any(size > MAX_ELEMENTS for size in sizes):
            raise _TooLarge

    def _blob(self, data: memoryview) -> int:
        self.blobs.append(data)
        return len(self.blobs) - 1

    def _tensor(self, tensor: torch.Tensor) -> Any:
        kind, device = type(tensor).__name__[:60], tensor.device.type
        name = str(tensor.dtype).removeprefix("torch.")
        if tensor.layout != torch.strided or name not in _DTYPES or device not in _DEVICES:
            return ["opaque", f"a {tensor.layout} tensor of {name} on {device}".replace("torch.", "")]
        self._count(tensor.numel(), tensor.shape)
        plain = tensor.detach().cpu().resolve_conj().resolve_neg()
        storage, offset = plain.untyped_storage(), plain.storage_offset()
        if storage.nbytes() > 4 * plain.nbytes + 4096:  # a small view of a big storage: send what it can reach, alone
            extent = 1 + sum((size - 1) * stride for size, stride in zip(plain.shape, plain.stride(), strict=True))
            span = plain.as_strided((extent if plain.numel() else 0,), (1,), offset).clone()
            storage, offset = span.untyped_storage(), 0
        key = storage._cdata  # the address of the storage itself: the data pointers of empty ones are all 0
        if key not in self._storages:
            raw = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._storages[key] = self._blob(raw.numpy().data), storage
        blob = self._storages[key][0]
        return ["tensor", name, list(plain.shape), list(plain.stride()), offset, blob, device, kind]


def frame_sizes(head: bytes, ticket: int) -> tuple[int, int]:
    """Return the lengths of the header and the blobs that follow `head`, or raise BadFrame."""
    magic, answered, header, blobs = HEAD.unpack(head)
    if magic != MAGIC or answered != ticket or header > MAX_HEADER or blobs > MAX_BLOBS:
        raise BadFrame("head")
    return header, blobs


def decode(header: bytes, blobs: bytearray) -> Any:
    """Return what a frame carries: plain data with `TensorReply`, `NumpyScalar` and `Opaque` leaves, or a `RemoteError`.

    Arrays alias `blobs`; a tensor's storage is a copy. Beyond the frame this takes less than 64 MB and a second, whatever is in it.

    Raises:
        BadFrame: for any frame that `encode` would not have written.
    """
    collecting = gc.isenabled()
    gc.disable()  # a million empty lists set off collections that cost ten times what the lists do
    try:
        return _decode(header, blobs)
    finally:
        if collecting:
            gc.enable()


def _decode(header: bytes, blobs: bytearray) -> Any:
    try:
        top = _unpack(header)
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise BadFrame(f"header: {type(error).__name__}") from None
    if type(top) is not list or len(top) != 3 or type(top[2]) is not list:
        raise BadFrame("top")
    kind, tree, sizes = top
    spans, end = [], 0
    for size in sizes:
        if type(size) is not int or size < 0:
            raise BadFrame("blob size")
        spans.append((end, size))
        end += size + -size % ALIGNMENT
    if end != len(blobs):
        raise BadFrame("blobs")
    if kind == "value":
        return _Decoder(blobs, spans).node(tree, 0)
    if kind == "error":
        return _decode_error(tree)
    raise BadFrame("kind")


def _decode_error(tree: Any) -> RemoteError:
    try:
        type_names, message, trace, frames = msgspec.convert(
            tree, tuple[list[str], str, str, list[tuple[str, int, int, str]]]
        )
    except msgspec.ValidationError:
        raise BadFrame("error") from None
    if not type_names or len(type_names) > 20 or len(frames) > 60:
        raise BadFrame("error")
    return RemoteError(
        tuple(name[:400] for name in type_names),
        message[:MAX_TEXT],
        trace[:MAX_TEXT],
        tuple(Frame(file[:500], line, column, function[:200]) for file, line, column, function in frames),
    )


class _Decoder:
    """Turns a tree of nodes into values; every field is checked before it is used."""

    def __init__(self, blobs: bytearray, spans: Sequence[tuple[int, int]]) -> None:
        self._bytes = torch.frombuffer(blobs, dtype=torch.uint8) if blobs else torch.empty(0, dtype=torch.uint8)
        self._spans = spans
        self._storages: dict[tuple[int, bool], torch.Tensor] = {}
        self._nodes = self._keys = self._elements = self._big_ints = self._copied = 0

    def node(self, node: Any, depth: int) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            raise BadFrame("too many nodes, or too deep")
        if node is None or type(node) in (bool, int, float, str, bytes):
            return node
        if type(node) is not list or not node:
            raise BadFrame("node")
        match node:
            case ["list", *items]:
                return [self.node(item, depth + 1) for item in items]
            case ["tuple", *items]:
                return tuple([self.node(item, depth + 1) for item in items])
            case ["dict", *items]:
                return self._dict(items, depth)
            case ["int", str(text)] if len(text) <= MAX_HEX:
                self._big_ints += 1
                if self._big_ints > MAX_BIG_INTS:
                    raise BadFrame("too many big ints")
                try:
                    return int(text, 16)
                except ValueError:
                    raise BadFrame("int") from None
            case ["tensor", str(dtype), list(shape), list(stride), int(offset), int(blob), str(device), str(kind)] if (
                device in _DEVICES
            ):
                return TensorReply(self._tensor(dtype, shape, stride, offset, blob), device, kind[:60])
            case ["array", str(dtype), list(shape), int(blob)]:
                return self._array(dtype, shape, blob)
            case ["numpy", str(dtype)]:
                return NumpyScalar(dtype[:20])
            case ["dtype", str(name)] if name in _DTYPES:
                return _DTYPES[name]
            case ["dtype" | "opaque", str(name)]:
                return Opaque(name[:200])
        raise BadFrame("tag")

    def _dict(self, items: list[Any], depth: int) -> dict[Any, Any]:
        self._keys += len(items) // 2
        if len(items) % 2 or self._keys > MAX_KEYS:
            raise BadFrame("dict")
        keys = items[::2]
        if not all(key is None or type(key) in (bool, int, float, str, bytes) for key in keys):
            raise BadFrame("key")
        return {key: self.node(item, depth + 1) for key, item in zip(keys, items[1::2], strict=True)}

    def _span(self, blob: Any) -> tuple[int, int]:
        if type(blob) is not int or not 0 <= blob < len(self._spans):
            raise BadFrame("blob")
        return self._spans[blob]

    def _count(self, shape: list[Any]) -> int:
        """Return the number of elements, in Python's integers, which do not overflow."""
        count = 1
        for size in _dimensions(shape):
            count *= size
        self._elements += count
        if self._elements > MAX_ELEMENTS or any(size > MAX_ELEMENTS for size in shape):
            raise BadFrame("too many elements")
        return count

    def _tensor(self, name: str, shape: list[Any], stride: list[Any], offset: Any, blob: Any) -> torch.Tensor:
        if name not in _DTYPES or len(shape) != len(_dimensions(stride)) or type(offset) is not int:
            raise BadFrame("tensor")
        dtype, count, (start, size) = _DTYPES[name], self._count(shape), self._span(blob)
        extent = offset + 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) if count else 0
        if not 0 <= offset <= 1 << 40 or extent * dtype.itemsize > size:
            raise BadFrame("out of its storage")
        key = blob, dtype is torch.bool
        if key not in self._storages:  # one a blob, not one a dtype: 32 MB seen as 17 dtypes would become 544
            self._copied += size
            if self._copied > MAX_COPIED:
                raise BadFrame("too much of it is bool and something else")
            raw = self._bytes[start : start + size]
            # A storage of its own. A bool's byte that is neither 0 nor 1 is undefined behaviour.
            self._storages[key] = raw.ne(0) if dtype is torch.bool else raw.clone()
        storage = self._storages[key][: size - size % dtype.itemsize].view(dtype)
        try:
            return torch.as_strided(storage, shape, stride, offset if count else 0)
        except RuntimeError as error:
            raise BadFrame(f"torch: {str(error)[:100]}") from None

    def _array(self, name: str, shape: list[Any], blob: Any) -> np.ndarray:
        start, size = self._span(blob)
        if name not in _NUMPY_DTYPES or self._count(shape) * np.dtype(name).itemsize != size:
            raise BadFrame("array")
        raw = self._bytes[start : start + size].numpy()
        return (raw != 0 if name == "bool" else raw.view(name)).reshape(shape)


def _dimensions(sizes: list[Any]) -> list[int]:
    if len(sizes) > MAX_DIMENSIONS or not all(type(size) is int and 0 <= size <= 1 << 40 for size in sizes):
        raise BadFrame("dimensions")
    return sizes


def loads(frame: bytes, ticket: int = 0) -> Any:
    """Decode a whole frame held in memory."""
    header, blobs = frame_sizes(frame[: HEAD.size], ticket)
    body = frame[HEAD.size :]
    if len(body) != header + blobs:
        raise BadFrame("length")
    return decode(body[:header], bytearray(body[header:]))


def snapshot(value: object) -> Any:
    """Return `value` as the trusted side would receive it from a child: a copy, in the same vocabulary."""
    return loads(b"".join(encode(value, 0)))


def plain(tree: Any) -> Any:
    """Return a decoded tree with its tensors as plain tensors."""
    if type(tree) is TensorReply:
        return tree.value
    if type(tree) in (list, tuple):
        return type(tree)(plain(item) for item in tree)
    if type(tree) is dict:
        return {key: plain(item) for key, item in tree.items()}
    return tree
