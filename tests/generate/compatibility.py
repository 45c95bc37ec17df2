"""Compares the drop-in with `generate` for every class that transformers can generate with: the same, or why not.

python tests/generate/compatibility.py                                   # all of them, some minutes
python tests/generate/compatibility.py --write docs/from-transformers.md # and its table
python tests/generate/compatibility.py GPT2LMHeadModel T5ForConditionalGeneration
"""

from __future__ import annotations

import argparse
import copy
import datetime
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import bestfirst
from bestfirst.integrations import crossover
from generate.tiny import EOS, generation_classes, inputs, takes_padding, tiny

NEAR = 1e-4
N = 2
SETTINGS: list[dict[str, Any]] = [
    {"num_beams": 3, "max_new_tokens": 8},
    {"num_beams": 4, "max_new_tokens": 6, "length_penalty": 0.0, "early_stopping": "never"},
]
LARGEST = 20_000_000
"""Parameters: larger models, whose sizes could not all be made small, are left out."""


@dataclass(frozen=True)
class Verdict:
    """The result for one class. `outcome`: same, near-tie, different, refused, or (not compared) not built, generate fails."""

    name: str
    outcome: str
    engine: str = ""  # what ran it: host, or generate
    why: str = ""


def verdict(name: str) -> Verdict:
    """Build the class, run both ways, compare."""
    try:
        model = tiny(name)
        batch = inputs(model)
        if model.num_parameters() > LARGEST:
            raise ValueError(f"{model.num_parameters():,} parameters: not all sizes could be made small")
    except Exception as error:
        return Verdict(name, "not built", why=_line(error))
    ran: list[bestfirst.Stats] = []
    outcomes = []
    for number, settings in enumerate(SETTINGS):
        given = _padded(model, batch) if number else batch
        asked = {**settings, "num_return_sequences": N, "do_sample": False, "return_dict_in_generate": True}
        asked["output_scores"] = True
        try:
            theirs = _generate(model, given, asked)
        except Exception as error:
            if number:
                continue  # the class does not support these settings
            return Verdict(name, "generate fails", why=_line(error))
        ran.append(bestfirst.Stats())
        try:
            ours = _generate(model, given, {**asked, "custom_generate": bestfirst.generate, "stats": ran[-1]})
        except ValueError as error:
            return Verdict(name, "refused", why=_line(error))
        outcomes.append(_outcome(model, given, asked, theirs, ours))
    worst = max(outcomes, key=["same", "near-tie", "different"].index)
    engine = ran[0].engine
    return Verdict(name, worst, engine, ran[0].search.partition("itself: ")[2] if engine == "generate" else "")


def _generate(model: Any, batch: dict[str, torch.Tensor], asked: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    output = model.generate(**batch, **asked)
    if not hasattr(output, "sequences_scores"):
        raise TypeError("generate returns no beams")
    return output


def _outcome(model: Any, batch: dict[str, torch.Tensor], asked: dict[str, Any], theirs: Any, ours: Any) -> str:
    if torch.equal(theirs.sequences, ours.sequences) and _close(theirs.sequences_scores, ours.sequences_scores):
        return "same"
    double = copy.deepcopy(model).double()
    exact = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in batch.items()}
    try:
        theirs, ours = (_generate(double, exact, {**asked, **own}) for own in ({}, {"custom_generate": bestfirst.generate}))
    except RuntimeError:  # parts of the model stay in single precision
        return "different"
    same = torch.equal(theirs.sequences, ours.sequences) and _close(theirs.sequences_scores, ours.sequences_scores)
    return "near-tie" if same else "different"


def _close(theirs: torch.Tensor, ours: torch.Tensor) -> bool:
    return theirs.shape == ours.shape and torch.allclose(theirs, ours, atol=NEAR, rtol=0)


def _padded(model: Any, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The batch with its second prompt padded by three, if prompts can be padded."""
    if not takes_padding(model):
        return batch
    padded = {name: tensor.clone() for name, tensor in batch.items()}
    padded["input_ids"][1, :3], padded["attention_mask"][1, :3] = model.generation_config.pad_token_id or EOS, 0
    return padded


def _line(error: BaseException) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) <= 100 else text[:97] + "..."


def table(verdicts: list[Verdict]) -> str:
    """For the docs: counts by outcome and by what ran the class, and every class by name."""
    counts = Counter((each.outcome, each.engine) for each in verdicts)
    compared = sum(n for (outcome, _), n in counts.items() if outcome in ("same", "near-tie", "different", "refused"))
    today = datetime.datetime.now(datetime.UTC).date()
    lines = [
        f"{len(verdicts)} classes of transformers {transformers.__version__} can generate; {compared} of them can be built small "
        f"from their default config and beam-search ({today}):",
        "",
        "| outcome | classes | on the engine | by `generate`'s own loop |",
        "| --- | --: | --: | --: |",
    ]
    for outcome in ("same", "near-tie", "different", "refused"):
        host, own = counts[outcome, "host"], counts[outcome, "generate"]
        lines.append(f"| {outcome} | {host + own + counts[outcome, '']} | {host} | {own} |")
    lines += ["", "<details><summary>By class</summary>", "", "| class | outcome | run by |", "| --- | --- | --- |"]
    for each in verdicts:
        if each.outcome in ("same", "near-tie", "different", "refused"):
            why = f": {each.why}" if each.why else ""
            lines.append(f"| `{each.name}` | {each.outcome} | {each.engine}{why.replace('|', '/')} |")
    lines += [
        "",
        "Not compared: the class cannot be built this way, or its own `generate` fails.",
        "",
        "| class | why |",
        "| --- | --- |",
    ]
    lines += [f"| `{v.name}` | {v.why.replace('|', '/')} |" for v in verdicts if v.outcome in ("not built", "generate fails")]
    return "\n".join([*lines, "", "</details>"])


def replace_table(page: Path, maker: str, table: str) -> None:
    """Replace what stands on a page between the marks of its script."""
    text, begin, end = page.read_text(encoding="utf-8"), f"<!-- made by tests/generate/{maker} -->", "<!-- end -->"
    before, _, rest = text.partition(begin)
    page.write_text(f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def main() -> None:
    """Compare all classes, print each result, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("classes", nargs="*", help="all of them by default")
    parser.add_argument("--write", type=Path, help="the page that has the table")
    asked = parser.parse_args()
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    crossover.measure = lambda *_: 2.0  # nothing is timed: these are smaller than any real model
    verdicts = []
    for name in asked.classes or generation_classes():
        verdicts.append(verdict(name))
        print(*(part for part in vars(verdicts[-1]).values() if part), sep=" | ", flush=True)
    print(Counter(each.outcome for each in verdicts))
    if asked.write:
        replace_table(asked.write, "compatibility.py", table(verdicts))


if __name__ == "__main__":
    main()
