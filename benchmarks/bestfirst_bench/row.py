"""Row: the output and costs of one setting on one line of a text. Tables and plots are functions of rows alone.

A `Store` is a file of such results, appended one at a time, so that an interrupted run can be continued.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from bestfirst import __version__
from bestfirst.decoding import decode
from bestfirst.durable_files import Journal
from bestfirst.search import Result

from .certificate import FullBeams, certificate_for
from .setting import Setting, read_setting

if TYPE_CHECKING:
    from bestfirst.models.transformers import TransformersModel


@dataclass(frozen=True)
class Pair:
    """A line of a text: its number in the file, from 1, the text, and its reference translation."""

    line: int
    source: str
    reference: str | None = None


@dataclass(frozen=True)
class ParallelText:
    """Lines, with references if there are any, and a unique name: the file's name and a digest."""

    name: str
    pairs: tuple[Pair, ...]

    @classmethod
    def of(cls, name: str, sources: Sequence[str], references: Sequence[str] | None = None) -> ParallelText:
        """All lines that are not blank, with their original numbers; as many lines as references, if there are any."""
        digest = sha256("\n".join([*sources, "", *(references or [])]).encode()).hexdigest()[:8]
        expected: Sequence[str | None] = references or [None] * len(sources)
        pairs = [Pair(line, *pair) for line, pair in enumerate(zip(sources, expected, strict=True), 1) if pair[0].strip()]
        return cls(f"{name}@{digest}", tuple(pairs))

    def part(self, limit: int | None = None, sample: int | None = None, seed: int = 0) -> ParallelText:
        """The first `limit` lines; of these, a random `sample`. A larger sample with the same seed contains a smaller one."""
        pairs = list(self.pairs[:limit])
        if sample is not None:
            random.Random(seed).shuffle(pairs)
            pairs = sorted(pairs[:sample], key=lambda pair: pair.line)
        return replace(self, pairs=tuple(pairs))


# -- saved results -------------------------------------------------------------------------------------------------------

AnySaved = TypeVar("AnySaved", bound="Saved")


