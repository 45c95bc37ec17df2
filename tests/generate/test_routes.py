"""Ways to the drop-in: Whisper's own generate, pipelines, a folder after the Hub's convention, and all forms of inputs."""

from __future__ import annotations

import gc
import string
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, MaxTimeCriteria, StoppingCriteriaList, StopStringCriteria

import bestfirst
from bestfirst import Stats
from bestfirst.integrations import hub_folder
from engine.builders import ARCHITECTURES, EOS, VOCABULARY
from generate.differences import padded
from generate.tiny import tiny

FOLDER = {"custom_generate": hub_folder(), "trust_remote_code": True}


@pytest.fixture(scope="module")
def letters():
    """A tokenizer of single letters for the small models' vocabulary."""
    vocabulary = ["<pad>", "</s>", "<s>", "Ġ", *string.ascii_letters][:VOCABULARY]
    plain = Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary)}, [], unk_token="<pad>"))
    plain.pre_tokenizer, plain.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="</s>", bos_token="<s>", padding_side="left"
    )


# -- Whisper -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whisper():
    model = ARCHITECTURES["whisper"].build()
    model.generation_config.no_timestamps_token_id = 40
    model.generation_config.max_initial_timestamp_index = 3
    return model


TIMESTAMPS = {"return_timestamps": True}
WHISPER_SETTINGS = [
    {},
    {"num_beams": 1},
    TIMESTAMPS,
    {**TIMESTAMPS, "length_penalty": 0.0, "early_stopping": "never"},
    {**TIMESTAMPS, "no_speech_threshold": 0.02, "logprob_threshold": -0.5, "temperature": (0.0,)},
    {**TIMESTAMPS, "return_segments": True, "prompt_ids": torch.tensor([5, 6])},
]


@pytest.mark.parametrize(
    ("frames", "asked"),
    # Beyond one window of 20 frames Whisper calls generate several times, and needs timestamps.
    [*((20, asked) for asked in WHISPER_SETTINGS), *((50, asked) for asked in WHISPER_SETTINGS[2:])],
    ids=lambda asked: asked if isinstance(asked, int) else ",".join(asked) or "defaults",
)
def test_whispers_own_generate_gives_the_same_outputs(frames, asked, whisper):
    features = torch.randn(2, 8, frames, generator=torch.Generator().manual_seed(1))
    settings = {"num_beams": 3, "max_new_tokens": 9, "attention_mask": torch.ones(2, frames).long(), **asked}
    theirs = whisper.generate(features, **settings)
    ours = whisper.generate(features, **settings, custom_generate=bestfirst.generate)
    if isinstance(theirs, dict):
        theirs, ours = theirs["sequences"], ours["sequences"]
    assert torch.equal(theirs, ours)


@pytest.fixture(scope="module")
def multilingual():
    """Whisper as it is shipped: languages, tasks, tokens that are suppressed everywhere or at the beginning, timestamps."""
    model = ARCHITECTURES["whisper"].build(vocab_size=80)
    config = model.generation_config
    config.is_multilingual, config.lang_to_id = True, {"<|en|>": 40, "<|de|>": 41, "<|fr|>": 42}
    config.task_to_id = {"transcribe": 43, "translate": 44}
    config.prev_sot_token_id, config.no_timestamps_token_id, config.max_initial_timestamp_index = 45, 47, 5
    config.suppress_tokens, config.begin_suppress_tokens = [2, 5, 9, 43, 44, 45, 46], [7, EOS]
    return model


@pytest.mark.parametrize("timestamps", [False, True])
@pytest.mark.parametrize(
    "asked",
    [{}, {"language": "de", "task": "translate"}, {"language": ["en", "fr"]}, {"language": "de", "num_return_sequences": 3}],
    ids=lambda asked: ",".join(asked) or "detect",
)
def test_whispers_forced_and_suppressed_tokens_give_the_same_outputs(timestamps, asked, multilingual):
    features = torch.randn(2, 8, 20, generator=torch.Generator().manual_seed(3))
    settings = {"num_beams": 4, "max_new_tokens": 12, "return_timestamps": timestamps, **asked}
    theirs = multilingual.generate(features, **settings)
    assert torch.equal(theirs, multilingual.generate(features, **settings, custom_generate=bestfirst.generate))


