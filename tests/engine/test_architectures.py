"""Every architecture that the engine covers: engine = plain search = Hugging Face's beam search, and none of them warns.

Models are small, built from their own configs with peaked random weights (`builders`); inputs have mixed lengths.
"""

from __future__ import annotations

import copy
import dataclasses
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import (
    GenerationMixin,
    ProphetNetConfig,
    ProphetNetForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

import bestfirst
from bestfirst.engine.known import known as known_of
from bestfirst.engine.runner import Runner
from bestfirst.engine.steps import choose
from bestfirst.engine.steps.bart import FusedBart
from bestfirst.engine.steps.hooked import HookedStep
from bestfirst.engine.steps.llama import FusedLlama
from bestfirst.engine.steps.recompute import RecomputeStep
from bestfirst.engine.steps.step import DecoderStep
from bestfirst.models import Model, Query, Scored
from bestfirst.models.transformers import TransformersModel
from bestfirst.search import Result
from engine.builders import ARCHITECTURES, EOS, PAD, SEQ2SEQ, START, VOCABULARY, Architecture

K, N, LONGEST = 4, 3, 10
NEAR = 1e-4  # scores nearer than this may change places
NAMES = tuple(ARCHITECTURES)
Hypotheses = list[tuple[tuple[int, ...], float]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small models run faster so, and beside other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


class Plain(Model):
    """A Hugging Face model asked as any other: every hypothesis from its first token, one by one. Its encoder runs once."""

    def __init__(self, model: TransformersModel) -> None:
        self._model = lambda: model  # out of the engine's sight, which would run it on a tree
        self.eos = model.eos

    @property
    def model(self) -> TransformersModel:
        return self._model()

    @torch.inference_mode()
    def start(self, source: Any) -> Any:
        prompt = self.model.start(source)
        return dataclasses.replace(prompt, hidden=self.model.encode([prompt])[0][0]) if self.model.encoder_decoder else prompt

    def score(self, batch: Any) -> list[Scored]:
        return self.model.score([Query(state, prefix) for state, prefix in batch])

    def source_length(self, source: Any) -> int:
        return self.model.source_length(source)

    def max_length(self, source: Any) -> int:
        return self.model.max_length(source)


def decode(model: Model, inputs: list[Any], row_budget: int, **settings: Any) -> list[Result]:
    """As Hugging Face does it at the longest length: what is unfinished there counts."""
    settings = {"beam": K, "nbest": N, "max_length": LONGEST, **settings}
    return bestfirst.decode(model, inputs, row_budget=row_budget, accept_truncated=True, **settings)


def hypotheses(result: Result) -> Hypotheses:
    return [(answer.tokens, answer.score) for answer in result.hypotheses]


def generate(model: Any, architecture: Architecture, source: Any, use_cache: bool = True) -> Hypotheses:
    """Hugging Face's beam search, with log-probability as the score. Whisper's own `generate` would add its timestamps."""
    forced = int(architecture.forced is not None)
    inputs = source[None].to(model.device) if architecture.speech else torch.tensor([source], device=model.device)
    mask = {} if architecture.speech else {"attention_mask": torch.ones_like(inputs)}
    output = GenerationMixin.generate(
        model,
        inputs,
        **mask,
        num_beams=K,
        num_return_sequences=N,
        length_penalty=0.0,
        early_stopping="never",
        max_new_tokens=LONGEST + forced,
        do_sample=False,
        use_cache=use_cache,
        return_dict_in_generate=True,
        output_scores=True,
    )
    given = len(source) if architecture.decoder_only else 1 + forced
    texts = [tokens[given:] for tokens in output.sequences.tolist()]
    texts = [tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens for tokens in texts]
    return list(zip(map(tuple, texts), output.sequences_scores.tolist(), strict=True))


def same(ours: Hypotheses, theirs: Hypotheses) -> bool:
    """Equal scores at every rank, and equal tokens except where a neighbour's score is nearly the same."""
    scores = [score for _, score in theirs]
    if len(ours) != len(theirs) or any(abs(mine[1] - score) > NEAR for mine, score in zip(ours, scores, strict=True)):
        return False
    for i, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
        tied = i == len(scores) - 1 or any(abs(scores[i] - other) < NEAR for j, other in enumerate(scores) if j != i)
        if mine[0] != its[0] and not tied:
            return False
    return True


# -- whole searches ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("name", NAMES)
def test_engine_is_plain_search_is_generate(name: str, cases: Callable[..., range], tally: Callable[..., None]) -> None:
    architecture = ARCHITECTURES[name]
    model = bestfirst.wrap(architecture.build())
    inputs = architecture.inputs(len(cases(8, full=50)))
    by_budget = {rows: decode(model, inputs, rows) for rows in (1, 7, 64)}
    assert choose.step_for(model).name == architecture.decoder

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

FUSED: dict[str, type[DecoderStep]] = {
    name: FusedLlama if architecture.decoder_only else FusedBart
    for name, architecture in ARCHITECTURES.items()
    if architecture.decoder in ("native", "fused")
}
STEPS = [
    *((name, native, "sdpa") for native in choose.native() for name, fused in FUSED.items() if fused is FusedBart),
    *((name, fused, "sdpa") for name, fused in FUSED.items()),
    *((name, HookedStep, attention) for name in NAMES for attention in ("sdpa", "eager")),
    *((name, RecomputeStep, "sdpa") for name in NAMES),
]


class Growth:
    """A random tree of hypotheses of several inputs, grown by a decoder: any length may be extended at any time."""

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
        """Up to three new hypotheses of each input; returns how far the worst log-probability is off."""
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
def test_a_step_gives_what_the_model_gives_from_scratch(name: str, decoder: type[DecoderStep], attention: str) -> None:
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
def test_a_step_beyond_the_first_tables(name: str, decoder: type[DecoderStep]) -> None:
    """Positions are looked up in tables that grow, and end where the model's do."""
    architecture = ARCHITECTURES[name]
    model = bestfirst.wrap(architecture.build(**{"n_positions" if name == "gpt2" else "max_position_embeddings": 140}))
    dice = random.Random(0)
    long = [dice.randrange(4, VOCABULARY) for _ in range(120)]
    with torch.inference_mode():
        growth = Growth(model, decoder(model.model), seed=0)
        growth.admit([[5, 6], [7]], [long, []])
        assert max(growth.step() for _ in range(3)) < 1e-4


# -- which decoder -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_takes_the_same_decoder(name: str, dtype: torch.dtype) -> None:
    architecture = ARCHITECTURES[name]
    model = bestfirst.wrap(architecture.build().to(dtype))
    assert choose.step_for(model).name == architecture.decoder.replace("native", "fused")  # compiled for float32 alone


def spoil(decoder: type[DecoderStep], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make its steps wrong, if only a little."""
    right = decoder.step

    def wrong(self: Any, rows: Any, *others: Any) -> torch.Tensor:
        logits = right(self, rows, *others)
        return logits + 0.05 * logits.roll(1, -1) * (rows.positions > 1)[:, None]

    monkeypatch.setattr(decoder, "step", wrong)


@pytest.mark.parametrize("native", choose.native())
def test_a_compiled_step_that_is_wrong_is_found_out_and_not_used(native, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(native, monkeypatch)
    assert choose.step_for(bestfirst.wrap(ARCHITECTURES["bart"].build())).name == "fused"


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("name", FUSED)
def test_hooked_is_the_second_choice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fused step that is wrong, however little, is found out and not used."""
    architecture = ARCHITECTURES[name]
    for decoder in (*choose.native(), FUSED[name]):
        spoil(decoder, monkeypatch)
    model = bestfirst.wrap(architecture.build(seed=4))
    inputs = architecture.inputs(3, seed=4)
    results = decode(model, inputs, 7)
    assert choose.step_for(model).name == "hooked"
    for source, result in zip(inputs, results, strict=True):
        assert same(hypotheses(result), generate(model.model, architecture, source))


class Scaled(torch.nn.Module):
    """Somebody's own module around one of the model's, each token by itself: what an adapter is."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * self.inner(x)


class LookingBack(Scaled):
    """A module that needs the whole prefix, which no cache of keys and values holds."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        return self.inner(x.cumsum(1) / before)


def replace(model: Any, wrapper: type[Scaled]) -> None:
    """Put a module of somebody's own into the first layer."""
    decoder = model.get_decoder()
    if model.config.model_type == "t5":
        ffn, part = decoder.block[0].layer[-1].DenseReluDense, "wi"
    else:
        layer = decoder.layers[0]
        ffn, part = (layer, "fc1") if hasattr(layer, "fc1") else (layer.mlp, "gate_proj")
    setattr(ffn, part, wrapper(getattr(ffn, part)))


def assert_correct(model: TransformersModel, architecture: Architecture, n: int = 3, use_cache: bool = True) -> None:
    inputs = architecture.inputs(n, seed=5)
    for rows in (1, 7):
        for source, result in zip(inputs, decode(model, inputs, rows), strict=True):
            assert same(hypotheses(result), generate(model.model, architecture, source, use_cache))


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("name", ["llama", "bart", "t5"])
def test_an_adapter_is_run_by_the_models_own_modules(name: str) -> None:
    model = bestfirst.wrap(ARCHITECTURES[name].build(seed=5))
    choose.step_for(model)
    replace(model.model, Scaled)  # after the model was first decoded with
    assert choose.step_for(model).name == "hooked"
    assert_correct(model, ARCHITECTURES[name])


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("name", ["llama", "bart"])
def test_a_hook_of_the_users_is_obeyed(name: str) -> None:
    model = bestfirst.wrap(ARCHITECTURES[name].build(seed=5))
    choose.step_for(model)
    model.model.get_decoder().layers[0].register_forward_hook(lambda module, given, output: 0.5 * output)
    assert choose.step_for(model).name == "hooked"
    assert_correct(model, ARCHITECTURES[name])


def scale_a_layer(encoder: Any) -> None:
    encoder.layers[0].register_forward_hook(lambda module, given, output: 0.5 * output)


def wrap_a_product(encoder: Any) -> None:
    encoder.layers[0].fc1 = Scaled(encoder.layers[0].fc1)


def replace_a_product(encoder: Any) -> None:
    """By torch's own classes, so that nothing but its place in the layer is unusual."""
    fc1 = encoder.layers[0].fc1
    encoder.layers[0].fc1 = torch.nn.Sequential(fc1, torch.nn.Hardtanh())


def replace_a_norm(encoder: Any) -> None:
    encoder.layers[0].self_attn_layer_norm = torch.nn.Identity()


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("change", [scale_a_layer, wrap_a_product, replace_a_product, replace_a_norm])
@pytest.mark.parametrize("when", ["before the first decode", "after it"])
@pytest.mark.parametrize("name", ["marian", "m2m100"])
def test_an_encoder_that_somebody_changed_is_run_as_it_is(name: str, when: str, change: Callable[[Any], None]) -> None:
    """By its own modules, and the decoder as fast as before."""
    architecture = ARCHITECTURES[name]
    model = bestfirst.wrap(architecture.build(seed=5))
    if when == "after it":
        decode(model, architecture.inputs(2), 7)
    change(model.model.get_encoder())
    assert_correct(model, architecture)
    step = choose.step_for(model)
    assert (step.name, step.encoder) == (architecture.decoder, None)


@pytest.mark.parametrize("native", choose.native())
def test_a_compiled_encoder_that_is_wrong_is_found_out_and_not_used(native, monkeypatch: pytest.MonkeyPatch) -> None:
    from bestfirst.engine.steps.native.encoder import NativeEncoder

    right = NativeEncoder.__call__

    def wrong(self: Any, inputs: Any) -> Any:
        hidden = right(self, inputs)
        hidden.t.mul_(1.001)
        return hidden

    monkeypatch.setattr(NativeEncoder, "__call__", wrong)
    model = bestfirst.wrap(ARCHITECTURES["bart"].build(seed=5))
    step = choose.step_for(model)
    assert (type(step), step.encoder) == (native, None)
    assert_correct(model, ARCHITECTURES["bart"])


@pytest.mark.usefixtures("no_warning")
def test_a_hook_on_the_head_is_obeyed() -> None:
    model = bestfirst.wrap(ARCHITECTURES["bart"].build(seed=5))
    choose.step_for(model)
    model.model.get_output_embeddings().register_forward_hook(lambda module, given, output: 0.5 * output)
    assert choose.step_for(model).name == "hooked"
    assert_correct(model, ARCHITECTURES["bart"])


@pytest.mark.parametrize("name", ["llama", "bart", "t5"])
def test_what_cannot_be_taken_over_falls_back_with_one_warning(name: str) -> None:
    choose._warned.clear()
    architecture = ARCHITECTURES[name]
    model = bestfirst.wrap(architecture.build(seed=5))
    replace(model.model, LookingBack)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_correct(model, architecture, use_cache=False)  # Hugging Face's cache is wrong for it too
        decode(bestfirst.wrap(model.model), architecture.inputs(1), 1)
    kind = architecture.model.__name__
    messages = [str(each.message) for each in caught]
    assert len(messages) == 1
    assert messages[0].startswith(kind)
    assert "slower" in messages[0]
    assert choose.step_for(model).name == "recompute"


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("window", [2, 3, 7, 64])
def test_sliding_windows(window: int) -> None:
    architecture = ARCHITECTURES["mistral"]
    model = bestfirst.wrap(architecture.build(seed=6, sliding_window=window))
    assert_correct(model, architecture, n=5)
    assert choose.step_for(model).name == "fused"
    assert model.model.config.sliding_window == window


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, False),
        ({"layer_types": ["full_attention", "linear_attention"]}, True),
        ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}, False),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}, False),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}, True),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}, False),
    ],
)
def test_what_short_hypotheses_cannot_show(changes: dict[str, Any], expected: bool) -> None:
    model = bestfirst.wrap(ARCHITECTURES["qwen2"].build(**changes))
    assert choose.changes_with_length(model) is expected


