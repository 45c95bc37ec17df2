"""Inputs, models and settings that only `generate`'s own loop supports: it runs, and its output is returned."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.modules.module import _global_forward_hooks, register_module_forward_hook
from transformers import (
    AttentionInterface,
    BartConfig,
    BartForCausalLM,
    DynamicCache,
    EosTokenCriteria,
    ExponentialDecayLengthPenalty,
    MaxLengthCriteria,
    RobertaConfig,
    RobertaForCausalLM,
    SequenceBiasLogitsProcessor,
    StoppingCriteria,
    SynthIDTextWatermarkingConfig,
    WatermarkLogitsProcessor,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import bestfirst
from bestfirst import Stats
from engine.builders import ARCHITECTURES, peaked
from generate.differences import both, compare, padded
from generate.tiny import tiny

LLAMA, MARIAN = ARCHITECTURES["llama"], ARCHITECTURES["marian"]
SETTINGS = {"num_beams": 3, "max_new_tokens": 6}


def check_own_loop_runs(model, batch, why, **asked):
    stats = Stats()
    asked = {**SETTINGS, **asked}
    torch.manual_seed(0)
    theirs = model.generate(**copy.deepcopy(batch), **asked)
    torch.manual_seed(0)
    ours = model.generate(**copy.deepcopy(batch), **asked, custom_generate=bestfirst.generate, stats=stats)
    assert_equal(ours, theirs)
    assert stats.engine == "generate"
    assert why in stats.search


def assert_equal(ours, theirs):
    """For tensors and their containers."""
    if isinstance(theirs, torch.Tensor):
        assert torch.equal(ours, theirs)
    elif isinstance(theirs, (tuple, list)):
        for each in zip(ours, theirs, strict=True):
            assert_equal(*each)
    elif hasattr(theirs, "keys"):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            assert_equal(ours[name], theirs[name])


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"do_sample": True}, "do_sample=True"),
        ({"guidance_scale": 1.5}, "guidance_scale=1.5"),
        ({"output_logits": True}, "output_logits=True"),
        ({"output_attentions": True}, "output_attentions=True"),
        ({"output_hidden_states": True}, "output_hidden_states=True"),
        ({"watermarking_config": SynthIDTextWatermarkingConfig(ngram_len=3, keys=[1, 2])}, "watermarking_config of SynthID"),
        ({"position_ids": torch.arange(5, 13).expand(2, -1)}, "position_ids"),
    ],
)
def test_own_loop_runs_settings_that_only_it_supports(asked, why, k, small):
    for name in ("llama",) if "position_ids" in asked or "guidance_scale" in asked else ("llama", "marian"):
        batch = {"input_ids": torch.arange(4, 20).view(2, 8), "attention_mask": torch.ones(2, 8, dtype=torch.long)}
        model = copy.deepcopy(small(name))
        model.config._attn_implementation = "eager"
        check_own_loop_runs(model, batch, why, num_beams=k, **asked, return_dict_in_generate=True)


def test_own_loop_runs_input_embeddings(small):
    rng = torch.Generator().manual_seed(0)
    batch = {"inputs_embeds": torch.randn(2, 5, 32, generator=rng), "attention_mask": torch.tensor([[0, 0, 1, 1, 1], [1] * 5])}
    check_own_loop_runs(small("llama"), batch, "the decoder takes inputs_embeds beside token ids")


def test_own_loop_runs_padded_decoder_prompts(small):
    prompt = {"decoder_input_ids": torch.tensor([[2, 5], [2, 6]]), "decoder_attention_mask": torch.tensor([[0, 1], [1, 1]])}
    batch = {**padded(MARIAN, MARIAN.inputs(2, seed=1)), **prompt}
    check_own_loop_runs(small("marian"), batch, "decoder_attention_mask has zeros")


@pytest.mark.parametrize("name", ["llama", "marian"])
def test_own_loop_runs_an_input_that_is_all_padding(name, small):
    batch = {"input_ids": torch.tensor([[5, 6], [4, 4]]), "attention_mask": torch.tensor([[1, 1], [0, 0]])}
    check_own_loop_runs(small(name), batch, "the attention_mask of an input is all zeros")


@pytest.mark.parametrize("name", ["llama", "t5", "marian"])
def test_own_loop_runs_only_the_call_under_autocast(name, small):
    """The engine runs the calls before and after."""
    architecture, model = ARCHITECTURES[name], small(name)
    batch = padded(architecture, architecture.inputs(2, seed=1))
    before = model.generate(**batch, **SETTINGS, custom_generate=bestfirst.generate)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check_own_loop_runs(model, batch, "torch.autocast")
    stats = Stats()
    assert torch.equal(model.generate(**batch, **SETTINGS, custom_generate=bestfirst.generate, stats=stats), before)
    assert stats.engine == "host"


def test_own_loop_runs_weights_offloaded_to_disk(tmp_path):
    offload = pytest.importorskip("accelerate").disk_offload
    model = LLAMA.build()
    offload(model, tmp_path, execution_device=torch.device("cpu"))
    check_own_loop_runs(model, padded(LLAMA, LLAMA.inputs(2, seed=1)), "not in memory")


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig", "PromptEncoderConfig"])
def test_own_loop_runs_virtual_tokens_of_peft(kind):
    peft = pytest.importorskip("peft")
    sizes = {} if kind == "PromptTuningConfig" else {"encoder_hidden_size": 32}
    model = peft.get_peft_model(LLAMA.build(), getattr(peft, kind)(task_type="CAUSAL_LM", num_virtual_tokens=3, **sizes)).eval()
    check_own_loop_runs(model, padded(LLAMA, LLAMA.inputs(2, seed=1)), "")


def test_own_loop_runs_prefix_tuning_of_an_encoder_decoder():
    peft, t5 = pytest.importorskip("peft"), ARCHITECTURES["t5"]
    settings = peft.PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3, encoder_hidden_size=32)
    model = peft.get_peft_model(t5.build(), settings).eval()
    check_own_loop_runs(model, padded(t5, t5.inputs(2, seed=1)), "prepare_inputs_for_generation is not the model's own")


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PromptEncoderConfig"])
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_virtual_tokens_of_an_encoder_equal_generate(kind, name):
    """PEFT calls `generate` of the base model with embeddings for its encoder."""
    peft, architecture = pytest.importorskip("peft"), ARCHITECTURES[name]
    sizes = {} if kind == "PromptTuningConfig" else {"encoder_hidden_size": 32}
    settings = getattr(peft, kind)(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3, **sizes)
    model = peft.get_peft_model(architecture.build(), settings).eval()
    batch = padded(architecture, architecture.inputs(2, seed=1))
    asked = {**SETTINGS, "return_dict_in_generate": True, "output_scores": True}
    theirs, without = model.generate(**batch, **asked), model.get_base_model().generate(**batch, **asked)
    ours = model.generate(**batch, **asked, custom_generate=bestfirst.generate)
    assert torch.equal(ours.sequences, theirs.sequences)
    assert torch.allclose(ours.sequences_scores, theirs.sequences_scores, atol=1e-4)
    assert not torch.allclose(theirs.sequences_scores, without.sequences_scores, atol=1e-4)


@pytest.mark.parametrize("k", [1, 3])
def test_own_loop_runs_synced_gpus(k, small, monkeypatch):
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_, **__: None)
    check_own_loop_runs(small("llama"), padded(LLAMA, LLAMA.inputs(2, seed=1)), "synced_gpus", num_beams=k, synced_gpus=True)


def test_own_loop_runs_a_cache_that_holds_a_prefix():
    model = LLAMA.build()
    ids = torch.tensor([[5, 6, 7, 8], [9, 5, 6, 7]])
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=ids[:, :-1].repeat_interleave(3, 0), past_key_values=cache, use_cache=True)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "past_key_values": cache}
    check_own_loop_runs(model, batch, "past_key_values holds a prefix")


def test_own_loop_runs_overridden_prepare_inputs_for_generation():
    """As PEFT's prompt tuning does, and user-defined classes may."""
    model = LLAMA.build()

    class Shifted(type(model)):
        def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **arguments):
            given = super().prepare_inputs_for_generation(input_ids, attention_mask=attention_mask, **arguments)
            return {**given, "input_ids": (given["input_ids"] + 1) % 40}

    model.__class__ = Shifted
    check_own_loop_runs(model, padded(LLAMA, LLAMA.inputs(2, seed=1)), "prepare_inputs_for_generation")