def test_whispers_fallback_to_sampling_gives_the_same_outputs(whisper):
    features = torch.randn(1, 8, 20, generator=torch.Generator().manual_seed(3))
    asked = {"temperature": (0.0, 0.5), "logprob_threshold": -0.001, "return_timestamps": True, "num_beams": 2}
    outputs = []
    for route in ({}, {"custom_generate": bestfirst.generate}):
        torch.manual_seed(0)
        outputs.append(whisper.generate(features, max_new_tokens=5, **asked, **route))
    assert torch.equal(*outputs)


def test_whispers_token_timestamps_are_the_same(whisper):
    features = torch.randn(2, 8, 20, generator=torch.Generator().manual_seed(4))
    whisper.generation_config.alignment_heads = [[0, 0], [1, 1]]
    asked = {"return_token_timestamps": True, "num_beams": 2, "max_new_tokens": 5}
    theirs = whisper.generate(features, **asked)
    ours = whisper.generate(features, **asked, custom_generate=bestfirst.generate)
    assert torch.equal(theirs["sequences"], ours["sequences"])
    assert torch.equal(theirs["token_timestamps"], ours["token_timestamps"])


def test_whispers_outputs_as_a_dict_are_the_same(whisper):
    features = torch.randn(2, 8, 20, generator=torch.Generator().manual_seed(2))
    settings = {"num_beams": 3, "max_new_tokens": 9, "return_dict_in_generate": True, "output_scores": True}
    theirs = whisper.generate(features, **settings)
    ours = whisper.generate(features, **settings, custom_generate=bestfirst.generate)
    assert torch.equal(theirs.sequences, ours.sequences)
    assert torch.allclose(theirs.sequences_scores, ours.sequences_scores, atol=1e-4)


# -- pipelines ---------------------------------------------------------------------------------------------------------------


def test_the_text_generation_pipeline_gives_the_same_texts(small, letters):
    pipe = transformers.pipeline("text-generation", model=small("llama"), tokenizer=letters)
    asked = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 8, "do_sample": False}
    texts = ["hello wor", "my name", "so"]
    for batch_size in (1, 3):
        theirs = pipe(texts, **asked, batch_size=batch_size)
        assert pipe(texts, **asked, batch_size=batch_size, custom_generate=bestfirst.generate) == theirs
    sampled = []
    for route in ({}, {"custom_generate": bestfirst.generate}):
        torch.manual_seed(0)
        sampled.append(pipe(texts, num_beams=3, max_new_tokens=8, **route))  # pipelines sample by default
    assert sampled[0] == sampled[1]


def test_the_speech_recognition_pipeline_gives_the_same_text(multilingual):
    letters = {string.printable[10:90][i]: i for i in range(80)}
    tokenizer = transformers.WhisperTokenizer(vocab=letters, merges=[])
    extractor = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1, sampling_rate=1600, hop_length=80, n_fft=160)
    pipe = transformers.pipeline(
        "automatic-speech-recognition", model=multilingual, tokenizer=tokenizer, feature_extractor=extractor
    )
    audio, stats = {"raw": torch.randn(1600, generator=torch.Generator().manual_seed(3)).numpy(), "sampling_rate": 1600}, Stats()
    asked = {"num_beams": 4, "language": "de", "max_new_tokens": 8}
    theirs = pipe(dict(audio), generate_kwargs=dict(asked))
    assert pipe(dict(audio), generate_kwargs={**asked, "custom_generate": bestfirst.generate, "stats": stats}) == theirs
    assert theirs["text"]
    assert stats.search == "best-first"


# -- the folder --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["marian", "llama"])
def test_the_hub_folder_gives_the_same_outputs(name, small):
    architecture = ARCHITECTURES[name]
    batch, asked, stats = padded(architecture, architecture.inputs(3, seed=4)), {"num_beams": 3, "max_new_tokens": 9}, Stats()
    theirs = small(name).generate(**batch, **asked)
    assert torch.equal(theirs, small(name).generate(**batch, **asked, **FOLDER, stats=stats, row_budget=8))
    assert stats.search == "best-first"


