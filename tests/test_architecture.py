"""What `import asyncsgd` may load, and that the import contracts bite."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

HEAVY = (
    *("torch", "ray", "flwr", "pyarrow", "matplotlib", "numba", "scipy", "pandas", "polars", "sklearn"),
    *("mlflow", "tensorboard", "wandb", "sqlalchemy", "alembic"),
)

MOST_MODULES = 280
"""221 when this was written, 173 of them for NumPy alone; raise it only for something worth its start-up time."""

LOADED = "import sys, asyncsgd; print(*sorted(sys.modules), sep='\\n')"

BLOCKED = f"""
import importlib, pkgutil, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(f"{{name}} is blocked")

sys.meta_path.insert(0, Block())
try:
    import pyarrow
except ModuleNotFoundError:
    pass
else:
    sys.exit("the block does not work")

# The core by itself, without whatever the package's __init__ loads beside it.
spec = importlib.util.find_spec("asyncsgd")
import types
package = types.ModuleType("asyncsgd")
package.__path__ = list(spec.submodule_search_locations)
sys.modules["asyncsgd"] = package

import asyncsgd.core
names = [module.name for module in pkgutil.walk_packages(asyncsgd.core.__path__, "asyncsgd.core.")]
for name in [*names, "asyncsgd.methods"]:
    importlib.import_module(name)
    print(name)
loaded = [name for name in sys.modules if name.startswith("asyncsgd.")]
stray = [name for name in loaded if not name.startswith(("asyncsgd.core", "asyncsgd.methods"))]
if stray:
    sys.exit(f"the core loads {{stray}}")
"""


def python(script: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_import_loads_nothing_heavy() -> None:
    """A start-up of 0.3 s; counted in modules, as a clock would make the test depend on the machine's mood."""
    modules = python(LOADED)
    assert "asyncsgd.core.server" in modules
    assert {name.partition(".")[0] for name in modules}.isdisjoint(HEAVY)
    assert len(modules) <= MOST_MODULES


def test_core_works_without_any_framework() -> None:
    names = python(BLOCKED)
    assert {"asyncsgd.core.server", "asyncsgd.core.dispatch", "asyncsgd.methods"} <= set(names)
    assert len(names) > 15


@pytest.fixture
def copy_of_the_source(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def contracts(root: Path) -> tuple[int, str]:
    script = "import sys; sys.path.insert(0, 'src'); from importlinter.cli import lint_imports_command as c; c()"
    done = subprocess.run(
        [sys.executable, "-c", script, "--no-cache"], capture_output=True, encoding="utf-8", check=False, cwd=root
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("core/dispatch.py", "import time", "The core is pure"),
        ("core/server.py", "import random", "The core is pure"),
        ("core/update.py", "def slow():\n    import torch", "The core is pure"),
        ("core/method.py", "import asyncsgd.methods", "Each layer imports only from the layers below it"),
    ],
)
def test_contracts_catch_a_violation(copy_of_the_source: Path, module: str, line: str, broken: str) -> None:
    with (copy_of_the_source / "src" / "asyncsgd" / module).open("a", encoding="utf-8") as file:
        file.write(f"\n\n{line}\n")
    code, said = contracts(copy_of_the_source)
    assert code == 1, said
    assert f"{broken}" in said
    assert "BROKEN" in said


def test_contracts_are_kept(copy_of_the_source: Path) -> None:
    code, said = contracts(copy_of_the_source)
    assert code == 0, said
    assert "BROKEN" not in said
