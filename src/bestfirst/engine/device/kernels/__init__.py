"""Kernels of a GPU, in Triton: beams and answers, top-k, logits processors, attention and matrix products."""
