"""Times every door (way in) on one device, and compares them; in turns, since a machine's speed varies.

    python tests/device/doors.py [--lines FILE] [--limit 2000] [--turns 10] [--beam 5]
        [--only doors,http,one,batch,python,prompts]

doors    tokens and texts through `decode`, a corpus job, the server's engine (16 requests at a time, without HTTP)
http     texts through `decode`, and through `bestfirst serve` in a process of its own, 16 requests at a time, to the last byte
one      one sentence at a time: `generate`, the drop-in, the part of it that is `generate`'s preparations, `decode`
batch    all sentences: `generate` in batches of 512, the drop-in in one call, preparations, `decode` of the same tokens
python   64 sentences: `prefix_allowed_tokens_fn`, a user's processor and `output_scores`, by `generate` and by the drop-in
prompts  8 prompts of a Llama with random weights: `repetition_penalty` and `no_repeat_ngram_size`, beams and greedily

Without a GPU it runs on the host, as a smoke test: its numbers then say nothing about a device.
"""

import argparse
import atexit
import json
import socket
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from threading import Event
from time import perf_counter

import torch
import transformers
from transformers.generation.logits_process import LogitsProcessor

import bestfirst
from bestfirst.corpus import Checkpoint, Input, Target, Worker
from bestfirst.corpus.worker import fixed_budget, shard_lines
from bestfirst.models.folder import embedded_folder
from bestfirst.models.transformers import load_transformers
from bestfirst.serve.engine_thread import EngineThread
from bestfirst.serve.schemas import Limits
from bestfirst.serve.work import Done, Work

sys.path.insert(0, str(Path(__file__).parents[1]))
from serve.served import Served

