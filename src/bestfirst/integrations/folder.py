"""The folder route: `custom_generate="<folder>"` hands over the arguments of `generate` before anything was done with them."""

from __future__ import annotations

from typing import Any

from transformers.generation.stopping_criteria import StoppingCriteriaList, StopStringCriteria

from .refusals import refuse_visible


def prepare(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments for `generate` with a callable: what it would swallow is refused, stop strings meet their tokenizer."""
    refuse_visible(**arguments)
    kept = {name: value for name, value in arguments.items() if value is not None}
    tokenizer, strings = kept.pop("tokenizer", None), kept.get("stop_strings")
    if tokenizer is not None and strings is not None:
        del kept["stop_strings"]
        kept["stopping_criteria"] = StoppingCriteriaList(
            [*kept.get("stopping_criteria", ()), StopStringCriteria(tokenizer, strings)]
        )
    return kept
