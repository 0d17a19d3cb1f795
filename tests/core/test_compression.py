"""Codes: the bytes and numbers of their twins, nothing lost for good, finite numbers only, no trust in any sender."""

from __future__ import annotations

import math
import pickle
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from core.code_bugs import BUGS
from core.code_checks import CHECKS, CODES, DTYPES, Array, hostile, is_twin, plain, some, updates, vectors
from hypothesis import given
from hypothesis import strategies as st
from markers import examples

import asyncsgd as asgd
from asyncsgd import compression
from asyncsgd.compiled.compression import fast
from asyncsgd.core.compression import NAMES, BFloat16, Compression, Float16, Int4, Int8, Message, TopK
from asyncsgd.core.errors import BadMessage, BadParameter
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Encoded, Gradient
from asyncsgd.core.worker import WorkerState

FORMS = {"core": plain, "compiled": fast}
BASE = asgd.async_sgd(0.1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("check", CHECKS)
def test_every_code_passes(check: str, code: str, form: str) -> None:
    CHECKS[check](CODES[code], FORMS[form])


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    check = next(check for check in CHECKS if check in bug.check)
    bug.plant(monkeypatch)
    with pytest.raises(AssertionError, match=rf"^{bug.check}: "):
        CHECKS[check](CODES[bug.code], plain)


@pytest.mark.parametrize("dtype", DTYPES)
@examples(100)
@given(data=st.data(), block=st.integers(1, 90), fraction=st.floats(0, 1, exclude_min=True))
def test_any_short_vector_has_the_bytes_of_the_twin(
    dtype: type, data: st.DataObject, block: int, fraction: float
) -> None:
    vector = data.draw(vectors(dtype))
    for code in (Float16(), BFloat16(), Int8(block), Int4(block), TopK(fraction)):
        is_twin(code, code, vector)


@pytest.mark.parametrize("code", CODES)
@examples(40)
@given(
    verdicts=st.lists(st.booleans(), max_size=12),
    seed=st.integers(0, 2**32),
    n=st.integers(1, 300),
    wide=st.booleans(),
)
def test_what_arrived_and_what_is_left_are_all_that_was_sent(
    code: str, verdicts: list[bool], seed: int, n: int, wide: bool
) -> None:
    if CODES[code].decay == 1.0:
        updates(CODES[code], fast, np.float64 if wide else np.float32, verdicts, seed, n)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 4096, 9000])
def test_top_k_of_all_loses_nothing(n: int, dtype: type) -> None:
    g = some(n, n, dtype, spread=30.0)
    state = WorkerState(Encoded(Gradient(), up=TopK(1.0)), g)
    for _ in range(3):
        assert (state.sent(g) == g).all()
        state.settle(used=True)


def test_the_decay_lets_what_is_left_fade() -> None:
    state = WorkerState(Encoded(Gradient(), up=TopK(0.5, decay=0.5)), np.zeros(2))
    found = []
    for g in ([3.0, 2.0], [0.0, 0.0], [0.0, 0.0]):
        found.append(state.sent(np.array(g)).tolist())
        state.settle(used=True)
    assert found == [[3.0, 0.0], [0.0, 1.0], [0.0, 0.0]]  # what was left, 2, came as 1


# --------------------------------------------------------------------------------------------------- precision


def relative(code: Compression, g: Array) -> float:
    out = np.empty_like(g)
    code.decode(code.encode(g), out)
    return float(np.abs(out - g).max() / np.abs(g).max())


@pytest.mark.parametrize(
    ("code", "most"), [(Float16(), 2.0**-12), (BFloat16(), 2.0**-9), (Int8(), 0.5 / 127), (Int4(), 0.5 / 7)]
)
def test_half_a_unit_is_the_largest_error(code: Compression, most: float) -> None:
    g = np.random.default_rng(0).uniform(0.5, 1.0, 20_000).astype(np.float32)
    g[0] = 1.0
    assert 0.8 * most < relative(code, g) <= most * (1 + 1e-5)


def test_float16_uses_its_whole_range() -> None:
    """Numbers down to 2^-29 of the largest are sent, whatever the unit of the vector."""
    for unit in (1e-30, 1.0, 1e30):
        g = (unit * np.array([1.0, 2.0**-14, 2.0**-28, 2.0**-30])).astype(np.float32)
        out = np.empty_like(g)
        Float16().decode(Float16().encode(g), out)
        assert np.allclose(out[:3], g[:3], rtol=1e-3, atol=0)
        assert out[3] == 0


# --------------------------------------------------------------------------------------------------- receivers


@pytest.mark.slow
@pytest.mark.parametrize("code", CODES)
def test_no_sender_is_trusted(code: str) -> None:
    """100,000 messages over all codes, to both receivers."""
    hostile(CODES[code], fast, 10_000)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("code", CODES)
