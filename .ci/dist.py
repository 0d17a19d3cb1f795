"""Build the sdist and the wheel, and check that the wheel works where nothing else is installed.

python .ci/dist.py [FOLDER]    # by default dist/ in this checkout

The sdist is built from the checkout, the wheel from the unpacked sdist: so the sdist is known to be complete. The wheel
goes into a fresh environment without extras, with the versions of constraints.txt. Every check runs outside the
checkout, without HOME, in the C locale. Needs Python 3.11 or newer, pip, and an index to install from.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
TOOLS = ("dev", "docs")
"""Extras that no feature of the package asks for."""

MINE = """
import numpy as np
import asyncsgd as asgd

class Task:
    def initial(self):
        return np.ones(4)
    def update(self, x, worker, seed):
        return x + 0.1 * np.random.default_rng(seed).standard_normal(4)
    def evaluate(self, x):
        return {"loss": float(x @ x)}

def network():
    return asgd.tasks.torch(None, None, None)
"""

DIGITS = """
[task]
kind = "digits"
workers = 2
[durations]
kind = "fixed"
seconds = [1, 2]
[method]
kind = "mifa"
stepsize = 0.1
[run]
iterations = 5
"""

RUN = ("--stepsize", "0.1", "--iterations", "20", "--workers", "2")

WORKS: dict[str, tuple[str, ...]] = {
    "Usage: asyncsgd": ("--help",),
    PROJECT["version"]: ("--version",),
    "fedasync  concurrency": ("methods",),
    '"method": "delay_adaptive"': ("simulate", "straggler.toml", "--json"),
    "pip install 'asyncsgd[report]'": ("plan", "durations.csv"),
    "20 iterations": ("train", "mine:Task", "--directory", "run", *RUN),
    "All 20 updates match": ("replay", "run"),
    '"iteration": 20': ("watch", "run", "--once", "--json"),
    "report.html": ("report", "run"),
    "ui.perfetto.dev": ("export", "run", "--chrome", "run.json"),
}
"""What a command prints that must work without extras."""

REFUSED: dict[tuple[str, ...], str] = {
    ("demo",): "demo",
    ("paper", "--only", "3"): "report",
    ("train", "mine:network", *RUN): "torch",
    ("train", "mine:Task", "--optimizer", "AdamW", *RUN): "torch",
    ("train", "mine:Task", "--engine", "ray", *RUN): "ray",
}
"""Commands that need an extra, and which."""

RAISES: dict[str, str] = {
    "asgd.tasks.torch(None, None, None)": "torch",
    "asgd.optimizers.torch('AdamW')": "torch",
    "asgd.train(asgd.tasks.quadratic(workers=2), asgd.async_sgd(0.1), asgd.engines.ray(2), iterations=1)": "ray",
    "asgd.flower.AsyncStrategy(asgd.mifa(0.1))": "flower",
    "asgd.plot.speedup([1.0, 2.0])": "report",
    "asgd.plan({'a': [1.0], 'b': [2.0]}).write_page('plan.html')": "report",
    "asgd.callbacks.tensorboard()": "tensorboard",
    "asgd.callbacks.mlflow()": "mlflow",
    "asgd.callbacks.wandb()": "wandb",
}
"""The same in Python."""


class Failure(Exception):
    """A check that failed."""


def run(*command: str | Path, cwd: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run with these additions to the environment."""
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **changes},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )


def needed(*command: str | Path, cwd: Path, **changes: str) -> str:
    """Run what must succeed; its words."""
    done = run(*command, cwd=cwd, **changes)
    if done.returncode:
        raise Failure(f"{' '.join(map(str, command))} ended with exit code {done.returncode}:\n{done.stdout}")
    return done.stdout


def environment(path: Path, *packages: str | Path) -> Path:
    """A new virtual environment with these packages and what they need; its folder of programs."""
    venv.create(path, with_pip=True)
    programs = path / ("Scripts" if os.name == "nt" else "bin")
    pip = (programs / "python", "-m", "pip", "--disable-pip-version-check")
    needed(*pip, "install", "-q", "-c", ROOT / "constraints.txt", *packages, cwd=path)
    needed(*pip, "check", cwd=path)
    return programs


