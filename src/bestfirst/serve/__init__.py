"""The service: best-first search over HTTP, requests in flight sharing the forward passes of one model.

`bestfirst serve` starts it; `docs/serve.md` explains it to those who call it, and says what is in which file.
"""
