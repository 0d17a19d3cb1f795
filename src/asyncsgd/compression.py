"""How updates are encoded on their way to the server, for `asyncsgd.Method.compressed`.

>>> import asyncsgd as asgd
>>> asgd.async_sgd(0.1).compressed(asgd.compression.bfloat16()).compression
Compression(code='bfloat16')
"""

from asyncsgd.core.compression import Compression, bfloat16, float16

__all__ = ["Compression", "bfloat16", "float16"]
