"""`bestfirst serve`: translations over HTTP. Checks the options, loads the model and starts the server."""

from __future__ import annotations

import os
import re
from functools import partial
from importlib.util import find_spec
from typing import Annotated

import typer

from ..constraints import is_grammar, missing_file, named_constraint
from . import options
from .console import reason, say, silence_libraries, usage, usage_errors
from .model_choice import ModelChoice, decoding_from


def seconds(value: object) -> float:
    """A time above 0."""
    number = options.number(value)
    if number <= 0:
        raise typer.BadParameter(f"{value!r} is not a time above 0")
    return number


def port_number(value: object) -> int:
    text = str(value)
    if not (text.isascii() and text.isdigit() and int(text) < 65536):
        raise typer.BadParameter(f"{text!r} is not a port from 0 to 65535")
    return int(text)


def parse_allowed(text: str) -> tuple[str, str]:
    """Split NAME=WHAT, after a check that a file named by WHAT exists."""
    name, equals, what = text.partition("=")
    if not (name and equals and what):
        raise usage(f"--allowed {text!r} names nothing; write NAME=FILE")
    if (missing := missing_file(what)) is not None:
        raise usage(f"there is no file {missing!r} of what is allowed")
    return name, what


limit_option = partial(options.option, kind=options.count, metavar="N", panel="Limits")
network_option = partial(options.option, metavar="N", panel="Network")
search_option = partial(options.option, panel=options.SEARCH)
TOKEN = "Ask for 'Authorization: Bearer TEXT'. Others see command lines: better set BESTFIRST_TOKEN."
HOST = "Another name to answer to besides those of the address, such as a proxy's. May be repeated."
QUEUE = "Texts accepted and not yet done; beyond that, requests get 429 and Retry-After."
DRAIN = "Seconds to finish accepted texts after SIGTERM or Ctrl-C."
CACHE = "Tokens held in memory for all texts in flight. By default 32768, on a GPU 262144."
ALLOWED = "What requests may ask for by this name ('allowed'): WHAT as --allowed of translate takes it. May be repeated."
GRAMMARS = "Let requests bring regular expressions, JSON schemas and grammars that the output must match."


