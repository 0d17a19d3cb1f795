"""Any Flower app made asynchronous: ``asgd.flower.serve(grid, arrays, method, iterations=...)`` in its ServerApp.

``serving`` the call · ``preparing`` what it looks at first · ``task`` what the server knows of the task · ``queues`` a
bound on waiting jobs · ``privacy`` the ε spent · ``farewell`` saved before Flower ends it. The clients are
`asyncsgd.flower.engine`. Needs the extra ``flower``.
"""

from asyncsgd.flower.engine import Clients
from asyncsgd.flower.privacy import Privacy
from asyncsgd.flower.serving import FederatedRun, serve
from asyncsgd.flower.task import KeptUpdates

__all__ = ["Clients", "FederatedRun", "KeptUpdates", "Privacy", "serve"]
