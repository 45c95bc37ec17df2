"""The gallery's searches: pages of `bestfirst view`, made when the site is built."""

from __future__ import annotations

from math import log
from typing import Any

from mkdocs.structure.files import File


def on_files(files: Any, config: Any) -> Any:
    for name, page in gallery().items():
        files.append(File.generated(config, f"gallery/{name}.html", content=page))
    return files


def gallery() -> dict[str, str]:
    """Each page is two searches of one input, side by side."""
    import bestfirst

    model = bestfirst.load()

    def pair(text: str, *settings: dict[str, Any]) -> str:
        results = [bestfirst.decode(model, [text], trace=True, **each)[0] for each in settings]
        return bestfirst.view(*results).html

    beam = {"strategy": "beam"}
    cow = "Wie melkt man eine Kuh?"
    return {
        "best-first-and-beam": pair(cow, {"beam": 10}, {"beam": 10, **beam}),
        "greedy-is-wrong": pair(cow, {"strategy": "greedy"}, {"beam": 3}),
        "length-penalty": pair(cow, {"beam": 3, "length_penalty": 0.6, "max_length": 20}, {"beam": 3, "max_length": 20}),
        "n-best": pair("Wo ist der Bahnhof?", {"beam": 6, "nbest": 1}, {"beam": 6, "nbest": 6}),
        "your-own-model": toy(),
    }


def toy() -> str:
    """Three letters with made-up probabilities: small enough to follow by hand."""
    import bestfirst

    follows = {None: [0.0, 0.6, 0.3, 0.1], 1: [0.1, 0.1, 0.5, 0.3], 2: [0.4, 0.3, 0.1, 0.2], 3: [0.7, 0.1, 0.1, 0.1]}

    def next_logprobs(prefix: Any) -> list[float]:
        return [log(p) if p else float("-inf") for p in follows[prefix[-1] if prefix else None]]

    model = bestfirst.FunctionModel(next_logprobs, eos=0)
    results = [bestfirst.decode(model, [None], beam=2, trace=True, strategy=name)[0] for name in ("best-first", "beam")]
    return bestfirst.view(*results).html
