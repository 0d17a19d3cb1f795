"""Ray started for one run: on loopback, without a dashboard, gone afterwards. And commands that use a cluster."""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from engines.subject import Subject

import asyncsgd as asgd
from asyncsgd.engines._ray import cluster
from asyncsgd.run import checkpoints

if TYPE_CHECKING:
    from engines.ray_nodes import Nodes

pytestmark = [
    pytest.mark.ray,
    # Not imported here: Ray reads its settings when it is.
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
]

LOOPBACK = "0100007F"
"""127.0.0.1, as the kernel writes it; in IPv6 with something before it."""

PATIENT = f"""
import sys

sys.path.append({str(Path(__file__).parents[1])!r})
from asyncsgd.engines._ray import cluster
from engines.ray_nodes import nodes_may_start_slowly

nodes_may_start_slowly()
cluster.GIVES_UP = float("inf")  # else a SIGTERM that comes late, on a busy machine, counts as Ray's own
"""

PROGRAM = f"""
{PATIENT}
from pathlib import Path
import asyncsgd as asgd
from asyncsgd.run import Callback
from asyncsgd.testing.bench import Bowl

class Tell(Callback):
    def on_evaluation(self, view, metrics, control):
        import ray
        node = ray._private.worker._global_node
        print(node.get_session_dir_path(), repr(node.webui_url))
        Path("gate").read_text("utf-8")

run = asgd.train(Bowl(), asgd.async_sgd(0.01), engine=asgd.engines.ray(2, start_timeout=600.0), iterations=60, every=60,
                 directory="run", callbacks=[Tell()], progress=False)
print("done", run.trace.iterations)
"""

COMMAND = """
import sys
from asyncsgd.cli import main

sys.argv[0] = "asyncsgd"
main()
"""


def listening(processes: set[int]) -> set[str]:
    """Local addresses, as the kernel writes them, that these processes listen at."""
    inodes = set()
    for process in processes:
        try:
            descriptors = list(Path(f"/proc/{process}/fd").iterdir())
        except OSError:
            continue  # it has just ended
        for descriptor in descriptors:
            try:
                inodes.add(os.readlink(descriptor))
            except OSError:
                continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text("utf-8").splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in inodes:
                found.add(local.partition(":")[0])
    return found


def begun(subject: Subject) -> Path:
    """The folder of the cluster, once the run has begun; it waits at the gate."""
    session, dashboard = subject.line().split()
    assert dashboard in ("''", "None")
    folder = Path(session).parents[1]
    assert folder.name.startswith(cluster.PREFIX)
    assert folder.stat().st_mode & 0o077 == 0
    return folder


def test_ray_for_one_run(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    with Subject(PROGRAM, tmp_path) as subject:
        folder = begun(subject)
        addresses = listening(subject.relatives())
        assert addresses
        assert all(address.endswith(LOOPBACK) for address in addresses)
        (tmp_path / "gate").write_text("go on", "utf-8")
        subject.line()
        (tmp_path / "gate").write_text("go on", "utf-8")
        assert subject.line() == "done 60"
        assert subject.end() == (0, "", "")
        subject.none_left()
        assert not folder.exists()
    assert asgd.replay(tmp_path / "run").model_compared


def test_a_killed_server_leaves_no_process_and_its_folder_is_removed_by_the_next(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    with Subject(PROGRAM, tmp_path) as subject:
        folder = begun(subject)
        cluster._sweep(folder.parent)
        assert folder.exists()  # its server lives
        os.kill(subject.process.pid, signal.SIGKILL)
        subject.process.wait()
        subject.none_left()
    cluster._sweep(folder.parent)
    assert not folder.exists()


def raylet(subject: Subject) -> Path:
    """Return the cluster's folder once its first raylet runs; Ray continues its start meanwhile."""
    while True:
        assert subject.process.poll() is None, subject.end()
        for process in subject.relatives():
            try:
                words = Path(f"/proc/{process}/cmdline").read_text("utf-8", "replace").split("\0")
            except OSError:
                continue  # it has just ended
            if words[0].endswith("/raylet"):
                named = next(word for word in words if cluster.PREFIX in word)
                return Path(named[named.index("/") :].partition("/ray/")[0])
        threading.Event().wait(0.001)


LIVES_ON = f"""
try:
    exec({PROGRAM!r})
finally:
    print("over")
    Path("gate").read_text("utf-8")
"""


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)])
def test_a_start_that_is_interrupted_leaves_nothing(tmp_path: Path, number: signal.Signals, expected: int) -> None:
    """Also if the server lives on, as a notebook does."""
    os.mkfifo(tmp_path / "gate")
    with Subject(LIVES_ON, tmp_path) as subject:
        folder = raylet(subject)
        assert folder.exists()
        os.kill(subject.process.pid, number)
        assert subject.line() == "over"
        assert subject.relatives() == {subject.process.pid}
        assert not folder.exists()
        (tmp_path / "gate").write_text("go on", "utf-8")
        code, _, complaints = subject.end()
        assert code == expected, complaints
        subject.none_left()


MODULE = """
import os
from pathlib import Path

from asyncsgd.testing.bench import Bowl


class Mine(Bowl):
    told = 0

    def update(self, x, worker, seed):
        if self.told != os.getpid():  # once, and at one stroke, as others read it
            self.told = os.getpid()
            file = Path({folder!r}) / f"{{self.told}}.where"
            file.with_suffix(".new").write_text(os.getcwd(), "utf-8")
            file.with_suffix(".new").rename(file)
        return super().update(x, worker, seed)


task = Mine(200)
"""


@pytest.mark.skipif(" " in sys.prefix, reason="Ray sends no working_dir to an environment below a path with a space")
def test_commands(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is killed, one that resumes, and a replay; the task is a module in the current directory."""
    from typer.testing import CliRunner

    from asyncsgd.cli import app

    (tmp_path / "mine.py").write_text(MODULE.format(folder=str(tmp_path)), "utf-8")
    words = "train mine:task --engine ray --address auto --working-dir . --workers 2 --stepsize 0.01"
    words += " --iterations 1000000 --every 100 --checkpoint-seconds 0.2 --directory run"
    with Subject(COMMAND, tmp_path, arguments=tuple(words.split())) as subject:
        while not (saved := [path for path in checkpoints.listed(tmp_path / "run" / "checkpoints") if int(path.stem)]):
            assert subject.process.poll() is None, subject.end()
            threading.Event().wait(0.05)
        os.kill(subject.process.pid, signal.SIGKILL)
        subject.process.wait()
    until = checkpoints.read(saved[0]).iteration + 300
    for file in tmp_path.glob("*.where"):
        file.unlink()
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    words = f"train --resume --directory run --iterations {until}"
    with Subject(COMMAND, tmp_path, arguments=tuple(words.split())) as subject:
        code, _, complaints = subject.end(patience=240.0)
        assert code == 0, complaints
    places = {Path(file.read_text("utf-8")) for file in tmp_path.glob("*.where")} - {tmp_path}
    assert [place.name.startswith("_ray_pkg_") for place in places] == [True]  # the workers' copy of the directory
    monkeypatch.chdir(tmp_path)
    for words in ("replay run", "report run"):
        done = CliRunner().invoke(app, words.split())
        assert done.exit_code == 0, done.output
        if words == "replay run":
            assert f"All {until} updates match, and the final model is bit-for-bit identical." in done.output
