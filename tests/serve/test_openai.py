"""OpenAI's own client against the server, with a small chat model: it gets the results of `decode`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

import bestfirst
import chat_models
from scale import FULL
from serve.served import ENVIRONMENT, Served

PROMPT = "once upon a time"
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "boolean"}}}
TALK = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "tell me a story"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return chat_models.save(tmp_path_factory.mktemp("served") / "chat")


@pytest.fixture(scope="module")
def served(folder) -> Iterator[Served]:
    limits = ["--max-chars", 60, "--max-items", 3]  # so that every request fits into the model's context
    served = Served("--model", folder, *limits, "--deadline", 600)
    yield served
    served.stop()


@pytest.fixture(scope="module")
def client(served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def model(folder) -> bestfirst.Model:
    return bestfirst.load(folder)


def expected(model, source, **settings):
    (result,) = bestfirst.decode(model, [source], accept_truncated=True, **settings)
    return result


def test_a_completion_equals_decode_with_its_token_counts(client, model):
    found = client.completions.create(model="chat", prompt=PROMPT, max_tokens=12, extra_body={"beam_width": 4})
    result = expected(model, PROMPT, beam=4, max_length=12)
    assert found.object == "text_completion"
    assert found.choices[0].text == result.text
    assert found.choices[0].finish_reason == ("length" if result.truncated else "stop")
    assert found.usage.completion_tokens == len(result.hypotheses[0].tokens)
    assert found.usage.prompt_tokens == len(model.read(PROMPT).payload.tokens)
    prompts = [PROMPT, "a time", PROMPT]
    found = client.completions.create(model="chat", prompt=prompts, max_tokens=2)
    assert found.usage.prompt_tokens == sum(len(model.read(each).payload.tokens) for each in prompts)


def test_n_best_lists_of_several_prompts_equal_decode(client, model):
    prompts = [PROMPT, "the cat", "what is"]
    found = client.completions.create(model="chat", prompt=prompts, n=3, best_of=6, max_tokens=8, stop=["th", "o"])
    results = [expected(model, each, beam=6, nbest=3, max_length=8, stop_strings=("th", "o")) for each in prompts]
    assert [choice.text for choice in found.choices] == [answer.text for result in results for answer in result.hypotheses]
    assert [choice.index for choice in found.choices] == list(range(9))


def test_a_chat_completion_equals_decode(client, model):
    found = client.chat.completions.create(model="chat", messages=TALK, n=3, max_tokens=10, temperature=0)
    result = expected(model, TALK, beam=5, nbest=3, max_length=10)
    assert [choice.message.content for choice in found.choices] == [answer.text for answer in result.hypotheses]
    assert {choice.message.role for choice in found.choices} == {"assistant"}
    again = client.chat.completions.create(model="chat", messages=TALK, n=3, max_completion_tokens=10, seed=7)
    assert [choice.message.content for choice in again.choices] == [choice.message.content for choice in found.choices]


@pytest.mark.parametrize("prompt", ["\n", ["the cat", "  "]])
def test_blank_prompts_are_decoded_like_others(client, model, prompt):
    found = client.completions.create(model="chat", prompt=prompt, n=2, max_tokens=8)
    results = [expected(model, each, beam=5, nbest=2, max_length=8) for each in ([prompt] if isinstance(prompt, str) else prompt)]
    assert [choice.text for choice in found.choices] == [answer.text for result in results for answer in result.hypotheses]
    assert [choice.index for choice in found.choices] == list(range(2 * len(results)))


def test_streamed_chunks_equal_decode(client, model):
    whole = expected(model, TALK, beam=5, nbest=3, max_length=10)
    chunks = [*client.chat.completions.create(model="chat", messages=TALK, n=3, max_tokens=10, stream=True)]
    assert [chunk.choices[0].index for chunk in chunks] == [0, 1, 2]
    assert [chunk.choices[0].delta.content for chunk in chunks] == [answer.text for answer in whole.hypotheses]
    assert all(chunk.choices[0].finish_reason in ("stop", "length") for chunk in chunks)
    texts = [chunk.choices[0].text for chunk in client.completions.create(model="chat", prompt=PROMPT, max_tokens=6, stream=True)]
    assert texts == [expected(model, PROMPT, max_length=6).text]


@pytest.mark.parametrize("chat", [False, True])
def test_a_stream_ends_with_the_usage_if_asked(client, chat):
    create = client.chat.completions.create if chat else client.completions.create
    asked = {"model": "chat", "max_tokens": 10, "n": 2, **({"messages": TALK} if chat else {"prompt": [PROMPT, "the cat"]})}
    *outputs, last = create(**asked, stream=True, stream_options={"include_usage": True})
    assert len(outputs) == (2 if chat else 4)
    assert (last.choices, last.usage) == ([], create(**asked, stream_options={"include_usage": True}).usage)
    assert all(chunk.usage is None for chunk in outputs)


def test_a_message_in_parts_is_one_text(client):
    parts = [{"type": "text", "text": text} for text in ("tell me", "a story")]
    whole, joined = (
        client.chat.completions.create(model="chat", messages=[{"role": "user", "content": content}], max_tokens=10)
        for content in (parts, "tell me\na story")
    )
    assert whole.choices[0].message == joined.choices[0].message
    assert whole.usage == joined.usage
    image = [{"type": "image_url", "image_url": {"url": "data:"}}]
    with pytest.raises(openai.UnprocessableEntityError, match=r"content\.0\.type: input should be 'text', got 'image_url'"):
        client.chat.completions.create(model="chat", messages=[{"role": "user", "content": image}])


def test_null_and_penalties_of_0_are_as_if_left_out(client):
    plain = client.completions.create(model="chat", prompt=PROMPT, max_tokens=8)
    neutral = {"n": None, "stream": None, "frequency_penalty": 0, "presence_penalty": None}
    asked = client.completions.create(model="chat", prompt=PROMPT, max_tokens=8, **neutral)
    assert (asked.choices, asked.usage) == (plain.choices, plain.usage)


def test_the_model_is_listed_by_its_name(client):
    assert [each.id for each in client.models.list()] == ["chat"]


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError, "there is no model 'gpt-9'; this server has 'chat'"),
        (
            {"temperature": 0.7},
            openai.UnprocessableEntityError,
            "temperature: outputs are searched for, not sampled",
        ),
        ({"n": 1000}, openai.UnprocessableEntityError, "n: "),
        ({"max_tokens": 0}, openai.UnprocessableEntityError, "max_tokens: "),
        ({"prompt": "the cat " * 300}, openai.UnprocessableEntityError, "at most 60 characters"),
        (
            {"extra_body": {"allowed": {"outputs": ["a"]}, "response_format": FORMAT}},
            openai.UnprocessableEntityError,
            "response_format says what is allowed, so does allowed; leave one of them out",
        ),
        ({"extra_body": {"beams": 4}}, openai.UnprocessableEntityError, "beams: there is no such field"),
    ],
)
def test_invalid_requests_raise_the_errors_of_the_client(client, asked, error, said):
    with pytest.raises(error) as caught:
        client.completions.create(**{"model": "chat", "prompt": PROMPT, **asked})
    assert said in caught.value.body["message"]


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        (lambda client: client.models.list(), openai.AuthenticationError, "Authorization: Bearer TOKEN"),
        (lambda client: client.completions.create(model="", prompt="a" * (1 << 20)), openai.APIStatusError, "this one has more"),
        (lambda client: client.embeddings.create(model="", input="a"), openai.NotFoundError, "Not Found"),
    ],
)
def test_errors_before_a_body_is_parsed_are_shown_by_the_client(narrow, asked, error, said):
    key = "wrong" if error is openai.AuthenticationError else "open sesame"
    with pytest.raises(error, match=said):
        asked(openai.OpenAI(base_url=f"{narrow.url}/v1", api_key=key, max_retries=0))


def test_a_translation_model_serves_completions_and_no_chats(server):
    refused = server.post("/v1/chat/completions", {"messages": TALK})
    assert (refused.status, refused.json["detail"]) == (404, "model 'tatoeba-de-en' has no chat template; use /v1/completions")
    found = server.post("/v1/completions", {"prompt": "Guten Morgen!", "max_tokens": 20}).json
    assert found["choices"][0]["text"] == "Good morning."
    assert found["usage"]["prompt_tokens"] == len(bestfirst.load().read("Guten Morgen!").payload.source) > 1


def test_schemathesis_finds_nothing(served, tmp_path):
    command = Path(sys.executable).with_name("schemathesis")
    options = ["--checks", "all", "--max-examples", "60" if FULL else "6", "--seed", "8", "--suppress-health-check", "all"]
    asked = ["--include-path-regex", "^/v1/", "--request-timeout", "600", "--max-response-time", "600"]
    line = [str(command), "run", f"{served.url}/openapi.json", *asked, *options]
    done = subprocess.run(line, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
