"""What tests of engines share."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from engines.ray_nodes import Nodes


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    """One Ray cluster for all tests: it takes many seconds to start."""
    if find_spec("ray") is None:  # not imported here: it reads its settings when it is
        pytest.skip("Ray is not installed")
    from engines.ray_nodes import ray_nodes

    with ray_nodes() as cluster:
        yield cluster
