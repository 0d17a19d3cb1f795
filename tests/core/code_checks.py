"""What must be true of every code and of error feedback. A check that fails raises with its name in front."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from core.twins import compression as twins
from hypothesis import strategies as st
from numpy.typing import NDArray

from asyncsgd.core.compression import BFloat16, Compression, Float16, Int4, Int8, Message, TopK
from asyncsgd.core.errors import BadMessage
from asyncsgd.core.work import Encoded, Gradient
from asyncsgd.core.worker import Codec, WorkerState

Array = NDArray[np.floating[Any]]
Make = Callable[[Compression], Codec]

DTYPES = (np.float32, np.float64)
CODES: dict[str, Compression] = {
    "float16": Float16(),
    "bfloat16": BFloat16(),
    "int8": Int8(),
    "int8 in blocks of 7": Int8(7),
    "int4": Int4(),
    "int4 in blocks of 3": Int4(3),
    "int4 in long blocks": Int4(5001),
    "top_k": TopK(),
    "top_k of a third": TopK(1 / 3, decay=0.75),
    "top_k of all": TopK(1.0),
}
LENGTHS = (1, 2, 7, 63, 64, 257, 4095, 4096, 4097, 10_001)


def plain(code: Compression) -> Codec:
    return code


def some(seed: int, n: int, dtype: type, spread: float = 8.0) -> Array:
    """Numbers of many magnitudes, with zeros and with some of them twice."""
    random = np.random.default_rng(seed)
    numbers = random.standard_normal(n) * 10.0 ** random.uniform(-spread, spread, n)
    numbers[random.random(n) < 0.05] = 0.0
    twice = random.random(n) < 0.1
    numbers[twice] = np.round(random.standard_normal(n))[twice]
    return numbers.astype(dtype)


def extremes(dtype: type) -> list[float]:
    info = np.finfo(dtype)
    most, tiny, least = float(info.max), float(info.tiny), float(info.smallest_subnormal)
    borders = [3e38, -3.3e38, 65504.0, 65519.9, 2.0**-14, 2.0**-15, 1.00390625, 1.01171875, 127.5 / 127, 0.5]
    return [most, -most, tiny, -tiny, least, -least, 0.0, -0.0, 1.0, -1.0, *borders]


def vectors(dtype: type) -> st.SearchStrategy[Array]:
    """Short vectors of any finite numbers, often extreme ones."""
    width = 32 if dtype is np.float32 else 64
    number = st.sampled_from(extremes(dtype)) | st.floats(width=width, allow_nan=False, allow_infinity=False)
    return st.lists(number, min_size=1, max_size=80).map(lambda values: np.array(values, dtype))


def expected(code: Compression, vector: Array) -> tuple[bytes, bytes]:
    """The message and the bytes of the decoded numbers, by the twin."""
    values = vector.tolist()
    match code:
        case Float16():
            message, numbers = twins.float16(values)
        case BFloat16():
            message, numbers = twins.bfloat16(values)
        case Int8(block=block):
            message, numbers = twins.int8(values, block)
        case Int4(block=block):
            message, numbers = twins.int4(values, block)
        case TopK(fraction=fraction):
            message, numbers = twins.top_k(values, fraction, vector.dtype.char)
    return message, np.array(numbers, vector.dtype).tobytes()


def is_twin(code: Compression, codec: Codec, vector: Array) -> None:
    """A code sends the bytes of its twin, as many as it says, and the receiver reads the twin's numbers."""
    message, numbers = expected(code, vector)
    sent = codec.encode(vector)
    assert len(sent) == code.size(len(vector), vector.dtype), "size: "
    assert sent.tobytes() == message, f"twin: {code} sends other bytes for {vector[:9]}"
    out = np.full_like(vector, np.nan)
    codec.decode(sent, out)
    assert out.tobytes() == numbers, f"twin: {code} decodes other numbers for {vector[:9]}"


def twin(code: Compression, make: Make) -> None:
    for dtype in DTYPES:
        codec = make(code)
        for seed, n in enumerate(LENGTHS):
            is_twin(code, codec, some(seed, n, dtype))
        is_twin(code, codec, np.array(extremes(dtype), dtype))
        is_twin(code, codec, np.array([-1.0, 1.0, 2.0, -2.0, 1.0] * 3, dtype))  # ties


def finite(code: Compression, make: Make) -> None:
    """The largest and the smallest numbers arrive as finite ones, no matter how often."""
    for dtype in DTYPES:
        for values in (extremes(dtype), extremes(dtype)[:2], extremes(dtype)[4:8], [0.0], [-0.0, 0.0]):
            g = np.array(values, dtype)
            state = WorkerState(Encoded(Gradient(), up=code), g, codec=make)
            for _ in range(5):
                assert np.isfinite(state.sent(g)).all(), f"finite: {code} turned {g} into infinity"
                state.settle(used=True)
                assert np.isfinite(state._left).all(), f"finite: {code} keeps {state._left} for {g}"