def test_stop_strings_give_the_same_outputs(small, letters):
    """With a callable, transformers drops the tokenizer: give the criterion, or use the folder."""
    model, asked = small("llama"), {"num_beams": 3, "max_new_tokens": 8}
    batch = letters(["hello wor", "my name"], return_tensors="pt", padding=True, return_token_type_ids=False)
    text = letters.batch_decode(model.generate(**batch, **asked), skip_special_tokens=True)[1]
    strings = [text[-3]]
    theirs = model.generate(**batch, **asked, stop_strings=strings, tokenizer=letters)
    assert not torch.equal(theirs, model.generate(**batch, **asked))
    assert torch.equal(theirs, model.generate(**batch, **asked, stop_strings=strings, tokenizer=letters, **FOLDER))
    criteria = StoppingCriteriaList([StopStringCriteria(letters, strings)])
    assert torch.equal(theirs, model.generate(**batch, **asked, stopping_criteria=criteria, custom_generate=bestfirst.generate))
    config = GenerationConfig(**asked, stop_strings=strings)
    assert torch.equal(theirs, model.generate(**batch, generation_config=config, tokenizer=letters, **FOLDER))
    assert config.stop_strings == strings


def test_stop_strings_beside_a_stopping_criterion_give_the_same_outputs(small, letters):
    """With a `StopStringCriteria`, `generate` ignores `stop_strings`; with another it uses both."""
    model, asked = small("llama"), {"num_beams": 3, "max_new_tokens": 8}
    batch = letters(["hello wor", "my name"], return_tensors="pt", padding=True, return_token_type_ids=False)
    texts = letters.batch_decode(model.generate(**batch, **asked), skip_special_tokens=True)
    asked |= {"stop_strings": [texts[1][-3]], "tokenizer": letters}
    for criterion in (StopStringCriteria(letters, ["never written"]), MaxTimeCriteria(3600.0)):
        asked["stopping_criteria"] = StoppingCriteriaList([criterion])
        assert torch.equal(model.generate(**batch, **asked), model.generate(**batch, **asked, **FOLDER))


def test_max_time_ends_all_outputs_after_the_step_that_exceeds_it(small):
    architecture = ARCHITECTURES["marian"]
    batch = padded(architecture, architecture.inputs(2, seed=4))
    ours = small("marian").generate(
        **batch,
        num_beams=3,
        max_new_tokens=9,
        stopping_criteria=StoppingCriteriaList([MaxTimeCriteria(0.0, initial_timestamp=0.0)]),
        custom_generate=bestfirst.generate,
    )
    assert ours.shape == (2, 2)


# -- forms of inputs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["encoder_outputs", "inputs_embeds", "decoder_input_ids", "no mask", "left padding"])
def test_all_forms_of_encoder_decoder_inputs_give_the_same_outputs(form, small):
    model, ids = small("marian"), torch.tensor([[5, 6, 7, 1], [9, 8, 1, 0]])
    mask = (ids != 0).long()

    def batch():
        with torch.no_grad():
            return {
                "encoder_outputs": {"encoder_outputs": model.get_encoder()(ids, attention_mask=mask), "attention_mask": mask},
                "inputs_embeds": {"inputs_embeds": model.get_input_embeddings()(ids), "attention_mask": mask},
                "decoder_input_ids": {
                    "input_ids": ids,
                    "attention_mask": mask,
                    "decoder_input_ids": torch.tensor([[2, 5, 6], [2, 9, 4]]),
                },
                "no mask": {"input_ids": ids},
                "left padding": {"input_ids": ids.flip(1), "attention_mask": mask.flip(1)},
            }[form]

    asked = {"num_beams": 3, "max_new_tokens": 10}
    theirs = model.generate(**batch(), **asked)
    assert torch.equal(theirs, model.generate(**batch(), **asked, custom_generate=bestfirst.generate))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_cache_that_holds_the_prompts_beginning_changes_nothing(name, small):
    model, ids = small(name), torch.tensor([[5, 6, 7, 9, 4]])
    asked = {"num_beams": 3, "max_new_tokens": 8}
    with torch.no_grad():
        cache = model(ids[:, :3], use_cache=True).past_key_values
    cache.batch_repeat_interleave(3)
    ours = model.generate(
        ids, attention_mask=torch.ones_like(ids), past_key_values=cache, **asked, custom_generate=bestfirst.generate
    )
    assert torch.equal(ours, model.generate(ids, attention_mask=torch.ones_like(ids), **asked))


