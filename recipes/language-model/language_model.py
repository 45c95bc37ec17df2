"""Complete a prompt with a language model from a folder of safetensors, or from a GGUF file in it; with --chat, answer it."""

import argparse

import bestfirst

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("prompt")
    parser.add_argument("--gguf", help="a file of that folder; needs the package gguf")
    parser.add_argument("--chat", action="store_true")
    asked = parser.parse_args()
    if asked.gguf:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(asked.folder, gguf_file=asked.gguf)
        model = bestfirst.wrap(AutoModelForCausalLM.from_pretrained(asked.folder, gguf_file=asked.gguf), tokenizer)
    else:
        model = bestfirst.load(asked.folder)
    prompt = [{"role": "user", "content": asked.prompt}] if asked.chat else asked.prompt
    (result,) = bestfirst.decode(model, [prompt], beam=4, nbest=3, max_length=40, length_penalty=1.0, accept_truncated=True)
    for answer in result.hypotheses:
        print(f"{answer.score:8.3f}  {answer.text!r}{' ...' if answer.truncated else ''}")
