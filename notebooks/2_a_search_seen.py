# %% [markdown]
# # A search, seen and explained
#
# Beam search keeps the k best hypotheses of each length and proceeds length by length. Best-first search has the same beams, but always
# expands the best hypothesis first, and stops as soon as the best finished one cannot be beaten.
# %%
import bestfirst

model = bestfirst.load()
text = "Wie melkt man eine Kuh?"
fast, beam = (bestfirst.decode(model, [text], beam=3, strategy=s, trace=True)[0] for s in ("best-first", "beam"))
print(fast.calls, beam.calls)
# %% [markdown]
# The page below replays both searches. Press play, or the arrow keys; click a hypothesis to see why it was kept or pruned.
# %%
bestfirst.view(fast, beam)
# %% [markdown]
# The same search as a list of events: which hypotheses were pushed, popped, pruned and returned.
# %%
from collections import Counter

print(Counter(event["event"] for event in fast.trace.events))
# %% [markdown]
# Greedy search has another output here. `explain` tells where it lost the better one, and the smallest beam that keeps it.
# %%
print(bestfirst.decode(model, [text], strategy="greedy")[0].text)
why = bestfirst.explain(model, text, "How do you milk a cow?", beam=1)
print(f"lost at length {why.lost}, where it had rank {why.rank}; the smallest beam that keeps it: {why.smallest}")
