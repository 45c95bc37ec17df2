"""What may follow: tries of the outputs there are, and whatever else says which tokens may come next.

A constraint only forbids: it lifts no score, so every bound still holds, and best-first search under it is exact
(`tests/constraints`).
"""

from .constraint import Constraint, allowed_after, check_vocabulary

__all__ = ["Constraint", "allowed_after", "check_vocabulary"]
