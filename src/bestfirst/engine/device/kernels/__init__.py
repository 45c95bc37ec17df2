"""Triton kernels of the device engine: beams, answers, top-k, logits processors, attention and matmuls.

Names that they share. Sizes: `S` input slots, `L` lengths, `W` successors stored per node, `P` prompt tokens, `V` vocabulary, `k`
the beam of an input; `KP`, `LP`, ... are sizes rounded up to powers of two. Indices: `s` slot, `t` length, `r` row, `e` entry. A
length counts the prompt: the root, the prompt's first token, has length 0, and an output of n tokens has length n + P - 1. Lists,
cells and entries are explained in `beams`. A row is one hypothesis that a step runs through the model; the node that it
gets owns its token, KV cache, path of ancestors and successors.
"""
