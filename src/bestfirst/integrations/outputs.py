"""Outputs: converts results into the tensors and output classes that `generate` returns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.generation import utils

from ..search import Result
from .limits import eos_tokens

if TYPE_CHECKING:
    from .call import Call


class ScoreRecord:
    """Processed log-probabilities for `output_scores`: after every scored hypothesis; of a finished input, after prefixes of its
    outputs only."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[tuple[int, ...], torch.Tensor]] = defaultdict(dict)  # by input, then by generated prefix

    def note(self, inputs: Sequence[int], tokens: torch.Tensor, scores: torch.Tensor) -> None:
        """Keep `scores` (rows, vocabulary) for the generated `tokens` (rows, length) of these inputs."""
        for i, prefix, row in zip(inputs, tokens.tolist(), scores.clone(), strict=True):  # the next step may use the same memory
            self.rows[i][tuple(prefix)] = row

    def close(self, i: int, result: Result) -> None:
        """The i-th input is finished: drop all rows but those of its outputs."""
        prefixes = {answer.tokens[:t] for answer in result.hypotheses for t in range(len(answer.tokens))}
        self.rows[i] = {prefix: self.rows[i][prefix].clone() for prefix in prefixes}


class Outputs:
    """The answers of all inputs of a call, `n` each, after their `ids` (batch, prompt length), padded with `pad`."""

    def __init__(self, call: Call) -> None:
        self.ids, self.rows, self.n = call.inputs.ids, call.inputs.rows, call.config.num_return_sequences
        answers = [y for found in call.results for y in (*found.hypotheses[: self.n], *[None] * (self.n - len(found.hypotheses)))]
        self.tokens = [answer.tokens if answer else () for answer in answers]
        self.values = [answer.score if answer else -inf for answer in answers]
        self.longest = max(map(len, self.tokens), default=0)
        eos, pad = eos_tokens(call.config), call.config.pad_token_id
        self.pad = int(pad) if pad is not None else eos[0] if eos else 0
        if not call.greedy:  # in beam search Hugging Face takes EOS where the padding token is 0, and -1 without an EOS
            self.pad = (self.pad or eos[0]) if eos else -1

    def sequences(self) -> torch.Tensor:
        """(batch * n, prompt length + longest), in one transfer. Missing answers are prompt and padding."""
        prompt = self.ids.shape[1]
        padded = np.full((len(self.tokens), prompt + self.longest), self.pad, np.int64)
        padded[:, :prompt] = np.repeat(self.rows, self.n, 0)
        lengths = np.fromiter(map(len, self.tokens), np.int64, len(self.tokens))
        padded[:, prompt:][np.arange(self.longest) < lengths[:, None]] = np.fromiter(chain.from_iterable(self.tokens), np.int64)
        return torch.from_numpy(padded).to(self.ids.device, self.ids.dtype)

    def beams(self, k: int) -> tuple[torch.Tensor, list[list[list[tuple[int, ...]]]]]:
        """Beam indices (batch * n, longest), -1 beyond an answer's end; and the prefixes in the slots of each step and input.

        The prefixes of an input's answers fill the slots from 0 on, in the order of the answers, each prefix once.
        """
        indices = torch.full((len(self.tokens), self.longest), -1, dtype=torch.int32)
        beams: list[list[list[tuple[int, ...]]]] = [[[] for _ in self.ids] for _ in range(self.longest)]
        for row, tokens in enumerate(self.tokens):
            i = row // self.n
            for t in range(len(tokens)):
                beam, prefix = beams[t][i], tokens[:t]
                if prefix not in beam:
                    beam.append(prefix)
                indices[row, t] = i * k + beam.index(prefix)
        return indices.to(self.ids.device), beams

    def scores(self, record: ScoreRecord, k: int, beams: Sequence[Sequence[Sequence[tuple[int, ...]]]], missing: float) -> Any:
        """For each step (batch * k, vocabulary): the log-probabilities after each slot's prefix; `missing` in unused slots. But
        once an output has ended the last slot holds 0 if unused: Whisper reads it, at beam index -1, and multiplies by 0."""
        shortest = min(map(len, self.tokens), default=0)
        like = next((row for rows in record.rows.values() for row in rows.values()), ())
        out = []
        for t, beam in enumerate(beams):
            step = torch.full((len(self.ids) * k, len(like)), missing, dtype=torch.float, device=self.ids.device)
            step[-1] = missing if t < shortest else 0.0
            for i, prefixes in enumerate(beam):
                for slot, prefix in enumerate(prefixes):
                    step[i * k + slot] = record.rows[i][prefix]
            out.append(step)
        return tuple(out)


def build_output(call: Call) -> Any:
    """The output of Hugging Face's beam or greedy search: sequences, or with `return_dict_in_generate` the output class. Beyond
    the end of a sequence, greedy search's scores are 0, so that sums of transition scores are right."""
    outputs, k, encoder_decoder = Outputs(call), call.config.num_beams, call.model.encoder_decoder
    if not call.config.return_dict_in_generate:
        return outputs.sequences()
    indices, beams = outputs.beams(k)
    scores = None if call.record is None else outputs.scores(call.record, k, beams, 0.0 if call.greedy else -inf)
    if call.greedy:
        kind: Any = utils.GenerateEncoderDecoderOutput if encoder_decoder else utils.GenerateDecoderOnlyOutput
        return kind(sequences=outputs.sequences(), scores=scores)
    kind = utils.GenerateBeamEncoderDecoderOutput if encoder_decoder else utils.GenerateBeamDecoderOnlyOutput
    ranking = torch.tensor(outputs.values, dtype=torch.float, device=outputs.ids.device)  # -inf where there is no answer
    return kind(sequences=outputs.sequences(), sequences_scores=ranking, scores=scores, beam_indices=indices)
