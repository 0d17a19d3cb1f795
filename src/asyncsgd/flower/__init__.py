"""Asynchronous training in any Flower app: ``strategy = asgd.flower.AsyncStrategy(method)`` in its ServerApp.

``strategy`` is the entry; ``request`` checks what was asked for, and ``serving`` carries it out; ``engine`` and
``pool`` turn clients into workers; ``round_rules`` and ``rounds`` count rounds, and keep and aggregate what clients
report; ``clients`` has the data about one client and finds out which are connected; ``messages`` builds and reads
messages, ``sender`` sends them, and ``outcomes`` reports those without a result. ``arrays`` turns named arrays into one
vector, ``task`` is the server's part of the task, ``client_evaluation`` evaluates on clients, ``bounded_dispatch``
bounds the jobs of a client, and ``privacy`` computes the ε spent. ``norm_limit`` refuses long updates, ``allowance``
decides who may still contribute, and ``known_mods`` explains errors of Flower's own mods. ``mod`` compresses messages
on the client, ``encoding`` on the server, and ``client_work`` is what the server knows of a client's work. ``legacy``
has the messages of Flower's legacy clients, and ``weights`` turns what clients report into weights.

Needs the extra ``flower``.
"""

from typing import TYPE_CHECKING, Any

from asyncsgd.core.errors import MissingLibrary
from asyncsgd.flower.engine import Clients
from asyncsgd.flower.mod import compress_mod
from asyncsgd.flower.privacy import Privacy, PrivacySpent
from asyncsgd.flower.serving import FederatedRun
from asyncsgd.flower.task import KeptUpdates

if TYPE_CHECKING:
    from asyncsgd.flower.strategy import AsyncStrategy

__all__ = ["AsyncStrategy", "Clients", "FederatedRun", "KeptUpdates", "Privacy", "PrivacySpent", "compress_mod"]


def __getattr__(name: str) -> Any:
    """Import `AsyncStrategy` on first use: it is a subclass of a class of flwr, which takes a while to import."""
    if name != "AsyncStrategy":
        raise AttributeError(f"module 'asyncsgd.flower' has no attribute {name!r}")
    try:
        import flwr  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingLibrary("asgd.flower.AsyncStrategy", "Flower", "asyncsgd[flower]") from error
    from asyncsgd.flower.strategy import AsyncStrategy

    return AsyncStrategy


def __dir__() -> list[str]:
    return [*globals(), "AsyncStrategy"]
