"""Whether a Ray cluster answers at an address, before Ray itself tries for two minutes."""

from __future__ import annotations

import os
import socket
from typing import BinaryIO

from asyncsgd.engines.base import EngineError

ANSWER = 5.0
"""Seconds in which whoever listens at an address must answer. Ray itself tries for 107."""
LONGEST_FRAME = 2**14


def knock(address: str) -> None:
    """Whether somebody is at home who speaks Ray's protocol: said within seconds, not minutes."""
    if address.startswith("ray://"):
        raise EngineError(
            f"address = {address!r} leads to a proxy that would copy every vector; run this on a node of the cluster "
            "with address = 'auto', or pass host:6379"
        )
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise EngineError(f"address = {address!r} is none; write host:6379 or auto")
    hint = "is the head node up (`ray start --head`), and the port open from here?"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER) as line:
            if os.environ.get("RAY_USE_TLS", "0") in ("0", ""):
                line.sendall(_hello(f"{host}:{port}"))
                with line.makefile("rb") as answer:
                    if not _speaks_grpc(answer):
                        raise EngineError(f"whoever listens at {host}:{port} is no Ray cluster; check the address")
    except TimeoutError as error:
        raise EngineError(f"no answer from {host}:{port} in {ANSWER:g} s; {hint}") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise EngineError(f"no Ray cluster can be reached at {host}:{port} ({reason}); {hint}") from error


def _hello(authority: str) -> bytes:
    """The opening words of HTTP/2, no settings of ours, and a call of gRPC without an argument."""

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


def _speaks_grpc(answer: BinaryIO) -> bool:
    """Whether the call is answered by status 200, as every server of gRPC does, whatever it thinks of the call."""
    while len(start := answer.read(9)) == 9:
        length, kind = int.from_bytes(start[:3], "big"), start[3]
        if length > LONGEST_FRAME:
            return False  # no HTTP/2
        content = answer.read(length)
        if kind == 1:  # headers, the status first: 0x88 is 200 in the table of HTTP/2
            return content[:1] == b"\x88"
    return False
