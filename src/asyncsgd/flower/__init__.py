"""Asynchronous training in any Flower app. Its ServerApp calls ``asgd.flower.serve(grid, arrays, method, ...)``.

``serving`` has the call itself; ``engine`` and ``pool`` turn clients into workers; ``clients`` has the data about one
client and finds out which are connected; ``messages`` builds and reads messages, and ``sender`` sends them. ``arrays``
turns named arrays into one vector, ``task`` is the server's part of the task, ``client_evaluation`` evaluates on
clients, ``bounded_dispatch`` bounds the jobs of a client, and ``privacy`` computes the ε spent. ``norm_limit`` refuses
long updates, ``allowance`` decides who may still contribute, and ``known_mods`` explains errors of Flower's own mods.
``mod`` compresses messages on the client, ``encoding`` on the server, and ``client_work`` is what the server knows of a
client's work. ``legacy`` has the messages of Flower's legacy clients, and finds out which clients need them;
``weights`` turns what clients report into weights.

Needs the extra ``flower``.
"""

from asyncsgd.flower.engine import Clients
from asyncsgd.flower.mod import compress_mod
from asyncsgd.flower.privacy import Privacy, PrivacySpent
from asyncsgd.flower.serving import FederatedRun, serve
from asyncsgd.flower.task import KeptUpdates

__all__ = ["Clients", "FederatedRun", "KeptUpdates", "Privacy", "PrivacySpent", "compress_mod", "serve"]
