"""GNMT's length normalisation."""

from __future__ import annotations

from .length_normalized import LengthNormalized


class GNMT(LengthNormalized):
    """log p(y|x) / ((5 + N) / 6)^alpha (Wu et al. 2016, Eq. 14): grows more gently with the length than N^alpha."""

    name = "gnmt"

    def norm(self, length: int) -> float:
        return float(((5 + length) / 6) ** self.alpha)
