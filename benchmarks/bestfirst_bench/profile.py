"""bench profile: the time of each part of a decode on a CPU, and how far it is from bare matmuls."""

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
    "matmuls": ((Product, "__call__"),),
    "vocabulary projection": ((NativeDecoder, "_project"),),
    "attention to ancestors": ((kernels, "own_attention"),),
    "attention to the source": ((kernels, "cross_attention"),),
    "norms and activations": ((kernels, "add_norm"), (kernels, "norm"), (kernels, "activate")),
    "embeddings": ((decoder, "embed"),),
    "paths": ((Tree, "rows"), (NativeTree, "rows")),
    "log-sum-exp and top-k": ((kernels, "top"), (kernels, "row_top")),
}
"""The functions to time, by part: (owner, attribute). A part called inside another counts for the outer one (the encoder)."""


@dataclass
class Profile:
    """Seconds by part; and the microseconds of a row: in total, of its matrix products alone, and the floor."""

    seconds: float
    rows: int
    steps: int
    parts: dict[str, float]
    multiply_adds: int  # of a row
    rate: float  # 1e9 multiply-adds a second on this CPU: the best of the products timed alone
    row: float
    row_products: float
    floor: float


def profile(model: TransformersModel, sources: Sequence[Any], settings: Mapping[str, Any], turns: int = 3) -> Profile:
    """Decode a few times with these settings, and profile the fastest. ValueError for a model without a compiled step."""
    decoder = model.decoder or step_for(model)
    if not isinstance(decoder, NativeDecoder):
        raise ValueError(f"model {model.name!r} runs on the {decoder.name} decoder; only compiled steps are profiled")
    decode(model, sources[:16], **settings)  # warm-up: one-time work is not timed
    best: tuple[Stats, dict[str, float]] | None = None
    for _ in range(turns):
        stats = Stats()
        with timed() as parts, patch.object(decoder, "whole", None):  # layer by layer: a whole step in one call has no parts
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
    own = [product_rate(product, rows) for product in (layer.qkv, layer.fc1, layer.fc2)]
    rate = max([*own, *(matmul_rate(inputs, outputs, rows) for inputs, outputs in set(shapes))])
    steps_seconds = stats.model_seconds - parts["encoder"]
    return Profile(
        stats.seconds,
        stats.rows,
        stats.steps,
        parts,
        multiply_adds,
        rate / 1e9,
        1e6 * steps_seconds / stats.rows,
        1e6 * (parts["matmuls"] + parts["vocabulary projection"]) / stats.rows,
        1e6 * multiply_adds / rate,
    )


def products(decoder: NativeDecoder) -> list[tuple[int, int]]:
    """The shape (inputs, outputs) of every matrix product in a step."""
    used = [
        product
        for layer in decoder.layers
        for product in (layer.qkv, layer.own_out, layer.cross_q, layer.cross_out, layer.fc1, layer.fc2)
    ]
    return [
        *((product.inputs, product.outputs) for product in used if product is not None),
        (decoder.head.shape[1], decoder.head.shape[0]),
    ]


def product_rate(product: Product, rows: int) -> float:
    """Multiply-adds a second of one of the engine's own products with nothing around it: the best of several turns."""
    x, out = np.ones((rows, product.inputs), np.float32), np.empty((rows, product.outputs), np.float32)
    return _rate(rows * product.inputs * product.outputs, lambda: product(x, out))


def matmul_rate(inputs: int, outputs: int, rows: int) -> float:
    """The same for torch's product of this shape."""
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
    """Time all parts during the block; a part that runs inside another counts for the outer one."""
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


def profile_table(title: str, profiled: Profile) -> Table:
    """A table of the seconds by part."""
    columns: Columns = {
        "part": lambda part: part[0],
        "seconds": lambda part: f"{part[1]:.3f}",
        "share": lambda part: f"{part[1] / profiled.seconds:.0%}",
        "µs a row": lambda part: f"{1e6 * part[1] / profiled.rows:.1f}",
    }
    note = (
        f"{profiled.rows:,} rows in {profiled.steps} steps. A row is {profiled.multiply_adds / 1e6:.2f} million multiply-adds; "
        f"this CPU does {profiled.rate:.0f} thousand million a second in one matmul alone: floor {profiled.floor:.0f} µs a row. "
        f"Its matmuls take {profiled.row_products:.0f} µs, all of a step {profiled.row:.0f} µs."
    )
    parts = [*profiled.parts.items(), ("all", profiled.seconds)]
    return Table.of(title, parts, columns, {"part"}, lambda part: part[0] == "all", [note])