@options.grouped
def serve(
    host: Annotated[str, network_option(help="Where to listen; 0.0.0.0 for everywhere.", metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, network_option("--port", "-p", help="0 chooses one.", kind=port_number)] = 8000,
    token: Annotated[str | None, network_option(help=TOKEN, metavar="TEXT", envvar="BESTFIRST_TOKEN")] = None,
    allowed_host: Annotated[list[str] | None, network_option(help=HOST, metavar="NAME")] = None,
    max_queue: Annotated[int, limit_option(help=QUEUE)] = 512,
    max_items: Annotated[int, limit_option(help="Texts in a request.")] = 128,
    max_chars: Annotated[int, limit_option(help="Characters of a text.")] = 5000,
    max_bytes: Annotated[int, limit_option(help="Bytes of a request.")] = 1 << 20,
    max_beam: Annotated[int, limit_option(help="The widest beam, and n-best.", metavar="K")] = 50,
    max_rows: Annotated[int, limit_option(help="Hypotheses of a request at worst: texts x beam x tokens.")] = 1 << 18,
    max_cache_tokens: Annotated[int | None, limit_option(help=CACHE)] = None,
    deadline: Annotated[float, limit_option(help="Seconds that a request may take.", kind=seconds, metavar="S")] = 60.0,
    drain: Annotated[float, limit_option(help=DRAIN, kind=seconds, metavar="S")] = 60.0,
    row_budget: options.RowBudget = None,
    draft: options.Draft = None,
    allowed: Annotated[list[str] | None, search_option("--allowed", metavar="NAME=WHAT", help=ALLOWED)] = None,
    grammars: Annotated[bool, search_option("--grammars", help=GRAMMARS)] = False,
    *,
    choice: ModelChoice,
) -> int:
    """Serve translations over HTTP, with a page to try it on at /.

    Requests in flight share the forward passes of one model, whatever beam,
    score and number of translations each of them asks for.

    Examples:
      bestfirst serve
      bestfirst serve --port 9000 --threads 4 --max-queue 2000
      BESTFIRST_TOKEN=secret bestfirst serve --host 0.0.0.0
      bestfirst serve --allowed greetings=greetings.txt --grammars

      curl localhost:8000/translate -H 'Content-Type: application/json' \\
        -d '{"text": "Guten Morgen!", "beam": 10, "nbest": 3}'

    /           the playground: type a sentence, see the search
    /translate  POST a text or a list; "stream": true for n-best as they come
    /v1/completions, /v1/chat/completions, /v1/models
                as OpenAI's API has them, for its clients, with n and beam_width
    /search     POST a text: both searches, every event of them
    /docs       all about these, to try out; /openapi.json for programs
    /health     whether it works; /metrics for Prometheus

    It needs: pip install 'bestfirst\\[serve]'

    Exit codes:
      0    stopped by SIGTERM or Ctrl-C, and what was accepted is done
      2    usage, an address that cannot be listened on, a missing model folder
    """
    if missing := [name for name in ("fastapi", "fastapi_swagger", "prometheus_client", "uvicorn") if find_spec(name) is None]:
        raise usage(f"the server needs {missing[0]}: pip install 'bestfirst[serve]'")
    from ..serve.middleware import Hosts
    from ..serve.schemas import Limits
    from ..serve.server import listen, run, url

    if token is None and "BESTFIRST_TOKEN" in os.environ:
        token = ""  # typer takes an empty variable for an unset one
    if token is not None and not token.strip():
        raise usage("the token is empty, which asks for none; leave out --token and unset BESTFIRST_TOKEN, or set it")
    max_cache_tokens = max_cache_tokens or (1 << 18 if (choice.device or "").startswith("cuda") else 1 << 15)
    with usage_errors(lambda error: f"{reason(error)}; lower --max-items or raise --max-queue"):
        limits = Limits(max_bytes, max_items, max_chars, max_beam, max_rows, max_queue, max_cache_tokens, deadline)
    for name in allowed_host or ():
        if not re.fullmatch(r"[A-Za-z0-9._-]+|\[?[0-9A-Fa-f:.]+\]?", name):
            raise usage(f"--allowed-host takes a name or an address, without scheme, port or path, got {name!r}")
    files = dict(map(parse_allowed, allowed or ()))
    decoding = decoding_from(row_budget=row_budget, draft=draft)
    choice.check(decoding)
    try:
        listening = listen(host, port)
    except OSError as error:
        raise usage(f"cannot listen on {host}:{port}: {reason(error)}; choose another --host or --port") from error
    with listening:
        from ..serve.allowed import ServedConstraints
        from ..serve.app import create_app
        from ..serve.engine_process import EngineProcess
        from ..serve.engine_thread import EngineThread, tune_interpreter

        engine: EngineProcess | EngineThread
        # On a GPU the engine runs in its own process, so that launching kernels never waits for the HTTP side. Not with grammars
        # or a model's own code, whose objects cannot be sent between processes.
        unsendable = choice.trust_remote_code or grammars or any(map(is_grammar, files.values()))
        if (choice.device or "cpu") != "cpu" and not unsendable:
            silence_libraries()
            engine = EngineProcess(partial(choice.load, decoding), limits)
        else:
            loaded, decoding = choice.load(decoding)
            engine = EngineThread(loaded, limits, decoding)
        tune_interpreter()

        with usage_errors():
            named = {name: named_constraint(what, engine.model) for name, what in files.items()}
            constraints = ServedConstraints(engine.model, named, grammars)

        hosts = Hosts(listening.getsockname()[0], allowed_host or ())
        app = create_app(engine, limits, hosts=hosts, token=token, constraints=constraints)
        if token is None and not hosts.loopback:
            say(f"warning: anyone who can reach {host} can use this server; set BESTFIRST_TOKEN to ask for a token")
        ready = lambda: say(f"{engine.model.name} at {url(listening)} (Ctrl-C stops)")  # type: ignore[union-attr]  # noqa: E731
        run(app, listening, deadline=deadline, ready=ready, drain=drain, give_up=engine.stop)
    return 0
