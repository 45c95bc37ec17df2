# %% [markdown]
# # First steps
#
# `bestfirst` decodes any sequence model with best-first beam search: the answer of beam search, for a fraction of the model calls. A small
# German-English translator comes with the package.
# %%
import bestfirst

model = bestfirst.load()
result = bestfirst.decode(model, ["Wie melkt man eine Kuh?"], beam=10)[0]
result.text
# %% [markdown]
# A result says what it cost, and whether it is proven to be beam search's answer. `calls` are the hypotheses that had to be scored.
# %%
print(f"{result.calls} calls, exact: {result.exact}")
beam = bestfirst.decode(model, ["Wie melkt man eine Kuh?"], beam=10, strategy="beam")[0]
print(f"{beam.calls} calls of beam search, the same text: {beam.text == result.text}")
# %% [markdown]
# Many inputs share the forward passes. `nbest` asks for several answers of each, best first, with their scores.
# %%
for result in bestfirst.decode(model, ["Wo ist der Bahnhof?", "Ich habe keine Zeit."], beam=10, nbest=3):
    for answer in result.hypotheses:
        print(f"{answer.score:8.3f}  {answer.text}")
# %% [markdown]
# Settings fit into one object, which checks itself.
# %%
settings = bestfirst.Decoding(beam=5, length_penalty=0.6, max_length="2x")
print(settings.signature)
print(bestfirst.decode(model, ["Guten Morgen!"], settings)[0].text)
# %% [markdown]
# A model of your own from Hugging Face: `bestfirst.load("folder or name")`, or `bestfirst.wrap(model, tokenizer)` for one in memory. Which beam and length
# penalty to use on it, and what they lose: `bestfirst tune SOURCE REFERENCE`.
