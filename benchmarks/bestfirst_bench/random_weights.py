"""Models with random weights, for timing architectures whose weights are not available; and prompts from lines, with or without a
tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from bestfirst.models.transformers import TransformersModel

SPREAD = 4.0  # standard deviation of the logits: outputs are as peaked as a trained model's


def random_model(config: str | Path, device: str | None = None, dtype: str | None = None) -> TransformersModel:
    """The model of a config (file, folder, or name in transformers), with weights from a fixed seed, without a tokenizer.

    The last norm is scaled so that logits are as spread as a trained model's, which gives a search something to find.
    """
    import transformers

    from bestfirst.models.transformers import DTYPES, wrap

    path = Path(config)
    if path.is_file():
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        made = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    else:
        made = transformers.AutoConfig.from_pretrained(config)
    kind = transformers.AutoModelForSeq2SeqLM if made.is_encoder_decoder else transformers.AutoModelForCausalLM
    torch.manual_seed(0)
    with torch.device(device or "cpu"):
        model = kind.from_config(made, dtype=DTYPES[dtype or "fp32"]).eval()
    text = made.get_text_config(decoder=True)
    ids = torch.randint(0, text.vocab_size, (2, 16), device=model.device)
    with torch.inference_mode():
        decoder_inputs = {"decoder_input_ids": ids} if made.is_encoder_decoder else {}
        spread = model(input_ids=ids, **decoder_inputs).logits.float().std()
    last = [module for module in model.get_decoder().modules() if "Norm" in type(module).__name__][-1]
    with torch.no_grad():
        for parameter in last.parameters():
            parameter.mul_(SPREAD / spread)
    generation = model.generation_config
    if generation.eos_token_id is None:
        generation.eos_token_id = 2
    if generation.pad_token_id is None:
        generation.pad_token_id = 0
    return wrap(model, name=f"{path.parent.name if path.is_file() else path.name} with random weights")


def prompts(lines: Sequence[str], model: TransformersModel) -> list[Any]:
    """Inputs from lines: a JSON array of token ids, `{"text": ...}`, `{"tokens": [...]}`, or the text itself.

    For a model without a tokenizer, the bytes of a text are its tokens. ValueError names a line without a prompt.
    """
    return [_prompt(number, line, model) for number, line in enumerate(lines, 1)]


def _prompt(number: int, line: str, model: TransformersModel) -> Any:
    prompt: Any = line
    if line.lstrip().startswith(("[", "{")):
        with suppress(json.JSONDecodeError):  # a text that begins with a bracket
            prompt = json.loads(line)
    if isinstance(prompt, dict):
        prompt = prompt.get("tokens", prompt.get("text"))
    if isinstance(prompt, str) and model.tokenizer is None:
        prompt = [byte % model.vocabulary for byte in prompt.encode()]
    if not isinstance(prompt, (str, list)) or not prompt:
        forms = 'a text, a JSON array of token ids, or an object with "text" or "tokens"'
        raise ValueError(f"line {number} has no prompt: give {forms}")
    return prompt
