"""The folder route: `custom_generate="<folder>"` hands over the arguments of `generate` before anything was done with them."""

from __future__ import annotations

from typing import Any

import torch
from transformers.generation.stopping_criteria import StoppingCriteriaList, StopStringCriteria

from .generate import generate
from .refusals import refuse


def generate_with(model: Any, arguments: dict[str, Any]) -> Any:
    """`generate` with a callable: what that would swallow is honoured or refused, stop strings meet their tokenizer."""
    refuse(None, **arguments)
    kept = {name: value for name, value in arguments.items() if value is not None}
    if "streamer" in kept:
        kept["streamer"] = OnePrompt(kept["streamer"])
    tokenizer, strings = kept.pop("tokenizer", None), kept.get("stop_strings")
    if tokenizer is not None and strings is not None:
        del kept["stop_strings"]
        kept["stopping_criteria"] = StoppingCriteriaList(
            [*kept.get("stopping_criteria", ()), StopStringCriteria(tokenizer, strings)]
        )
    return model.generate(**kept, custom_generate=generate)


class OnePrompt:
    """A streamer that sees a prompt once: `generate` has copied it for every row of the beam by then."""

    def __init__(self, streamer: Any) -> None:
        self._streamer = streamer
        self.end = streamer.end

    def put(self, tokens: torch.Tensor) -> None:
        copies = tokens.dim() == 2 and bool((tokens == tokens[0]).all())
        self._streamer.put(tokens[:1] if copies else tokens)
