"""How updates and models are encoded between the server and the workers, for `asyncsgd.Method.compressed`.

Let Q be a code and e what a worker keeps from its earlier updates, 0 at first. For an update u it sends::

    message = Q(u + decay * e),   e ← u + decay * e - message   if the server applied the update; otherwise e stays

So what rounding loses arrives later (error feedback; Seide et al. 2014, Karimireddy et al. 2019). ``decay`` is 1 except
where `top_k` says otherwise.

>>> import asyncsgd as asgd
>>> asgd.async_sgd(0.1).compressed(asgd.compression.top_k(0.05), down="bfloat16").up
TopK(fraction=0.05, decay=1.0)
"""

from __future__ import annotations

from asyncsgd.core.compression import BFloat16, Compression, Float16, Int4, Int8, TopK
from asyncsgd.core.validate import recipe

__all__ = ["Compression", "bfloat16", "float16", "int4", "int8", "top_k"]


def float16() -> Compression:
    """Send two bytes per number: 11 significant bits, scaled by a power of two so that nothing overflows.

    >>> float16().size(1000, "float32")
    2001

    See docs/guides/far-apart.md for what each code costs and loses.
    """
    return Float16()


def bfloat16() -> Compression:
    """Send two bytes per number: 8 significant bits and the range of float32.

    >>> bfloat16().size(1000, "float32")
    2000

    See docs/guides/far-apart.md for what each code costs and loses.
    """
    return BFloat16()


@recipe
def int8(block: int = 256) -> Compression:
    """Send one byte per number: whole multiples of a scale that each block of numbers has for itself.

    For a number x of a block::

        scale = largest magnitude of the block / 127,   sent = scale * round(x / scale)

    Args:
        block: The number of numbers that share a scale of four bytes.

    >>> int8().size(1000, "float32")
    1016

    See docs/guides/far-apart.md for what each code costs and loses. Reference: Dettmers et al. 2022, "8-bit optimizers
    via block-wise quantization".
    """
    return Int8(block)


@recipe
def int4(block: int = 64) -> Compression:
    """Send half a byte per number: whole multiples of a scale that each block of numbers has for itself.

    For a number x of a block::

        scale = largest magnitude of the block / 7,   sent = scale * round(x / scale)

    Args:
        block: The number of numbers that share a scale of four bytes.

    >>> int4().size(1000, "float32")
    564

    See docs/guides/far-apart.md for what each code costs and loses. Reference: Dettmers et al. 2022, "8-bit optimizers
    via block-wise quantization".
    """
    return Int4(block)


@recipe
def top_k(fraction: float = 0.01, *, decay: float = 1.0) -> Compression:
    """Send only the largest numbers, each with its place; error feedback sends the others later.

    The numbers are sent as they are, so that with a fraction of 1 nothing is lost.

    Args:
        fraction: The share of the numbers to send, above 0 and at most 1, in each piece of 4096 numbers; rounded up.
        decay: The factor of what was not sent when it is added to the next update. Below 1, old remainders fade
            (SparseLoCo; Sarfi et al. 2025).

    >>> top_k(0.01).size(4096, "float32")
    246

    See docs/guides/far-apart.md for what each code costs and loses. Reference: Stich et al. 2018, "Sparsified SGD with
    memory".
    """
    return TopK(fraction, decay)
