"""Systems and surroundings other than a developer's: no Unix, no UTF-8, no HOME, a read-only installation."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

WITHOUT_UNIX = """
import os, select, signal, socket, sys

for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for module, names in {
    os: ("O_CLOEXEC", "O_DIRECTORY", "fork", "geteuid", "getpgid", "getuid", "killpg", "memfd_create", "pidfd_open",
         "sched_getaffinity", "sched_yield", "setsid"),
    select: ("epoll", "poll"),
    signal: ("SIGHUP", "SIGKILL", "pidfd_send_signal", "pthread_sigmask"),
    socket: ("AF_UNIX",),
}.items():
    for name in names:
        delattr(module, name)

def open_file(path, *others, real=os.open):
    if os.path.isdir(path):
        raise PermissionError(path)
    return real(path, *others)

os.open = open_file

import importlib, pkgutil
import asyncsgd as asgd

for module in pkgutil.walk_packages(asgd.__path__, "asyncsgd."):
    if not module.name.endswith((".__main__", ".orphan_cleanup")):  # programs of their own
        importlib.import_module(module.name)

task, method = asgd.tasks.quadratic(workers=2), asgd.async_sgd(0.1)
run = asgd.simulate(task, method, asgd.durations.fixed([1, 2]), iterations=20)
print(asgd.report(run, sys.argv[1] + "/page.html"))
for directory in (None, sys.argv[1] + "/run"):
    try:
        asgd.train(task, method, engine=asgd.engines.processes(2), iterations=5, directory=directory, progress=False)
    except asgd.errors.UsageError as error:
        print(error)
"""


@pytest.mark.slow
def test_where_unix_is_missing_it_imports_simulates_and_refuses_to_train(tmp_path: Path) -> None:
    """What Windows lacks, taken away; it says nothing about what Windows does differently."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_UNIX, str(tmp_path)], capture_output=True, encoding="utf-8", cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    page, forked, locked = done.stdout.splitlines()
    assert Path(page).is_file()
    assert forked == "this system cannot fork worker processes; train on Linux, or simulate"
    assert locked.endswith("cannot be locked on this system; leave it out, or train on Linux or macOS")
    assert not (tmp_path / "run").exists()


BARE = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
ASCII = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
COMMANDS = (
    ("--help",),
    ("train", "--help"),
    ("methods",),
    ("simulate", str(ROOT / "examples" / "straggler.toml")),
    ("plan", str(ROOT / "examples" / "durations.csv"), "--page", "plan.html"),
)


def call(*words: str, cwd: Path, env: dict[str, str], program: tuple[str, ...] = ("-P", "-m", "asyncsgd")) -> str:
    done = subprocess.run(
        [sys.executable, *program, *words], cwd=cwd, env=env, capture_output=True, timeout=240, preexec_fn=obey
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode(errors="replace")


def obey() -> None:
    """Let the program that follows obey the permissions of files even as root: it loses CAP_DAC_OVERRIDE."""
    if os.geteuid() == 0 and ctypes.CDLL(None).prctl(24, 1, 0, 0, 0):  # PR_CAPBSET_DROP
        raise OSError("this root may not give up a capability")


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_locale_that_knows_only_ascii(words: tuple[str, ...], tmp_path: Path) -> None:
    """And no HOME; pages are in UTF-8 all the same."""
    call(*words, cwd=tmp_path, env={**BARE, **ASCII})
    for page in tmp_path.glob("*.html"):
        assert "τ" in page.read_text("utf-8")


NO_CACHE = """
import warnings
from numba.core import caching

def refuse(locator):
    raise OSError("read-only")

caching._CacheLocator.ensure_cache_path = refuse
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import asyncsgd as asgd
    from asyncsgd.compiled.random import derive
    asgd.simulate, asgd.tasks.quadratic, asgd.durations.fixed
    print(len([warning for warning in seen if "NUMBA_CACHE_DIR" in str(warning.message)]))
from asyncsgd.simulation.compiled_replay import _announce

_announce()
print(derive(7, 1) == asgd.core.random.derive(7, 1))
"""


@pytest.mark.slow
def test_where_numba_can_keep_nothing_it_compiles_again(tmp_path: Path) -> None:
    """A read-only installation without a home, as numba sees it: said once, and no crash."""
    done = subprocess.run([sys.executable, "-c", NO_CACHE], capture_output=True, encoding="utf-8", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "True"]


MINE = """
import numpy as np

class Task:
    def initial(self):
        return np.ones(4)
    def update(self, x, worker, seed):
        return x + 0.1 * np.random.default_rng(seed).standard_normal(4)
    def evaluate(self, x):
        return {"loss": float(x @ x)}
"""


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("name", ["asyncsgd", "my clone"])
def test_a_read_only_checkout_of_any_name(name: str, tmp_path: Path) -> None:
    """Started inside it, where a checkout named like the package could pass for it; HOME cannot be written to."""
    clone = tmp_path / name
    shutil.copytree(ROOT / "src", clone / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (clone / "mine.py").write_text(MINE, "utf-8")
    folders = [clone, *(path for path in clone.rglob("*") if path.is_dir())]
    env = {**BARE, **ASCII, "HOME": "/dev/null/home", "PYTHONPATH": os.pathsep.join([str(clone / "src"), *sys.path])}
    for folder in folders:
        folder.chmod(0o555)
    try:
        look = "import asyncsgd, os; print(asyncsgd.__file__, os.access(os.path.dirname(asyncsgd.__file__), os.W_OK))"
        where, writable = call(cwd=clone, env=env, program=("-P", "-c", look)).rsplit(maxsplit=1)
        assert (Path(where).is_relative_to(clone), writable) == (True, "False")
        for cwd in (clone, tmp_path):
            assert "delay_adaptive" in call("methods", cwd=cwd, env=env)
        run = ("--stepsize", "0.1", "--iterations", "10", "--workers", "2", "--directory", str(tmp_path / "run"))
        assert "10 iterations" in call("train", "mine:Task", *run, cwd=clone, env=env)
        assert "All 10 updates match" in call("replay", str(tmp_path / "run"), cwd=clone, env=env)
    finally:
        for folder in folders:
            folder.chmod(0o755)
