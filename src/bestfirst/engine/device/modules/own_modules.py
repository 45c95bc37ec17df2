"""OwnModules: a Hugging Face decoder on the device's tree, its own modules untouched.

Models ask transformers for an attention function by name. While a model runs here it is told the name of ours: that writes a
row's key and value to its node, and reads the row's input and ancestors where they lie (`tree_attention`). Where modules compute
attention themselves, ours takes its place (`intercepted_attention`). A row is a batch entry of one token, of
whatever input and position; prompts are rows, too, so nothing is padded. Shapes are fixed, so a run can be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import local
from types import SimpleNamespace
from typing import Any
from weakref import ref

import torch
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ....models.transformers import encoder_output, evaluating
from ...steps.positions import RelativePositions, positions_of
from ..device_bart import Packed
from .fused_modules import FusedModules
from .intercepted_attention import Layer, PassingCache, Watch
from .tree_attention import Kind, Memory, TreeRows, attend_packed, attend_tree

NAME = "bestfirst_tree"
Memories = list[Memory | None]  # by attention module
_now = local()  # what attention is while a model runs here


def _attention(module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **asked: Any) -> Any:
    """The function that models find under our name."""
    return _now.attend(module, q, k, v, asked).unsqueeze(1), None


ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)


@dataclass
class Heads:
    """The keys and values of one attention module: how many, how large; whether they are the encoder's."""

    keys: int
    size: int
    value_size: int
    cross: bool
    window: int | None  # tokens that it sees
    bias: Any = None  # its number among the modules that have a bias by distance

    def room(self, tokens: int, like: torch.Tensor) -> Memory:
        """Memory for the keys and values of so many tokens."""
        return like.new_empty(tokens, self.keys, self.size), like.new_empty(tokens, self.keys, self.value_size)


class NoKeys:
    """Stands for a layer of the encoder's keys and values, so that no module computes them."""

    is_initialized = True

    def __init__(self, heads: Heads, rows: int, like: torch.Tensor) -> None:
        self.keys = like.new_zeros(1, 1, 1, 1).expand(rows, heads.keys, 1, heads.size)
        self.values = like.new_zeros(1, 1, 1, 1).expand(rows, heads.keys, 1, heads.value_size)


