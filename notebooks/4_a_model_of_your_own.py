# %% [markdown]
# # A model of your own
#
# The search needs only the scores of the next token. Here a table of letter pairs, counted in a few names, becomes a model that generates likely names.
# %%
from collections import Counter
from math import inf, log

import bestfirst

NAMES = "anna marta martin marie anton mario marina toni nina ina tina".split()
LETTERS = "$" + "".join(sorted(set("".join(NAMES))))
pairs = Counter(pair for name in NAMES for pair in zip("$" + name, name + "$", strict=True))
totals = Counter(first for name in NAMES for first in "$" + name)


def next_logprobs(prefix):
    last = LETTERS[prefix[-1]] if prefix else "$"
    return [log(pairs[last, letter] / totals[last]) if pairs[last, letter] else -inf for letter in LETTERS]


model = bestfirst.FunctionModel(next_logprobs, eos=0)
result = bestfirst.decode(model, [None], beam=20, nbest=5, max_length=8)[0]
for answer in result.hypotheses:
    print(f"{answer.score:7.3f}  {''.join(LETTERS[token] for token in answer.tokens[:-1])}")
print(result.calls, "calls, exact:", result.exact)


# %% [markdown]
# For an input or a state, write a class with two methods. `start` returns the state before the first token, `score` scores a whole batch, so that a neural
# network runs once for all queries. Here the input is letters, each to be used once, and the state is the letters left. A query holds the prefix, and
# the state of the prefix without its last token.
# %%
class Anagrams(bestfirst.Model):
    eos = 0

    def start(self, letters):
        return letters

    def score(self, batch):
        answers = []
        for left, prefix in batch:
            if prefix:
                left = left.replace(LETTERS[prefix[-1]], "", 1)
            row = next_logprobs(prefix)
            allowed = set(left) if left else {"$"}
            row = [value if letter in allowed else -inf for letter, value in zip(LETTERS, row, strict=True)]
            answers.append(bestfirst.Scored(row, left))
        return answers


bestfirst.testing.check_model(Anagrams(), "antoni", normalized=False)
for answer in bestfirst.decode(Anagrams(), ["antoni"], beam=50, nbest=3)[0].hypotheses:
    print(f"{answer.score:7.3f}  {''.join(LETTERS[token] for token in answer.tokens[:-1])}")
