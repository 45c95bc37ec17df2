"""The HTTP service: best-first search with continuous batching, so that concurrent requests share one model's forward passes.

`bestfirst serve` starts it. `docs/serve.md` documents the API and lists what each file of this package does.
"""
