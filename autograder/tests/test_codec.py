"""The data-only codec: what crosses comes out as it was, and bytes that no honest child writes are refused."""

import gc
import math
import random
import struct
import time
from collections import OrderedDict, namedtuple
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from autograder.sandbox import codec
from autograder.sandbox.codec import BadFrame, NumpyScalar, Opaque, RemoteError, TensorReply, snapshot

TICKET = 2**63 + 5
Point = namedtuple("Point", "x y")  # as students write it


def frame(value):
    return b"".join(codec.encode(value, TICKET))


def forged(tree, blobs=b"", sizes=None, kind="value"):
    """Decode a header that holds `tree`, with `blobs` as they would lie in the frame."""
    sizes = [len(blobs)] if sizes is None else sizes
    header = msgspec.msgpack.encode([kind, tree, sizes])
    return codec.decode(header, bytearray(blobs) + bytearray(-len(blobs) % codec.ALIGNMENT))


def same_storage(a, b):
    return a.value.untyped_storage().data_ptr() == b.value.untyped_storage().data_ptr()


# What crosses


@pytest.mark.parametrize("dtype", codec._DTYPES.values(), ids=str)
def test_a_tensor_of_each_dtype_keeps_its_bits(dtype):
    generator = torch.Generator().manual_seed(1)
    raw = torch.randint(0, 256, (6 * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    tensor = (raw > 127 if dtype is torch.bool else raw.view(dtype)).view(2, 3)
    got = snapshot(tensor)
    assert (got.value.dtype, got.value.shape, got.device, got.kind) == (dtype, (2, 3), "cpu", "Tensor")
    assert got.value.flatten().view(torch.uint8).equal(tensor.flatten().view(torch.uint8))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[::2, 1:],
        lambda x: x[2:, 3],
        lambda x: x[1].expand(5, 6),
        lambda x: x.as_strided((3, 3), (1, 1), 2),
        lambda x: x[0, 0],
        lambda x: x.unfold(1, 2, 3),
    ],
    ids=["transposed", "stepped", "column", "expanded", "overlapping", "scalar", "windows"],
)
def test_a_view_keeps_its_strides_and_offset(view):
    x = view(torch.arange(24.0).view(4, 6))
    got = snapshot(x).value
    assert got.equal(x)
    assert (got.stride(), got.storage_offset()) == (x.stride(), x.storage_offset())


def test_tensors_share_storage_as_they_did():
    x, other = torch.arange(6.0), torch.arange(6.0)
    got = snapshot([x, x[2:], x.view(2, 3).t(), other, x.view(torch.int32)])
    assert all(same_storage(got[0], got[i]) for i in (1, 2, 4))
    assert not same_storage(got[0], got[3])
    got[0].value[2] = -1
    assert got[1].value[0] == -1
    assert got[4].value[2] == torch.tensor(-1.0).view(torch.int32)


def test_what_crossed_is_a_copy():
    x = torch.zeros(3)
    got = snapshot(x)
    x += 1
    assert got.value.equal(torch.zeros(3))


def test_empty_values_cross():
    empties = [
        torch.empty(0),
        torch.empty(0, 3),
        torch.empty(3, 0, dtype=torch.bool),
        torch.empty(2, 0, 3).transpose(0, 2),
    ]
    for x, got in zip(empties, snapshot(empties), strict=True):
        assert (got.value.shape, got.value.dtype, got.value.stride()) == (x.shape, x.dtype, x.stride())
    values: list[object] = [[], (), {}, "", b"", [[]], ((),), {"": {}}]
    for value in values:
        assert snapshot(value) == value and type(snapshot(value)) is type(value)
    assert snapshot(np.empty((0, 2), np.int16)).shape == (0, 2)


def test_empty_tensors_share_nothing():
    first, second = snapshot([torch.empty(0), torch.empty(0)])
    assert first.value.untyped_storage()._cdata != second.value.untyped_storage()._cdata


def test_a_small_view_of_a_big_storage_crosses_alone():
    big = torch.arange(2.0**20)
    assert len(frame(big[5:8])) < 2000
    assert snapshot(big[5:8]).value.equal(torch.tensor([5.0, 6.0, 7.0]))
    strided = big.as_strided((3, 2), (100, 7), 11)
    got = snapshot(strided).value
    assert got.equal(strided) and got.stride() == (100, 7)
    assert len(frame(big[:0])) < 2000


