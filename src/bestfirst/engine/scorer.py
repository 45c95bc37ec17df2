"""EngineScorer: scores hypotheses of many searches on one Hugging Face model, a row a hypothesis, on the tree cache."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import torch

from ..models.scorer import Source
from ..search import Hypothesis, Successors
from .choose import decoder_for
from .sources import Sources
from .tree import Tree

if TYPE_CHECKING:
    from ..models.transformers import TransformersModel
    from ..scoring import Score


class Sentence:
    """One input in flight: its place among the sources, its prompt, and every slot its search has taken."""

    __slots__ = ("offset", "place", "prompt_slot", "slots", "start")

    def __init__(self, place: int, prompt: Sequence[int]) -> None:
        self.place = place
        self.start = prompt[-1]  # the token that the empty hypothesis ends in
        self.offset = len(prompt) - 1  # its position
        self.prompt_slot = 0  # where the token before it lies
        self.slots: list[int] = []


class EngineScorer:
    """The seam's other side: `start` encodes and reads prompts, `expand` is one forward pass.

    A hypothesis' state is (slot, sentence) once it is scored; a root's is (0, sentence) before.
    """

    def __init__(self, model: TransformersModel, score: Score, width: float) -> None:
        self.model = model
        self.score = score
        self.width = width
        self.eos = model.eos
        self.decoder = decoder_for(model)
        parameter = next(model.model.parameters())
        self.device = parameter.device
        self.tree = Tree(parameter.device, parameter.dtype)
        self.sources = Sources(parameter.device, parameter.dtype)
        self._places: list[Sentence] = []
        self._banned = torch.tensor(model.banned, device=self.device) if model.banned else None

    def read(self, raw: Any) -> Source:
        return self.model.read(raw)

    def text(self, source: Source, tokens: Sequence[int]) -> str | None:
        return self.model.text(source.payload, tokens)

    # -- inputs come and go ----------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def start(self, roots: Sequence[tuple[Hypothesis, Source]]) -> None:
        prompts = [source.payload for _, source in roots]
        if self.model.encoder_decoder:
            places = self._encode([prompt.source for prompt in prompts])
        else:
            places = range(len(self._places), len(self._places) + len(prompts))
        for (root, source), place in zip(roots, places, strict=True):
            sentence = Sentence(place, source.payload.tokens)
            self._places.append(sentence)
            root.state = (0, sentence)
        self._read_prompts([(root.state[1], source.payload.tokens) for root, source in roots])

    def _encode(self, sources: list[Sequence[int]]) -> range:
        lengths = [len(source) for source in sources]
        longest = max(lengths)
        ids = torch.tensor([[*source, *[0] * (longest - len(source))] for source in sources], device=self.device)
        mask = torch.arange(longest, device=self.device) < torch.tensor(lengths, device=self.device)[:, None]
        hidden = self.model.model.get_encoder()(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return self.sources.add(self.decoder.encode(hidden, mask.long()), lengths)

    def _read_prompts(self, prompts: list[tuple[Sentence, Sequence[int]]]) -> None:
        """Fill the tree with every prompt but for its last token, which the root's own row will bring."""
        table, counts = [], []
        for sentence, tokens in prompts:
            sentence.slots = self.tree.allocate(len(tokens) - 1) if len(tokens) > 1 else []
            parent = 0
            for position, slot in enumerate(sentence.slots):
                table.append((tokens[position], position, slot, parent, sentence.place))
                parent = slot
            sentence.prompt_slot = parent
            counts.append(len(sentence.slots))
        if table:
            self.decoder.step(self.tree.prompt_rows(table, [n for n in counts if n]), self.tree, self.sources)

    @torch.inference_mode()
    def release(self, root: Hypothesis) -> None:
        sentence: Sentence = root.state[1]
        self.tree.release(sentence.slots)
        last = self.sources.remove(sentence.place) if self.model.encoder_decoder else len(self._places) - 1
        self._places[last].place = sentence.place
        self._places[sentence.place] = self._places[last]
        self._places.pop()

    # -- one forward pass ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def expand(self, batch: Sequence[Hypothesis]) -> list[Successors]:
        slots = self.tree.allocate(len(batch))
        table, counts = [], []
        before: Sentence | None = None
        for y, slot in zip(batch, slots, strict=True):
            parent = y.parent
            if parent is None:
                sentence: Sentence = y.state[1]
                table.append((sentence.start, sentence.offset, slot, sentence.prompt_slot, sentence.place))
            else:
                above, sentence = parent.state
                table.append((y.token, y.length + sentence.offset, slot, above, sentence.place))
            y.state = (slot, sentence)
            sentence.slots.append(slot)
            if sentence is before:
                counts[-1] += 1
            else:
                counts.append(1)
                before = sentence
        logits = self.decoder.step(self.tree.rows(table, counts), self.tree, self.sources)
        return self._successors(batch, logits)

    def _successors(self, batch: Sequence[Hypothesis], logits: torch.Tensor) -> list[Successors]:
        """The best extensions of each row: log-softmax first, then what is banned, then top-k."""
        logits = logits.float()
        total = logits.logsumexp(-1, keepdim=True)
        if self._banned is not None:
            logits[:, self._banned] = -inf
        best, tokens = logits.topk(min(int(min(self.width, logits.shape[1])), logits.shape[1]), -1)
        best = (best - total).clamp_(max=0)
        ties = (best[:, 1:] == best[:, :-1]).any(1).tolist()
        out = []
        for y, values, ids, tied in zip(batch, best.tolist(), tokens.tolist(), ties, strict=True):
            if values[0] != values[0]:
                raise ValueError(f"the model's scores after {list(y.tokens)} are not numbers (NaN); check its weights and dtype")
            if tied or values[-1] == -inf:
                pairs = sorted((-v, i) for v, i in zip(values, ids, strict=True) if v != -inf)
                values, ids = [-v for v, _ in pairs], [i for _, i in pairs]
            out.append(Successors(values, ids))
        return out