parser = argparse.ArgumentParser()
parser.add_argument("--lines", default=str(Path(__file__).parents[1] / "data" / "tatoeba-200.de"))
parser.add_argument("--limit", type=int, default=2000)
parser.add_argument("--turns", type=int, default=10)
parser.add_argument("--beam", type=int, default=5)
parser.add_argument("--most", type=int, default=100, help="tokens of an output")
parser.add_argument("--only", default="doors,http,one,batch,python,prompts")
args = parser.parse_args()
transformers.logging.set_verbosity_error()
device = "cuda" if torch.cuda.is_available() else "cpu"
wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
model = load_transformers(embedded_folder(), device=device)
network, tokenizer = model.model, model.tokenizer
given = Path(args.lines).read_text(encoding="utf-8").splitlines()
lines = (given * -(-args.limit // len(given)))[: args.limit]
ways: dict[str, Callable[[], object]] = {}


def compare(title: str, turns: int, by: str, warm: int = 2) -> None:
    """Times all ways in turns; ratios compare the best time of each with that of the way `by`."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(warm + turns):
        for name, way in ways.items():
            wait()
            begun = perf_counter()
            way()
            wait()
            if turn >= warm:
                seconds[name].append(perf_counter() - begun)
    print(f"\n{title}\n| way | best | median | {by} / best |\n| --- | --: | --: | --: |")
    for name, found in seconds.items():
        print(f"| {name} | {1e3 * min(found):.2f} ms | {1e3 * median(found):.2f} ms | {min(seconds[by]) / min(found):.2f} |")
    ways.clear()


def generate(batch: dict[str, torch.Tensor], own: bool, **settings: object) -> object:
    """Runs `generate` or the drop-in; prints why if the drop-in is not on the device."""
    if not own:
        return network.generate(**batch, **settings)
    stats = bestfirst.Stats()
    output = network.generate(**batch, **settings, custom_generate=bestfirst.generate, stats=stats)
    if stats.engine != "device" and device == "cuda":
        print("not on the device:", stats.search)
    return output


def preparations(batch: dict[str, torch.Tensor], **settings: object) -> object:
    """What `generate` does before it calls the drop-in, with its encoder deferred."""
    return network.generate(**batch, **settings, custom_generate=nothing)


def read(texts: list[str]) -> dict[str, torch.Tensor]:
    return dict(tokenizer(texts, return_tensors="pt", padding=True).to(device))


class Nothing(type(bestfirst.generate)):  # type: ignore[misc]
    """Treated by `generate` like the drop-in, but searches nothing."""

    def __call__(self, model, input_ids, *_, **__):
        return input_ids


nothing = Nothing(lambda model, input_ids, inputs_tensor=None, **more: input_ids)
usual = {"num_beams": args.beam, "max_new_tokens": args.most}
settings = bestfirst.Decoding(beam=args.beam, max_length=args.most)

if "doors" in args.only:
    folder = Path(tempfile.mkdtemp())
    (folder / "in.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    tokens = [model.read(line).payload.source for line in lines]
    number = iter(range(1 << 30))

    def corpus() -> None:
        """Like `translate in.txt -o out.txt`, with the model already loaded."""
        source, target = Input(str(folder / "in.txt")), Target()
        job = {"input": vars(source.survey()), "number": next(number)}
        with Checkpoint(str(folder / f"{job['number']}.txt"), job, target) as checkpoint:
            checkpoint.state()
            budget = fixed_budget(device)
            checkpoint.begin(budget)
            worker = Worker(model, settings.using(row_budget=budget), target)
            work = partial(worker.work, lambda _: None)
            checkpoint.run(source, source.survey(), work, shard_lines(device), lambda _: None)

    limits = Limits(max_items=1 << 12, max_queue=1 << 13, max_cache_tokens=1 << 18)
    engine = EngineThread(model, limits)
    engine.start()

    def server() -> None:
        left, over = [len(lines)], Event()

        def emit(event: object) -> None:
            left[0] -= isinstance(event, Done)
            if not left[0]:
                over.set()

        for i in range(16):
            engine.submit(Work(client="one", texts=[(line, settings) for line in lines[i::16]], emit=emit))
        over.wait()

    ways["decode, texts"] = lambda: bestfirst.decode(model, lines, settings)
    ways["decode, tokens"] = lambda: bestfirst.decode(model, tokens, settings)
    ways["a corpus job"] = corpus
    ways["the server's engine"] = server
    compare(f"{len(lines)} sentences, k = {args.beam}, length penalty 0", args.turns, "decode, texts")
    engine.stop()

if "http" in args.only:
    share = -(-len(lines) // 16)
    wide = {"--max-items": share, "--max-queue": 2 * len(lines), "--max-rows": 1 << 24, "--device": device}
    served = Served(*(word for pair in wide.items() for word in pair))
    atexit.register(served.stop)
    given = {"beam": args.beam, "max_length": args.most}
    bodies = [json.dumps({"text": lines[i : i + share], **given}).encode() for i in range(0, len(lines), share)]
    head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    requests = [head.format(len(body)).encode() + body for body in bodies]
    same = [a.text for a in bestfirst.decode(model, lines, settings)]  # compiles kernels before any connection waits
    connections = [socket.create_connection((served.host, served.port)) for _ in requests]

    def ask() -> list[bytes]:
        """Sends all requests at once; returns their responses. Parsing them is the client's time, not the server's."""
        for connection, request in zip(connections, requests, strict=True):
            connection.sendall(request)
        return [response(connection) for connection in connections]

    def response(connection: socket.socket) -> bytes:
        received = bytearray()
        while b"\r\n\r\n" not in received:
            received += connection.recv(1 << 20)
        head, _, body = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), received
        length = int(next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))[15:])
        while len(body) < length:
            body += connection.recv(1 << 20)
        return bytes(body)

    found = [each["hypotheses"][0]["text"] for body in ask() for each in json.loads(body)["results"]]
    print(f"over HTTP {sum(map(str.__eq__, same, found))} of {len(lines)} texts are decode's")
    ways["decode, texts"] = lambda: bestfirst.decode(model, lines, settings)
    ways["bestfirst serve"] = ask
    compare(f"{len(lines)} sentences over HTTP, k = {args.beam}, length penalty 0", args.turns, "decode, texts")

if "one" in args.only:
    few = [read([line]) for line in lines[:50]]
    texts = [[line] for line in lines[:50]]
    like = settings.using(length_penalty=1.0, stop="hf-false", accept_truncated=True)
    ways["generate"] = lambda: [generate(each, False, **usual) for each in few]
    ways["the drop-in"] = lambda: [generate(each, True, **usual) for each in few]
    ways["its preparations"] = lambda: [preparations(each, **usual) for each in few]
    ways["decode"] = lambda: [bestfirst.decode(model, each, like) for each in texts]
    compare("50 sentences one at a time, the defaults", max(2, args.turns // 3), "generate", 1)

if "batch" in args.only:
    whole, parts = read(lines), [read(lines[i : i + 512]) for i in range(0, len(lines), 512)]
    for alpha, early in ((0.0, "never"), (1.0, False)):
        more = {**usual, "length_penalty": alpha, "early_stopping": early}
        ways["generate"] = lambda more=more: [generate(each, False, **more) for each in parts]
        ways["the drop-in"] = lambda more=more: generate(whole, True, **more)
        ways["its preparations"] = lambda more=more: preparations(whole, **more)
        compare(f"{len(lines)} sentences, length_penalty {alpha}, early_stopping {early!r}", max(2, args.turns // 2), "generate")

if "python" in args.only:
    some = read(lines[:64])

    class Mine(LogitsProcessor):
        never_rises = True

        def __call__(self, input_ids, scores):
            return scores - 0.1 * (torch.arange(scores.shape[1], device=scores.device) % 5 == input_ids[:, -1:] % 5)

    allowed = [*model.eos, *range(10, 200)]
    cases = {
        "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": lambda i, ids: allowed},
        "a processor of one's own": {"logits_processor": [Mine()]},
        "output_scores": {"output_scores": True, "return_dict_in_generate": True},
    }
    for name, extra in cases.items():
        ways["generate"] = lambda extra=extra: generate(some, False, **usual, **extra)
        ways["the drop-in"] = lambda extra=extra: generate(some, True, **usual, **extra)
        compare(f"64 sentences, {name}", 3, "generate", 1)

if "prompts" in args.only:
    torch.manual_seed(0)
    layers = 30 if device == "cuda" else 2
    config = transformers.LlamaConfig(
        vocab_size=32_000, hidden_size=576, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=9,
        num_key_value_heads=3, bos_token_id=1, eos_token_id=0, pad_token_id=2, tie_word_embeddings=True, initializer_range=0.06,
    )  # fmt: skip
    network = transformers.LlamaForCausalLM(config).to(device, torch.bfloat16 if device == "cuda" else torch.float32).eval()
    ids = torch.randint(3, 32_000, (8, 40), device=device)
    mask = torch.ones_like(ids)
    mask[1, :11] = 0
    prompts = {"input_ids": ids.where(mask == 1, 2), "attention_mask": mask}
    processed = {"max_new_tokens": 48, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3}
    for k in (args.beam, 1):
        ways["generate"] = lambda k=k: generate(prompts, False, num_beams=k, **processed)
        ways["the drop-in"] = lambda k=k: generate(prompts, True, num_beams=k, **processed)
        compare(f"8 prompts of a Llama of {layers} layers, processed, num_beams {k}", 3, "generate", 1)
