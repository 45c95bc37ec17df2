"""bestfirst tune: which setting to use on a model and text, and what it loses."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Annotated

from bestfirst.cli import options as common
from bestfirst.cli.console import PARTLY, say, usage, usage_errors
from bestfirst.cli.options import DTYPES, MODEL, option
from bestfirst.corpus.records import to_json

from .. import tune as tuning
from ..bootstrap import LIBRARIES, LineMetric
from ..race import Race, TuneResult
from ..row import Benchmark
from ..tune import (
    Advice,
    CostLimit,
    Point,
    Tuning,
    advise,
    command,
    finalists,
    pareto,
    point_of,
    stopped_table,
    tune_plot,
    tune_table,
)
from . import bench_options as options
from .bench_options import OUT, RUN, BenchModelOptions, SampleOptions, named_metrics, numbers
from .measured_work import check_plot, load_models, read_text, save_plot, saving, show, show_progress

METRICS = "chrf,bleu"
COST = re.compile(r"(\d+\.?\d*|\.\d+) ?(ms|calls)")


def cost_limit(value: object) -> CostLimit:
    """Parse `5ms` or `30calls`."""
    match = COST.fullmatch(str(value))
    if match is None:
        raise usage(f"--budget is what a line may cost, such as 5ms or 30calls, got {str(value)!r}")
    return CostLimit(float(match[1]), match[2])


@dataclass(frozen=True)
class GridOptions:
    """Which settings to compare."""

    # fmt: off
    beam: options.Beams = "1,2,3,4,5,6,8,10"
    length_penalty: Annotated[str, option(metavar="A,...", panel=RUN,
        help="Exponents of the length that scores are divided by.")] = "0,0.6,1"
    length_reward: Annotated[str, option(metavar="B,...", panel=RUN,
        help="Added for each token, up to the length to be expected; '' for none.")] = "0.2,0.5,1"
    stop: Annotated[str, option(metavar="RULE,...", panel=RUN,
        help="For length penalties: exact (proven), hf-false, hf-true, hf-never, huang, ...")] = "exact,hf-false,hf-true"
    ratio: Annotated[float | None, option(kind=common.number, metavar="R", panel=RUN,
        help="Tokens to be expected for one of the input. By default the references'.")] = None
    max_length: common.MaxLength = None
    dtypes: Annotated[str | None, option(metavar="NAME,...", panel=MODEL,
        help=f"Time the finalists in these too: {', '.join(DTYPES)}.")] = None

    # fmt: on

    def others(self, main: str) -> list[str]:
        """The dtypes other than the main one."""
        names = [name for name in (self.dtypes or "").split(",") if name]
        if unknown := [name for name in names if name not in DTYPES]:
            raise usage(f"--dtypes: {unknown[0]!r} is not one of {', '.join(DTYPES)}")
        return [name for name in dict.fromkeys(names) if name != main]

    def settings(self, ratio: float) -> list[tuning.Setting]:
        """All combinations as settings."""
        penalties, rewards = (
            _numbers(given, name) for given, name in ((self.length_penalty, "penalty"), (self.length_reward, "reward"))
        )
        stops = [name for name in self.stop.split(",") if name]
        with usage_errors():
            return tuning.grid(numbers(self.beam), penalties, rewards, stops, ratio, max_length=self.max_length)


def _numbers(text: str, name: str) -> list[float]:
    with suppress(ValueError):
        if all(map(isfinite, found := [float(part) for part in text.split(",") if part])):
            return found
    raise usage(f"--length-{name} takes numbers separated by commas, got {text!r}")


def tune(
    source: options.Source,
    which: SampleOptions,
    grid: GridOptions,
    chosen: BenchModelOptions,
    reference: options.Reference = None,
    budget: Annotated[str | None, option(metavar="COST", panel=RUN,
        help="What a line may cost: 5ms, 30calls. By default half of the defaults' time.")] = None,
    margin: Annotated[float, option(kind=common.number, metavar="P", panel=RUN,
        help="Points of the metric that are no loss.")] = 0.5,
    repeat: options.Repeat = 2,
    metrics: Annotated[str, option(metavar="NAME,...", panel=OUT,
        help=f"Of {', '.join(LIBRARIES)}; the first decides.")] = METRICS,
    tokenize: options.Tokenize = "13a",
    plot: Annotated[Path | None, option(metavar="OUT", panel=OUT, help="Draw to this .png, .svg or .pdf file.")] = None,
    rows: options.Rows = None,
    as_json: options.AsJson = False,
    all_settings: Annotated[bool, option("--all", panel=OUT, help="Show what was stopped on the way, and why.")] = False,
) -> int:  # fmt: skip
    """Find the setting to use on your model and text: beam size, length penalty or reward, stop, dtype.

    Decodes the text with every combination, all settings of a line on one tree,
    so that shared hypotheses are scored once, and stops settings that cheaper
    ones clearly outdo. The last are timed, each by itself. Shows quality against
    cost, with intervals of a paired bootstrap, and three command lines: the
    cheapest at no loss against the model's defaults, the best, and the best
    within a budget. Without REFERENCE, costs and equal outputs alone.

    Results are saved: the same command again takes seconds, and a larger one
    continues from there.

    Examples:
      bestfirst tune test.de test.en
      bestfirst tune test.de test.en --budget 5ms --beam 1,2,4,8 --plot front.png
      bestfirst tune test.de --model folder --sample 300
    """
    limit = None if budget is None else cost_limit(budget)
    if margin < 0:
        raise usage(f"--margin must be at least 0, got {margin:g}")
    if reference is None and metrics != METRICS:
        raise usage(f"--metrics compares with references: give REFERENCE, or leave out {metrics!r}")
    if plot is not None:
        check_plot(plot)
        if not plot.parent.is_dir():
            raise usage(f"cannot write to {str(plot)!r}: No such file or directory")
    main = chosen.dtype or "fp32"
    others = grid.others(main)
    grid.settings(1.0)  # reports errors in them before anything slow
    if find_spec("torch") is None:
        raise usage("tune needs torch and sacrebleu: pip install 'bestfirst[bench]'")
    text = read_text(source, reference).part(**vars(which))
    chosen_metrics = named_metrics(metrics, tokenize) if reference is not None else []
    begun = perf_counter()
    model, _ = load_models(chosen)
    benchmark = Benchmark(model)
    ratio = tuning.length_ratio(model, text) if grid.ratio is None else grid.ratio
    default = tuning.defaults_of(model, max_length=grid.max_length)
    settings = [default, *(each for each in grid.settings(ratio) if each != default)]
    with saving(TuneResult, rows, "tune", benchmark.name) as store:
        before = len(store.records)

        def racing(loaded: Benchmark, entered: Sequence[tuning.Setting]) -> Race:
            return Race(loaded, text, entered, chosen_metrics, store, show_progress)

        race = racing(benchmark, settings)
        race.run()
        if not race.pairs:
            raise usage(f"no line of {str(source)!r} can be decoded: {next(iter(race.failures.values()))}")
        metric = race.bootstraps[0].metric.name if race.bootstraps else None
        points = [point_of(race, main, setting) for setting in settings]
        last = finalists(points, metric)
        result = Tuning(_timed(race, points, last, repeat), metric, [race])
        for dtype in others:
            loaded, _ = load_models(replace(chosen, dtype=dtype))
            again = racing(Benchmark(loaded), [point.setting for point in last])
            again.run()
            entered = [point_of(again, dtype, point.setting, race.outputs(default)) for point in last]
            result.points += _timed(again, entered, [p for p in entered if p.stopped is None], repeat)
            result.races.append(again)
        made = len(store.records) - before
    show_progress("")
    front = {id(point) for point in pareto(result.timed, metric, lambda point: point.cost)}
    result.points = [replace(point, front=id(point) in front) for point in result.points]
    limit = limit or CostLimit(round(result.default.cost / 2, 2), "ms")
    answers = advise(result, margin, limit)
    _report(result, answers, chosen_metrics, as_json, all_settings, lambda advice: command(advice, source, chosen.model))
    if plot is not None:
        save_plot(tune_plot(f"{model.name}, {source.name}", result), plot)
    for line, message in list(race.failures.items())[:5]:
        say(f"{source.name}, line {line}: {message}")
    say(f"{made} results made and saved in {str(store.path)!r}, {perf_counter() - begun:.0f} s; the same command uses them again")
    return PARTLY if race.failures else 0


def _timed(race: Race, points: Sequence[Point], last: Sequence[Point], repeat: int) -> list[Point]:
    """All points, those of `last` with their times."""
    times = race.time([point.setting for point in last], repeat)
    return [replace(point, timed=times.get(point.setting)) for point in points]


def _report(
    result: Tuning,
    answers: Sequence[Advice],
    metrics: Sequence[LineMetric],
    as_json: bool,
    everything: bool,
    typed: Callable[[Advice], str],
) -> None:
    signatures = [f"{metric.title}: {metric.signature}" for metric in metrics]
    if as_json:
        said = [{"question": a.question, "why": a.why, "command": None if a.point is None else typed(a)} for a in answers]
        print(to_json({"points": [point.json() for point in result.points], "advice": said, "metrics": signatures}))
        return
    race = result.races[0]
    raced = f"{len(result.points)} settings, {len(race.stopped)} stopped on the way"
    title = f"{raced}: {race.benchmark.model.name}, {len(race.pairs)} lines"
    show(tune_table(title, result, result.timed, signatures))
    if everything and race.stopped:
        show(stopped_table(result))
    for advice in answers:
        print(f"{advice.question} ({advice.why})")
        print(f"  {'-' if advice.point is None else typed(advice)}")
