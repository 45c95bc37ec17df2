"""`for_all`: checks a claim about searches on random cases."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from toys import KINDS, Case, random_cases


@pytest.fixture
def for_all(request, cases, tally) -> Callable[..., None]:
    """`for_all(claim, normal=192, full=1280)` fails if `claim(case)` is false for a case, and adds to the tally.

    The test's name seeds the cases. `searches`: searches per claim, for the tally. Other settings go to `random_cases`.
    """

    def check(claim: Callable[[Case], bool], *, normal: int, full: int, searches: int = 1, kinds=KINDS, small: bool = False):
        numbers = cases(normal, full=full)
        wrong = [case for case in random_cases(numbers, title=request.node.name, kinds=kinds, small=small) if not claim(case)]
        tally("property searches", searches * len(numbers), len(wrong))
        assert not wrong, f"{len(wrong)} of {len(numbers)} cases, such as {wrong[:3]}"

    return check
