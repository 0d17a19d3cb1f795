"""Settings of all tests."""

import os

from hypothesis import settings

# The first call of a compiled function compiles it, so a deadline per example would only measure that.
settings.register_profile("project", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("project")