def test_a_generation_config_object_gives_the_same_outputs(small):
    architecture = ARCHITECTURES["t5"]
    batch = padded(architecture, architecture.inputs(3, seed=4))
    config = transformers.GenerationConfig(num_beams=4, max_new_tokens=9, length_penalty=0.5, decoder_start_token_id=2)
    theirs = small("t5").generate(**batch, generation_config=config)
    assert torch.equal(theirs, small("t5").generate(**batch, generation_config=config, custom_generate=bestfirst.generate))


@pytest.mark.parametrize("name", ["marian", "t5", "llama"])
def test_a_model_without_references_is_freed(name):
    """Decoders are kept from call to call, but only while the model exists."""
    model = ARCHITECTURES[name].build()
    batch = padded(ARCHITECTURES[name], ARCHITECTURES[name].inputs(2, seed=4))
    for _ in range(2):
        model.generate(**batch, num_beams=2, max_new_tokens=5, custom_generate=bestfirst.generate)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("name", ["marian", "llama"])
def test_weights_that_change_between_calls_are_used(name):
    model, architecture = ARCHITECTURES[name].build(), ARCHITECTURES[name]
    batch, asked = padded(architecture, architecture.inputs(2, seed=4)), {"num_beams": 3, "max_new_tokens": 8}
    before = model.generate(**batch, **asked, custom_generate=bestfirst.generate)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.2).add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    after = model.generate(**batch, **asked, custom_generate=bestfirst.generate)
    assert torch.equal(after, model.generate(**batch, **asked))
    assert before.tolist() != after.tolist()


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_threads_share_a_model(name, small):
    architecture = ARCHITECTURES[name]
    batches = [padded(architecture, architecture.inputs(4, seed=seed)) for seed in range(8)]
    asked = {"num_beams": 3, "max_new_tokens": 9}
    theirs = [small(name).generate(**batch, **asked) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        ours = list(pool.map(lambda b: small(name).generate(**b, **asked, custom_generate=bestfirst.generate), batches))
    assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))


@pytest.fixture
def threads_alternate():
    """Every tenth of a millisecond, so that calls overlap."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("threads_alternate")
@pytest.mark.parametrize("name", ["Gemma2ForCausalLM", "BlenderbotForConditionalGeneration", "T5GemmaForConditionalGeneration"])
def test_threads_share_a_model_that_the_engine_hooks_into(name):
    """Its windows, too, which are narrowed while the step is checked. `generate`'s own loop may run meanwhile."""
    model = tiny(name)
    batches = [torch.arange(4, 4 + 5 * n).view(n, 5) for n in (1, 2, 3, 4)] * 2
    asked = [{"num_beams": 3, "max_new_tokens": 8, "input_ids": ids} for ids in batches]
    theirs = [model.generate(**each) for each in asked]
    with ThreadPoolExecutor(4) as pool:
        ours = list(pool.map(lambda each: model.generate(**each, custom_generate=bestfirst.generate), asked))
        assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
        for number, each in enumerate(asked):  # output_logits: the own loop runs
            each |= {"return_dict_in_generate": True, "output_logits": number % 2 == 0}
        ours = list(pool.map(lambda each: model.generate(**each, custom_generate=bestfirst.generate).sequences, asked))
    assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))


def test_the_model_is_left_unchanged(small):
    """No hooks, no attributes, the same mode, also when a processor raises midway."""
    model = small("t5")
    before = {name: (sorted(vars(module)), len(module._forward_hooks), module.training) for name, module in model.named_modules()}
    architecture = ARCHITECTURES["t5"]
    batch = padded(architecture, architecture.inputs(2, seed=4))

    def failing(ids, scores):
        if ids.shape[1] == 4:
            raise RuntimeError("in the middle")
        return scores

    with pytest.raises(RuntimeError, match="in the middle"):
        model.generate(
            **batch,
            num_beams=2,
            max_new_tokens=9,
            min_length=9,
            logits_processor=[failing],
            custom_generate=bestfirst.generate,
        )
    after = {name: (sorted(vars(module)), len(module._forward_hooks), module.training) for name, module in model.named_modules()}
    assert before == after
