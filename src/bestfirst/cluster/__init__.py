"""Ray: the same decoding on many machines. `decode_dataset` for a Ray Dataset; `bestfirst translate --ray` for a file.

Needs the extra `cluster` (`pip install 'bestfirst[cluster]'`). Actors hold the model; Ray replaces those that die, and what they
had in hand is done again. docs/cluster.md has what it costs.
"""

from .dataset import decode_dataset

__all__ = ["decode_dataset"]
