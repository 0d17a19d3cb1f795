"""Settings of all tests."""

import os
import signal

from hypothesis import settings

# Whoever starts the tests in the background may have made them deaf to Ctrl-C, which some of them send.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The first call of a compiled function compiles it, so a deadline per example would only measure that.
# Tests are the same every time; HYPOTHESIS_PROFILE=search looks for new examples.
settings.register_profile("project", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, derandomize=False, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "project"))
