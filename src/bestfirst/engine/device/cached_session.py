"""CachedSession: keeps a model's device session between decodes and checks that it is still valid before its results are used."""

from __future__ import annotations

from collections.abc import Callable

from ...models.transformers import TransformersModel
from ..model_record import record_of
from ..steps.checksum import Checksum
from ..steps.step_choice import Fingerprint
from .session import Session


class CachedSession:
    """The cached session of a model, as one engine uses it. A session that copies weights is started before they are checked,
    which hides the latency: `seems_valid` is cheap and runs while the device works, `is_valid` compares checksums, and no result
    is returned before it has answered."""

    def __init__(self, model: TransformersModel) -> None:
        self.model = model
        self._record = record_of(model)
        self._unchecked: Fingerprint | None = None  # of the session in use, until `seems_valid` has compared it with the model
        self._pending: Checksum | None = None  # of the copied weights, until `is_valid` has its answer

    @property
    def session(self) -> Session | None:
        cached = self._record.session
        return None if cached is None else cached[1]

    @property
    def unchecked(self) -> bool:
        """Whether the session is in use and may belong to an earlier state of the model."""
        return self._unchecked is not None

    def usable(self, verify_now: bool) -> bool:
        """Whether to start the session. It is known to be valid if `verify_now` or if it copies no weights; else it only has to
        be able to read the model's tokens, so that nothing is accessed out of bounds."""
        fingerprint, session = self._record.session
        self._unchecked = self._pending = None
        if fingerprint.checksum is not None and not verify_now and session.weights.can_read(self.model.model):
            self._unchecked = fingerprint
            return True
        seems = fingerprint.seems_to_hold(self.model.modules)
        return seems and (fingerprint.checksum is None or fingerprint.checksum.holds())

    def replace(self, make: Callable[[], Session], copies: bool) -> Session:
        """Keep a new session. `copies`: it copies weights, which get a checksum; else it reads the model's own in place."""
        self.forget()
        fingerprint, session = Fingerprint(self.model.modules), make()
        if copies:
            fingerprint.checksum = Checksum(self.model.model.parameters())
        self._record.session = fingerprint, session
        return session

    def forget(self) -> None:
        self._record.session = self._unchecked = self._pending = None

    def seems_valid(self) -> bool:
        """Compare the model with the one that the session was made of, all but copied weights: their checksum begins here."""
        fingerprint = self._unchecked
        if fingerprint is not None:
            if not fingerprint.seems_to_hold(self.model.modules):
                return False
            self._unchecked, self._pending = None, fingerprint.checksum
        return True

    def is_valid(self) -> bool:
        """Whether the weights still equal the copies. They do not if written where torch does not count it (`.data`)."""
        if self._pending is not None:
            if not self._pending.holds():
                return False
            self._pending = None
        return True
