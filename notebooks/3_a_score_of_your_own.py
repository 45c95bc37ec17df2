# %% [markdown]
# # A score of your own
#
# Log-probability prefers short outputs. Suppose that outputs should be about as long as their input: subtract a penalty for every token of difference.
# A score is one class. Its method `final` computes it from the sum of log-probabilities and the length.
# %%
import bestfirst


class NearLength(bestfirst.Score):
    """Log-probability, less `weight` for every token more or fewer than the input has."""

    name = "near-length"
    needs = frozenset({"source_length"})

    def __init__(self, weight):
        self.weight = weight

    def final(self, value, length, context):
        return value - self.weight * abs(length - context.source_length)


bestfirst.testing.check_score(NearLength(0.5))
# %% [markdown]
# The last line checked the conditions under which best-first search is exact: no longer output scores above the bound, which is computed here by calling
# `final` for every length. Now it runs on a real model, and beam search with the same score for comparison:
# %%
model = bestfirst.load()
sources = ["Das habe ich nicht gesagt.", "Sie hat ihm gestern ein Buch gegeben.", "Komm!"]
for strategy in ("best-first", "beam"):
    results = bestfirst.decode(model, sources, score=NearLength(0.5), strategy=strategy, beam=5, max_length="2x")
    print(
        f"{strategy:10}", sum(r.calls for r in results), "calls, exact:", all(r.exact for r in results), [r.text for r in results]
    )


# %% [markdown]
# A wrong bound is detected, with the numbers that prove it:
# %%
class Wrong(NearLength):
    def bound(self, value, length, context):
        return value - 1


try:
    bestfirst.testing.check_score(Wrong(0.5))
except AssertionError as error:
    print(error)
