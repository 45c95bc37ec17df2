"""Ray itself: there or missing, and started or found."""

from __future__ import annotations

import os
import socket
from typing import Any

from ..corpus.errors import Unusable, reason

OBJECTS = 256 << 20  # bytes of shared memory for a cluster that is started here: shards are small


def require() -> Any:
    """The module, or how to get it."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise Unusable(f"this needs Ray ({reason(error)}); install it with: pip install 'bestfirst[cluster]'") from error
    return ray


def connect(address: str, cpus: int | None = None) -> tuple[Any, bool]:
    """Ray, connected to the cluster at this address ("local" starts one on this machine), and whether that was done here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = require()
    if ray.is_initialized():
        return ray, False
    quiet = {"log_to_driver": False, "logging_level": "error", "configure_logging": True}
    try:
        if address == "local":
            ray.init(num_cpus=cpus, include_dashboard=False, object_store_memory=OBJECTS, **quiet)
        else:
            _knock(address)
            ray.init(address=address, **quiet)
    except Exception as error:  # ConnectionError, RuntimeError, ValueError: as Ray's versions have it
        raise Unusable(f"cannot reach Ray at {address!r}: {reason(error)}") from error
    return ray, True


def _knock(address: str) -> None:
    """Is anybody there? Ray itself would ask for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()
