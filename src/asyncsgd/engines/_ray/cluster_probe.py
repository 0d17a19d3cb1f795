"""Quick checks before connecting to Ray: a cluster answers at the address, and this machine is a node of it.

Without these checks Ray itself would try for minutes, and end with an error that does not name the cause.
"""

from __future__ import annotations

import importlib
import os
import socket
from typing import Any, BinaryIO

from asyncsgd.core.errors import EngineError, UsageError
from asyncsgd.engines._ray import Ray

ANSWER = 5.0
"""Seconds in which the process at the address must answer. Ray itself tries for 107."""
NEARBY = 5.0
"""Seconds in which a node of the cluster must be found on this machine. Ray itself looks for 60."""
LONGEST_FRAME = 2**14
UNKNOWN_CALL = b"grpc-status\x0212"
"""The header of a gRPC server that does not know the call: status 12, "unimplemented"."""


def probe(address: str) -> None:
    """Raise `EngineError` within seconds unless a Ray cluster answers at the address."""
    if address.startswith("ray://"):
        raise EngineError(
            f"address = {address!r} is a proxy that would copy every vector; run this on a node of the cluster "
            "with address = 'auto', or pass host:6379"
        )
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise EngineError(f"address = {address!r} has no port; write host:6379 or auto")
    hint = "is the head node up (`ray start --head`), and the port open from here?"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER) as line:
            if os.environ.get("RAY_USE_TLS", "0") in ("0", ""):
                line.sendall(_hello(f"{host}:{port}"))
                with line.makefile("rb") as answer:
                    if not _knows_the_call(answer):
                        raise EngineError(
                            f"the process at {host}:{port} is not a Ray cluster; check the address, which may be that "
                            "of a cluster that has ended"
                        )
    except TimeoutError as error:
        raise EngineError(f"no answer from {host}:{port} in {ANSWER:g} s; {hint}") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise EngineError(f"no Ray cluster can be reached at {host}:{port} ({reason}); {hint}") from error


def _hello(authority: str) -> bytes:
    """Return the bytes of a gRPC call: the HTTP/2 preface, empty settings, and a call without an argument."""

    def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
        return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content

    def header(name: str, value: str) -> bytes:
        return b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))

    method = "/ray.rpc.NodeInfoGcsService/GetClusterId"
    asked = {":method": "POST", ":scheme": "http", ":path": method, ":authority": authority[:100]}
    headers = b"".join(
        header(*pair) for pair in {**asked, "content-type": "application/grpc", "te": "trailers"}.items()
    )
    opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")
    return opening + frame(1, 4, 1, headers) + frame(0, 1, 1, bytes(5))


def _knows_the_call(answer: BinaryIO) -> bool:
    """Return whether the answer has HTTP status 200, like every gRPC answer, and knows the call.

    Other Ray processes speak gRPC too, and one of them may use the port of a head node that has ended.
    """
    while len(start := answer.read(9)) == 9:
        length, kind = int.from_bytes(start[:3], "big"), start[3]
        if length > LONGEST_FRAME:
            return False  # not HTTP/2
        content = answer.read(length)
        if kind == 1:  # headers, with the status first: 0x88 is 200 in HTTP/2's table
            return content[:1] == b"\x88" and UNKNOWN_CALL not in content
    return False


def check_node(address: str) -> None:
    """Raise `EngineError` unless this machine is a node of the cluster: Ray accepts drivers only from nodes."""
    try:
        services: Any = importlib.import_module("ray._private.services")
        unreachable: type[Exception] = importlib.import_module("ray.exceptions").RayError
    except ImportError:
        return
    try:
        head = services.GcsClient(address=address)
        services.get_node_to_connect_for_driver(head, timeout_seconds=NEARBY)
    except (AttributeError, TypeError):
        return  # a version of Ray with other internal names: Ray finds out by itself, but later
    except unreachable as error:
        raise EngineError(f"the Ray cluster at {address} does not answer ({error}); is its head node up?") from error
    except RuntimeError as error:
        raise EngineError(
            f"this machine is not a node of the Ray cluster at {address} ({error}); make it one with `ray start "
            f"--address={address}`, or train on a node of the cluster"
        ) from error


def check_connected(ray: Any, engine: Ray) -> None:
    """Raise `UsageError` if this process is connected to another cluster, or too early for ``working_dir``."""
    here = ray.get_runtime_context().gcs_address
    if engine.address not in (None, "auto") and _place(engine.address) != _place(here):
        raise UsageError(
            f"address = {engine.address!r}, but this process is connected to the Ray cluster at {here}; leave the "
            "address out, or call ray.shutdown() first"
        )
    directory = str((engine.runtime_env or {}).get("working_dir", ""))
    if directory and "://" not in directory:
        raise UsageError(
            f"working_dir = {directory!r} cannot be sent, as this process is already connected to Ray; "
            "pass runtime_env to ray.init(...), or call ray.shutdown() first"
        )


def _place(address: str) -> tuple[str, str]:
    """Return (IP address, port), so that two names of one machine compare equal; an unknown name is returned as is."""
    host, _, port = address.rpartition(":")
    try:
        return str(socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0][4][0]), port
    except OSError:
        return host, port
