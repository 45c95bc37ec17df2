# %% [markdown]
# # First steps
#
# `bestfirst` decodes any sequence model with best-first beam search: the output of beam search for a fraction of the model calls. A small
# German-English translation model comes with the package.
# %%
import bestfirst

model = bestfirst.load()
result = bestfirst.decode(model, ["Wie melkt man eine Kuh?"], beam=10)[0]
result.text
# %% [markdown]
# A result tells its cost, and whether it is proven to be the output of beam search. `calls` counts the hypotheses that had to be scored.
# %%
print(f"{result.calls} calls, exact: {result.exact}")
beam = bestfirst.decode(model, ["Wie melkt man eine Kuh?"], beam=10, strategy="beam")[0]
print(f"{beam.calls} calls of beam search, the same text: {beam.text == result.text}")
# %% [markdown]
# Several inputs share forward passes. `nbest` requests several outputs for each, best first, with their scores.
# %%
for result in bestfirst.decode(model, ["Wo ist der Bahnhof?", "Ich habe keine Zeit."], beam=10, nbest=3):
    for answer in result.hypotheses:
        print(f"{answer.score:8.3f}  {answer.text}")
# %% [markdown]
# All settings fit into one object, which validates them.
# %%
settings = bestfirst.Decoding(beam=5, length_penalty=0.6, max_length="2x")
print(settings.signature)
print(bestfirst.decode(model, ["Guten Morgen!"], settings)[0].text)
# %% [markdown]
# To use a model from Hugging Face: `bestfirst.load("folder or name")`, or `bestfirst.wrap(model, tokenizer)` for one in memory. To choose a beam size and a
# length penalty for it, and see what they lose: `bestfirst tune SOURCE REFERENCE`.
