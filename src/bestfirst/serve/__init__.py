"""The service: best-first search over HTTP, requests in flight sharing the forward passes of one model.

    engine.py      one thread that runs the model; orders come in and events go out while it runs
    recorded.py    the story of a search, in the paper's order
    desk.py        what is accepted and what is refused, and how the events of an order reach its request
    schemas.py     what a request may say and what it gets
    app.py         the paths
    gate.py        token, size and time of a body, checked before anything else
    metrics.py     what it did, for Prometheus
    server.py      listening, and finishing what was accepted before it stops

`bestfirst serve` starts it; `docs/serve.md` explains it to those who call it.
"""
