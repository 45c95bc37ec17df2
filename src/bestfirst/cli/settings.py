"""What a command line asks for: how to decode and with which model, checked before anything slow is loaded."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from .. import __version__
from .failure import reason, say, usage

if TYPE_CHECKING:
    from ..models.transformers import TransformersModel
    from ..search import Result, Trace


@dataclass(frozen=True)
class Decoding:
    """The keyword arguments of `bestfirst.decode`."""

    strategy: str = "best-first"
    beam: int = 5
    finished: str = "leave"
    nbest: int = 1
    max_length: int | None = None
    max_calls: int | None = None
    row_budget: int | None = None
    queue_capacity: int | None = None
    prefix: str | None = None

    def check(self) -> Decoding:
        """Find contradictions now, by beginning a search on nothing: the library's own checks, without a model."""
        from ..scoring import named_score
        from ..search import Context, Search
        from ..strategies import named_strategy

        try:
            plan = named_strategy(self.strategy, beam=self.beam, finished=self.finished)  # type: ignore[arg-type]
            Search(plan, score=named_score("logprob"), eos=(), context=Context(n_max=1), n=self.nbest)
        except ValueError as error:
            raise usage(reason(error)) from error
        return self

    def signature(self, model: TransformersModel) -> str:
        """What makes a result what it is, in one line."""
        dtype = str(model.model.dtype).removeprefix("torch.")
        parts = [
            "bestfirst",
            self.strategy,
            f"k:{self.beam}",
            "score:logprob",
            f"finished:{self.finished}",
            f"model:{model.name}",
        ]
        return "|".join([*parts, f"dtype:{dtype}", f"v:{__version__}"])

    def decode(
        self,
        model: TransformersModel,
        texts: Sequence[str],
        progress: Callable[[int, Result], None] | None = None,
        trace: Callable[[int], Trace | None] | None = None,
    ) -> list[Result]:
        """Decode these texts."""
        from .. import decode

        asked = {name: value for name, value in asdict(self).items() if value is not None}
        return decode(model, texts, progress=progress, trace=trace, **asked)


@dataclass(frozen=True)
class ModelChoice:
    """Which model, and on what it runs."""

    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    source_lang: str | None = None
    target_lang: str | None = None

    def load(self) -> TransformersModel:
        """Load it, without the notices of the libraries it is loaded with."""
        _silence()
        import torch

        from ..models.transformers import load

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        try:
            model = load(
                self.model, device=self.device, dtype=self.dtype, source_lang=self.source_lang, target_lang=self.target_lang
            )
        except Exception as error:  # whatever is wrong with a stranger's model folder
            raise usage(reason(error)) from error
        if model.tokenizer is None:
            raise usage(f"the model {self.model!r} has no tokenizer, so it takes no text; add its tokenizer files")
        return model


def _silence() -> None:
    """Of the libraries below, errors only; of this one, every warning in one line."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.simplefilter("ignore")
    warnings.filterwarnings("default", module="bestfirst")
    warnings.showwarning = lambda message, *_: say(f"warning: {message}")
