"""Tensors: a model folder's weights as numpy's arrays, read from safetensors files one by one as they are asked for."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from .folder import FilesDiffer, ModelNotFound

LONGEST_HEADER = 100 << 20  # bytes; what safetensors itself allows


class Place(NamedTuple):
    """Where a tensor lies."""

    file: Any  # the mapped file
    dtype: str
    shape: tuple[int, ...]
    begin: int


class Tensors:
    """By name. Whatever they are stored as (F32, F16, BF16, F64), they come as float32, a copy."""

    def __init__(self, folder: Path) -> None:
        self._places: dict[str, Place] = {}
        for path in sorted(folder.glob("*.safetensors")):
            self._read_header(path)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._place(name).shape

    def __getitem__(self, name: str) -> Any:
        import numpy as np

        place = self._place(name)
        kinds = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "F64": np.float64}
        if place.dtype not in kinds:
            raise FilesDiffer(f"its weight {name!r} is of type {place.dtype}, not F32, F16 or BF16")
        stored = np.frombuffer(place.file, kinds[place.dtype], prod(place.shape), place.begin).reshape(place.shape)
        if place.dtype == "BF16":
            return (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float32)

    def _place(self, name: str) -> Place:
        if name not in self._places:
            raise ModelNotFound(f"its weights lack {name!r}")
        return self._places[name]

    def _read_header(self, path: Path) -> None:
        with open(path, "rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, LONGEST_HEADER):
                raise ModelNotFound(f"{path.name} is damaged: its header does not fit into it")
            try:
                header = json.loads(file.read(length))
                found: dict[str, tuple[Any, ...]] = {
                    name: (str(entry["dtype"]), tuple(map(int, entry["shape"])), *map(int, entry["data_offsets"]))
                    for name, entry in header.items()
                    if name != "__metadata__"
                }
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise ModelNotFound(f"{path.name} is damaged: its header is not one of safetensors") from error
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        for name, (dtype, shape, begin, end) in found.items():
            width = {"F64": 8, "F32": 4}.get(dtype, 2 if "16" in dtype else 0)
            if not 0 <= begin <= end <= size - 8 - length or (width and end - begin != width * prod(shape)):
                raise ModelNotFound(f"{path.name} is damaged: {name!r} does not lie in it")
            self._places[name] = Place(mapped, dtype, shape, 8 + length + begin)
