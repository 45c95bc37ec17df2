"""DeviceEngine: whole searches on a GPU; what the device cannot do goes to the host's engine."""

from __future__ import annotations

import gc
import logging
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import replace
from functools import cache, partial
from itertools import islice, takewhile
from math import ceil
from typing import Any
from weakref import ref

import torch

from ...models.transformers import TransformersModel
from ...search import Answer, Result
from ...settings import Decoding
from ..engine import Engine, Job, Stats, set_text, text_tokens
from ..logits_edits import NotAnswered, min_length_edits
from ..model_record import record_of
from .cached_session import CachedSession
from .capacity import MOST_INPUTS, Capacity, room_for
from .kernels.matmul import power
from .model_check import Way, check_answers
from .modules.own_modules import OwnModules
from .rules import unknown_to_device
from .session import Session
from .state import Shape

BATCH = 512  # inputs that are read together,
FIRST = 320  # and at first, when the device waits for them: more than fit into a small room, for they tell which is needed
WINDOW = 1 << 15  # inputs that are read before it is decided how much room is needed

_log = logging.getLogger(__name__)


class DeviceEngine:
    """Runs jobs in a session on the model's device, and those that it cannot do on the engine that `host` makes.

    If the device fails, the host does what is not done, with one warning.
    """

    def __init__(self, model: TransformersModel, decoding: Decoding, host: Callable[[], Engine], way: Way) -> None:
        self.model = model
        self.decoding = decoding
        self._make_host = host
        self._host: Engine | None = None
        self._known = record_of(model)
        self._there = next(model.model.parameters())  # on the GPU whose kernels and events these are
        self._room = Capacity(model, way if isinstance(way, OwnModules) else None)
        self._most = MOST_INPUTS  # in flight: fewer, once memory was refused
        self._kept = CachedSession(model)
        self._session: Session | None = None
        self._waiting: deque[Job] = deque()
        self._fitting: deque[Job] = deque()  # those that wait and are known to fit into the session
        self._unfinished: dict[Job, None] = {}  # here, not on the host
        self._eos = sorted(model.eos)
        self._judged: tuple[Decoding | None, str | None] = (None, None)
        self._stats = Stats()
        self._broken = False

    def why_not(self, job: Job) -> str | None:
        """Why this job cannot run on the device; None if it can."""
        if job.trace is not None or (job.begin is not None and job.edits is None):
            return "its search is recorded or asked by others"
        if job.edits is not None and not job.decoding.objective.plain:
            return "logits processors at a temperature"
        if job.decoding is not self._judged[0]:  # nearly always that of the job before
            self._judged = (job.decoding, unknown_to_device(job.decoding, self.model.vocabulary))
        return self._judged[1]

    # -- the engine's interface --------------------------------------------------------------------------------------------

    @property
    def stats(self) -> Stats:
        total = replace(self._stats)
        if self._session is not None:
            total.add(self._session.costs)
        if self._host is not None:
            total.add(self._host.stats)
        return total

    @property
    def wants(self) -> int:
        """The first time a window, to see how much room is needed; after that a batch whenever few wait."""
        if self._host is not None and self._broken:
            return self._host.wants
        if len(self._waiting) + len(self._fitting) >= BATCH:
            return 0
        if self._kept.session is None:
            return WINDOW
        return BATCH if self._unfinished else FIRST

    @property
    def slots(self) -> int:
        return MOST_INPUTS

    @property
    def in_flight(self) -> list[Job]:
        """The jobs that share the next forward pass."""
        mine = [] if self._session is None else self._session.jobs()
        return mine if self._host is None else [*mine, *self._host.in_flight]

    shares_context = True

    @property
    def pauses(self) -> bool:
        return self._broken or bool(self._host)

    def __bool__(self) -> bool:
        return bool(self._unfinished or self._host)

    def submit(self, *jobs: Job) -> None:
        others = []
        for job in jobs:
            why = None if self._broken else self.why_not(job)
            if why is not None:
                _say_once(why)
            if self._broken or why is not None:
                others.append(job)
            else:
                if job.decoding.min_length and job.edits is None:
                    job.edits = min_length_edits(job.decoding.min_length, self._ends(job), len(self._room.start(job)))
                self._unfinished[job] = None
                self._waiting.append(job)
        if others:
            self._host = self._host or self._make_host()
            self._host.submit(*others)

    def cancel(self, job: Job) -> None:
        if job not in self._unfinished:
            if self._host is None:
                raise ValueError("this job is not in the engine: it is over, or was never submitted")
            self._host.cancel(job)
            return
        del self._unfinished[job]
        for queue in (self._waiting, self._fitting):
            if job in queue:
                queue.remove(job)
                return
        if self._session is not None and job in self._session.jobs():
            with torch.cuda.device_of(self._there):
                self._session.cancel(job)

    def certified(self, job: Job) -> list[Answer]:
        """None before a job is done: answers are looked at when they are final."""
        return [] if job in self._unfinished or self._host is None else self._host.certified(job)

    def step(self) -> Iterator[tuple[Job, Result]]:
        if self._unfinished:
            try:
                # Other threads may decode with this model, in its session when this engine is done.
                with self._known.lock, torch.cuda.device_of(self._there):
                    found = self._step()
            except (ValueError, NotAnswered) as error:
                found = []
                if self._believed(self._kept.holds):  # else it was another model's
                    self._kept.forget()
                    self._session = None
                    raise error.error if isinstance(error, NotAnswered) else error from None
            except torch.OutOfMemoryError as error:
                found = []
                self._with_fewer(error)
            except Exception as error:  # a compiler or a driver that refuses: the searches can be run elsewhere
                found = []
                self._begin_again() if self._kept.unseen else self._fall_back(error)
            found = [(job, result) for job, result in found if job in self._unfinished]  # it may have been cancelled since
            self._write(found)
            for job, _ in found:
                del self._unfinished[job]
            self._stats.calls += sum([result.calls for _, result in found])
            self._stats.drafted += sum([result.drafted for _, result in found])
            self._stats.accepted += sum([result.accepted for _, result in found])
            yield from found
        if self._host:
            yield from self._host.step()

    # -- on the device -----------------------------------------------------------------------------------------------------

    def _step(self) -> list[tuple[Job, Result]]:
        session = self._session
        if session is None or session.owner() is not self or (not session and not self._fitting and self._waiting):
            session = self._open()
        while self._waiting and len(self._fitting) < BATCH and self._take(session):
            pass
        found = session.step(self._fitting, partial(self._believed, self._kept.seems_to_hold))
        if self._session is None or (found and not self._believed(self._kept.holds)):
            return []
        if found and not session.checked:
            check_answers(self.model, *found[0])
            session.checked = True
        return found

    def _believed(self, asked: Callable[[], bool]) -> bool:
        """Whether the session is this model's, as far as is asked; if not, all begin again."""
        if asked():
            return True
        self._begin_again()
        return False

    def _begin_again(self) -> None:
        """In a new session, with those that are not done."""
        self._kept.forget()
        self._session = None
        self._fitting.clear()
        self._waiting = deque(self._unfinished)

    def _take(self, session: Session) -> bool:
        """Let the next come behind those that fit. If they do not, or are many more than it is made for, they wait."""
        if self._wanted(self._waiting) > session.meant_for < self._wanted(self._room.alike(self._waiting)):
            return False
        some = self._next()
        if not some or session.kind != self._kind(some[0]) or not session.shape.fits(self._room.needs(some)):
            return False
        for _ in some:
            self._fitting.append(self._waiting.popleft())
        return True

    def _ends(self, job: Job) -> list[int]:
        """The tokens that end its outputs."""
        return self._eos if job.decoding.eos is None else [*job.decoding.eos]  # type: ignore[misc]

    def _kind(self, job: Job) -> tuple[Any, ...]:
        """What all jobs of a session have in common until it is empty."""
        mine = job.decoding
        return self._room.start(job), self._room.drafts(job), mine.deterministic, mine.eos, mine.allowed

    def _next(self) -> list[Job]:
        """Some of those that wait, which can be together in a session."""
        if not self._waiting:
            return []
        first = self._waiting[0]
        kind, start_of = self._kind(first), self._room.start

        def alike(job: Job) -> bool:  # nearly always by the first line
            same = job.decoding is first.decoding and job.edits is first.edits
            return start_of(job) == kind[0] if same else self._kind(job) == kind

        return list(takewhile(alike, islice(self._waiting, BATCH)))

    def _open(self) -> Session:
        """A session with room for the next jobs: the one kept from the last decode, if nobody uses it and it fits."""
        self._close()
        self._waiting.extendleft(reversed(self._fitting))
        self._fitting.clear()
        some = self._next()
        alike, needs, session = self._room.alike(self._waiting), self._room.needs(some), self._kept.session
        owner = None if session is None else session.owner()
        if owner is not None and owner is not self and owner:
            session = None  # another engine is at work there
        elif owner is not None:
            owner._close()  # it has no jobs there any more, and keeps what they cost
        asks = (edits := some[0].edits) is not None and edits.callback is not None  # which nobody is to be a second time
        fits = session is not None and self._suits(session, needs, self._wanted(alike))
        if not fits or not self._kept.usable(at_once=asks):
            session = self._kept.replace(partial(self._new, alike, session), copies=self._room.modules is None)
        assert session is not None
        session.owner, session.kind = ref(self), self._kind(some[0])
        engine = session.owner
        trie: Any = some[0].decoding.allowed
        session.begin(self._ends(some[0]), self.model.banned, self._room.start(some[0]), trie)
        session.asking = edits if asks else None
        session.admission.encode = lambda prompts: engine().model.encode(prompts)  # type: ignore[union-attr]
        self._session = session
        return session

    def _suits(self, session: Session, needs: Shape, inputs: int) -> bool:
        """Whether there is room, for as many inputs too, and not so much for wider beams that a smaller session is faster."""
        shape, decoding = session.shape, self._waiting[0].decoding
        fits = shape.fits(needs) and power(shape.k) <= max(16, 2 * power(needs.k))
        alike = session.fixed is decoding.deterministic and session.drafts == self._room.drafts(self._waiting[0])
        return fits and alike and session.meant_for >= inputs

    def _wanted(self, jobs: Sized) -> int:
        """Inputs that a session for these jobs should take at a time."""
        return min(room_for(len(jobs)), self._most)

    def _close(self) -> None:
        """Count what the session cost."""
        if self._session is not None and self._session.owner() is self:
            self._stats.add(self._session.costs)
        self._session = None

    def _with_fewer(self, error: torch.OutOfMemoryError) -> None:
        """Begin again those that are not done, half as many at a time."""
        most = min(self._most, MOST_INPUTS if self._session is None else self._session.shape.inputs)
        if most == 1:
            self._fall_back(error)
            return
        self._most = most // 2
        self._begin_again()
        error.__traceback__ = None  # what it names is to be freed
        gc.collect()
        torch.cuda.empty_cache()

    def _fall_back(self, error: Exception) -> None:
        self._begin_again()
        self._broken = True
        warnings.warn(
            f"decoding on the device failed ({type(error).__name__}: {str(error).strip().split(chr(10))[0]}): "
            "falling back to a slower path. Results are the same.",
            stacklevel=2,
        )
        left, self._waiting = self._waiting, deque()
        self._unfinished.clear()
        self.submit(*left)

    def _write(self, found: Sequence[tuple[Job, Result]]) -> None:
        """Give all answers their texts, in one go."""
        if not found or self.model.tokenizer is None:
            return
        answers = [(job, each) for job, result in found for each in (*result.hypotheses, result.partial) if each is not None]
        texts = self.model.texts_of(
            [(job.source.payload, text_tokens(answer, job.decoding, self._ends(job))) for job, answer in answers]
        )
        for (job, answer), text in zip(answers, texts, strict=True):
            set_text(answer, job.decoding, self._ends(job), text)

    def _new(self, jobs: Sequence[Job], before: Session | None) -> Session:
        """For these jobs; no smaller than the one before, if its beams would do: as many inputs, and as long, may come again."""
        room, wanted, like = self._room, self._wanted(jobs), None
        drafts = room.drafts(jobs[0])
        if before is not None and before.drafts == drafts and before.shape.holds_beams_of(room.needs(jobs)):
            wanted, like = max(wanted, min(before.meant_for, self._most)), before.shape
        own = () if room.modules is None else (drafts or room.modules, room.step(drafts))
        more: dict[str, Any] = {"fixed": True} if jobs[0].decoding.deterministic else {}
        inputs = wanted
        while True:
            try:
                session = Session(self.model.model, room.roomy(jobs, inputs, like), *own, **more)
                session.drafts, session.meant_for = drafts, wanted
                return session
            except torch.OutOfMemoryError:  # fewer at a time
                if inputs == 1:
                    raise
                inputs = ceil(inputs / 2)
                torch.cuda.empty_cache()


@cache
def _say_once(why: str) -> None:
    _log.warning("the searches of the device do not know %s: such jobs run on the host", why)
