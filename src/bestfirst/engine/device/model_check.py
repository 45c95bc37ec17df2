"""How the device runs a model: by kernels, or by its own modules if these give on the device's tree what the model gives from
scratch (`steps.step_check` has the hypotheses and the tolerance). The first answers of every session are checked as well."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from ...models.reader import Prompt
from ...models.transformers import TransformersModel
from ...search import Answer, Result
from ..engine import Job
from ..model_record import record_of
from ..steps.step_check import Hypotheses, branches, close, trial_prompts
from ..steps.step_choice import Fingerprint, rope_changes_with_length
from ..steps.windows import FULL, SLIDING
from .admission import Reading
from .cuda_graphs import Graphs, send
from .device_bart import DeviceBart, Packed
from .device_step import CapturedStep
from .kernels.rows import ROWS
from .modules.own_modules import OwnModules
from .state import Shape, State

_log = logging.getLogger(__name__)

Way = OwnModules | type[DeviceBart]


def way_of(model: TransformersModel) -> Way | None:
    """`DeviceBart` if kernels know its architecture and its modules are unmodified; else its own modules if they agree, or
    None."""
    return DeviceBart if fused(model) else own_modules(model)


def fused(model: TransformersModel) -> bool:
    """Whether kernels replace the model's modules."""
    return model.encoder_decoder and not model.speech and DeviceBart.takes(model.model) and model.modules.untouched


def own_modules(model: TransformersModel) -> OwnModules | None:
    """The model's own modules as the device runs them, None if they fail the check; kept while the model is unchanged."""
    record = record_of(model)
    if record.modules is not None and record.modules[0].holds(model.modules):
        known: OwnModules | None = record.modules[1]
        return known
    modules = _checked_modules(model)  # before the fingerprint is taken: it may move weights
    record.modules = (Fingerprint(model.modules), modules)
    return modules


def _checked_modules(model: TransformersModel) -> OwnModules | None:
    if not model.modules.untouched or changes_with_length(model.model):
        return None
    try:
        with torch.cuda.device_of(next(model.model.parameters())):
            modules = OwnModules(model.model)
            return modules if windows_are_passed(modules, model) and agrees(modules, model) else None
    except Exception:  # the host's engine may still be able to run it
        _log.debug("%s cannot be run on the device", type(model.model).__name__, exc_info=True)
        return None


def changes_with_length(model: Any) -> bool:
    """Whether attention or positions change beyond some length in a way that is not visible in the arguments of attention."""
    config = model.config.get_text_config(decoder=True)
    if any(getattr(module, "attention_type", None) == "block_sparse" for module in model.get_decoder().modules()):  # BigBird
        return True
    return bool(set(getattr(config, "layer_types", None) or ()) - {FULL, SLIDING}) or rope_changes_with_length(config)


def windows_are_passed(modules: OwnModules, model: TransformersModel) -> bool:
    """Whether layers with a sliding window pass it to their attention: the short hypotheses of `agrees` cannot tell."""
    config = model.model.config.get_text_config(decoder=True)
    own = [each for each in modules.heads if not each.cross]
    layers = getattr(config, "layer_types", None)
    window = next((w for name in ("sliding_window", "window_size") if isinstance(w := getattr(config, name, None), int)), None)
    if getattr(config, "attention_chunk_size", None) is not None:
        return False
    if layers is not None:
        expected = [window if kind == SLIDING else None for kind in layers[: len(own)]]
        return [each.window for each in own] == expected
    return all(each.window == window for each in own)


@torch.inference_mode()
def agrees(modules: OwnModules, model: TransformersModel) -> bool:
    """Whether two inputs get the model's own logits on the tree: one branches at every length, one does not."""
    prompts = trial_prompts(model)
    trees = [branches(model, 2), branches(model, 1)]
    return close("OwnModules", model, prompts, trees, Trial(modules, prompts)(trees))


