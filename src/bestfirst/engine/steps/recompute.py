"""RecomputeStep: every hypothesis from its first token, for models that cannot be run on the tree. Correct, and slow."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ...models.transformers import encoder_output, evaluating
from .sources import Sources
from .step import DecoderStep
from .tree import MaskedRows, Tree

LOGITS = 2**26  # most numbers a model is asked for at once: it gives logits for every token, of which the last one's count


class RecomputeStep(DecoderStep):
    """The tree holds tokens instead of keys and values, the sources hold encoder output instead of the encoder's keys."""

    holds_model = True
    name = "recompute"

    def __init__(self, model: Any) -> None:
        self.model = model
        self.modules = list(model.modules())
        self.encoder_decoder = bool(model.config.is_encoder_decoder)
        self.vocabulary = model.config.get_text_config().vocab_size
        self.masks = "decoder_attention_mask" in inspect.signature(model.forward).parameters

    def encode(self, hidden: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        """The encoder's output itself, cut in two to lie where keys and values of one layer do."""
        return [torch.stack(hidden.chunk(2, -1), 1)[:, :, None]]

    def read(self, rows: MaskedRows, tree: Tree, sources: Sources) -> None:
        if not tree.layers:
            tree.layers = [torch.zeros(tree.capacity, dtype=torch.long, device=tree.device)]  # (slots,) a token each
        tree.layers[0][rows.slots] = rows.tokens.long()

    def step(self, rows: MaskedRows, tree: Tree, sources: Sources) -> torch.Tensor:
        self.read(rows, tree, sources)
        inside = rows.mask == 0  # (rows, context)
        ids = tree.layers[0][rows.paths] * inside
        at_once = max(1, LOGITS // (ids.shape[1] * self.vocabulary))
        out = []
        with evaluating(self.modules):
            for first in range(0, len(ids), at_once):
                part = slice(first, first + at_once)
                logits = self._logits(ids[part], inside[part].long(), rows.sentences[part], sources)
                out.append(logits[torch.arange(len(logits), device=ids.device), rows.positions[part]])
        return torch.cat(out)

    def _logits(self, ids: torch.Tensor, mask: torch.Tensor, sentences: torch.Tensor, sources: Sources) -> torch.Tensor:
        """Logits after every token, (rows, context, vocabulary); rows are padded on the right."""
        if not self.encoder_decoder:
            return self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        longest = sources.longest()
        halves = sources.layers[0][:, :, 0, :longest].index_select(1, sentences).transpose(0, 1)  # (rows, 2, length, d / 2)
        return self.model(
            encoder_outputs=encoder_output(torch.cat(halves.unbind(1), -1)),
            attention_mask=(sources.mask[sentences, :longest] == 0).long(),
            decoder_input_ids=ids,
            use_cache=False,
            **({"decoder_attention_mask": mask} if self.masks else {}),
        ).logits
