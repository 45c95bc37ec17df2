"""Chat: conversations as the texts that a model was trained on, by the template of its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .text_model import TextModel

Messages = Sequence[Mapping[str, Any]]
"""What was said: `{"role": "user", "content": "..."}` and so on."""


def is_conversation(raw: Any) -> bool:
    """Whether an input is a list of messages, as against a text or token ids."""
    return isinstance(raw, (list, tuple)) and bool(raw) and all(isinstance(each, Mapping) and "role" in each for each in raw)


def conversation(text: str) -> Messages:
    """A line of a file as a conversation: a JSON list of messages, or else what a user says."""
    if text.lstrip().startswith("["):
        try:
            given = json.loads(text)
        except ValueError:
            given = None
        if is_conversation(given):
            return given
    return [{"role": "user", "content": text}]


def chat_ids(model: TextModel, messages: Messages) -> tuple[int, ...]:
    """The tokens of a conversation up to where the model speaks. ValueError if its tokenizer knows no conversations."""
    tokenizer: Any = getattr(model, "tokenizer", None)
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(f"model {model.name!r} has no chat template; give it the text that it is to go on with")
    try:
        text = tokenizer.apply_chat_template([dict(each) for each in messages], tokenize=False, add_generation_prompt=True)
    except Exception as error:  # of the template's own code, which looks at what was said
        raise ValueError(f"the chat template of model {model.name!r} refuses this conversation: {error}") from error
    return tuple(tokenizer(text, add_special_tokens=False).input_ids)
