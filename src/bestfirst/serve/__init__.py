"""The HTTP service: best-first search with continuous batching, so that concurrent requests share one model's forward passes.

`bestfirst serve` starts it. `docs/serve.md` documents the API, `docs/architecture.md` lists the files of this package.
"""
