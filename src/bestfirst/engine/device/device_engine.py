"""DeviceEngine: runs whole searches on a GPU, and hands jobs that the device does not support to the host's engine."""

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

from ...errors import first_line
from ...models.transformers import TransformersModel
from ...search import Answer, Result
from ...settings import Decoding
from ..engine import BATCH, FIRST_BATCH, Engine, Job, Stats, set_text, text_tokens
from ..logits_edits import NotAnswered, min_length_edits
from ..model_record import record_of
from .cached_session import CachedSession
from .capacity import MOST_INPUTS, Capacity, inputs_for
from .kernels.matmul import power
from .model_check import Way, check_answers
from .modules.own_modules import OwnModules
from .rules import unknown_to_device
from .session import Session
from .state import Shape

WINDOW = 1 << 15  # inputs to request before the first session is sized

_log = logging.getLogger(__name__)


class DeviceEngine:
    """Runs jobs in a `Session`, cached with the model, and unsupported jobs on the engine that `host` makes. If the device fails,
    the host takes what is unfinished, with one warning. Jobs wait in `_waiting`, then, known to fit, in `_ready`."""

    def __init__(self, model: TransformersModel, decoding: Decoding, host: Callable[[], Engine], way: Way) -> None:
        self.model = model
        self.decoding = decoding
        self._make_host = host
        self._host: Engine | None = None
        self._record = record_of(model)
        self._parameter = next(model.model.parameters())  # tells the GPU to use
        self._capacity = Capacity(model, way if isinstance(way, OwnModules) else None)
        self._max_inputs = MOST_INPUTS  # in flight: fewer after an out-of-memory error
        self._cached = CachedSession(model)
        self._session: Session | None = None
        self._waiting: deque[Job] = deque()
        self._ready: deque[Job] = deque()  # the first of those that wait, known to fit into the session
        self._unfinished: dict[Job, None] = {}  # on the device
        self._eos = sorted(model.eos)
        self._last_verdict: tuple[Decoding | None, str | None] = (None, None)
        self._stats = Stats()
        self._broken = False

    def why_not(self, job: Job) -> str | None:
        """Why this job cannot run on the device; None if it can."""
        if job.trace is not None or (job.begin is not None and job.edits is None):
            return "its search is recorded or asked by others"
        if job.edits is not None and not job.decoding.objective.plain:
            return "logits processors at a temperature"
        if job.decoding is not self._last_verdict[0]:  # nearly always the settings of the previous job
            self._last_verdict = (job.decoding, unknown_to_device(job.decoding, self.model.vocabulary))
        return self._last_verdict[1]

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
        """A window of jobs first, to see how large a session is needed; then a batch whenever few are waiting."""
        if self._host is not None and self._broken:
            return self._host.wants
        if len(self._waiting) + len(self._ready) >= BATCH:
            return 0
        if self._cached.session is None:
            return WINDOW
        return BATCH if self._unfinished else FIRST_BATCH

    @property
    def slots(self) -> int:
        return MOST_INPUTS

    @property
    def in_flight(self) -> list[Job]:
        on_device = [] if self._session is None else self._session.jobs()
        return on_device if self._host is None else [*on_device, *self._host.in_flight]

    shares_context = True

    @property
    def pauses(self) -> bool:
        return self._broken or bool(self._host)

    def __bool__(self) -> bool:
        return bool(self._unfinished or self._host)

    def submit(self, *jobs: Job) -> None:
        for_host = []
        for job in jobs:
            why = None if self._broken else self.why_not(job)
            if why is not None:
                _warn_once(why)
            if self._broken or why is not None:
                for_host.append(job)
            else:
                if job.decoding.min_length and job.edits is None:
                    job.edits = min_length_edits(job.decoding.min_length, self._eos_of(job), len(self._capacity.prompt(job)))
                self._unfinished[job] = None
                self._waiting.append(job)
        if for_host:
            self._host = self._host or self._make_host()
            self._host.submit(*for_host)

    def cancel(self, job: Job) -> None:
        if job not in self._unfinished:
            if self._host is None:
                raise ValueError("this job is not in the engine: it is over, or was never submitted")
            self._host.cancel(job)
            return
        del self._unfinished[job]
        for queue in (self._waiting, self._ready):
            if job in queue:
                queue.remove(job)
                return
        if self._session is not None and job in self._session.jobs():
            with torch.cuda.device_of(self._parameter):
                self._session.cancel(job)

    def certified(self, job: Job) -> list[Answer]:
        """Empty until a job on the device is done: partial answers are not fetched."""
        return [] if job in self._unfinished or self._host is None else self._host.certified(job)

    def step(self) -> Iterator[tuple[Job, Result]]:
        if self._unfinished:
            try:
                # Other threads may decode with this model, and reuse its session when this engine has finished.
                with self._record.lock, torch.cuda.device_of(self._parameter):
                    done = self._step_on_device()
            except (ValueError, NotAnswered) as error:
                done = []
                if self._valid_or_restart(self._cached.is_valid):  # else the error was that of a stale session
                    self._cached.forget()
                    self._session = None
                    raise error.error if isinstance(error, NotAnswered) else error from None
            except torch.OutOfMemoryError as error:
                done = []
                self._retry_with_fewer(error)
            except Exception as error:  # a compiler or driver fails: the host can run the searches
                done = []
                self._restart() if self._cached.unchecked else self._fall_back_to_host(error)
            done = [(job, result) for job, result in done if job in self._unfinished]  # some may have been cancelled
            self._write_texts(done)
            for job, _ in done:
                del self._unfinished[job]
            self._stats.calls += sum([result.calls for _, result in done])
            self._stats.drafted += sum([result.drafted for _, result in done])
            self._stats.accepted += sum([result.accepted for _, result in done])
            yield from done
        if self._host:
            yield from self._host.step()

    # -- on the device -----------------------------------------------------------------------------------------------------

    def _step_on_device(self) -> list[tuple[Job, Result]]:
        """One step of the session, opening one if necessary; returns no results until the session is known to be valid."""
        session = self._session
        if session is None or session.owner() is not self or (not session and not self._ready and self._waiting):
            session = self._open_session()
        while self._waiting and len(self._ready) < BATCH and self._queue_next(session):
            pass
        done = session.step(self._ready, partial(self._valid_or_restart, self._cached.seems_valid))
        if self._session is None or (done and not self._valid_or_restart(self._cached.is_valid)):
            return []
        if done and not session.checked:
            check_answers(self.model, *done[0])
            session.checked = True
        return done

    def _valid_or_restart(self, check: Callable[[], bool]) -> bool:
        """Whether this check of the session holds; if not, all unfinished jobs restart in a new session."""
        if check():
            return True
        self._restart()
        return False

    def _restart(self) -> None:
        """Forget the session; all unfinished jobs wait for a new one."""
        self._cached.forget()
        self._session = None
        self._ready.clear()
        self._waiting = deque(self._unfinished)

    def _queue_next(self, session: Session) -> bool:
        """Move the next group of jobs to `_ready`. Not if it does not fit the session, or so many wait that a larger one pays."""
        if self._inputs_for(self._waiting) > session.target_inputs < self._inputs_for(self._capacity.compatible(self._waiting)):
            return False
        group = self._next_group()
        if not group or session.key != self._session_key(group[0]) or not session.shape.fits(self._capacity.needs(group)):
            return False
        for _ in group:
            self._ready.append(self._waiting.popleft())
        return True

    def _eos_of(self, job: Job) -> list[int]:
        """The tokens that end this job's outputs."""
        return self._eos if job.decoding.eos is None else [*job.decoding.eos]  # type: ignore[misc]

    def _session_key(self, job: Job) -> tuple[Any, ...]:
        """What all jobs of a session must have in common until it is empty."""
        settings = job.decoding
        return self._capacity.prompt(job), self._capacity.drafts(job), settings.deterministic, settings.eos, settings.allowed

    def _next_group(self) -> list[Job]:
        """The first waiting jobs, as far as they can be in one session."""
        if not self._waiting:
            return []
        first = self._waiting[0]
        key, prompt_of = self._session_key(first), self._capacity.prompt

        def same_key(job: Job) -> bool:  # nearly always settled by the prompt
            same = job.decoding is first.decoding and job.edits is first.edits
            return prompt_of(job) == key[0] if same else self._session_key(job) == key

        return list(takewhile(same_key, islice(self._waiting, BATCH)))

    def _open_session(self) -> Session:
        """A session for the next jobs: the one cached with the model if it is free and suitable, else a new one."""
        self._close_session()
        self._waiting.extendleft(reversed(self._ready))
        self._ready.clear()
        group = self._next_group()
        first, needs, session = group[0], self._capacity.needs(group), self._cached.session
        expected = self._capacity.compatible(self._waiting)
        owner = None if session is None else session.owner()
        if owner is not None and owner is not self and owner:
            session = None  # another engine is using it
        elif owner is not None:
            owner._close_session()  # it has no jobs left there; adds the costs to its stats
        calls_python = (edits := first.edits) is not None and edits.callback is not None  # with side effects: not to be run twice
        fits = session is not None and self._suits(session, needs, self._inputs_for(expected))
        if not fits or not self._cached.usable(verify_now=calls_python):
            session = self._cached.replace(partial(self._new_session, expected, session), copies=self._capacity.modules is None)
        assert session is not None
        session.owner, session.key = ref(self), self._session_key(first)
        engine = session.owner
        trie: Any = first.decoding.allowed
        session.begin(self._eos_of(first), self.model.banned, self._capacity.prompt(first), trie)
        session.python_edits = edits if calls_python else None
        session.admission.encode = lambda prompts: engine().model.encode(prompts)  # type: ignore[union-attr]
        self._session = session
        return session

    def _suits(self, session: Session, needs: Shape, inputs: int) -> bool:
        """Whether needs and inputs fit, and the beams are not so much wider that a smaller session would be faster."""
        shape, decoding = session.shape, self._waiting[0].decoding
        fits = shape.fits(needs) and power(shape.k) <= max(16, 2 * power(needs.k))
        same_kind = session.fixed is decoding.deterministic and session.drafts == self._capacity.drafts(self._waiting[0])
        return fits and same_kind and session.target_inputs >= inputs

    def _inputs_for(self, jobs: Sized) -> int:
        """How many inputs at a time a session for these jobs should take."""
        return min(inputs_for(len(jobs)), self._max_inputs)

    def _close_session(self) -> None:
        """Add the session's costs to the stats and let go of it."""
        if self._session is not None and self._session.owner() is self:
            self._stats.add(self._session.costs)
        self._session = None

    def _retry_with_fewer(self, error: torch.OutOfMemoryError) -> None:
        """Out of memory: restart with half as many inputs at a time; on the host if that was one."""
        most = min(self._max_inputs, MOST_INPUTS if self._session is None else self._session.shape.inputs)
        if most == 1:
            self._fall_back_to_host(error)
            return
        self._max_inputs = most // 2
        self._restart()
        error.__traceback__ = None  # frees the tensors of its frames
        gc.collect()
        torch.cuda.empty_cache()

    def _fall_back_to_host(self, error: Exception) -> None:
        """Give up on the device: warn, and submit all unfinished jobs to the host."""
        self._restart()
        self._broken = True
        warnings.warn(
            f"decoding on the device failed ({type(error).__name__}: {first_line(error)}): "
            "falling back to a slower path. Results are the same.",
            stacklevel=2,
        )
        left, self._waiting = self._waiting, deque()
        self._unfinished.clear()
        self.submit(*left)

    def _write_texts(self, done: Sequence[tuple[Job, Result]]) -> None:
        """Detokenize all answers of these results together."""
        if not done or self.model.tokenizer is None:
            return
        answers = [(job, each) for job, result in done for each in (*result.hypotheses, result.partial) if each is not None]
        texts = self.model.texts_of(
            [(job.source.payload, text_tokens(answer, job.decoding, self._eos_of(job))) for job, answer in answers]
        )
        for (job, answer), text in zip(answers, texts, strict=True):
            set_text(answer, job.decoding, self._eos_of(job), text)

    def _new_session(self, jobs: Sequence[Job], previous: Session | None) -> Session:
        """A session for these jobs, or for fewer if memory is refused. If the beams of `previous` would do, its inputs and
        lengths are kept, since such jobs may come again."""
        capacity, wanted, previous_shape = self._capacity, self._inputs_for(jobs), None
        drafts = capacity.drafts(jobs[0])
        if previous is not None and previous.drafts == drafts and previous.shape.fits_beams_of(capacity.needs(jobs)):
            wanted, previous_shape = max(wanted, min(previous.target_inputs, self._max_inputs)), previous.shape
        own = () if capacity.modules is None else (drafts or capacity.modules, capacity.step_class(drafts))
        more: dict[str, Any] = {"fixed": True} if jobs[0].decoding.deterministic else {}
        inputs = wanted
        while True:
            try:
                session = Session(self.model.model, capacity.shape_for(jobs, inputs, previous_shape), *own, **more)
                session.drafts, session.target_inputs = drafts, wanted
                return session
            except torch.OutOfMemoryError:  # halve the inputs
                if inputs == 1:
                    raise
                inputs = ceil(inputs / 2)
                torch.cuda.empty_cache()


@cache
def _warn_once(why: str) -> None:
    _log.warning("the searches of the device do not know %s: such jobs run on the host", why)
