"""OwnModules: runs a Hugging Face decoder on the device's tree of hypotheses, through the model's own modules.

Models look their attention function up by name. While a model runs here, its configs name ours: it stores a row's key and value
at its node, and reads the row's input and ancestors from the KV cache in place (`tree_attention`). Where modules compute
attention themselves, it is intercepted (`intercepted_attention`). A row is a batch entry of one token, of any input and position;
prompts are packed the same way, so nothing is padded. Shapes are fixed, so a run can be captured in a CUDA graph.
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
_current = local()  # `attend`: what attention does in this thread while a model runs here


def _attention(module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **options: Any) -> Any:
    """The function registered under our name; the thread that runs a model sets what it does."""
    return _current.attend(module, q, k, v, options).unsqueeze(1), None


ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)


@dataclass
class Heads:
    """The keys and values of one attention module: number of heads, sizes, and whether they are those of cross-attention."""

    keys: int
    size: int
    value_size: int
    cross: bool
    window: int | None  # visible tokens
    bias: Any = None  # index among the modules that have a bias by distance

    def room(self, tokens: int, like: torch.Tensor) -> Memory:
        """Uninitialised KV cache for so many tokens."""
        return like.new_empty(tokens, self.keys, self.size), like.new_empty(tokens, self.keys, self.value_size)


class NoKeys:
    """Placeholder for a layer of cross-attention keys and values in the cache, so that no module computes them."""

    is_initialized = True

    def __init__(self, heads: Heads, rows: int, like: torch.Tensor) -> None:
        self.keys = like.new_zeros(1, 1, 1, 1).expand(rows, heads.keys, 1, heads.size)
        self.values = like.new_zeros(1, 1, 1, 1).expand(rows, heads.keys, 1, heads.value_size)


class OwnModules:
    """How to run a model's decoder on the device. Holds only a weak reference to the model. Raises TypeError if not every
    attention of the model can be replaced, or if one has a bias of an unknown kind."""

    def __init__(self, model: Any) -> None:
        self._model = ref(model)
        self.language_model = not model.config.is_encoder_decoder
        head = next(p for p in model.get_decoder().parameters() if p.is_floating_point())
        self.like = torch.empty(0, dtype=model.dtype, device=head.device)
        self.device, self.dtype = self.like.device, self.like.dtype
        self._positions = positions_of(model)
        self._fused = FusedModules(model)
        self.heads: list[Heads] = []
        self._number: dict[int, int] = {}  # index in `heads`, by id of the attention module
        self._biased: list[Any] = []
        self._bias: list[torch.Tensor] = []
        self._old_bias: list[list[torch.Tensor]] = []
        self._columns = self.like.new_empty(0, 1)  # in place of rows' paths: only the width, the number of positions, is read
        self._plain = model.get_decoder().config._attn_implementation == "sdpa"  # which ignores caps and sinks
        self._intercepted: tuple[dict[int, Layer], dict[int, Layer]] | None = None  # self- and cross-attention, if not named
        if not self._looks_up_attention(model):
            self._intercepted = {}, {}
            self._probe(model)
            if not self._all_seen():
                raise TypeError(f"the attention of {type(model).__name__} is neither asked for by name nor known by its products")

    @property
    def model(self) -> Any:
        model = self._model()
        assert model is not None, "the caller of a decode holds the model"
        return model

    # -- attention modules --------------------------------------------------------------------------------------------------

    def _looks_up_attention(self, model: Any) -> bool:
        """Whether the model looks up all of its attention by name."""
        try:
            self._probe(model)
        except Exception:  # a model may need a mask that only exists for names it knows (Falcon)
            return False
        return self._all_seen()

    def _all_seen(self) -> bool:
        """Whether self-attention was seen and, in an encoder-decoder, cross-attention."""
        kinds = {each.cross for each in self.heads}
        return kinds == ({False} if self.language_model else {False, True})

    @torch.inference_mode()
    def _probe(self, model: Any) -> None:
        """Run the model once on dummy tokens, and record what its attention modules ask for."""
        biased: list[Any] = []
        self.heads.clear()
        self._number.clear()

        def note(module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
            cross = k.shape[2] == 5
            if not cross and getattr(module, "has_relative_attention_bias", False):
                biased.append(module)
            bias = len(biased) - 1 if options.get("position_bias") is not None and not cross else None
            if bias == -1:
                raise TypeError(f"{type(module).__name__} has a bias that is not known")
            self._number[id(module)] = len(self.heads)
            self.heads.append(Heads(k.shape[1], k.shape[3], v.shape[3], cross, options.get("sliding_window"), bias))
            return q.new_zeros(q.shape[0], q.shape[2], q.shape[1], v.shape[3])[0]

        ids = torch.zeros(1, 3, dtype=torch.long, device=self.device)
        with self._with_attention(note):
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
        """Prepare for outputs and inputs of so many tokens: biases by distance become tables."""
        columns = lengths + source if self.language_model else lengths
        self._columns = self.like.new_empty(0, max(columns, self._columns.shape[1]))
        self._fused.extend_to(columns)
        if self._bias and self._bias[0].shape[1] >= lengths:
            return
        distances = -torch.arange(lengths, device=self.device)[None]
        with torch.inference_mode():
            tables = [RelativePositions._bias(module(), distances)[0, :, 0] for module in self._biased]
        self._old_bias.append(self._bias)  # another session's CUDA graphs may hold these
        self._bias = [table.float().contiguous() for table in tables]

    def room(self, tokens: int, source: bool) -> Memories:
        """KV cache for so many tokens, per attention module: of inputs (encoder output or prompt) or of nodes."""
        cross = source and not self.language_model
        return [each.room(tokens, self.like) if each.cross is cross else None for each in self.heads]

    @property
    def bytes_of_a_token(self) -> int:
        """Bytes of a token's keys and values in all self-attention modules."""
        return sum(each.keys * (each.size + each.value_size) for each in self.heads if not each.cross) * self.dtype.itemsize

    def _cache(self) -> dict[str, Any]:
        """Cache arguments for the model; modules that compute attention themselves get a cache that marks keys and values."""
        if self._intercepted is None:
            return {"use_cache": False}
        own, cross = map(PassingCache, self._intercepted)
        return {"use_cache": True, "past_key_values": own if self.language_model else EncoderDecoderCache(own, cross)}

    # -- running it --------------------------------------------------------------------------------------------------------

    def logits(
        self, tokens: torch.Tensor, positions: torch.Tensor, rows: TreeRows, memory: Memories, source: Memories
    ) -> torch.Tensor:
        """Next-token logits (rows, vocabulary); the rows' own keys and values are stored at their nodes."""

        def attend(module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
            number = self._number[id(module)]
            return attend_tree(q, k, v, memory[number], source[number], rows, self._kind(number, q, options))

        model = self.model
        with self._with_attention(attend), self._at_positions(positions) as arguments:
            if self.language_model:
                return model(input_ids=tokens[:, None], **self._cache(), **arguments).logits[:, -1]
            cache = EncoderDecoderCache(PassingCache(self._intercepted and self._intercepted[0]), DynamicCache())
            layers: list[Any] = [NoKeys(each, len(tokens), self.like) for each in self.heads if each.cross]
            for index, layer in self._intercepted[1].items() if self._intercepted else ():
                layer.mark(layers[index].keys, layers[index].values)
            cache.cross_attention_cache.layers = layers
            cache.is_updated = dict.fromkeys(range(len(layers)), True)
            hidden = self.like.new_zeros(len(tokens), 1, encoder_width(model))  # only its first dimension is used
            output = model(
                decoder_input_ids=tokens[:, None],
                encoder_outputs=encoder_output(hidden),
                past_key_values=cache,
                use_cache=True,
                **arguments,
            )
            return output.logits[:, -1]

    def read_prompts(self, given: Packed, cells: torch.Tensor, source: Memories) -> None:
        """Prefill: run packed prompts through a decoder-only model and store the keys and values of each token in its cell."""

        def attend(module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
            number = self._number[id(module)]
            _store(source[number], cells, k[:, :, 0], v[:, :, 0])
            return attend_packed(q, k, v, given.used, given.inputs, given.starts, self._kind(number, q, options))

        with self._with_attention(attend), self._at_positions(given.places.long()) as arguments:
            self.model.base_model(input_ids=given.tokens.long()[:, None], **self._cache(), **arguments)

    def read_hidden(self, hidden: torch.Tensor, cells: torch.Tensor, source: Memories) -> None:
        """Store the cross-attention keys and values of encoder output `hidden` (tokens, d), each token in its cell."""

        def attend(module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
            number = self._number[id(module)]
            if self.heads[number].cross:
                _store(source[number], cells, k[0].transpose(0, 1), v[0].transpose(0, 1))
            return q.new_zeros(1, q.shape[1], v.shape[3])

        zero = torch.zeros(1, dtype=torch.int32, device=self.device)
        with self._with_attention(attend), self._at_positions(zero) as arguments:
            given = {"decoder_input_ids": zero[None].long(), "encoder_outputs": encoder_output(hidden[None])}
            self.model(**given, **self._cache(), **arguments)

    def _kind(self, number: int, q: torch.Tensor, options: dict[str, Any]) -> Kind:
        """The `Kind` of an attention call, from the options that its module passes."""
        scale, window = options.get("scaling"), options.get("sliding_window")
        cap, sinks = (None, None) if self._plain else (options.get("softcap"), options.get("s_aux"))
        bias = self.heads[number].bias
        return Kind(
            q.shape[-1] ** -0.5 if scale is None else float(scale),
            cap or 0.0,
            1 << 30 if window is None else int(window),
            None if bias is None else self._bias[bias],
            sinks,
        )

    def _at_positions(self, positions: torch.Tensor) -> Any:
        """Context that gives rows these positions; none is needed where positions are only a bias by distance."""
        if isinstance(self._positions, RelativePositions):
            return nullcontext({})
        rows: Any = SimpleNamespace(positions=positions, paths=self._columns)  # what `positions_of` reads
        return self._positions.of(rows)

    @contextmanager
    def _with_attention(self, attend: Callable[..., torch.Tensor]) -> Iterator[None]:
        """While the context is open, the model's attention is `attend`; afterwards everything is restored."""
        model = self.model
        modules = list(model.modules())
        configs = {id(config): config for module in modules if (config := getattr(module, "config", None)) is not None}.values()
        named = [config for config in configs if self._intercepted is None and hasattr(config, "_attn_implementation_internal")]
        before = [(config, config._attn_implementation_internal) for config in named]
        _current.attend = attend
        try:
            for config, _ in before:
                config._attn_implementation_internal = NAME
            interception = nullcontext() if self._intercepted is None else Watch(attend)
            with evaluating(modules), self._fused.installed(), interception:
                yield
        finally:
            for config, name in before:
                config._attn_implementation_internal = name
            del _current.attend


def _store(memory: Memory | None, cells: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    assert memory is not None
    memory[0].index_copy_(0, cells, keys.to(memory[0]))
    memory[1].index_copy_(0, cells, values.to(memory[1]))


def encoder_width(model: Any) -> int:
    """Size of the encoder's hidden states."""
    config = getattr(model.get_encoder(), "config", model.config)
    return int(getattr(config, "hidden_size", None) or config.d_model)