class Trial:
    """A small tree whose rows are written by hand instead of by a search."""

    def __init__(self, modules: OwnModules, prompts: list[Prompt]) -> None:
        self.prompts = prompts
        source = max(len(p.tokens) if p.hidden is None else len(p.hidden) for p in prompts)
        self.state = State(Shape(4, 1, len(prompts), source, 16, 128, 2), modules)
        self.step = CapturedStep(self.state, modules)
        self.step.allocate_rows(32)
        self.modules = modules
        self.reading = Reading(self.state, modules, Graphs(modules.device))
        self._nodes = 0

    def __call__(self, trees: list[Hypotheses]) -> list[dict[tuple[int, ...], torch.Tensor]]:
        """Logits after every hypothesis of each input's tree."""
        self._read_inputs()
        at: list[dict[tuple[int, ...], tuple[int, int]]] = [{} for _ in trees]  # of each hypothesis: node and length
        root = [(0, -1) for _ in trees]
        if not self.modules.language_model:  # the decoder prompt is a path of rows; its last token is the root
            for place in range(max(len(prompt.tokens) for prompt in self.prompts) - 1):
                rows = [(i, *root[i], p.tokens[place]) for i, p in enumerate(self.prompts) if place < len(p.tokens) - 1]
                for (i, *_), (node, length, _) in zip(rows, self._logits_after(rows), strict=True):
                    root[i] = (node, length)
        answers: list[dict[tuple[int, ...], torch.Tensor]] = [{} for _ in trees]
        for level in zip(*trees, strict=True):
            batch = [(i, y) for i, ys in enumerate(level) for y in ys]
            rows = [(i, *(at[i][y[:-1]] if y else root[i]), y[-1] if y else self.prompts[i].tokens[-1]) for i, y in batch]
            for (i, y), (node, length, logits) in zip(batch, self._logits_after(rows), strict=True):
                at[i][y] = (node, length)
                answers[i][y] = logits
        return answers

    def _read_inputs(self) -> None:
        """Prefill the prompts, or hand over the encoder output."""
        lengths = [len(p.tokens) - 1 if self.modules.language_model else len(p.hidden) for p in self.prompts]
        numbers = np.repeat(np.arange(len(lengths)), lengths)
        starts = np.cumsum([0, *lengths[:-1]])
        places = np.arange(len(numbers)) - starts[numbers]
        hidden = self.reading.hidden_of(self.prompts)
        tokens = self.reading.tokens_of(self.prompts, len(numbers))
        cells = numbers * self.state.shape.source + places
        self.state.source_length.copy_(torch.tensor(lengths, dtype=torch.int32))
        given = (tokens, places, numbers, starts, lengths, [len(numbers)], cells)
        *packed, sent = (send(np.asarray(each, dtype=np.int32), self.modules.device) for each in given)
        self.reading.read(Packed(*packed), sent.long(), hidden)

    def _logits_after(self, rows: list[tuple[int, int, int, int]]) -> list[tuple[int, int, torch.Tensor]]:
        """(node, length, logits) of rows of (input, parent's node, parent's length, token), those of an input adjacent."""
        st, step, many = self.state, self.step, len(rows)
        nodes = list(range(self._nodes + 1, self._nodes + many + 1))
        self._nodes += many
        inputs, parents, lengths, tokens = (list(column) for column in zip(*rows, strict=True))
        lengths = [length + 1 for length in lengths]
        for node, parent, length in zip(nodes, parents, lengths, strict=True):
            st.paths[node, :length] = st.paths[parent, :length]
            st.paths[node, length] = node
        prompt_lengths = [len(self.prompts[i].tokens) - 1 if self.modules.language_model else 0 for i in inputs]
        given = (
            (step.row_node, nodes), (step.row_input, inputs), (step.row_length, lengths), (step.row_token, tokens),
            (step.row_position, [a + b for a, b in zip(prompt_lengths, lengths, strict=True)]),
        )  # fmt: skip
        for array, numbers in given:
            array[:many] = torch.tensor(numbers, dtype=array.dtype, device=array.device)
        count = [inputs.count(i) for i in range(len(self.prompts))]
        for array, numbers in ((st.grant, count), (st.first, [sum(count[:i]) for i in range(len(count))])):
            array.copy_(torch.tensor(numbers, dtype=array.dtype))
        st.counters[ROWS] = many
        logits = step.logits(many).clone()
        return list(zip(nodes, lengths, logits, strict=True))


@torch.inference_mode()
def check_answers(model: TransformersModel, job: Job, result: Result) -> None:
    """Raise RuntimeError unless answers of a new session (the first, middle and last of a job) have the log-probability that the
    model itself gives, and all are distinct and sorted: no kernel is trusted unseen."""
    answers = result.hypotheses
    scores = [answer.score for answer in answers]
    if len({answer.tokens for answer in answers}) < len(answers) or scores != sorted(scores, reverse=True):
        raise RuntimeError("answers come twice, or not in order")
    sampled: list[Any] = [*{0: None, len(answers) // 2: None, len(answers) - 1: None}] if answers else []
    for answer in [answers[i] for i in sampled] or [result.partial]:
        if answer is not None and answer.tokens:
            with suppress(torch.OutOfMemoryError):  # too long to run from scratch beside all that is in flight
                _check_answer(model, job, answer)


def _check_answer(model: TransformersModel, job: Job, answer: Answer) -> None:
    """Run the model from scratch on one answer, logits edits included."""
    prompt = job.source.payload
    given = torch.tensor([[*prompt.tokens, *answer.tokens]], device=model.model.device)
    logits = model.logits(prompt, given[:, :-1])[0, len(prompt.tokens) - 1 :].float()
    logprobs, edits = logits.log_softmax(-1), job.edits
    if edits is not None and edits.process is not None:
        rows = enumerate((logits if edits.raw else logprobs).split(1))
        edited = torch.cat([edits.process(job.index, answer.tokens[:t], row) for t, row in rows])
        logprobs = edited.log_softmax(-1) if edits.raw else edited
    own = float(logprobs.gather(1, given[0, len(prompt.tokens) :, None]).double().sum())
    precise = model.model.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    n, coarse = len(answer.tokens), torch.finfo(model.model.dtype).eps * float(logits.abs().max())  # rounding of logits
    if not abs(own - answer.logprob) <= (1e-3 if precise else 0.1) * (1 + n) + (0 if precise else 2 * coarse * n**0.5):
        raise RuntimeError(f"an answer's log-probability is {answer.logprob:.4f} by its kernels, {own:.4f} by the model")