def test_own_loop_runs_padding_on_the_right():
    model = LLAMA.build()
    batch = {"input_ids": torch.tensor([[5, 6, 7], [8, 9, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    check_own_loop_runs(model, batch, "padding is not on the left alone")


@pytest.mark.parametrize(
    ("kind", "why"), [("bart", "counts padding as positions"), ("roberta", "positions of its own for padding")]
)
def test_own_loop_runs_decoders_that_count_padding_as_positions(kind, why):
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    if kind == "bart":
        config = BartConfig(
            vocab_size=40, d_model=16, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=32, pad_token_id=1
        )
        model = peaked(BartForCausalLM(config), seed=0, eos=1.5).eval()
    else:
        model = peaked(RobertaForCausalLM(RobertaConfig(**sizes, is_decoder=True, pad_token_id=1)), seed=0, eos=1.5).eval()
    batch = {"input_ids": torch.tensor([[5, 6, 7], [1, 8, 9]]), "attention_mask": torch.tensor([[1, 1, 1], [0, 1, 1]])}
    check_own_loop_runs(model, batch, why)


def test_inputs_for_the_own_loop_are_errors_with_an_explicit_strategy():
    model = LLAMA.build()
    batch = {"input_ids": torch.tensor([[5, 6, 7], [8, 9, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    with pytest.raises(ValueError, match="padding is not on the left alone"):
        model.generate(**batch, **SETTINGS, custom_generate=bestfirst.generate, strategy="best-first")


@pytest.mark.parametrize(
    "forbids",
    [{"min_new_tokens": 4}, {"no_repeat_ngram_size": 1}, {"bad_words_ids": [[5, 6], [6, 5], [9, 9]]}, {"suppress_tokens": [1]}],
)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_allowed_tokens_that_are_forbidden_too_equal_generate(forbids, k, small):
    """Where no beam survives, Hugging Face forces what `prefix_allowed_tokens_fn` allows."""

    def allowed(i, ids):
        return [5, 6, 9][i:] if len(ids) < 4 else [1]

    batch, asked = padded(MARIAN, MARIAN.inputs(2, seed=3)), {"num_beams": k, "max_new_tokens": 6, **forbids}
    asked |= {"prefix_allowed_tokens_fn": allowed, "num_return_sequences": k, "early_stopping": "never"}
    asked |= {"return_dict_in_generate": True, "output_scores": True}
    theirs, ours = both(small("marian"), batch, lambda: asked)
    if k == 1:
        assert torch.equal(theirs.sequences, ours.sequences)
    else:
        assert compare(small("marian"), theirs, ours, k).differences == []


@pytest.mark.parametrize("name", ["marian", "t5", "gpt2"])
def test_own_loop_runs_dropout_in_training_mode(name):
    """Of functions, known to the config only, and of modules; the engine runs after `eval()`."""
    architecture = ARCHITECTURES[name]
    rates = {"dropout": 0.4, "dropout_rate": 0.4, "resid_pdrop": 0.4}
    known = architecture.config().to_dict()
    model = architecture.build(**{rate: value for rate, value in rates.items() if rate in known})
    batch, stats = padded(architecture, architecture.inputs(2, seed=1)), Stats()
    check_own_loop_runs(model.train(), batch, "training mode")
    model.eval().generate(**batch, **SETTINGS, custom_generate=bestfirst.generate, stats=stats)
    assert stats.engine == "host"


def test_the_engine_runs_training_mode_without_dropout():
    model, stats = LLAMA.build().train(), Stats()
    batch = padded(LLAMA, LLAMA.inputs(2, seed=1))
    ours = model.generate(**batch, **SETTINGS, custom_generate=bestfirst.generate, stats=stats)
    assert_equal(ours, model.generate(**batch, **SETTINGS))
    assert stats.engine == "host"
    assert model.training


def test_own_loop_runs_padding_that_has_a_position_of_its_own(small):
    """M2M100's decoder computes positions from tokens, without padding: the own loop runs prompts and outputs that have it."""
    model = copy.deepcopy(small("m2m100"))
    pad = model.config.pad_token_id
    model.generation_config.forced_bos_token_id = model.generation_config.suppress_tokens = None
    model.generation_config.bad_words_ids = None
    batch = padded(ARCHITECTURES["m2m100"], ARCHITECTURES["m2m100"].inputs(2, seed=1))
    why = "the decoder gives padding a position of its own"
    prompt = torch.tensor([[model.config.decoder_start_token_id, pad, 5]] * 2)
    check_own_loop_runs(model, {**batch, "decoder_input_ids": prompt}, why)
    others = [token for token in range(model.config.vocab_size) if token not in (pad, model.config.eos_token_id)]
    allowed = {"prefix_allowed_tokens_fn": lambda _, ids: [pad] if len(ids) == 3 else others}
    check_own_loop_runs(model, batch, why, **allowed, return_dict_in_generate=True, output_scores=True)


class Ends(StoppingCriteria):
    def __call__(self, input_ids, scores, **_):
        return input_ids[:, -1] % 3 == 0


def test_own_loop_runs_greedy_search_with_a_criterion_but_no_eos(small):
    model = copy.deepcopy(small("llama"))
    model.generation_config.eos_token_id = None
    batch = {"input_ids": torch.arange(4, 20).view(2, 8)}
    asked = {"num_beams": 1, "stopping_criteria": [Ends()], "pad_token_id": 0, "max_new_tokens": 12}
    check_own_loop_runs(model, batch, "without an EOS", **asked)


def _stored(model):
    """All tensors that a model's modules hold, of parameters, buffers and attributes."""
    for module in model.modules():
        for held in (vars(module), module._buffers, module._parameters):
            yield from (value for value in held.values() if isinstance(value, torch.Tensor))


def _dynamic_rope():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    return tiny("LlamaForCausalLM", max_position_embeddings=8, rope_parameters=rope)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("build", [lambda: tiny("BloomForCausalLM"), lambda: tiny("MambaForCausalLM"), _dynamic_rope])
def test_what_the_own_loop_leaves_can_be_trained_with(build, k):
    """It runs in inference mode; neither its tokens nor what the model stored meanwhile may show that."""
    model, stats = build(), bestfirst.Stats()
    prompt = torch.tensor([[5, 6, 7, 9]])
    asked = {"input_ids": prompt, "num_beams": k, "max_new_tokens": 12}
    for _ in range(2):
        ours = model.generate(**asked, custom_generate=bestfirst.generate, stats=stats)
        assert torch.equal(ours, model.generate(**asked))
        assert stats.engine == "generate"
    assert not ours.is_inference()
    assert not any(tensor.is_inference() for tensor in _stored(model))
    model.train()(ours.clone(), labels=ours).loss.backward()
    assert all(weight.grad is not None for weight in model.get_input_embeddings().parameters())


@pytest.mark.parametrize(
    ("make", "stored"),
    [
        (lambda: SequenceBiasLogitsProcessor([[[5], 2.0], [[6, 7], 1.0]]), ("length_1_bias",)),
        (lambda: ExponentialDecayLengthPenalty((2, 1.2), torch.tensor([1]), 4), ("eos_token_id",)),
        (lambda: WatermarkLogitsProcessor(vocab_size=64, device="cpu", bias=3.0), ()),
    ],
)
def test_what_the_own_loop_leaves_in_a_processor_can_be_used_again(make, stored):
    model, stats, processor = tiny("BloomForCausalLM"), bestfirst.Stats(), make()
    asked = {"input_ids": torch.tensor([[5, 6, 7, 9]]), "num_beams": 2, "max_new_tokens": 12}
    ours = model.generate(**asked, logits_processor=[processor], custom_generate=bestfirst.generate, stats=stats)
    assert stats.engine == "generate"
    assert not any(getattr(processor, name).is_inference() for name in stored)
    assert torch.equal(ours, model.generate(**asked, logits_processor=[processor]))
    assert torch.equal(ours, model.generate(**asked, logits_processor=[make()]))


HELD = {
    "a cache": lambda seen: {"past_key_values": seen},
    "scores": lambda seen: {"return_dict_in_generate": True, "output_scores": True},
    "a criterion": lambda seen: {
        "stopping_criteria": [lambda ids, scores, **_: seen.append(ids) or torch.zeros(len(ids), dtype=torch.bool)]
    },
    "a processor": lambda seen: {"logits_processor": [lambda ids, scores: seen.append(scores) or scores]},
    "a static cache": lambda seen: {"cache_implementation": "static"},
}


@pytest.mark.parametrize("held", HELD)
def test_what_others_hold_is_not_made_in_inference_mode(held):
    model = tiny("BloomForCausalLM")
    cache = DynamicCache(config=model.config)
    seen = cache if held == "a cache" else []
    asked = {"input_ids": torch.tensor([[5, 6, 7, 9]]), "num_beams": 2, "max_new_tokens": 4, **HELD[held](seen)}
    stats = bestfirst.Stats()
    output = model.generate(**asked, custom_generate=bestfirst.generate, stats=stats)
    assert stats.engine == "generate"
    tensors = [layer.keys for layer in cache.layers] if held == "a cache" else seen
    tensors = [*tensors, *getattr(output, "scores", ()), getattr(output, "sequences", output), *_stored(model)]
    assert held in ("scores", "a static cache") or len(tensors) > 1
    assert not any(tensor.is_inference() for tensor in tensors)


def _hooks_all_modules(model, seen):
    register_module_forward_hook(lambda _, given, output: seen.append(output))


def _replaces_a_method(model, seen):
    prepare = model.prepare_inputs_for_generation

    def own(input_ids, attention_mask=None, **arguments):
        seen.append(input_ids)
        return prepare(input_ids, attention_mask=attention_mask, **arguments)

    model.prepare_inputs_for_generation = own


def _attends_itself(model, seen):
    def attend(module, query, *given, **named):
        seen.append(query)
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, *given, **named)

    AttentionInterface.register("noted", attend)
    model.set_attn_implementation("noted")


def _limits_itself(model, seen):
    class Noted(MaxLengthCriteria):
        def __call__(self, input_ids, scores, **more):
            seen.append(input_ids)
            return super().__call__(input_ids, scores, **more)

    return {"stopping_criteria": [Noted(8)]}


@pytest.fixture
def restored():
    """Afterwards, nothing is registered for all modules or as attention that was not before."""
    before = dict(AttentionInterface._global_mapping), dict(_global_forward_hooks)
    yield
    for held, known in zip((AttentionInterface._global_mapping, _global_forward_hooks), before, strict=True):
        for name in held.keys() - known:
            del held[name]


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("sees", [_hooks_all_modules, _replaces_a_method, _attends_itself, _limits_itself])
def test_code_of_the_users_is_not_run_in_inference_mode(sees):
    model, seen, stats = tiny("GPT2LMHeadModel"), [], Stats()
    asked = {"input_ids": torch.tensor([[5, 6, 7, 9]]), "num_beams": 2, "max_new_tokens": 4, "do_sample": True}
    asked |= sees(model, seen) or {}
    model.generate(**asked, custom_generate=bestfirst.generate, stats=stats)
    assert stats.engine == "generate"
    assert any(isinstance(tensor, torch.Tensor) for tensor in seen)
    assert not any(tensor.is_inference() for tensor in seen if isinstance(tensor, torch.Tensor))


def test_a_compiled_model_is_not_compiled_again_for_inference_mode():
    model, graphs = tiny("GPT2LMHeadModel"), []
    model.compile(backend=lambda graph, inputs: graphs.append(graph) or graph.forward, dynamic=True)
    asked = {"input_ids": torch.tensor([[5, 6, 7, 9]]), "max_new_tokens": 4, "do_sample": True}
    model.generate(**asked)
    compiled = len(graphs)
    model.generate(**asked, custom_generate=bestfirst.generate)
    assert len(graphs) == compiled > 0


def test_weights_made_in_inference_mode_stay_the_models_own():
    """Copies of them would untie them, take memory, and look like a changed model to the next call."""
    with torch.inference_mode():
        model = tiny("BloomForCausalLM")
    before, stats = dict(model.named_parameters(remove_duplicate=False)), Stats()
    asked = {"input_ids": torch.tensor([[5, 6, 7, 9]]), "num_beams": 2, "max_new_tokens": 4}
    model.generate(**asked, custom_generate=bestfirst.generate, stats=stats)
    assert stats.engine == "generate"
    assert all(before[name] is weight for name, weight in model.named_parameters(remove_duplicate=False))


def test_a_criterion_of_a_call_in_inference_mode_may_write_to_its_own_tensors():
    model, stats = tiny("BloomForCausalLM"), Stats()
    with torch.inference_mode():
        steps = torch.zeros(1)
        asked = {"input_ids": torch.tensor([[5, 6, 7, 9]]), "num_beams": 2, "max_new_tokens": 4}
        asked["stopping_criteria"] = [lambda ids, *_, **__: steps.add_(1).expand(len(ids)) < 0]
        model.generate(**asked, custom_generate=bestfirst.generate, stats=stats)
    assert (stats.engine, steps.item()) == ("generate", 4)


@pytest.mark.parametrize("name", ["BloomForCausalLM", "LlamaForCausalLM"])
def test_the_users_own_eos_criterion_pads_what_has_ended(name):
    model = tiny(name)
    model.generation_config.eos_token_id = None
    batch = {"input_ids": torch.tensor([[5, 6, 7, 9], [8, 9, 5, 4]])}
    first = model.generate(**batch, max_new_tokens=1)[:, -1].tolist()
    assert first[0] != first[1]
    for ended in first:
        asked = {"stopping_criteria": [EosTokenCriteria(torch.tensor([ended]))], "pad_token_id": 0, "max_new_tokens": 8}
        check_own_loop_runs(model, batch, "without an EOS", num_beams=1, **asked)


@pytest.mark.parametrize("name", ["BloomForCausalLM", "LlamaForCausalLM"])
@pytest.mark.parametrize("k", [1, 3])
def test_a_criterion_that_extends_one_of_transformers_is_called(name, k):
    class Ends(MaxLengthCriteria):
        def __call__(self, input_ids, scores, **more):
            return super().__call__(input_ids, scores, **more) | (input_ids[:, -1] % 3 == 0)

    model, asked = tiny(name), {"num_beams": k, "max_new_tokens": 12}
    for prompt in ([[5, 6, 7, 9]], [[8, 9, 5, 4]], [[7, 7, 5, 8]]):
        batch = {"input_ids": torch.tensor(prompt), "stopping_criteria": [Ends(12)]}
        ours = model.generate(**batch, **asked, custom_generate=bestfirst.generate)
        assert torch.equal(ours, model.generate(**batch, **asked))
