"""Reads what an offline run of Weights & Biases leaves on disk: records in LevelDB's log format."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 1 << 15, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def chunks(path: Path) -> Iterator[bytes]:
    """The records. A block ends with zeros where no header fits any more."""
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    place, parts = HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + HEADER])
        place += HEADER
        parts = data[place : place + size] if kind in (FULL, FIRST) else parts + data[place : place + size]
        place += size
        if kind in (FULL, LAST):
            yield parts


class Offline:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        from wandb.proto.wandb_internal_pb2 import Record

        self.history: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.config: dict[str, Any] = {}
        self.id = self.name = self.project = ""
        self.code: int | None = None
        self.kinds: dict[str, int] = defaultdict(int)
        for chunk in chunks(path):
            record = Record()
            record.ParseFromString(chunk)
            kind = record.WhichOneof("record_type")
            self.kinds[kind] += 1
            if kind == "history":
                self.history.append(values(record.history.item))
            elif kind == "summary":
                self.summary |= values(record.summary.update)
            elif kind == "run":
                self.id, self.name, self.project = record.run.run_id, record.run.display_name, record.run.project
                self.config |= values(record.run.config.update)
            elif kind == "exit":
                self.code = record.exit.exit_code

    def of(self, name: str) -> list[tuple[int, Any]]:
        """(iteration, value) wherever there is one."""
        return [(row["iteration"], row[name]) for row in self.history if name in row]


def values(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def offline(folder: Path) -> list[Offline]:
    """All runs below a folder, in the order in which they began; the service that writes them is waited for."""
    import wandb

    wandb.teardown()
    return [Offline(path) for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))]
