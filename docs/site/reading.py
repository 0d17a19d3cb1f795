"""A Griffe extension that adapts our docstrings and names for the reference.

Docstrings end in plain doctests, which Markdown would render as quotations; the extension turns them into code blocks.
And if a package exports a function that has the name of its module, the name refers to the function, as in Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

DOCTEST = re.compile(r"^(?P<indent> *)>>> .*?(?=\n *\n|\Z)", re.DOTALL | re.MULTILINE)
DIAGRAM = re.compile(r"^( *)::\n", re.MULTILINE)


class Reading(griffe.Extension):
    """Turn doctests into code blocks, and let exported functions take precedence over modules of the same name."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Process the whole package at once, because a module that a function replaces cannot be found afterwards."""
        everything = list(_inside(pkg))
        for found in everything:
            if found.docstring is not None:
                text = DIAGRAM.sub(r"\1\n", found.docstring.value)
                found.docstring.value = DOCTEST.sub(_fenced, text)
        loader.resolve_aliases(implicit=True, external=False)
        for module in everything:
            for name, member in list(module.members.items()) if module.is_module else ():
                meant = _meant(member)
                if meant is not None:
                    module.members[name] = griffe.Alias(name, target=meant, parent=module)


def _fenced(doctest: re.Match[str]) -> str:
    indent = doctest["indent"]
    return f"{indent}```pycon\n{doctest[0]}\n{indent}```"


def _inside(found: griffe.Object) -> Iterator[griffe.Object]:
    yield found
    for member in found.members.values():
        if not member.is_alias:
            yield from _inside(member)


def _meant(member: griffe.Object | griffe.Alias) -> griffe.Object | None:
    """Return the function that a package exports under this module's name, or None."""
    try:
        module = member.final_target if member.is_alias else member
    except griffe.AliasResolutionError:
        return None
    package = module.parent
    if not module.is_module or package is None or module.name not in (package.exports or ()):
        return None
    if package.imports.get(module.name) == module.path:  # the package exports the module itself
        return None
    inner = module.members.get(module.name)
    if inner is None:
        return None
    found = inner.final_target if inner.is_alias else inner
    return None if found.is_module else found
