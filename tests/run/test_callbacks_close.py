"""Every callback of `train` is stopped once, however `train` ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run.common import train

import asyncsgd as asgd
from asyncsgd.run import BadRunDirectory, Callback
from asyncsgd.run.directory import RunDirectory


class Holder(Callback):
    stopped = 0

    def close(self) -> None:
        self.stopped += 1


@pytest.mark.parametrize(
    "refused",
    [
        {"iterations": 0},
        {"resume": False},
        {"resume": True, "seed": 5},
        {"resume": True, "iterations": 10},
        {"resume": True, "until": "no target"},
        {"directory": "file"},
    ],
    ids=str,
)
@pytest.mark.parametrize("progress", [False, True])
def test_where_train_refuses(tmp_path: Path, refused: dict[str, Any], progress: bool) -> None:
    train(tmp_path / "run", iterations=20)
    (tmp_path / "file").touch()
    given = {"directory": "run", "iterations": 40, **refused, "progress": progress}
    callbacks = [Holder(), Holder()]
    with pytest.raises(asgd.AsyncSGDError):
        train(tmp_path / given.pop("directory"), callbacks=callbacks, **given)
    assert [callback.stopped for callback in callbacks] == [1, 1]


def test_where_the_directory_is_locked(tmp_path: Path) -> None:
    files, callback = RunDirectory(tmp_path), Holder()
    with pytest.raises(BadRunDirectory, match="another process is training in"):
        train(tmp_path, callbacks=[callback])
    files.close()
    assert callback.stopped == 1


def test_where_all_is_well(tmp_path: Path) -> None:
    callback = Holder()
    train(tmp_path, callbacks=[callback])
    assert callback.stopped == 1
    train(tmp_path, callbacks=[callback], resume=True)  # finished
    assert callback.stopped == 2
