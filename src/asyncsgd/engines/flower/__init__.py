"""Clients of a Flower grid: the simulation engine's, or SuperNodes of a deployment. Needs the extra ``flower``.

``engine`` what `asyncsgd.flower.serve` asks for · ``crew`` the clients, seen from the server · ``member`` one of them ·
``roster`` their numbers · ``rollcall`` who is connected · ``post`` a thread per message · ``codes`` errors in place of
replies · ``letters`` what is written, and how replies are read · ``arrays``, ``layout`` from strangers' bytes to a
vector · ``metrics``, ``evaluation`` what clients measure · ``memory`` what is kept on disk · ``clients`` the rules.
"""

from asyncsgd.engines.flower.clients import Clients
from asyncsgd.engines.flower.engine import Flower

__all__ = ["Clients", "Flower"]
