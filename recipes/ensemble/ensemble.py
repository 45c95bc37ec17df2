"""An ensemble of two models, and a wrapper that bans tokens: both share keys and values between hypotheses."""

import sys

import numpy

import bestfirst


class Without(bestfirst.Model):
    """A wrapper around a model that never writes some tokens."""

    def __init__(self, model, tokens):
        self.model, self.tokens, self.eos = model, list(tokens), model.eos

    def start(self, source):
        return self.model.start(source)

    def score(self, batch):
        answers = []
        for answer in self.model.score(batch):
            row = numpy.array(answer.logprobs)
            row[self.tokens] = -numpy.inf
            answers.append((row, answer.state))
        return answers

    def reader(self, prefix=None):
        return bestfirst.Ensemble([self.model]).reader(prefix)  # with the model's own length limits

    def text(self, source, tokens):
        return self.model.text(source, tokens)


if __name__ == "__main__":
    folders = sys.argv[1:] or [None, None]  # the embedded translator, twice
    models = [bestfirst.load(folder) for folder in folders]
    text = "Guten Morgen, ich habe heute leider keine Zeit."
    both = bestfirst.Ensemble(models, weights=[2, *[1] * (len(models) - 1)])
    (result,) = bestfirst.decode(both, [text])
    print(f"{result.text}  {result.hypotheses[0].score:.3f}")
    banned = set(models[0].target(" today"))
    (result,) = bestfirst.decode(Without(models[0], banned), [text])
    print(f"{result.text}  {result.hypotheses[0].score:.3f}")