@pytest.mark.usefixtures("no_warning")
def test_a_model_that_gives_no_numbers_is_told_by_the_scorer_not_by_the_choice() -> None:
    model = ARCHITECTURES["marian"].build()
    with torch.no_grad():
        model.get_output_embeddings().weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="not finite"):
        decode(bestfirst.wrap(model), [[5, EOS]], 1)


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("name", ["marian", "pegasus"])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("part", ["fc1", "self_attn.v_proj", "final_layer_norm", "embed_tokens"])
def test_a_weight_that_is_no_number_is_told(name: str, side: str, part: str) -> None:
    """Wherever it is: an activation must not make a number of it. Of the embeddings, only one that the trial does not use."""
    model = ARCHITECTURES[name].build(tie_word_embeddings=False)
    module = getattr(model, f"get_{side}")()
    with torch.no_grad():
        if part == "embed_tokens":
            module.embed_tokens = copy.deepcopy(module.embed_tokens)
            module.embed_tokens.weight[5 if side == "encoder" else START] = float("nan")
        else:
            module.layers[0].get_submodule(part).weight.view(-1)[0] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        decode(bestfirst.wrap(model), [[5, EOS]], 1)


def test_a_trial_is_of_what_is_promised() -> None:
    """Small weights make everything nearly equal: log-probabilities that are off by 3e-4 are a small part of their spread."""
    sizes = {f"num_{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    config = ProphetNetConfig(
        **{**SEQ2SEQ, "hidden_size": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 40, **sizes}
    )
    model = ProphetNetForConditionalGeneration(config).eval()
    dice = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.02, generator=dice)
    with pytest.raises(ValueError, match=r"\(prophetnet\) cannot be decoded with"):
        choose.step_for(bestfirst.wrap(model))


