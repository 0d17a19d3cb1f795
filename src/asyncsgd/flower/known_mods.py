"""What to do about clients that use a mod of Flower which expects another server.

Differential privacy. ``fixedclipping_mod`` and ``adaptiveclipping_mod`` read the bound that Flower's strategy wrappers
send. They work if ``train_config`` has it. The wrappers adapt the bound of ``adaptiveclipping_mod`` after every round;
here it stays as it is. ``LocalDpMod`` needs nothing from the server.

Secure aggregation. ``secagg_mod`` and ``secaggplus_mod`` hide each update under masks that cancel in the sum over a
fixed group of clients, all of which must answer in the same round. An asynchronous server uses single updates in the
order of arrival, so there is no such group, and a masked update alone is noise. A client cannot say which mods it has.
But these mods read a record that only their own server sends, so their clients fail with an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping

from asyncsgd.engines.base import Note
from asyncsgd.flower.encoding import FIX

SECURE = "secaggplus_configs"
NO_SECURE = (
    "The client uses secure aggregation (secagg_mod or secaggplus_mod), which needs rounds in which all clients of a "
    "group answer: an asynchronous server uses single updates, and the masks of a single update do not cancel. "
    "Remove the mod; to protect updates from those who see the models, use method.clipped(1.0, noise=1.0)"
)
CLIPPING = "clipping_norm"
ONE_CONFIG = "expects exactly one ConfigRecord"
NORM_BIT = "norm_bit"
SENT_COMPRESSED = f"The model was sent compressed: if the client has no mod that decodes it, {FIX}."


def advice(reason: str, *, compressed: bool) -> str:
    r"""Return what to do about an error of a client, after a line break; empty if there is nothing to say.

    ``reason`` comes from the client, so it may hold any text: it decides only which sentence follows it.

    >>> advice("<class 'KeyError'>:<''secaggplus_configs''>", compressed=False)[:40]
    '\nThe client uses secure aggregation (sec'
    >>> advice("ValueError: no data", compressed=False)
    ''
    """
    if SECURE in reason:
        return f"\n{NO_SECURE}."
    if "clipping_mod" in reason and ONE_CONFIG in reason:
        fix = "clip on the server with method.clipped(...), or list compress_mod() first: mods=[compress_mod(), ...]"
        return f"\nThe mod does not accept the record that a compressed method adds to a job: {fix}."
    if CLIPPING in reason and ("clipping_mod" in reason or "DifferentialPrivacyClientSide" in reason):
        fix = f'pass train_config={{"{CLIPPING}": 1.0}}, or clip on the server instead, with method.clipped(1.0)'
        return f"\nThe mod clips to the norm that the server sends: {fix}."
    return f"\n{SENT_COMPRESSED}" if compressed else ""


class Mods:
    """What the polling thread knows of the mods of clients."""

    def __init__(self) -> None:
        self._adaptive = False

    def reported(self, metrics: Mapping[str, float]) -> list[Note]:
        """Return a note, once, if these metrics show that a client expects the server to adapt its clipping."""
        if self._adaptive or NORM_BIT not in metrics:
            return []
        self._adaptive = True
        text = (
            f"clients use adaptiveclipping_mod: the server does not adapt {CLIPPING}, it stays as train_config has it"
        )
        share = f"the mean of {NORM_BIT} is the share of updates that were clipped"
        return [Note("adaptive_clipping", {}, f"{text}; {share}")]
