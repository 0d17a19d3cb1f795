"""Arrays of replies: bytes that do not match the model are refused, and nothing is allocated for them."""

from __future__ import annotations

import tracemalloc
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.fake import record
from flwr.app import Array
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asyncsgd import methods, optimizers
from asyncsgd.compiled.kernels import GrowingNorm
from asyncsgd.core import vectors
from asyncsgd.core.errors import BadParameter, BadReply
from asyncsgd.flower import arrays
from asyncsgd.flower.arrays import Layout, Part, view
from asyncsgd.flower.task import AbsentUpdates, FlowerTask, middle

DTYPES = ("float16", "float32", "float64", "int64", "uint8", "bool")


def header(shape: object, descr: str = "<f4", fortran: bool = False) -> bytes:
    file = BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": fortran, "shape": shape})
    return file.getvalue()


@given(
    hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)), st.booleans()
)
def test_honest_arrays_are_read_in_any_order_of_bytes(values: np.ndarray, swap: bool) -> None:
    sent = values.astype(values.dtype.newbyteorder(">")) if swap else values
    for order in ("C", "F"):
        seen = view("x", Array(np.asarray(sent, order=order)), values.shape, values.dtype)
        np.testing.assert_array_equal(seen, values)


@given(st.data())
def test_whatever_the_bytes_are_the_answer_is_the_array_or_a_refusal(data: st.DataObject) -> None:
    honest = bytearray(Array(np.arange(6, dtype=np.float32).reshape(2, 3)).data)
    for place in data.draw(st.lists(st.integers(0, len(honest) - 1), min_size=1, max_size=6)):
        honest[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(honest))))
    lie = Array(dtype="float32", shape=(2, 3), stype="numpy.ndarray", data=bytes(honest[:cut]))
    try:
        seen = view("x", lie, (2, 3), np.dtype(np.float32))
    except BadReply:
        return
    assert seen.shape == (2, 3)
    assert seen.dtype.newbyteorder("=") == np.float32


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (Array("float32", (4,), "pickle", b""), "is serialized as 'pickle'"),
        (Array("float32", (5,), "numpy.ndarray", b""), r"has shape \(5,\), the model has \(4,\)"),
        (Array("object", (4,), "numpy.ndarray", b""), "is 'object', the model has float32"),
        (Array("nonsense", (4,), "numpy.ndarray", b""), "is 'nonsense', the model has float32"),
        (Array("float32", (4,), "numpy.ndarray", b"x" * 17), "is not an .npy file"),
        (Array("float32", (4,), "numpy.ndarray", b"x" * 16), "takes 16 bytes, 16 and a header are expected"),
        (Array("float32", (4,), "numpy.ndarray", b"x" * 20_000), "takes 20000 bytes"),
        (Array("float32", (4,), "numpy.ndarray", header((2**40,)) + bytes(16)), r"its header says \(1099511627776,\)"),
        (
            Array("float32", (4,), "numpy.ndarray", header((4,), "<f8") + bytes(16)),
            r"its header says \(4,\) of float64",
        ),
        (Array("float32", (4,), "numpy.ndarray", header((4,), "|O") + bytes(16)), "its header says"),
        (Array("float32", (4,), "numpy.ndarray", header((4,)) + bytes(17)), "contradicts itself"),
        (Array("float32", (4,), "numpy.ndarray", header((-4,)) + bytes(16)), "contradicts itself"),
    ],
)
def test_lies_are_named(lie: Array, words: str) -> None:
    with pytest.raises(BadReply, match=words):
        view("x", lie, (4,), np.dtype(np.float32))


def test_nothing_is_allocated_for_a_claim() -> None:
    lie = Array("float32", (4,), "numpy.ndarray", header((2**40,)) + bytes(16))
    tracemalloc.start()
    with pytest.raises(BadReply):
        view("x", lie, (4,), np.dtype(np.float32))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1_000_000


# ---------------------------------------------------------------------------------------------- layouts