def build(folder: Path) -> tuple[Path, Path]:
    """The sdist and the wheel."""
    hatchling = environment(folder / "tools", "hatchling") / "hatchling"
    built = folder / "built"
    needed(hatchling, "build", "-t", "sdist", "-d", built, cwd=ROOT)
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    [unpacked] = (folder / "unpacked").iterdir()
    needed(hatchling, "build", "-t", "wheel", "-d", built, cwd=unpacked)
    [wheel] = built.glob("*.whl")
    for name in ("README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "examples/straggler.toml", "docs/index.md"):
        if not (unpacked / name).is_file():
            raise Failure(f"the sdist lacks {name}: add it to [tool.hatch.build.targets.sdist] in pyproject.toml")
    return sdist, wheel


def check_files(wheel: Path) -> None:
    """The wheel holds the package and nothing else."""
    source = ROOT / "src"
    wanted = {
        path.relative_to(source).as_posix()
        for path in (source / "asyncsgd").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    if found != wanted:
        raise Failure(f"the wheel lacks {sorted(wanted - found)} and has {sorted(found - wanted)} too many")


def check_installed(folder: Path, wheel: Path) -> list[str]:
    """Everything that is wrong with the wheel in an environment of its own."""
    programs = environment(folder / "clean", wheel)
    place = folder / "some where"
    place.mkdir()
    (place / "mine.py").write_text(MINE, "utf-8")
    (place / "digits.toml").write_text(DIGITS, "utf-8")
    for name in ("straggler.toml", "durations.csv"):
        shutil.copy(ROOT / "examples" / name, place)
    env = {"PATH": f"{programs}{os.pathsep}/usr/bin:/bin", "LANG": "C", "LC_ALL": "C", "COLUMNS": "200"}
    wrong: list[str] = []

    def see(command: tuple[str, ...], code: int, says: str, shown: str = "") -> None:
        shown = shown or " ".join(command)
        done = subprocess.run(
            [str(programs / command[0]), *command[1:]],
            cwd=place,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        fits = done.returncode == code and says in done.stdout and "Traceback" not in done.stdout
        print("ok  " if fits else "BAD ", shown, flush=True)
        if not fits:
            wrong.append(f"{shown}: exit code {done.returncode}, {code} expected, and {says!r} in:\n{done.stdout}")

    see(("python", "-c", "import asyncsgd; print(asyncsgd.__file__)"), 0, str(folder / "clean"))
    for says, words in WORKS.items():
        see(("asyncsgd", *words), 0, says)
    for words, extra in REFUSED.items():
        see(("asyncsgd", *words), 2, f"pip install 'asyncsgd[{extra}]'")
    see(("asyncsgd", "simulate", "digits.toml"), 2, "pip install scikit-learn")
    for call, extra in RAISES.items():
        script = f"import numpy as np, asyncsgd as asgd\ntry: {call}\nexcept ModuleNotFoundError as error: print(error)"
        see(("python", "-c", script), 0, f"pip install 'asyncsgd[{extra}]'", call)
    return wrong


def main() -> None:
    """Build, check, and only then put both files into the folder."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").absolute()
    untold = set(PROJECT["optional-dependencies"]) - set(TOOLS) - {*REFUSED.values(), *RAISES.values()}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        try:
            if untold:
                raise Failure(f"no check of {Path(__file__).name} does without the extras {sorted(untold)}: add some")
            sdist, wheel = build(folder)
            check_files(wheel)
            wrong = check_installed(folder, wheel)
            if wrong:
                raise Failure("\n\n".join(wrong))
        except Failure as failure:
            sys.exit(f"\n{failure}")
        target.mkdir(parents=True, exist_ok=True)
        for file in (sdist, wheel):
            print(shutil.copy(file, target))


if __name__ == "__main__":
    main()
