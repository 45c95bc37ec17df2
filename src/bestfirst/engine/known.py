"""Known: what engines found out about a model, and made of it, in earlier decodes. Nothing here keeps a model in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..models import Model
from ..settings import Budget

if TYPE_CHECKING:
    from ..drafting import Rates


@dataclass
class Known:
    """Shared by all that decode with the same Hugging Face model, wrapped or through `generate`.

    A step, modules and a session come with the fingerprint of the weights that they were made of.
    """

    agreed: dict[Any, bool] = field(default_factory=dict)  # steps that were tried, and whether they agree with the model
    tried: Any = None  # the outline of the model that these verdicts are on
    step: Any = None  # of the last decode, unless it holds the whole model; then it stays with its `TransformersModel`
    ratios: dict[Any, float] = field(default_factory=dict)  # by settings: the time of `generate`'s own loop over ours
    budget: Budget | None = None  # what suits the model, once it was measured
    rates: dict[str, Rates] = field(default_factory=dict)  # by drafter, how often its guesses were right
    session: Any = None  # a GPU's room for whole searches
    modules: Any = None  # how a GPU runs the model by its own modules; with None in its place where it cannot
    lock: RLock = field(default_factory=RLock)  # one call of `generate` at a time: some steps hook into the model while they run


_known: WeakKeyDictionary[Any, dict[bool, Known]] = WeakKeyDictionary()


def known(model: Model) -> Known:
    """What is known of this model's weights, or of them in eight bits."""
    return _known.setdefault(model.known_as, {}).setdefault(model.eight_bits, Known())