MODEL = {
    "conv.weight": np.arange(12, dtype=np.float32).reshape(3, 2, 2),
    "bn.running_var": np.array([1.0, 2.0], np.float32),
    "bn.num_batches_tracked": np.array(5),
    "half": np.array([0.1, 0.2], np.float16),
    "flag": np.array([True, False]),
    "empty": np.zeros((0, 3), np.float32),
}


def test_a_model_becomes_a_vector_and_comes_back() -> None:
    arrays = record(**MODEL)
    layout = Layout.of(arrays)
    x, carried = layout.split(arrays)
    assert (x.dtype, len(x), layout.size) == (np.float32, 14, 14)
    assert sorted(carried) == ["bn.num_batches_tracked", "bn.running_var", "flag"]
    again = layout.join(x, carried)
    for name, values in MODEL.items():
        assert again[name].numpy().dtype == values.dtype
        np.testing.assert_array_equal(again[name].numpy(), values)


def test_one_wide_array_makes_the_vector_wide() -> None:
    layout = Layout.of(record(a=np.zeros(2, np.float32), b=np.zeros(2)))
    assert layout.dtype == np.float64


def test_the_update_is_the_difference_to_what_was_sent() -> None:
    """Half-precision arrays are rounded on the way out, so the client trained from the rounded ones."""
    layout = Layout.of(record(a=np.zeros(2, np.float32), h=np.zeros(2, np.float16)))
    x = np.array([1.0, 2.0, 0.1, 0.3], np.float32)
    returned = layout.read(record(a=np.array([0.5, 2.0], np.float32), h=np.array([0.1, 0.2], np.float16)))
    update = layout.difference(x, returned)
    assert update.dtype == np.float32
    half = np.float32(np.float16(0.3)) - np.float32(np.float16(0.2))
    np.testing.assert_array_equal(update, np.array([0.5, 0.0, 0.0, half], np.float32))


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (record(a=np.zeros(2, np.float32)), "'n' is missing, 1 in all"),
        (record(a=np.zeros(2, np.float32), m=np.array(0)), "'n' is missing, 2 in all"),
        (record(a=np.zeros(2, np.float32), n=np.array(0j)), "array 'n' is 'complex128', the model has int64"),
        (record(a=np.zeros(2, np.longdouble), n=np.array(0)), "array 'a' is .*, the model has float32"),
        (record(**{str(n): np.zeros(2) for n in range(3)}), "has 3 arrays without names, the model has 2"),
    ],
)
def test_other_names_and_dtypes_are_refused(reply: object, words: str) -> None:
    layout = Layout.of(record(a=np.zeros(2, np.float32), n=np.array(0)))
    with pytest.raises(BadReply, match=words):
        layout.read(reply)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "words"), [(np.array([np.nan]), "NaN or infinity"), (np.array([-1.0]), "negative variance")]
)
def test_statistics_that_would_break_every_client_are_refused(values: np.ndarray, words: str) -> None:
    model = record(w=np.zeros(1), **{"bn.running_var": np.ones(1)})
    layout = Layout.of(model)
    with pytest.raises(BadReply, match=words):
        layout.keep(layout.read(record(w=np.zeros(1), **{"bn.running_var": values})))


def test_models_that_cannot_be_trained_are_refused() -> None:
    with pytest.raises(BadParameter, match="have no array to train"):
        Layout.of(record(n=np.array(3)))
    with pytest.raises(BadParameter, match="complex128"):
        Layout.of(record(z=np.zeros(1, np.complex128)))


