"""Grapheme to phoneme: a recurrent encoder-decoder in torch, trained in a minute on made-up words with a regular spelling."""

import random
import sys

import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_sequence

import bestfirst

RULES = {"ch": ["tS"], "sh": ["S"], "qu": ["k"], "ll": ["j"], "c": ["k"], "z": ["T"], "j": ["x"], "v": ["b"], "h": [], "y": ["j"]}
RULES |= {letter: [letter] for letter in "abdefgiklmnoprstu"}
PHONES = ["</s>", *sorted({phone for phones in RULES.values() for phone in phones})]
LETTERS = sorted(set("".join(RULES)))


def word(rng: random.Random) -> tuple[str, list[int]]:
    parts = [rng.choice([*RULES]) if i % 2 else rng.choice("aeiou") for i in range(rng.randint(2, 6))]
    return "".join(parts), [PHONES.index(phone) for part in parts for phone in RULES[part]]


class G2P(nn.Module):
    """The state of an input is the encoder's last state, that of a hypothesis the decoder's."""

    eos = 0

    def __init__(self, size: int = 96) -> None:
        super().__init__()
        self.letters, self.phones = nn.Embedding(len(LETTERS), size), nn.Embedding(len(PHONES), size)
        self.encoder, self.decoder = nn.GRU(size, size), nn.GRU(size, size)
        self.out = nn.Linear(size, len(PHONES))

    def encode(self, words):
        letters = [self.letters(torch.tensor([LETTERS.index(letter) for letter in word])) for word in words]
        return self.encoder(pack_sequence(letters, enforce_sorted=False))[1]

    def train_on(self, steps: int, rng: random.Random, batch: int = 64) -> None:
        optimizer = torch.optim.Adam(self.parameters(), 3e-3)
        for _ in range(steps):
            words, phones = zip(*(word(rng) for _ in range(batch)), strict=True)
            given = pad_sequence([torch.tensor([0, *each]) for each in phones])
            wanted = pad_sequence([torch.tensor([*each, 0]) for each in phones], padding_value=-100)
            scores = self.out(self.decoder(self.phones(given), self.encode(words))[0])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    @torch.no_grad()
    def start_batch(self, sources):
        return list(self.encode(sources)[0])

    def start(self, source):
        return self.start_batch([source])[0]

    @torch.no_grad()
    def score(self, batch):
        last = torch.tensor([[prefix[-1] if prefix else 0 for _, prefix in batch]])
        out, states = self.decoder(self.phones(last), torch.stack([state for state, _ in batch])[None])
        return self.out(out[0]).log_softmax(-1), list(states[0])

    def text(self, source, tokens):
        return " ".join(PHONES[token] for token in tokens if token)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = G2P()
    model.train_on(int(sys.argv[1]) if len(sys.argv) > 1 else 1500, random.Random(0))
    words = [word(random.Random(i)) for i in range(1000, 1100)]
    results = bestfirst.decode(model, [letters for letters, _ in words], beam=5, nbest=2)
    right = sum(result.hypotheses[0].tokens[:-1] == tuple(phones) for result, (_, phones) in zip(results, words, strict=True))
    print(f"{right} of {len(words)} words right; {words[0][0]}: {results[0].text}")
