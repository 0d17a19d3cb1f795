"""Workers on a Ray cluster: Ray places them and tells who died, the process that calls `asyncsgd.train` is the server.

``engine`` what the user asks for · ``cluster`` reached, or started on this machine · ``crew`` who is there and who
died · ``member`` one of them · ``desk`` jobs, calls and answers · ``post`` how points and updates travel · ``actor``
what runs at the other end · ``words`` what is said about it · ``knock`` whether a cluster is there · ``watch`` and
``watchman`` so that nothing of one started here stays behind.
"""

from asyncsgd.engines._ray.engine import Group, Ray, ray

__all__ = ["Group", "Ray", "ray"]
