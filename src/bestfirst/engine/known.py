"""Known: what engines found out about a model, and made of it, in earlier decodes. Nothing here keeps a model in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

from ..models.transformers import TransformersModel


@dataclass
class Known:
    """Shared by all that decode with the same Hugging Face model, wrapped or through `generate`."""

    session: Any = None  # a GPU's room for whole searches, and the fingerprint of the weights it was made of
    lock: RLock = field(default_factory=RLock)  # one search at a time: some steps hook into the model while they run


_known: WeakKeyDictionary[Any, Known] = WeakKeyDictionary()


def known(model: TransformersModel) -> Known:
    """What is known of this model's weights."""
    return _known.setdefault(model.model, Known())
