# %% [markdown]
# # A search, seen and explained
#
# Beam search keeps the k best hypotheses of each length and goes on length by length. Best-first search looks at the same beams, but always
# expands the best hypothesis first, and stops as soon as the best finished one cannot be beaten.
# %%
import bestfirst

model = bestfirst.load()
text = "Wie melkt man eine Kuh?"
fast, beam = (bestfirst.decode(model, [text], beam=3, strategy=s, trace=True)[0] for s in ("best-first", "beam"))
print(fast.calls, beam.calls)
# %% [markdown]
# Here is what it did. Press play, or the arrow keys; click a hypothesis to know why it lives or died.
# %%
bestfirst.view(fast, beam)
# %% [markdown]
# The same as a list of events: what was pushed, popped, pruned and returned.
# %%
from collections import Counter

print(Counter(event["event"] for event in fast.trace.events))
# %% [markdown]
# Greedy search gives another answer here. `explain` says where it lost the good one, and the smallest beam that keeps it.
# %%
print(bestfirst.decode(model, [text], strategy="greedy")[0].text)
why = bestfirst.explain(model, text, "How do you milk a cow?", beam=1)
print(f"lost at length {why.lost}, where it had rank {why.rank}; the smallest beam that keeps it: {why.smallest}")