class OwnModules:
    """What the device knows of a model's decoder. Does not keep the model in memory."""

    def __init__(self, model: Any) -> None:
        self._model = ref(model)
        self.language_model = not model.config.is_encoder_decoder
        head = next(p for p in model.get_decoder().parameters() if p.is_floating_point())
        self.like = torch.empty(0, dtype=model.dtype, device=head.device)
        self.device, self.dtype = self.like.device, self.like.dtype
        self._positions = positions_of(model)
        self.shortcuts = FusedModules(model)
        self.heads: list[Heads] = []
        self._number: dict[int, int] = {}  # by the attention module's identity
        self._biased: list[Any] = []
        self._bias: list[torch.Tensor] = []
        self._before: list[list[torch.Tensor]] = []
        self._columns = self.like.new_empty(0, 1)
        self._plain = model.get_decoder().config._attn_implementation == "sdpa"  # which knows neither caps nor sinks
        self._unnamed: tuple[dict[int, Layer], dict[int, Layer]] | None = None  # rows' own and the encoder's, if not by name
        if not self._found(model):
            self._unnamed = {}, {}
            self._look(model)
            if not self._whole():
                raise TypeError(f"the attention of {type(model).__name__} is neither asked for by name nor known by its products")

    @property
    def model(self) -> Any:
        model = self._model()
        assert model is not None, "whoever decodes with a model holds it"
        return model

    # -- what it is made of ------------------------------------------------------------------------------------------------

    def _found(self, model: Any) -> bool:
        """Whether it asks for its attention by name, all of it."""
        try:
            self._look(model)
        except Exception:  # it may need a mask that is made for names it knows (Falcon)
            return False
        return self._whole()

    def _whole(self) -> bool:
        kinds = {each.cross for each in self.heads}
        return kinds == ({False} if self.language_model else {False, True})

    @torch.inference_mode()
    def _look(self, model: Any) -> None:
        """Run it once on nothing, and note what it asks of its attention."""
        biased: list[Any] = []
        self.heads.clear()
        self._number.clear()

        def note(module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, asked: dict[str, Any]) -> torch.Tensor:
            cross = k.shape[2] == 5
            if not cross and getattr(module, "has_relative_attention_bias", False):
                biased.append(module)
            bias = len(biased) - 1 if asked.get("position_bias") is not None and not cross else None
            if bias == -1:
                raise TypeError(f"{type(module).__name__} has a bias that is not known")
            self._number[id(module)] = len(self.heads)
            self.heads.append(Heads(k.shape[1], k.shape[3], v.shape[3], cross, asked.get("sliding_window"), bias))
            return q.new_zeros(q.shape[0], q.shape[2], q.shape[1], v.shape[3])[0]

        ids = torch.zeros(1, 3, dtype=torch.long, device=self.device)
        with self._running(note):
            if self.language_model:
                logits = model(input_ids=ids, **self._cache()).logits
            else:
                hidden = self.like.new_zeros(1, 5, encoder_width(model))
                logits = model(decoder_input_ids=ids, encoder_outputs=encoder_output(hidden), **self._cache()).logits
        if len(self._number) != len(self.heads):
            raise TypeError(f"{type(model).__name__} runs an attention module twice")
        self.vocabulary = int(logits.shape[-1])
        self._biased = [ref(module) for module in biased]

    def reach(self, lengths: int, source: int) -> None:
        """Outputs and inputs will have so many tokens: biases by distance are looked up now."""
        columns = lengths + source if self.language_model else lengths
        self._columns = self.like.new_empty(0, max(columns, self._columns.shape[1]))
        self.shortcuts.reach(columns)
        if self._bias and self._bias[0].shape[1] >= lengths:
            return
        distances = -torch.arange(lengths, device=self.device)[None]
        with torch.inference_mode():
            found = [RelativePositions._bias(module(), distances)[0, :, 0] for module in self._biased]
        self._before.append(self._bias)  # graphs of another session may be looking at these
        self._bias = [table.float().contiguous() for table in found]

    def room(self, tokens: int, source: bool) -> Memories:
        """Keys and values for so many tokens, by attention module: of inputs (the encoder's, or a prompt's), or of nodes."""
        cross = source and not self.language_model
        return [each.room(tokens, self.like) if each.cross is cross else None for each in self.heads]

    @property
    def bytes_of_a_token(self) -> int:
        return sum(each.keys * (each.size + each.value_size) for each in self.heads if not each.cross) * self.dtype.itemsize

    def _cache(self) -> dict[str, Any]:
        """Modules that compute attention themselves are given a cache that marks their keys and values."""
        if self._unnamed is None:
            return {"use_cache": False}
        own, cross = map(PassingCache, self._unnamed)
        return {"use_cache": True, "past_key_values": own if self.language_model else EncoderDecoderCache(own, cross)}

    # -- running it --------------------------------------------------------------------------------------------------------

    def logits(
        self, tokens: torch.Tensor, positions: torch.Tensor, rows: TreeRows, memory: Memories, source: Memories
    ) -> torch.Tensor:
        """Of the next token, (rows, vocabulary); the rows' own keys and values go to their nodes."""

        def attend(module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, asked: dict[str, Any]) -> torch.Tensor:
            number = self._number[id(module)]
            return attend_tree(q, k, v, memory[number], source[number], rows, self._kind(number, q, asked))

        model = self.model
        with self._running(attend), self._standing(positions) as arguments:
            if self.language_model:
                return model(input_ids=tokens[:, None], **self._cache(), **arguments).logits[:, -1]
            cache = EncoderDecoderCache(PassingCache(self._unnamed and self._unnamed[0]), DynamicCache())
            layers: list[Any] = [NoKeys(each, len(tokens), self.like) for each in self.heads if each.cross]
            for index, layer in self._unnamed[1].items() if self._unnamed else ():
                layer.mark(layers[index].keys, layers[index].values)
            cache.cross_attention_cache.layers = layers
            cache.is_updated = dict.fromkeys(range(len(layers)), True)
            hidden = self.like.new_zeros(len(tokens), 1, encoder_width(model))  # only its first dimension is looked at
            output = model(
                decoder_input_ids=tokens[:, None],
                encoder_outputs=encoder_output(hidden),
                past_key_values=cache,
                use_cache=True,
                **arguments,
            )
            return output.logits[:, -1]

    def read_prompts(self, given: Packed, cells: torch.Tensor, source: Memories) -> None:
        """Prompts of a language model, one behind the other: each token's keys and values go to its cell."""

        def attend(module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, asked: dict[str, Any]) -> torch.Tensor:
            at = self._number[id(module)]
            _store(source[at], cells, k[:, :, 0], v[:, :, 0])
            return attend_packed(q, k, v, given.used, given.inputs, given.starts, self._kind(at, q, asked))

        with self._running(attend), self._standing(given.places.long()) as arguments:
            self.model.base_model(input_ids=given.tokens.long()[:, None], **self._cache(), **arguments)

    def read_hidden(self, hidden: torch.Tensor, cells: torch.Tensor, source: Memories) -> None:
        """What the encoder made of some inputs, (tokens, d): each token's keys and values go to its cell."""

        def attend(module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, asked: dict[str, Any]) -> torch.Tensor:
            at = self._number[id(module)]
            if self.heads[at].cross:
                _store(source[at], cells, k[0].transpose(0, 1), v[0].transpose(0, 1))
            return q.new_zeros(1, q.shape[1], v.shape[3])

        zero = torch.zeros(1, dtype=torch.int32, device=self.device)
        with self._running(attend), self._standing(zero) as more:
            given = {"decoder_input_ids": zero[None].long(), "encoder_outputs": encoder_output(hidden[None])}
            self.model(**given, **self._cache(), **more)

    def _kind(self, number: int, q: torch.Tensor, asked: dict[str, Any]) -> Kind:
        scale, window = asked.get("scaling"), asked.get("sliding_window")
        cap, sinks = (None, None) if self._plain else (asked.get("softcap"), asked.get("s_aux"))
        bias = self.heads[number].bias
        return Kind(
            q.shape[-1] ** -0.5 if scale is None else float(scale),
            cap or 0.0,
            1 << 30 if window is None else int(window),
            None if bias is None else self._bias[bias],
            sinks,
        )

    def _standing(self, positions: torch.Tensor) -> Any:
        """While this lasts, rows stand at these positions; by distance alone, attention itself knows them."""
        if isinstance(self._positions, RelativePositions):
            return nullcontext({})
        rows: Any = SimpleNamespace(positions=positions, paths=self._columns)  # what `positions_of` looks at
        return self._positions.of(rows)

    @contextmanager
    def _running(self, attend: Callable[..., torch.Tensor]) -> Iterator[None]:
        """While this lasts the model's attention is `attend`; then everything is as it was."""
        model = self.model
        modules = list(model.modules())
        configs = {id(config): config for module in modules if (config := getattr(module, "config", None)) is not None}.values()
        named = [config for config in configs if self._unnamed is None and hasattr(config, "_attn_implementation_internal")]
        before = [(config, config._attn_implementation_internal) for config in named]
        _now.attend = attend
        try:
            for config, _ in before:
                config._attn_implementation_internal = NAME
            watched = nullcontext() if self._unnamed is None else Watch(attend)
            with evaluating(modules), self.shortcuts.taken(), watched:
                yield
        finally:
            for config, name in before:
                config._attn_implementation_internal = name
            del _now.attend


def _store(memory: Memory | None, cells: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    assert memory is not None
    memory[0].index_copy_(0, cells, keys.to(memory[0]))
    memory[1].index_copy_(0, cells, values.to(memory[1]))


def encoder_width(model: Any) -> int:
    """Numbers that the encoder makes of a token."""
    config = getattr(model.get_encoder(), "config", model.config)
    return int(getattr(config, "hidden_size", None) or config.d_model)