def test_a_message_of_a_wrong_length_costs_no_memory(code: str, form: str) -> None:
    codec, out, short = FORMS[form](CODES[code]), np.zeros(300_000, np.float32), np.zeros(1, np.float32)
    codec.decode(codec.encode(short), short)  # compiled by now
    long = CODES[code].encode(out)
    tracemalloc.start()
    try:
        for message, target in ((long[:-1], out), (long, short)):
            with pytest.raises(BadMessage, match="bytes, not"):
                codec.decode(message, target)
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("code", "message", "text"),
    [
        (Float16(), [121, 0, 0], "float16 holds NaN, infinity or a wrong exponent"),
        (Float16(), [0x80, 0, 0], "float16 holds NaN, infinity or a wrong exponent"),
        (Float16(), [0, 0, 0x7C], "float16 holds NaN, infinity or a wrong exponent"),
        (BFloat16(), [0x80, 0xFF], "bfloat16 holds NaN or infinity"),
        (Int8(), [0, 0, 0, 0, 0x80], "int8 holds -128"),
        (Int8(), [0, 0, 0x80, 0xBF, 1], "int8 has a scale that is not in range"),
        (Int4(), [0, 0, 0, 0, 0x10], "int4 holds -8"),
        (Int4(), [0, 0, 0xC0, 0x7F, 0x18], "int4 has a scale that is not in range"),
        (TopK(), [1, 0, 0, 0, 0, 0], "top_k has places that do not ascend within a piece"),
        (TopK(), [0, 0, 0, 0, 0x80, 0x7F], "top_k holds NaN or infinity"),
        (TopK(), [0] * 7, "for 1 numbers has 7 bytes, not 6; compress with the same options as the server"),
        (Int8(), None, "int8 is NoneType, not a contiguous vector of uint8"),
    ],
)
def test_the_error_says_what_is_wrong(code: Compression, message: list[int] | None, text: str) -> None:
    out = np.full(1, 5.0, np.float32)
    for codec in (code, fast(code)):
        with pytest.raises(BadMessage, match=text):
            codec.decode(message if message is None else np.array(message, np.uint8), out)
        assert out[0] == 5.0


# --------------------------------------------------------------------------------------------------- public names


def test_every_code_has_a_public_function_and_a_name() -> None:
    assert {*compression.__all__} == {"Compression", *NAMES}
    for name, kind in NAMES.items():
        code = getattr(compression, name)()
        assert (type(code), code.name) == (kind, name)
        assert BASE.compressed(name).up == code
        assert pickle.loads(pickle.dumps(code)) == code


def test_options_are_passed_on() -> None:
    assert (compression.int8(block=32), compression.int4(16)) == (Int8(32), Int4(16))
    assert (compression.top_k(0.25, decay=0.5).fraction, compression.top_k(0.25, decay=0.5).decay) == (0.25, 0.5)
    assert type(TopK(np.float64(0.5), np.float64(0.5)).decay) is float  # a float64 would compute in float64


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: compression.top_k(0), r"fraction = 0 is not a share of the numbers; pass 0 < fraction <= 1"),
        (lambda: compression.top_k(1.5), r"fraction = 1.5 is not a share"),
        (lambda: compression.top_k(math.nan), r"fraction = nan is not a share"),
        (lambda: compression.top_k("all"), r"fraction = 'all' is not a share"),
        (lambda: compression.top_k(0.1, decay=1.01), r"decay = 1.01 must lie in \[0, 1\]"),
        (lambda: compression.top_k(0.1, decays=0.5), r"decays = 0.5 is not an option of top_k; did you mean decay"),
        (lambda: compression.int8(0), r"block = 0 must be an integer of at least 1; pass block >= 1"),
        (lambda: compression.int8(2.0), r"block = 2.0 must be an integer"),
        (lambda: compression.int4(-3), r"block = -3 must be an integer"),
        (lambda: compression.int4(blocks=3), r"blocks = 3 is not an option of int4; did you mean block\?"),
        (lambda: BASE.compressed("int3"), r"up = 'int3' is not a code; did you mean int\d\?"),
        (lambda: BASE.compressed("zip"), r"up = 'zip' is not a code; pass one of: float16, bfloat16, int8"),
        (lambda: BASE.compressed(8), r"up = 8 is not a code"),
        (lambda: BASE.compressed(down="bfloat"), r"down = 'bfloat' is not a code; did you mean bfloat16"),
        (lambda: BASE.compressed(down="top_k"), r"down = 'top_k' leaves out most numbers.*down=\"bfloat16\""),
        (lambda: BASE.compressed("int8", down=compression.top_k()), r"down = TopK.* leaves out most"),
        (lambda: BASE.compressed(), r"up = None and down = None compress nothing; pass up=\"int8\""),
    ],
)
def test_bad_options_are_refused(make: Callable[[], object], text: str) -> None:
    with pytest.raises(BadParameter, match=text):
        make()


def test_a_code_of_your_own_is_used_as_it_is() -> None:
    class Signs(Compression):
        def size(self, n: int, dtype: object) -> int:
            return n

        def encode(self, vector: Vector) -> Message:
            return (vector > 0).astype(np.uint8)

        def decode(self, message: Message, out: Vector) -> None:
            self.check_size(message, len(out), out.dtype)
            out[:] = 2.0 * message - 1.0

    method = BASE.compressed(Signs())
    state = WorkerState(method.job, np.zeros(2), codec=fast)
    assert state.sent(np.array([0.5, -3.0])).tolist() == [1.0, -1.0]
    assert method.message_bytes(10, "float64") == (10, 80)
    with pytest.raises(BadMessage, match="a message in Signs for 2 numbers has 3 bytes"):
        state.decode(np.zeros(3, np.uint8), np.zeros(2))
