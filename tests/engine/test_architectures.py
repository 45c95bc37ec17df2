"""Every architecture that the engine covers: engine = plain search = Hugging Face's beam search, without a warning.

Models are small, built from their own configs with peaked random weights (`builders`); inputs have mixed lengths.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bestfirst
from bestfirst.engine.runner import Runner
from bestfirst.engine.steps import step_choice
from bestfirst.engine.steps.bart import FusedBart, as_numpy, read_bart
from bestfirst.engine.steps.decoder_step import DecoderStep
from bestfirst.engine.steps.hooked import HookedStep, RecomputeStep
from bestfirst.engine.steps.llama import FusedLlama
from bestfirst.engine.steps.native.decoder import NativeEncoder
from bestfirst.engine.steps.step_rows import Pages
from bestfirst.models.transformers import TransformersModel
from engine.builders import ARCHITECTURES, PAD, VOCABULARY
from engine.searches import FUSED, NAMES, Plain, decode, generate, hypotheses, same

pytestmark = pytest.mark.usefixtures("one_thread")

# -- whole searches ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("name", NAMES)
def test_engine_plain_search_and_generate_agree(name: str, cases: Callable[..., range], tally: Callable[..., None]) -> None:
    architecture = ARCHITECTURES[name]
    model = bestfirst.wrap(architecture.build())
    inputs = architecture.inputs(len(cases(8, full=50)))
    by_budget = {rows: decode(model, inputs, rows) for rows in (1, 7, 64)}
    assert step_choice.step_for(model).name == architecture.decoder

    plain = decode(Plain(model), inputs, 1)
    theirs = [generate(model.model, architecture, source) for source in inputs]
    wrong = [i for i in range(len(inputs)) if not same(hypotheses(plain[i]), theirs[i])]
    for results in by_budget.values():
        wrong += [i for i in range(len(inputs)) if not same(hypotheses(results[i]), hypotheses(plain[i]))]
        wrong += [i for i in range(len(inputs)) if results[i].calls != plain[i].calls]
    tally("inputs of small models, engine = plain search = generate", len(inputs), len(set(wrong)))
    assert not wrong
    assert all(result.exact and result.status == "complete" for result in plain)
    lengths = {len(tokens) for one in theirs for tokens, _ in one}
    assert len(lengths) > 3, "outputs of one length prove little"


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("name", NAMES)
def test_results_do_not_depend_on_the_batch_or_its_order(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model = bestfirst.wrap(architecture.build(seed=1))
    inputs = architecture.inputs(8, seed=1)
    together = decode(model, inputs, 16)
    order = random.Random(0).sample(range(len(inputs)), len(inputs))
    shuffled = decode(model, [inputs[i] for i in order], 16)
    for place, i in enumerate(order):
        alone = decode(model, [inputs[i]], 16)[0]
        assert same(hypotheses(together[i]), hypotheses(alone))
        assert same(hypotheses(together[i]), hypotheses(shuffled[place]))
        assert together[i].calls == alone.calls == shuffled[place].calls


# -- single steps ------------------------------------------------------------------------------------------------------

STEPS = [
    *((name, native, "sdpa") for native in step_choice.native_steps() for name, fused in FUSED.items() if fused is FusedBart),
    *((name, fused, "sdpa") for name, fused in FUSED.items()),
    *((name, HookedStep, attention) for name in NAMES for attention in ("sdpa", "eager")),
    *((name, RecomputeStep, "sdpa") for name in NAMES),
]


class Growth:
    """A random tree of hypotheses of several inputs, scored by a step: hypotheses of any length are extended at any time."""

    def __init__(self, model: TransformersModel, decoder: DecoderStep, seed: int) -> None:
        self.model = model
        self.runner = Runner(model, decoder)
        self.dice = random.Random(seed)
        self.prompts: dict[Any, Any] = {}
        self.known: dict[Any, dict[tuple[int, ...], int]] = {}  # each sentence's hypotheses and their slots

    def admit(self, inputs: list[Any], prefixes: list[list[int]]) -> None:
        prompts = [self.model.read(source, prefix).payload for source, prefix in zip(inputs, prefixes, strict=True)]
        for sentence, prompt in zip(self.runner.admit(prompts), prompts, strict=True):
            self.prompts[sentence], self.known[sentence] = prompt, {}

    def release(self) -> None:
        sentence = self.dice.choice(list(self.known))
        self.runner.release(sentence)
        del self.known[sentence], self.prompts[sentence]

    def step(self) -> float:
        """Scores up to three new hypotheses of each input; returns the largest error of a log-probability."""
        rows, grown = [], []
        for sentence, known in self.known.items():
            new: set[tuple[int, ...]] = set() if known else {()}
            while known and len(new) < self.dice.randint(1, 3):
                new.add((*self.dice.choice(list(known)), self.dice.randrange(PAD + 1, VOCABULARY)))
            for y in sorted(new - set(known)):
                parent = known[y[:-1]] if y else sentence.prompt_slot
                rows.append((sentence, parent, y[-1] if y else sentence.start, sentence.offset + len(y)))
                grown.append((sentence, y))
        slots, logits = self.runner.step(rows)
        worst = 0.0
        for (sentence, y), slot, got in zip(grown, slots, logits, strict=True):
            self.known[sentence][y] = slot
            prompt = self.prompts[sentence]
            whole = torch.tensor([[*prompt.tokens, *y]], device=self.model.model.device)
            want = self.model.logits(prompt, whole)[0, -1]
            worst = max(worst, float((got.log_softmax(-1) - want.log_softmax(-1)).abs().max()))
        return worst


@pytest.mark.parametrize(("name", "decoder", "attention"), STEPS, ids=lambda value: getattr(value, "name", value))
def test_a_step_equals_the_model_from_scratch(name: str, decoder: type[DecoderStep], attention: str) -> None:
    architecture = ARCHITECTURES[name]
    model = bestfirst.wrap(architecture.build(seed=2, attention=attention))
    first, second = architecture.inputs(3, seed=2), architecture.inputs(2, seed=3)
    with torch.inference_mode():
        growth = Growth(model, decoder(model.model), seed=2)
        growth.admit(first, [[5, 6, 7], [], [8]])
        worst = max(growth.step() for _ in range(3))
        growth.release()
        growth.admit(second, [[], [9, 10]])
        worst = max(worst, *(growth.step() for _ in range(4)))
    assert worst < 1e-4


@pytest.mark.parametrize(
    ("name", "decoder"),
    [
        ("llama", FusedLlama),
        ("gpt2", HookedStep),
        ("marian", FusedBart),
        ("marian", HookedStep),
        ("m2m100", FusedBart),
    ],
)
def test_position_tables_grow_as_far_as_the_models_positions(name: str, decoder: type[DecoderStep]) -> None:
    """Position tables grow on demand, and end where the model's do."""
    architecture = ARCHITECTURES[name]
    model = bestfirst.wrap(architecture.build(**{"n_positions" if name == "gpt2" else "max_position_embeddings": 140}))
    dice = random.Random(0)
    long = [dice.randrange(4, VOCABULARY) for _ in range(120)]
    with torch.inference_mode():
        growth = Growth(model, decoder(model.model), seed=0)
        growth.admit([[5, 6], [7]], [long, []])
        assert max(growth.step() for _ in range(3)) < 1e-4


@pytest.mark.parametrize("name", ["marian", "bart", "mbart", "pegasus", "m2m100"])
def test_the_compiled_encoder_equals_the_models_encoder(name: str) -> None:
    """Inputs of many lengths at once, some longer than the first position table."""
    model: Any = ARCHITECTURES[name].build(seed=3, max_position_embeddings=200)
    side = read_bart(model).encoder
    assert side is not None
    lengths = [1, 7, 100, 2, 33]
    inputs = [torch.randint(4, 40, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in lengths]
    encoder = NativeEncoder(as_numpy(side), Pages(), eight_bits=False)
    for _ in range(2):  # the second call reuses its memory
        found = torch.from_numpy(encoder(inputs)).clone().split(lengths)
        for tokens, mine in zip(inputs, found, strict=True):
            with torch.inference_mode():
                its = model.get_encoder()(input_ids=torch.tensor([tokens])).last_hidden_state[0]
            torch.testing.assert_close(mine, its, rtol=1e-3, atol=1e-4)
