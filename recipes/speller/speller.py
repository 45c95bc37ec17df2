"""A spelling corrector: a five-gram model of letters combined with edit costs of the typed word, like composed transducers."""

from collections import Counter
from functools import cache
from math import inf, log

import bestfirst

WORDS = """the of and to in is you that it he was for on are as with his they at be this have from or one had by word but not
what all were we when your can said there use an each which she do how their if will up other about out many then them these
so some her would make like him into time has look two more write go see number no way could people my than first water been
call who oil its now find long down day did get come made may part spelling letter correct beam search best first answer"""
LETTERS = "$abcdefghijklmnopqrstuvwxyz"  # $ ends a word
SAME, SUBSTITUTED, INSERTED, DELETED = 0.0, -4.0, -4.5, -4.5


class Speller:
    eos = 0

    def __init__(self, text: str = WORDS) -> None:
        self.grams, self.contexts = Counter(), Counter()
        for word in text.split():
            for i, letter in enumerate(word + "$"):
                context = ("^^^^" + word)[i : i + 4]
                self.grams[context, letter] += 1
                self.contexts[context] += 1

    @cache
    def letters(self, context: str) -> list[float]:
        total = self.contexts[context] + 0.005 * len(LETTERS)
        return [log((self.grams[context, letter] + 0.005) / total) for letter in LETTERS]

    def start(self, source):
        costs = tuple(DELETED * i for i in range(len(source) + 1))
        return source, costs  # for each prefix of the input, the cost of the best edits so far

    def edits(self, source, costs, letter):
        """The costs after one more letter of output."""
        out = [costs[0] + INSERTED]
        for i, typed in enumerate(source):
            match = costs[i] + (SAME if typed == letter else SUBSTITUTED)
            out.append(max(match, costs[i + 1] + INSERTED, out[i] + DELETED))
        return tuple(out)

    def score(self, batch):
        answers = []
        for (source, costs), prefix in batch:
            if prefix:
                costs = self.edits(source, costs, LETTERS[prefix[-1]])
            context = ("^^^^" + "".join(LETTERS[token] for token in prefix))[-4:]
            best = max(costs)
            later = [costs[-1], *(max(self.edits(source, costs, letter)) for letter in LETTERS[1:])]
            row = [x + min(0.0, edit - best) for x, edit in zip(self.letters(context), later, strict=True)]
            answers.append((row if len(prefix) < 2 * len(source) + 2 else [row[0]] + [-inf] * 26, (source, costs)))
        return answers

    def text(self, source, tokens):
        return "".join(LETTERS[token] for token in tokens if token)


if __name__ == "__main__":
    typed = ["serch", "ansxer", "lettr", "teh", "spelng"]
    for word, result in zip(typed, bestfirst.decode(Speller(), typed, nbest=3), strict=True):
        print(f"{word}: {', '.join(f'{answer.text} {answer.score:.1f}' for answer in result.hypotheses)}")
