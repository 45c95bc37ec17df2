"""A part-of-speech tagger (a hidden Markov model from counts), decoded by A* with the exact best completion as heuristic."""

from collections import Counter
from functools import cache
from math import inf, log

import bestfirst

TAGGED = """the/D old/A man/N saw/V the/D boats/N . a/D dog/N saw/V the/D man/N . the/D man/V the/D boats/N .
time/N flies/V . fruit/N flies/N like/V a/D banana/N . time/N flies/V like/P an/D arrow/N . the/D old/N man/V the/D boats/N .
the/D dog/N flies/V . a/D man/N like/P a/D dog/N saw/V time/N . old/A dogs/N like/V fruit/N . the/D saw/N flies/V"""
TAGS = ["</s>", "A", "D", "N", "P", "V"]


class Tagger:
    eos = 0

    def __init__(self, text: str = TAGGED) -> None:
        self.pairs, self.words, self.tags = Counter(), Counter(), Counter()
        for sentence in text.split(" ."):
            before = "</s>"
            for word, tag in (pair.split("/") for pair in sentence.split()):
                self.pairs[before, tag] += 1
                self.words[tag, word] += 1
                self.tags[before := tag] += 1

    @cache
    def row(self, word: str, before: int) -> tuple[float, ...]:
        """The score of each tag for a word, after the tag before it: log p(tag | before) p(word | tag), smoothed."""
        pairs = [self.pairs[TAGS[before], tag] + 0.1 for tag in TAGS[1:]]
        words = [(self.words[tag, word] + 0.01) / (self.tags[tag] + 1) for tag in TAGS[1:]]
        return (-inf, *(log(p / sum(pairs)) + log(w) for p, w in zip(pairs, words, strict=True)))

    def start(self, source):
        return source

    def max_length(self, source):
        return len(source) + 1

    def score(self, batch):
        end = (0.0, *[-inf] * (len(TAGS) - 1))
        return [(self.row(s[len(y)], y[-1] if y else 0) if len(y) < len(s) else end, s) for s, y in batch]

    def text(self, source, tokens):
        return " ".join(f"{word}/{TAGS[tag]}" for word, tag in zip(source, tokens, strict=False))


class BestRest:
    """h(x, y): the best score that the words after y can add, by dynamic programming from the right."""

    admissible = True

    def __init__(self, tagger: Tagger) -> None:
        self.tagger = tagger

    @cache
    def rest(self, words: tuple[str, ...], before: int) -> float:
        if not words:
            return 0.0
        return max(x + self.rest(words[1:], tag) for tag, x in enumerate(self.tagger.row(words[0], before)) if tag)

    def __call__(self, y, context):
        return self.rest(tuple(context.source[y.length :]), y.tokens[-1] if y.tokens else 0)


if __name__ == "__main__":
    tagger = Tagger()
    sentences = [s.split() for s in ("the old man the boats", "fruit flies like an arrow", "the dog saw the old man")]
    for result in bestfirst.decode(tagger, sentences, strategy="a-star", heuristic=BestRest(tagger)):
        print(f"{result.text}   {result.calls} calls, exact: {result.exact}")
