"""Speech recognition with ONNX Runtime: an audio encoder and a decoder with a KV cache, as two sessions and two methods."""

import sys
import tempfile
from pathlib import Path

import numpy
import onnx
import onnxruntime

import bestfirst

LETTERS = "_abcdefghijklmnopqrstuvwxyz "  # 0 ends an output
D, MELS = 32, 16

ENCODER = f"""<ir_version: 9, opset_import: ["" : 17]> encoder (float[1, frames, {MELS}] sound) => (float[1, frames, {D}] memory)
{{ seen = MatMul(sound, W) memory = Tanh(seen) }}"""
DECODER = f"""<ir_version: 9, opset_import: ["" : 17]> decoder
(int64[rows] tokens, float[rows, t, {D}] past, float[rows, frames, {D}] memory)
=> (float[rows, {len(LETTERS)}] logprobs, float[rows, next, {D}] keys) <int64[1] one = {{1}}> {{
x = Gather(E, tokens)  row = Unsqueeze(x, one)  keys = Concat<axis = 1>(past, row)
turned = Transpose<perm = [0, 2, 1]>(keys)  own = MatMul(row, turned)  weights = Softmax(own)  context = MatMul(weights, keys)
sum = Add(row, context)  product = MatMul(sum, H)  hidden = Tanh(product)
sources = Transpose<perm = [0, 2, 1]>(memory)  cross = MatMul(hidden, sources)  heard = Softmax(cross)
found = MatMul(heard, memory)  both = Add(hidden, found)  scores = MatMul(both, O)
logits = Squeeze(scores, one)  logprobs = LogSoftmax<axis = -1>(logits) }}"""


def export(folder):
    """Write two model files as an exporter would; here with random weights."""
    dice = numpy.random.default_rng(0)
    shapes = {"W": (MELS, D), "E": (len(LETTERS), D), "H": (D, D), "O": (D, len(LETTERS))}
    weights = {name: dice.normal(0, 0.4, shape).astype(numpy.float32) for name, shape in shapes.items()}
    for name, text, used in (("encoder", ENCODER, "W"), ("decoder", DECODER, "EHO")):
        model = onnx.parser.parse_model(text)
        model.graph.initializer.extend(onnx.numpy_helper.from_array(weights[each], each) for each in used)
        onnx.save(model, Path(folder) / f"{name}.onnx")


class Speech(bestfirst.Model):
    """The state of a hypothesis: the encoder output, and the keys of its own tokens."""

    eos = 0

    def __init__(self, folder):
        self.encoder, self.decoder = (onnxruntime.InferenceSession(Path(folder) / f"{n}.onnx") for n in ("encoder", "decoder"))

    def start(self, sound):
        return self.encoder.run(None, {"sound": sound[None]})[0], numpy.zeros((1, 0, D), numpy.float32)

    def score(self, batch):
        answers = [None] * len(batch)
        alike = {}  # the decoder has no mask, so only rows with the same shapes of memory and cache run together
        for i, ((memory, keys), _) in enumerate(batch):
            alike.setdefault((memory.shape, keys.shape), []).append(i)
        for rows in alike.values():
            given = {name: numpy.concatenate([batch[i].state[at] for i in rows]) for at, name in enumerate(("memory", "past"))}
            given["tokens"] = numpy.array([batch[i].prefix[-1] if batch[i].prefix else 0 for i in rows])
            for i, logprobs, keys in zip(rows, *self.decoder.run(None, given), strict=True):
                answers[i] = (logprobs, (batch[i].state[0], keys[None]))
        return answers

    def text(self, source, tokens):
        return "".join(LETTERS[token] for token in tokens if token)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        if len(sys.argv) < 2:
            export(made)
        model = Speech(sys.argv[1] if len(sys.argv) > 1 else made)
        sounds = [numpy.random.default_rng(i).normal(size=(20 + 5 * i, MELS)).astype(numpy.float32) for i in range(3)]
        for result in bestfirst.decode(model, sounds, beam=4, max_length=12, accept_truncated=True):
            print(f"{result.text!r}  {result.hypotheses[0].score:.3f}  {result.calls} calls, exact: {result.exact}")