def test_tensors_cross_without_their_graph():
    weight = torch.nn.Parameter(torch.ones(2))
    product = weight * 2
    got = snapshot([weight, product])
    assert [t.kind for t in got] == ["Parameter", "Tensor"]
    assert not got[0].value.requires_grad and got[1].value.grad_fn is None


def test_lazy_conjugates_and_negatives_are_resolved():
    z = torch.tensor([1 + 2j, 3 - 4j])
    assert snapshot(z.conj()).value.equal(torch.tensor([1 - 2j, 3 + 4j]))
    assert snapshot(z.conj().imag).value.equal(torch.tensor([-2.0, 4.0]))


def test_a_tensor_subclass_arrives_as_a_plain_tensor_that_names_it():
    class AlwaysEqual(torch.Tensor):
        def __eq__(self, other):
            return True

        __hash__ = torch.Tensor.__hash__

    got = snapshot(torch.ones(2).as_subclass(AlwaysEqual))
    assert got.kind == "AlwaysEqual" and type(got.value) is torch.Tensor


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(2, device="meta"),
        torch.eye(2).to_sparse(),
        object(),
        {1, 2},
        1j,
        range(3),
        type("Liar", (int,), {"__eq__": lambda a, b: True, "__hash__": int.__hash__})(3),
        type("Words", (str,), {})("a"),
        type("Items", (list,), {})([1]),
        np.ones((2, 2)).view(type("Grid", (np.ndarray,), {})),
        np.ma.masked_array([1, 2]),
        np.array([None]),
        np.array(["2020-01-01"], "datetime64[D]"),
        torch.nn.Linear(1, 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_plain_data_crosses_as_a_name(value):
    got = snapshot([value, 7])
    assert type(got[0]) is Opaque and got[1] == 7


@pytest.mark.parametrize("name", sorted(codec._NUMPY_DTYPES))
@pytest.mark.parametrize("order", ["<", ">"])
def test_numpy_arrays_keep_dtype_and_values(name, order):
    array = np.arange(12).reshape(3, 4).astype(np.dtype(name).newbyteorder(order))
    for view in (array, array.T, array[::-1, ::2], array[1, 1:2].reshape(())):
        got = snapshot(view)
        assert type(got) is np.ndarray and got.dtype == np.dtype(name)
        np.testing.assert_array_equal(got, view)


def test_numpy_scalars_are_not_python_numbers():
    assert snapshot(np.float64(1.5)) == NumpyScalar("float64")
    assert snapshot((np.int64(1), np.bool_(True))) == (NumpyScalar("int64"), NumpyScalar("bool"))


@pytest.mark.parametrize(
    "value", [0, -1, 2**63 - 1, -(2**63), 2**63, 2**64, -(2**63) - 1, 10**100, -(10**1000), True, False, None]
)
def test_integers_cross_exactly(value):
    assert snapshot(value) == value and type(snapshot(value)) is type(value)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_integer_that_crosses_can_be_printed(sign):
    assert str(snapshot(sign * 16 ** (codec.MAX_HEX - 4)))
    assert str(snapshot(sign * 16**100_000))  # cut short
    assert str(forged(["int", "f" * codec.MAX_HEX]))


@pytest.mark.parametrize("value", [0.1, -0.0, math.inf, -math.inf, math.nan, 5e-324])
def test_floats_cross_bit_for_bit(value):
    assert struct.pack("<d", snapshot(value)) == struct.pack("<d", value)


def test_containers_keep_type_order_and_named_tuples_become_tuples():
    value: list[Any] = [(1, [2.0, {"b": None, "a": b"\xff", 3: True, None: (), 2.5: "x", b"k": []}])]
    got = snapshot(value)
    assert got == value and list(got[0][1][1]) == list(value[0][1][1]) and got[0][1][1][3] is True
    assert snapshot(Point(1, 2)) == (1, 2) and type(snapshot(Point(1, 2))) is tuple
    assert snapshot(torch.Size([1, 2])) == (1, 2) and type(snapshot(torch.Size([1, 2]))) is tuple
    assert type(snapshot(OrderedDict(a=1))) is dict


def test_dtypes_cross_and_unknown_ones_are_names():
    assert snapshot([torch.bfloat16, torch.qint8]) == [torch.bfloat16, Opaque("qint8")]


def test_dicts_whose_keys_are_not_plain_cross_as_a_name():
    for key in ((1, 2), torch.float32, 2**70, object()):
        assert type(snapshot({key: 1})) is Opaque


def test_strings_that_are_not_utf_8_cross():
    assert snapshot("a\ud800b\0é") == "a?b\0é"


@pytest.mark.parametrize(
    "value",
    [
        list(range(codec.MAX_NODES + 1000)),
        ["x" * codec.MAX_HEADER],
        dict.fromkeys(range(codec.MAX_KEYS + 1)),
        torch.zeros(1).expand(codec.MAX_ELEMENTS + 1),
        torch.zeros(codec.MAX_BLOBS // 8 + 1, dtype=torch.float64),
        torch.zeros(codec.MAX_ELEMENTS + 1, dtype=torch.uint8),
        torch.empty(0, codec.MAX_ELEMENTS + 1),
        torch.zeros([1] * 33),
        [np.zeros(codec.MAX_ELEMENTS, np.uint8), np.zeros(1)],
    ],
    ids=["nodes", "text", "keys", "expanded", "bytes", "elements", "empty", "dimensions", "NumPy"],
)
def test_what_is_too_large_crosses_as_a_name_and_not_as_a_forgery(value):
    assert snapshot(value) == Opaque("something too large")


def test_a_structure_that_contains_itself_crosses_as_a_name():
    loop: list[object] = []
    loop.append(loop)
    assert snapshot(loop) == Opaque("something too large")
    deep: object = 1
    for _ in range(codec.MAX_DEPTH):
        deep = [deep]
    assert snapshot(deep) == deep
    assert snapshot([deep]) == Opaque("something too large")


# Exceptions


def raised(call):
    try:
        call()
    except BaseException as error:
        return codec.loads(b"".join(codec.encode_error(error, TICKET)), TICKET)
    raise AssertionError("nothing was raised")


def test_an_exception_crosses_as_text():
    def fail():
        raise KeyError("no such thing")

    got = raised(fail)
    assert type(got) is RemoteError
    assert got.type_names[:2] == ("builtins.KeyError", "builtins.LookupError")
    assert got.message == "'no such thing'"
    assert got.frames[-1].function == "fail" and got.frames[-1].file == __file__ and got.frames[-1].line > 0
    assert "no such thing" in got.traceback


def test_an_exception_whose_text_cannot_be_made_still_crosses():
    class Nasty(Exception):
        def __str__(self):
            raise SystemExit(0)

    def fail():
        raise Nasty

    got = raised(fail)
    assert got.message == "<no text>" and got.type_names[0].endswith("Nasty")


def test_a_syntax_error_says_where():
    got = raised(lambda: compile("a = 1\nb = = 2\n", "student/missing.py", "exec"))
    assert (got.frames[-1].file, got.frames[-1].line, got.frames[-1].column) == ("student/missing.py", 2, 5)


def test_endless_recursion_and_endless_text_cross_cut_short():
    def recurse():
        recurse()

    assert len(raised(recurse).frames) <= 50

    def ramble():
        raise ValueError("x" * 10**6)

    got = raised(ramble)
    assert len(got.message) <= codec.MAX_TEXT and len(got.traceback) <= codec.MAX_TEXT


# What is refused. Each case is refused by one check alone.

HONEST = frame([1, torch.arange(3.0)])


@pytest.mark.parametrize(
    "head",
    [
        codec.HEAD.pack(b"ACC2", TICKET, 1, 0),
        codec.HEAD.pack(codec.MAGIC, TICKET - 1, 1, 0),
        codec.HEAD.pack(codec.MAGIC, TICKET, codec.MAX_HEADER + 1, 0),
        codec.HEAD.pack(codec.MAGIC, TICKET, 1, codec.MAX_BLOBS + 1),
    ],
    ids=["magic", "ticket", "header", "blobs"],
)
def test_a_wrong_head_is_refused_before_anything_is_read(head):
    with pytest.raises(BadFrame, match="head"):
        codec.frame_sizes(head, TICKET)


def test_a_frame_that_is_cut_or_continued_is_refused():
    for bytes_ in (HONEST[:-1], HONEST + b"\0"):
        with pytest.raises(BadFrame, match="length"):
            codec.loads(bytes_, TICKET)


def test_the_ticket_of_another_request_is_refused():
    with pytest.raises(BadFrame, match="head"):
        codec.loads(HONEST, TICKET + 1)


@pytest.mark.parametrize(
    "header",
    [b"", b"\xc1", b"\x93", b"\xa1\xff", b"\x90\x90", b"\x91" * 100_000 + b"\x90", b"\x81" * 100_000, b"\x81\x80\x01",
     b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc7\x0c\xff" + b"\xff" * 12, b"\xdb\x7f\xff\xff\xff"],
    ids=lambda header: header[:4].hex(),
)  # fmt: skip
def test_a_header_that_is_not_msgpack_is_refused(header):
    with pytest.raises(BadFrame, match="header"):
        codec.decode(header, bytearray())


@pytest.mark.parametrize(
    "top", [None, 1, {}, [], ["value", 1], ["value", 1, [], 0], ["value", 1, None], ["value", 1, {}], ("value", 1, 2)]
)
def test_a_header_of_another_form_is_refused(top):
    with pytest.raises(BadFrame, match="top"):
        codec.decode(msgspec.msgpack.encode(top), bytearray())


def test_a_frame_of_another_kind_is_refused():
    with pytest.raises(BadFrame, match="kind"):
        forged(1, sizes=[], kind="pickle")


@pytest.mark.parametrize("size", [True, -64, 1.0, None, "64", [64]], ids=repr)
def test_a_blob_size_that_is_no_size_is_refused(size):
    with pytest.raises(BadFrame, match="blob size"):
        forged(1, b"\0" * 64, [size])


@pytest.mark.parametrize("sizes", [[], [65], [64, 1], [2**62], [128]], ids=repr)
def test_blobs_that_do_not_fill_the_frame_are_refused(sizes):
    with pytest.raises(BadFrame, match="blobs"):
        forged(1, b"\0" * 64, sizes)


def nested(depth):
    tree: object = 1
    for _ in range(depth):
        tree = ["list", tree]
    return tree


EIGHT = bytes(range(8))  # one blob for the cases below
T = ["tensor", "uint8", [2], [1], 0, 0, "cpu", "Tensor"]


def tensor(**changes):
    names = ("tag", "dtype", "shape", "stride", "offset", "blob", "device", "kind")
    return [changes.get(name, old) for name, old in zip(names, T, strict=True)]


@pytest.mark.parametrize(
    ("tree", "match"),
    [
        (nested(codec.MAX_DEPTH + 1), "too deep"),
        (["list", *[1] * codec.MAX_NODES], "too many nodes"),
        ({}, "node"), ([], "node"), (msgspec.msgpack.Ext(5, b"x"), "node"), (msgspec.Raw(b"\xd6\xff\0\0\0\0"), "node"),
        (["unknown", 1], "tag"), ([1, 2], "tag"), ([None], "tag"), ([[]], "tag"),
        (["int", "zz"], "int"), (["int", ""], "int"), (["int", "f" * (codec.MAX_HEX + 1)], "tag"), (["int", 5], "tag"),
        (["int", "1", "2"], "tag"), (["opaque"], "tag"), (["opaque", 1], "tag"), (["opaque", "a", "b"], "tag"),
        (["numpy", 1], "tag"), (["dtype", 1], "tag"), (["dtype"], "tag"),
        (["dict", 1], "dict"), (["dict", 1, 2, 3], "dict"), (["dict", *[0] * (2 * codec.MAX_KEYS + 2)], "dict"),
        (["list", *[["dict", *[0] * (2 * codec.MAX_KEYS // 3)]] * 4], "dict"),
        (["dict", [], 1], "key"), (["dict", ["list"], 1], "key"), (["dict", {}, 1], "key"),
        (["dict", ["tuple", 1], 1], "key"), (["dict", ["int", "1"], 1], "key"),
        (tensor(tag="Tensor"), "tag"), (T[:-1], "tag"), ([*T, 1], "tag"), (tensor(dtype=1), "tag"),
        (tensor(shape=2), "tag"), (tensor(stride=None), "tag"), (tensor(offset=0.0), "tag"), (tensor(blob=0.0), "tag"),
        (tensor(device="xpu"), "tag"), (tensor(device=1), "tag"), (tensor(kind=1), "tag"),
        (tensor(dtype="uint9"), "tensor"), (tensor(dtype="qint8"), "tensor"), (tensor(offset=False), "tensor"),
        (tensor(stride=[1, 1]), "tensor"), (tensor(shape=[]), "tensor"),
        (tensor(shape=[True]), "dimensions"), (tensor(shape=[-1]), "dimensions"), (tensor(shape=["2"]), "dimensions"),
        (tensor(shape=[2.0]), "dimensions"), (tensor(shape=[0, 2**41], stride=[1, 1]), "dimensions"),
        (tensor(stride=[True]), "dimensions"), (tensor(stride=[-1]), "dimensions"), (tensor(stride=[None]), "dimensions"),
        (tensor(stride=[2**41]), "dimensions"), (tensor(shape=[1] * 33, stride=[0] * 33), "dimensions"),
        (tensor(shape=[codec.MAX_ELEMENTS + 1], stride=[0]), "too many elements"),
        (tensor(shape=[2**11, 2**11], stride=[0, 0]), None),
        (["list", *[tensor(shape=[2**11, 2**11], stride=[0, 0])] * 2], "too many elements"),
        (tensor(shape=[2**40, 2**40], stride=[0, 0]), "too many elements"),
        (tensor(shape=[0, 2**23], stride=[1, 1]), "too many elements"),
        (tensor(blob=True), "blob"), (tensor(blob=-1), "blob"), (tensor(blob=1), "blob"), (tensor(blob=2**62), "blob"),
        (tensor(offset=-1), "out of its storage"), (tensor(offset=7), "out of its storage"),
        (tensor(shape=[9]), "out of its storage"), (tensor(stride=[8]), "out of its storage"),
        (tensor(shape=[2, 2], stride=[2**40, 2**40]), "out of its storage"), (tensor(offset=2**62), "out of its storage"),
        (tensor(dtype="float64"), "out of its storage"), (tensor(shape=[0], offset=2**41), "out of its storage"),
        (tensor(dtype="float64", shape=[], stride=[], offset=1), "out of its storage"),
        (["array", "uint8", [7], 0], "array"), (["array", "uint8", [9], 0], "array"), (["array", "object", [1], 0], "array"),
        (["array", "str", [8], 0], "array"), (["array", "float64", [8], 0], "array"), (["array", "O", [1], 0], "array"),
        (["array", "uint8", [8], True], "blob"), (["array", "uint8", [8], 1], "blob"), (["array", 1, [8], 0], "tag"),
        (["array", "uint8", [-8, -1], 0], "dimensions"), (["array", "uint8", 8, 0], "tag"),
        (["array", "uint8", [8], 0, 0], "tag"), (["array", "uint8", [2**23, 0], 0], "too many elements"),
    ],
    ids=lambda value: None if isinstance(value, str) else repr(value)[:60],
)  # fmt: skip
def test_a_node_that_encode_never_writes_is_refused(tree, match):
    if match is None:
        assert type(forged(tree, EIGHT)) is TensorReply
        return
    with pytest.raises(BadFrame, match=match):
        forged(tree, EIGHT)


def test_a_bool_is_no_number_of_a_blob():
    with pytest.raises(BadFrame, match="blob"):
        forged(tensor(blob=True, shape=[1]), bytes(128), [64, 64])


GOOD_ERROR = [["builtins.ValueError"], "text", "trace", [["f.py", 1, 0, "f"]]]


@pytest.mark.parametrize(
    "tree",
    [
        None,
        GOOD_ERROR[:3],
        [[], *GOOD_ERROR[1:]],
        [[1], *GOOD_ERROR[1:]],
        [["x"] * 21, *GOOD_ERROR[1:]],
        ["x", *GOOD_ERROR[1:]],
        [*GOOD_ERROR[:3], [["f.py", 1, 0, "f"]] * 61],
        [*GOOD_ERROR[:3], [["f.py", "1", 0, "f"]]],
        [*GOOD_ERROR[:3], [["f.py", 1, 0]]],
        [GOOD_ERROR[0], None, *GOOD_ERROR[2:]],
        [*GOOD_ERROR, 1],
    ],
    ids=lambda tree: repr(tree)[:50],
)
def test_an_exception_that_encode_never_writes_is_refused(tree):
    assert type(forged(GOOD_ERROR, sizes=[], kind="error")) is RemoteError
    with pytest.raises(BadFrame, match="error"):
        forged(tree, sizes=[], kind="error")


def test_texts_are_cut():
    long = "x" * 100_000
    error = forged([[long], long, long, [[long, 1, 0, long]]], sizes=[], kind="error")
    lengths = (len(error.type_names[0]), len(error.message), len(error.traceback))
    assert lengths == (400, codec.MAX_TEXT, codec.MAX_TEXT)
    assert (len(error.frames[0].file), len(error.frames[0].function)) == (500, 200)
    opaque, scalar = forged(["list", ["opaque", long], ["numpy", long]], sizes=[])
    assert (len(opaque.type_name), len(scalar.dtype)) == (200, 20)
    assert len(forged(tensor(kind=long), EIGHT).kind) == 60


def test_a_bool_is_0_or_1_whatever_its_byte():
    got = forged(tensor(dtype="bool", shape=[8]), EIGHT).value
    assert got.view(torch.uint8).tolist() == [0] + [1] * 7
    assert forged(["array", "bool", [8], 0], EIGHT).view(np.uint8).tolist() == [0] + [1] * 7


def test_an_offset_of_nothing_is_dropped():
    assert forged(tensor(shape=[0], offset=2**40), EIGHT).value.storage_offset() == 0


def test_blobs_begin_where_the_alignment_puts_them():
    header = msgspec.msgpack.encode(["value", ["list", tensor(blob=0), tensor(blob=1)], [3, 2]])
    body = bytearray(128)
    body[:3], body[64:66] = b"\1\2\3", b"\4\5"
    got = codec.decode(header, body)
    assert [t.value.tolist() for t in got] == [[1, 2], [4, 5]]


# Hostile bytes, many of them


def test_mutated_frames_are_decoded_or_refused_and_nothing_else():
    generator = random.Random(6)
    x = torch.arange(24.0).view(4, 6)
    values = [x, x.t()[1:]], (1, "a", {"k": None, 2: b"x"}), [np.arange(4), torch.bool, 2**70, torch.ones(0, 3) > 0]
    frames = [frame(value) for value in values]
    frames.append(b"".join(codec.encode_error(ValueError("x"), TICKET)))
    accepted, worst, start = 0, 0.0, time.process_time()
    for _ in range(6000):
        mutant = bytearray(generator.choice(frames))
        for _ in range(generator.choice((1, 1, 2, 8))):
            place = generator.randrange(codec.HEAD.size - 8, len(mutant))
            action = generator.random()
            if action < 0.6:
                mutant[place] = generator.choice((0, 1, 0x7F, 0x80, 0x90, 0xC3, 0xFF, generator.randrange(256)))
            elif action < 0.8:
                del mutant[place : place + generator.randrange(1, 9)]
            else:
                mutant[place:place] = generator.randbytes(generator.randrange(1, 9))
        head = bytes(mutant[: codec.HEAD.size])
        body = bytes(mutant[codec.HEAD.size :])
        if len(head) == codec.HEAD.size and generator.random() < 0.9:  # a head that fits gets the mutant further
            header = codec.HEAD.unpack(head)[2] if generator.random() < 0.5 else max(0, len(body) - 192)
            header = min(header, len(body))
            head = codec.HEAD.pack(codec.MAGIC, TICKET, header, len(body) - header)
        began = time.process_time()
        try:
            codec.plain(codec.loads(head + body, TICKET)) if len(head) == codec.HEAD.size else None
            accepted += 1
        except BadFrame:
            pass
        worst = max(worst, time.process_time() - began)
    assert 50 < accepted < 5900  # mutants of both sorts were tried
    assert worst < 0.5
    assert time.process_time() - start < 10


def test_trees_of_arbitrary_nodes_are_decoded_or_refused_and_nothing_else():
    generator = random.Random(7)
    leaves: tuple[object, ...] = (
        None,
        True,
        0,
        1,
        -1,
        2**40,
        2**63,
        0.5,
        "",
        "cpu",
        "Tensor",
        "float32",
        "bool",
        b"x",
        [],
        {},
    )
    tags = ("list", "tuple", "dict", "int", "tensor", "array", "numpy", "dtype", "opaque", "uint8", "float64", 7)
    fields: list[list[Any]] = [[*codec._DTYPES, "x", 1], [[1], [2, 2], [0], [True], 3], [[1], [0, 1], [4]], [0, 1, True, 2**62],
              [0, -1, 1, True], ["cpu", "sim", "tpu"], ["Tensor", None]]  # fmt: skip

    def tree(depth):
        choice = generator.random()
        if depth > 4 or choice < 0.4:
            return generator.choice(leaves)
        if choice < 0.7:
            picked: list[object] = [generator.choice(options) for options in fields]
            return ["tensor", *picked]
        return [generator.choice(tags), *(tree(depth + 1) for _ in range(generator.randrange(5)))]

    accepted = 0
    for _ in range(4000):
        try:
            codec.plain(forged(tree(0), EIGHT * 8))
            accepted += 1
        except BadFrame:
            pass
    assert 500 < accepted < 3900


# The most that a frame can cost the grader, beyond what it carries

MOST_SECONDS, MOST_MEMORY = 1, 64 << 20


def cost(header, blobs):
    """Return the CPU seconds and the most bytes that decoding takes, whatever the outcome."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak so far
    before = memory("VmRSS")
    start = time.process_time()
    with suppress(BadFrame):
        codec.decode(header, blobs)
    return time.process_time() - start, memory("VmHWM") - before


def memory(field):
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split(f"{field}:")[1].split()[0]) << 10


def test_as_many_empty_lists_as_fit_cost_little():
    size = codec.MAX_HEADER - 32
    header = b"\x93\xa5value\xdd" + struct.pack(">I", size) + b"\x90" * size + b"\x90"
    seconds, peak = cost(header, bytearray())
    assert seconds < MOST_SECONDS and peak < MOST_MEMORY
    maps = b"\x93\xa5value\xdd" + struct.pack(">I", size) + b"\x80" * size + b"\x90"
    seconds, peak = cost(maps, bytearray())
    assert seconds < MOST_SECONDS and peak < MOST_MEMORY
    sizes = b"\x93\xa5value\xc0\xdd" + struct.pack(">I", size) + b"\x00" * size
    seconds, peak = cost(sizes, bytearray())
    assert seconds < MOST_SECONDS and peak < MOST_MEMORY


def test_keys_that_collide_cost_little():
    # Python's hash of x * 2**(61 k) is that of x: the most that keys of 8 bytes can collide.
    keys = [x * 2.0 ** (61 * k) for x in range(1, 127) for k in range(-15, 16)]
    assert len({hash(key) for key in keys}) < len(keys) / 20
    # And whole numbers whose low bits are those of the table's mask.
    for colliding in (keys, [i << 40 for i in range(codec.MAX_KEYS)]):
        items = [item for key in colliding[: codec.MAX_KEYS] for item in (key, None)]
        header = msgspec.msgpack.encode(["value", ["dict", *items], []])
        seconds, _ = cost(header, bytearray())
        assert seconds < MOST_SECONDS


def test_msgpack_maps_with_colliding_keys_cost_little():
    keys = b"".join(b"\xcf" + struct.pack(">Q", i << 44) + b"\xc0" for i in range(75_000))
    header = b"\x93\xa5value\xdf" + struct.pack(">I", 75_000) + keys + b"\x90"
    assert len(header) <= codec.MAX_HEADER
    seconds, peak = cost(header, bytearray())
    assert seconds < MOST_SECONDS and peak < MOST_MEMORY


def test_a_stride_of_0_makes_no_elements_out_of_nothing():
    seconds, peak = cost(msgspec.msgpack.encode(["value", tensor(shape=[2**40], stride=[0]), [64]]), bytearray(64))
    assert seconds < MOST_SECONDS and peak < MOST_MEMORY


def test_a_blob_seen_as_every_dtype_is_copied_once():
    names = list(codec._DTYPES)
    header = msgspec.msgpack.encode(
        ["value", ["list", *(tensor(dtype=name, shape=[1]) for name in names)], [codec.MAX_BLOBS]]
    )
    seconds, peak = cost(header, bytearray(codec.MAX_BLOBS))
    assert seconds < MOST_SECONDS and peak < MOST_MEMORY


def test_many_tensors_of_one_blob_cost_little():
    count = codec.MAX_HEADER // 40
    header = msgspec.msgpack.encode(["value", ["list", *[tensor(shape=[1])] * count], [64]])
    assert len(header) <= codec.MAX_HEADER
    seconds, peak = cost(header, bytearray(64))
    assert seconds < MOST_SECONDS and peak < MOST_MEMORY


def test_overlapping_spans_cannot_be_asked_for():
    sizes = [8, 64, 3]
    ends = [sum(size + -size % 64 for size in sizes[: i + 1]) for i in range(3)]
    assert all(b - a == size + -size % 64 for (a, b), size in zip(pairwise([0, *ends]), sizes, strict=True))
    header = msgspec.msgpack.encode(["value", 1, sizes])
    assert codec.decode(header, bytearray(ends[-1])) == 1