class Saved:
    """Base of the dataclasses in a `Store`: saved as one line of JSON. The fields named by `keys` are unique in the file."""

    kind: ClassVar[str]
    writer: ClassVar[str] = "bestfirst bench"
    keys: ClassVar[tuple[str, ...]]
    model: str

    @property
    def key(self) -> Hashable:
        return tuple(getattr(self, name) for name in self.keys)

    def dump(self) -> str:
        """As a line of JSON."""
        fields = {"kind": f"bestfirst bench {self.kind}", **vars(self)}
        return json.dumps(fields, ensure_ascii=False, default=Setting.json) + "\n"

    @classmethod
    def load(cls: type[AnySaved], text: str | bytes) -> AnySaved:
        """The result in a line of JSON, of this kind or one below it. ValueError if it is of another."""
        kinds = {f"bestfirst bench {each.kind}": each for each in (cls, *cls.__subclasses__())}
        try:
            fields: dict[str, Any] = json.loads(text)
            kind = kinds[fields.pop("kind")]
            if "setting" in fields:
                fields["setting"] = read_setting(json.dumps(fields["setting"]))
            return kind(**fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a {cls.kind} that {cls.writer} wrote") from error


BEGIN = b'{"kind": "bestfirst bench '


class OtherModel(ValueError):
    """The file holds results of another model."""


def read(kind: type[AnySaved], paths: Iterable[Path]) -> list[AnySaved]:
    """All results in these files, each key once. ValueError names the file and line that is not a result."""
    records: dict[Hashable, AnySaved] = {}
    for path in paths:
        *whole, torn = path.read_bytes().split(b"\n")
        for record in _parse(kind, whole, torn, path):
            records.setdefault(record.key, record)
    return list(records.values())


def _parse(kind: type[AnySaved], whole: Iterable[bytes], torn: bytes, path: Path) -> Iterator[AnySaved]:
    """The results in these lines. `torn`, an incomplete last line, is skipped if it is the start of a result."""
    incomplete = torn.startswith(BEGIN[: len(torn)])
    for number, line in enumerate([*whole, *([] if incomplete else [torn])], 1):
        try:
            yield kind.load(line)
        except ValueError as error:
            raise ValueError(f"{str(path)!r}, line {number}: {error}") from error


class Store(Generic[AnySaved]):
    """Results of one model in a file, which one run at a time may write to. A file with other content is refused, not changed."""

    def __init__(self, kind: type[AnySaved], path: Path, model: str) -> None:
        self.kind = kind
        self.path = path
        self.model = model
        self.records: dict[Hashable, AnySaved] = {}

    def __enter__(self) -> Store[AnySaved]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._journal = Journal(self.path)
        except BlockingIOError:
            raise ValueError(f"another run is writing to {str(self.path)!r}; wait for it, or name another file") from None
        try:
            for record in _parse(self.kind, self._journal.lines(), self._journal.torn, self.path):
                if record.model != self.model:
                    other = f"{str(self.path)!r} has results of the model {record.model}, not of {self.model}"
                    raise OtherModel(f"{other}; name another file")
                self.records.setdefault(record.key, record)
        except BaseException:
            self._journal.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._journal.close()

    def __contains__(self, key: Hashable) -> bool:
        return key in self.records

    def add(self, record: AnySaved) -> None:
        """Append a result; when this returns, it is with the operating system, not necessarily on the disk."""
        self._journal.append(record.dump().encode("utf-8"), sync=False)
        self.records[record.key] = record


@dataclass(frozen=True)
class Row(Saved):
    """One line of the text decoded with one setting.

    `output` and its `score` (by which it was ranked) are None if nothing finished within n_max. `least` is the fewest calls with
    which any search can return this beam search's answers (`certificate.py`), if known; it is a lower bound unless
    `least_proven`. `seconds` is the time since the previous row was done: its mean is the time of a line, and for lines decoded
    alone it is the line's own.
    """

    kind, keys = "row", ("signature", "line")

    signature: str
    model: str
    text: str
    setting: Setting
    line: int
    source: str
    reference: str | None
    source_length: int
    output: str | None
    length: int  # tokens of the output, EOS included
    score: float | None
    calls: int
    lm_calls: int
    rows: int
    steps: int
    exact: bool
    seconds: float
    device: str
    date: str
    least: int | None = None
    least_proven: bool = True

    @property
    def surprise(self) -> float | None:
        """Minus the average score of a token: how uncertain the model was of its output."""
        return None if self.score is None else -self.score / self.length


# -- making rows ---------------------------------------------------------------------------------------------------------

RowProgress = Callable[[Setting, int], None]
"""Called with 0 when a setting begins, and with 1 for each row that is done."""


class Benchmark:
    """Runs settings on the lines of texts, with one model, and a language model for scores that need one."""

    def __init__(self, model: TransformersModel, language_model: TransformersModel | None = None) -> None:
        self.model = model
        self.language_model = language_model
        self.name = identity(model)
        self._lm_name = None if language_model is None else identity(language_model)

    def signature(self, setting: Setting, text: ParallelText) -> str:
        """Everything that a row depends on except its line."""
        models = f"model:{self.name}" + (f"|lm:{self._lm_name}" if setting.needs_language_model else "")
        return f"bestfirst|{setting.signature}|text:{text.name}|{models}|dtype:{self.model.dtype_name}|v:{__version__}"

    def missing(self, setting: Setting, text: ParallelText, store: Store[Row]) -> list[Pair]:
        """The lines that have no row yet."""
        signature = self.signature(setting, text)
        return [pair for pair in text.pairs if (signature, pair.line) not in store]

    def run(self, settings: Iterable[Setting], text: ParallelText, store: Store[Row], progress: RowProgress) -> Mapping[int, str]:
        """Make the missing rows, saving each at once. Returns the errors of lines that could not be decoded, by line."""
        failures: dict[int, str] = {}
        for setting in settings:
            progress(setting, 0)
            pairs = self.missing(setting, text, store)
            for group in [[pair] for pair in pairs] if setting.alone else [pairs]:
                self._decode(setting, text, group, store, progress, failures)
        return failures

    def _decode(
        self,
        setting: Setting,
        text: ParallelText,
        pairs: Sequence[Pair],
        store: Store[Row],
        progress: RowProgress,
        failures: dict[int, str],
    ) -> None:
        signature, device = self.signature(setting, text), device_name(self.model)
        asked = setting.with_language_model(self.language_model)
        # Lines decoded alone are timed, so they are not traced for the certificate.
        kind = None if setting.alone else certificate_for(asked.plan, asked.objective, asked.nbest)
        beams: dict[int, FullBeams] = {}
        before = perf_counter()

        def trace(index: int) -> FullBeams:
            beams[index] = kind()  # type: ignore[misc]
            return beams[index]

        def done(index: int, result: Result) -> None:
            nonlocal before
            now = perf_counter()
            pair, followed = pairs[index], beams.pop(index, None)
            result.trace = None  # frees the beams of this line
            progress(setting, 1)
            if result.status == "error":
                failures[pair.line] = result.message or ""
                return
            best = result.hypotheses[0] if result.hypotheses else None
            store.add(
                Row(
                    signature=signature,
                    model=self.name,
                    text=text.name,
                    setting=setting,
                    **vars(pair),
                    source_length=self.model.source_length(pair.source),
                    output=None if best is None else best.text,
                    length=0 if best is None else len(best.tokens),
                    score=None if best is None else best.score,
                    **{name: getattr(result, name) for name in ("calls", "lm_calls", "rows", "steps", "exact")},
                    seconds=round(now - before, 6),
                    device=device,
                    date=date.today().isoformat(),
                    least=None if followed is None else followed.least(),
                    least_proven=followed is None or followed.proven,
                )
            )
            before = perf_counter()

        decode(self.model, [pair.source for pair in pairs], asked, progress=done, trace=None if kind is None else trace)


def identity(model: TransformersModel) -> str:
    """The model's name and a digest of its weights: of every parameter's shape and of values spread over it."""
    digest = sha256()
    samples = []
    for parameter in model.model.parameters():
        values = parameter.detach().flatten()
        values = values[:: max(1, len(values) // 256)][:256].double().cpu()
        samples.append((tuple(parameter.shape), values.numpy().tobytes()))
    for shape, sample in sorted(samples):
        digest.update(f"{shape}".encode() + sample)
    return f"{model.name}@{digest.hexdigest()[:8]}"


def device_name(model: TransformersModel) -> str:
    """The device of the model: a GPU's name, or "cpu"."""
    import torch

    device = model.model.device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device.type)
