"""Check that every public name has a docstring and an entry in the API reference."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import griffe
from reading import Reading

SOURCE = Path(__file__).parents[2] / "src"


def public(source: Path = SOURCE) -> Iterator[tuple[str, griffe.Object | griffe.Alias]]:
    """Yield every name in an ``__all__`` of the package and its direct submodules, with the object it refers to."""
    package = griffe.load("asyncsgd", search_paths=[source], extensions=griffe.load_extensions(Reading))
    for module in (package, *package.modules.values()):
        for name in module.exports or ():
            yield f"{module.path}.{name}", module[str(name)]


def documented(inventory: Path) -> set[str]:
    """Return the paths that have an anchor in the reference, aliases included."""
    data = inventory.read_bytes()
    body = zlib.decompress(data[data.index(b"zlib.\n") + 6 :]).decode()
    return {line.split(" ", 1)[0] for line in body.splitlines()}


def complaints(inventory: Path, source: Path = SOURCE) -> list[str]:
    """Return one sentence per undocumented name, with the fix."""
    known = documented(inventory)
    found = []
    for path, named in public(source):
        target = named.final_target if named.is_alias else named
        if target.docstring is None or not target.docstring.value.strip():
            found.append(f"{path} has no docstring: write one in {target.path}")
        if not known & {path, target.path}:
            found.append(f"{path} is not in the API reference: add '::: {path}' to a page in docs/api")
    return found
