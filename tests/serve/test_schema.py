"""schemathesis: requests made up from the OpenAPI document, valid and not. None may get an answer that it does not announce."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from bestfirst.serve.schemas import TranslateRequest, Translation
from scale import FULL
from serve.served import ENVIRONMENT

TOO_LONG = """
[[operations]]
include-name = "POST /v1/completions"
checks.positive_data_acceptance.expected-statuses = ["2xx", "3xx", "401", "403", "404", "409", "422", "429", "5xx"]
"""
"""How many tokens a prompt has is the tokenizer's to say: no schema can, and OpenAI's clients expect an error."""


def test_schemathesis_finds_nothing(server, tmp_path):
    (tmp_path / "schemathesis.toml").write_text(TOO_LONG, encoding="utf-8")
    command = Path(sys.executable).with_name("schemathesis")
    options = ["--checks", "all", "--max-examples", "100" if FULL else "12", "--seed", "8", "--suppress-health-check", "all"]
    line = [str(command), "run", f"{server.url}/openapi.json", "--request-timeout", "600", "--max-response-time", "600", *options]
    done = subprocess.run(line, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert server.health["queue"] == 0


def test_the_documentation_names_every_field_of_translate():
    told = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
    table = told.split("What `/translate` takes:")[1].split("No other field")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(TranslateRequest.model_fields)
    answer = told.split("The answer has one entry")[1].split("**")[0]
    assert set(Translation.model_fields) <= set(re.findall(r"\w+", answer))