def updates(code: Compression, make: Make, dtype: type, verdicts: list[bool], seed: int, n: int) -> None:
    """Compare with Σ (sent + what is left) = Σ u, over the jobs that the server applied. Decay 1."""
    random = np.random.default_rng(seed)
    state = WorkerState(Encoded(Gradient(), up=code), np.zeros(n, dtype), codec=make)
    total, arrived, size = np.zeros(n), np.zeros(n), 1.0
    for used in verdicts:
        g = random.standard_normal(n).astype(dtype)
        out = state.sent(g)
        state.settle(used)
        if used:
            total += g
            arrived += out
            size += float(np.abs(arrived).max())
    left = np.zeros(n) if state._left is None else state._left
    error = float(np.abs(total - arrived - left).max())
    assert error <= 8 * np.finfo(dtype).eps * size, f"sum: {code} lost {error}"


def sums(code: Compression, make: Make) -> None:
    if code.decay == 1.0:
        for dtype in DTYPES:
            for verdicts in ([True] * 12, [True, False, False, True, True, False, True] * 3, [False] * 3):
                updates(code, make, dtype, verdicts, seed=3, n=300)


def memory(code: Compression, make: Make) -> None:
    """What is sent follows from the applied jobs: sent = Q(u + decay e), and e is what the rounding left."""
    for dtype in DTYPES:
        n = 300
        eventful = WorkerState(Encoded(Gradient(), up=code), np.zeros(n, dtype), codec=make)
        left: Array = np.zeros(n, dtype)
        for k in range(6):
            for other in range(k % 3):
                eventful.encode(some(100 + other, n, dtype))
                eventful.settle(used=False)
            eventful.settle(used=True)  # nothing was encoded since: no effect
            g = some(k, n, dtype)
            total = g + dtype(code.decay) * left
            out = np.empty_like(total)
            code.decode(code.encode(total), out)
            assert eventful.sent(g).tobytes() == out.tobytes(), f"memory: {code} sent something else in job {k}"
            left = total - out
            eventful.settle(used=True)


def mutations(good: bytes, count: int, random: np.random.Generator) -> Iterator[Any]:
    """Messages that are not what the receiver expects, or nearly so."""
    for length in {0, 1, 2, len(good) - 1, len(good) + 1, 2 * len(good), 100_000}:
        yield np.zeros(length, np.uint8)
    yield good
    yield None
    yield np.frombuffer(good, np.uint8).astype(np.float32)
    yield np.frombuffer(good, np.uint8).reshape(1, -1)
    yield np.frombuffer(good + good, np.uint8)[::2]
    for _ in range(count):
        changed = bytearray(good)
        match random.integers(4):
            case 0:
                changed = bytearray(random.bytes(len(good)))
            case 1:
                changed = bytearray(random.bytes(int(random.integers(2 * len(good)))))
            case 2:
                changed[random.integers(len(good))] = random.choice([0, 0x7F, 0x80, 0xFF, random.integers(256)])
            case 3:
                for place in random.integers(0, len(good), 3):
                    changed[place] ^= 1 << random.integers(8)
        yield np.frombuffer(bytes(changed), np.uint8)  # read-only, as from a network


def decoded(codec: Codec, message: Message, n: int, dtype: type) -> bytes | str:
    """What a receiver gets from a message: numbers, or the text of the error."""
    before = np.linspace(1.0, 2.0, n).astype(dtype)
    out = before.copy()
    try:
        codec.decode(message, out)
    except BadMessage as error:
        assert out.tobytes() == before.tobytes(), f"hostile: the message was refused, and yet written: {out}"
        return str(error)
    except Exception as error:
        raise AssertionError(f"hostile: {type(error).__name__}: {error}") from error
    assert np.isfinite(out).all(), f"hostile: decoded to {out}"
    return out.tobytes()


def hostile(code: Compression, make: Make, count: int = 250) -> None:
    """A message from anybody decodes to finite numbers or is refused; core and ``make`` agree on it."""
    for dtype in DTYPES:
        codec, random = make(code), np.random.default_rng(5)
        kinds = set()
        for n in (1, 2, 9):
            good = code.encode(some(n, n, dtype)).tobytes()
            for message in mutations(good, count // 6, random):
                found = decoded(codec, message, n, dtype)
                assert codec is code or found == decoded(code, message, n, dtype), f"hostile: unlike core: {message}"
                kinds.add(type(found))
        assert kinds == {str, bytes}, "hostile: the messages were all good or all bad"


CHECKS: dict[str, Callable[[Compression, Make], None]] = {
    "twin": twin,
    "finite": finite,
    "sum": sums,
    "memory": memory,
    "hostile": hostile,
}