# -- the model is left as it was found ---------------------------------------------------------------------------------


def state(model: Any) -> Any:
    """Everything about a model that a decode could leave changed."""
    return {
        name: (
            module.training,
            list(module._forward_hooks),
            list(module._forward_pre_hooks),
            sorted(vars(module)),
            {key: id(tensor) for key, tensor in (*module._parameters.items(), *module._buffers.items())},
        )
        for name, module in model.named_modules()
    }


HOOKED: dict[str, dict[str, Any]] = {"t5": {}, "gpt2": {}, "bart": {"dropout": 0.3}, "m2m100": {"dropout": 0.3}, "llama": {}}


@pytest.mark.parametrize("name", HOOKED)
@pytest.mark.parametrize("decoder", ["chosen", "hooked", "recompute"])
def test_the_model_is_left_as_found(name: str, decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    architecture = ARCHITECTURES[name]
    model = bestfirst.wrap(architecture.build(seed=7, **HOOKED[name]))
    inputs = architecture.inputs(3, seed=7)
    want = [hypotheses(result) for result in decode(model, inputs, 7)]
    if decoder != "chosen":
        kind = HookedStep if decoder == "hooked" else RecomputeStep
        monkeypatch.setattr(choose, "choose", lambda model, _: kind(model.model))
        model = bestfirst.wrap(model.model)
        known_of(model).step = None
    model.model.train()
    model.model.get_input_embeddings().eval()  # modes are mixed while a model is fine-tuned
    before = state(model.model)
    got = [hypotheses(result) for result in decode(model, inputs, 7)]
    assert all(same(*both) for both in zip(got, want, strict=True)), "dropout must not be at work"
    assert state(model.model) == before


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("name", HOOKED)
def test_the_model_is_left_as_found_by_an_exception_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    architecture = ARCHITECTURES[name]
    model = architecture.build(seed=7)
    monkeypatch.setattr(choose, "choose", lambda model, _: HookedStep(model.model))
    calls = 0

    def stop(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise Interrupted

    model.get_output_embeddings().register_forward_hook(stop)
    model.train()
    before = state(model)
    with pytest.raises(Interrupted):
        decode(bestfirst.wrap(model), architecture.inputs(2, seed=7), 7)
    assert state(model) == before


@pytest.mark.parametrize("name", ["marian", "llama", "t5"])
@pytest.mark.parametrize("through", ["no_grad", "data"])
def test_weights_that_change_between_decodes_are_seen(name: str, through: str) -> None:
    architecture = ARCHITECTURES[name]
    model = bestfirst.wrap(architecture.build(seed=8))
    decode(model, architecture.inputs(2, seed=8), 7)
    other = architecture.build(seed=9)
    with torch.no_grad():
        for mine, new in zip(model.model.parameters(), other.parameters(), strict=True):
            (mine if through == "no_grad" else mine.data).copy_(new)
        for mine, new in zip(model.model.buffers(), other.buffers(), strict=True):
            mine.copy_(new)
    assert_correct(model, architecture)


def test_a_config_that_names_no_bos_is_tried_like_any_other() -> None:
    """As T5's own files: the trial itself stumbled over it, and every hypothesis was run from its first token, or refused."""
    config = T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0)
    assert not hasattr(config, "bos_token_id") or config.bos_token_id is None
    assert choose.step_for(bestfirst.wrap(T5ForConditionalGeneration(config).eval())).name == "hooked"
