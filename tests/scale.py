"""How many random cases a run tries: `BESTFIRST_TEST_SCALE=full` (`make test-full`) runs the counts that the claims name."""

from __future__ import annotations

import os

FULL = os.environ.get("BESTFIRST_TEST_SCALE") == "full"
