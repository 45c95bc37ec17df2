"""The number of random cases: `BESTFIRST_TEST_SCALE=full` (`make test-full`) runs the numbers that the docs name."""

from __future__ import annotations

import os

FULL = os.environ.get("BESTFIRST_TEST_SCALE") == "full"
