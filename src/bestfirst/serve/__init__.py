"""The service: best-first search over HTTP, requests in flight sharing the forward passes of one model.

    server.py         listening, connections that do not wait for ever, finishing what was accepted before it stops
    middleware.py     host, token, size and time of a body, checked before anything else
    app.py            the paths
    schemas.py        what a request may say, how much it may ask, and what it gets
    openai.py         the same in the words of OpenAI's API
    exchange.py       what all paths share: refusals, what is wrong with a request, bytes
    allowed.py        what requests may ask to be allowed
    request_queue.py  what is accepted, and how events reach the request that waits for them
    engine_thread.py  one thread that runs the engine; requests come in and events go out while it runs
    fair_share.py     whose texts take part in the next forward pass
    metrics.py        what it did, for Prometheus

`bestfirst serve` starts it; `docs/serve.md` explains it to those who call it.
"""
