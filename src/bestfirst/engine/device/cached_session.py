"""CachedSession: a session that is reused by the next decode of the same model, after a check that the weights are the same."""

from __future__ import annotations

from collections.abc import Callable

from ...models.transformers import TransformersModel
from ..model_record import record_of
from ..steps.checksum import Checksum
from ..steps.step_choice import Fingerprint
from .session import Session


class CachedSession:
    """A model's session, as one engine uses it. Where it has copies of the weights it is run at once: whether they are the
    model's is looked at while the device works (`seems_to_hold`), and known before anything is told (`holds`)."""

    def __init__(self, model: TransformersModel) -> None:
        self.model = model
        self._known = record_of(model)
        self._unseen: Fingerprint | None = None  # of the model that it was made of, while nobody has looked at it
        self._unproven: Checksum | None = None  # of the weights that it has copies of, while that is not known to hold

    @property
    def session(self) -> Session | None:
        kept = self._known.session
        return None if kept is None else kept[1]

    @property
    def unseen(self) -> bool:
        """Whether it is used, and may be another model's."""
        return self._unseen is not None

    def usable(self, at_once: bool) -> bool:
        """Whether it is of the model as it is now. Unless that is to be known `at_once`, it may turn out later that it is not;
        until then it can be run, whatever the model has become."""
        fingerprint, session = self._known.session
        self._unseen = self._unproven = None
        if fingerprint.checksum is not None and not at_once and session.weights.reads_for(self.model.model):
            self._unseen = fingerprint
            return True
        seems = fingerprint.seems_to_hold(self.model.modules)
        return seems and (fingerprint.checksum is None or fingerprint.checksum.holds())

    def replace(self, make: Callable[[], Session], copies: bool) -> Session:
        """Keep another one instead. `copies`: it has some of the weights; else it reads the model's own, in their places."""
        self.forget()
        fingerprint, session = Fingerprint(self.model.modules), make()
        if copies:
            fingerprint.checksum = Checksum(self.model.model.parameters())
        self._known.session = fingerprint, session
        return session

    def forget(self) -> None:
        self._known.session = self._unseen = self._unproven = None

    def seems_to_hold(self) -> bool:
        """Look whether it is made of the model as it is now; weights that it has copies of are read from now on."""
        looked = self._unseen
        if looked is not None:
            if not looked.seems_to_hold(self.model.modules):
                return False
            self._unseen, self._unproven = None, looked.checksum
        return True

    def holds(self) -> bool:
        """Whether the weights that were read are those that it has copies of. If not, somebody has changed them where torch does
        not count it."""
        if self._unproven is not None:
            if not self._unproven.holds():
                return False
            self._unproven = None
        return True
