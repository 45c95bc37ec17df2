"""bench profile: where the time of a decode goes on a CPU, and how far that is from bare matrix products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import torch

from bestfirst.decoding import decode
from bestfirst.engine import Stats
from bestfirst.engine.steps.native import calls as kernels
from bestfirst.engine.steps.native import decoder
from bestfirst.engine.steps.native.decoder import NativeDecoder
from bestfirst.engine.steps.native.parts import Product
from bestfirst.engine.steps.step_choice import step_for
from bestfirst.engine.steps.step_rows import NativeTree
from bestfirst.engine.steps.tree import Tree

from .tables import Columns, Table

if TYPE_CHECKING:
    from bestfirst.models.transformers import TransformersModel

PARTS: dict[str, tuple[tuple[Any, str], ...]] = {
    "encoder": ((NativeDecoder, "add_inputs"),),
    "products": ((Product, "__call__"),),
    "product with the vocabulary": ((NativeDecoder, "_project"),),
    "attention to ancestors": ((kernels, "own_attention"),),
    "attention to the source": ((kernels, "cross_attention"),),
    "norms and activations": ((kernels, "add_norm"), (kernels, "norm"), (kernels, "activate")),
    "embeddings": ((decoder, "embed"),),
    "paths": ((Tree, "rows"), (NativeTree, "rows")),
    "log-sum-exp and top-k": ((kernels, "top"), (kernels, "row_top")),
}
"""What is timed, by where it lives. Inside the encoder nothing else is."""


@dataclass
class Profile:
    """Seconds by part; and of a row, in microseconds: what it takes, what its matrix products alone take, and the floor."""

    seconds: float
    rows: int
    steps: int
    parts: dict[str, float]
    multiply_adds: int  # of a row
    rate: float  # multiply-adds a second of this CPU, in thousands of millions: the best of the products timed alone
    row: float
    row_products: float
    floor: float


def profile(model: TransformersModel, sources: Sequence[Any], settings: Mapping[str, Any], turns: int = 3) -> Profile:
    """Decode a few times with these settings, and account for the fastest."""
    decoder = model.decoder or step_for(model)
    if not isinstance(decoder, NativeDecoder):
        raise ValueError(f"model {model.name!r} runs on the {decoder.name} decoder; only compiled steps are profiled")
    decode(model, sources[:16], **settings)  # what is done once is not timed
    best: tuple[Stats, dict[str, float]] | None = None
    for _ in range(turns):
        stats = Stats()
        with timed() as parts, patch.object(decoder, "whole", None):  # layer by layer: one call has no parts
            decode(model, sources, **settings, stats=stats)
        if best is None or stats.seconds < best[0].seconds:
            best = (stats, parts)
    assert best is not None
    stats, parts = best
    parts["search"] = stats.seconds - stats.model_seconds
    parts["the rest of the model"] = stats.seconds - sum(parts.values())
    shapes = products(decoder)
    multiply_adds = sum(inputs * outputs for inputs, outputs in shapes)
    rows = max(1, stats.rows // stats.steps)
    layer = decoder.layers[0]
    own = [by_itself(product, rows) for product in (layer.qkv, layer.fc1, layer.fc2)]
    rate = max([*own, *(alone(inputs, outputs, rows) for inputs, outputs in set(shapes))])
    steps_seconds = stats.model_seconds - parts["encoder"]
    return Profile(
        stats.seconds,
        stats.rows,
        stats.steps,
        parts,
        multiply_adds,
        rate / 1e9,
        1e6 * steps_seconds / stats.rows,
        1e6 * (parts["products"] + parts["product with the vocabulary"]) / stats.rows,
        1e6 * multiply_adds / rate,
    )


def products(decoder: NativeDecoder) -> list[tuple[int, int]]:
    """Every product of a step, (inputs, outputs) each."""
    used = [
        product
        for layer in decoder.layers
        for product in (layer.qkv, layer.own_out, layer.cross_q, layer.cross_out, layer.fc1, layer.fc2)
    ]
    return [
        *((product.inputs, product.outputs) for product in used if product is not None),
        (decoder.head.shape[1], decoder.head.shape[0]),
    ]


def by_itself(product: Product, rows: int) -> float:
    """As `alone`, of one of the engine's own."""
    x, out = np.ones((rows, product.inputs), np.float32), np.empty((rows, product.outputs), np.float32)
    return _rate(rows * product.inputs * product.outputs, lambda: product(x, out))


def alone(inputs: int, outputs: int, rows: int) -> float:
    """Multiply-adds a second of one product with nothing around it: the best of a few."""
    x, weight, out = torch.randn(rows, inputs), torch.randn(inputs, outputs + 16)[:, :outputs], torch.empty(rows, outputs)
    return _rate(rows * inputs * outputs, lambda: torch.mm(x, weight, out=out))


def _rate(multiply_adds: int, run: Callable[[], Any], turns: int = 20) -> float:
    times = []
    for _ in range(turns):
        begun = perf_counter()
        run()
        times.append(perf_counter() - begun)
    return multiply_adds / min(times)


@contextmanager
def timed() -> Iterator[dict[str, float]]:
    """Time every part while the block runs; what runs inside another part counts there."""
    parts = dict.fromkeys(PARTS, 0.0)
    inside = False

    def clocked(part: str, function: Any) -> Any:
        def run(*args: Any, **settings: Any) -> Any:
            nonlocal inside
            if inside:
                return function(*args, **settings)
            inside = True
            begun = perf_counter()
            try:
                return function(*args, **settings)
            finally:
                inside = False
                parts[part] += perf_counter() - begun

        return run

    with ExitStack() as patches:
        for part, places in PARTS.items():
            for owner, name in places:
                patches.enter_context(patch.object(owner, name, clocked(part, getattr(owner, name))))
        yield parts


def profile_table(title: str, found: Profile) -> Table:
    """Seconds by part."""
    columns: Columns = {
        "part": lambda part: part[0],
        "seconds": lambda part: f"{part[1]:.3f}",
        "share": lambda part: f"{part[1] / found.seconds:.0%}",
        "µs a row": lambda part: f"{1e6 * part[1] / found.rows:.1f}",
    }
    note = (
        f"{found.rows:,} rows in {found.steps} steps. A row is {found.multiply_adds / 1e6:.2f} million multiply-adds; this CPU "
        f"does {found.rate:.0f} thousand million a second in one product alone: floor {found.floor:.0f} µs a row. Its "
        f"products take {found.row_products:.0f} µs, all of a step {found.row:.0f} µs."
    )
    parts = [*found.parts.items(), ("all", found.seconds)]
    return Table.of(title, parts, columns, {"part"}, lambda part: part[0] == "all", [note])