@given(st.lists(hnp.arrays(np.int64, 3, elements=st.integers(-9, 9)), min_size=1, max_size=9))
def test_whole_numbers_are_sent_on_by_the_median(values: list[np.ndarray]) -> None:
    part = Part("n", (3,), np.dtype(np.int64), None, "whole")
    found = middle(part, values)
    for place in range(3):
        assert found[place] == sorted(int(v[place]) for v in values)[(len(values) - 1) // 2]


@given(st.lists(hnp.arrays(np.float32, 2, elements=st.floats(-100, 100, width=32)), min_size=1, max_size=9))
def test_statistics_are_sent_on_by_the_median(values: list[np.ndarray]) -> None:
    part = Part("m", (2,), np.dtype(np.float32), None, "statistic")
    np.testing.assert_allclose(middle(part, values), np.median(np.stack(values), axis=0), atol=1e-4)


def test_the_median_of_huge_statistics_is_finite() -> None:
    part = Part("m", (1,), np.dtype(np.float32), None, "statistic")
    huge = np.array([np.finfo(np.float32).max])
    assert np.isfinite(middle(part, [huge.astype(np.float32)] * 4)).all()


def test_a_header_that_another_thread_spoils_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """In CPython 3.11 `ast`, with which NumPy parses a header, sometimes raises SystemError in several threads."""
    read, spoilt = npy.read_array_header_1_0, [3]
    array, other = Array(np.arange(103.0)), Array(np.arange(104.0))  # headers that no test has read: they are kept

    def busy(*words: Any, **options: Any) -> Any:
        if spoilt[0]:
            spoilt[0] -= 1
            raise SystemError("AST constructor recursion depth mismatch")
        return read(*words, **options)

    monkeypatch.setattr(npy, "read_array_header_1_0", busy)
    assert view("w", array, (103,), np.dtype("float64")).tolist() == list(range(103))
    assert spoilt == [0]
    spoilt[0] = 100
    with pytest.raises(BadReply, match="'w' cannot be parsed"):
        view("w", other, (104,), np.dtype("float64"))
    assert view("w", array, (103,), np.dtype("float64")).tolist() == list(range(103)), "a header is parsed once"
    spoilt[0] = 0
    assert view("w", other, (104,), np.dtype("float64")).shape == (104,), "an error is not kept"


def test_the_arrays_have_names_for_optimizers() -> None:
    arrays = record(weight=np.ones((2, 3), np.float32), steps=np.array([4]), bias=np.zeros(2, np.float32))
    layout = Layout.of(arrays)
    x, carried = layout.split(arrays)
    task = FlowerTask(layout, x, carried, None, None, AbsentUpdates(), heterogeneous=False, notes=())
    assert task.layout() == (("weight", 0, (2, 3)), ("bias", 6, (2,)))
    adamw = optimizers.adamw(weight_decay=0.1, exclude="bias")
    bound = methods.fedbuff(0.1, concurrency=2).using(optimizer=adamw).bind_layout(task.layout())
    assert bound.optimizer.ranges == ((6, 8),)  # type: ignore[attr-defined]


@given(st.data())
def test_a_difference_in_pieces_into_old_memory_has_the_same_bits(data: st.DataObject) -> None:
    shapes = data.draw(st.lists(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=60), min_size=1))
    kinds = [data.draw(st.sampled_from(("float16", "float32", "float64"))) for _ in shapes]
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    model = {f"a{n}": random.standard_normal(shape).astype(kinds[n]) for n, shape in enumerate(shapes)}
    if not any(values.size for values in model.values()):
        return
    layout = Layout.of(record(**model))
    sent = layout.split(record(**model))[0]
    sent *= 1.1
    returned = layout.read(record(**{name: np.asarray(values * 0.9, order="F") for name, values in model.items()}))
    expected, seen = layout.difference(sent, returned), []
    old = np.full(layout.size, np.nan, layout.dtype)
    norm = GrowingNorm(old)

    def written(n: int) -> None:
        assert old[:n].tobytes() == expected[:n].tobytes()
        seen.append(n)
        norm.written(n)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "PIECE", data.draw(st.sampled_from([1, 7, 100, 1024, 5000])))
        assert layout.difference(sent, returned, old, written) is old
    assert old.tobytes() == expected.tobytes()
    assert seen == sorted(seen)
    assert seen[-1] == layout.size
    assert norm.length() == vectors.norm(expected)
    again = np.full(layout.size, np.nan, layout.dtype)
    assert layout.gather(returned, again).tobytes() == layout.gather(returned).tobytes()
