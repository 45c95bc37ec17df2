"""A soak: kills, damaged files, hostile requests and bad neighbours, as many as asked for. `make soak`; see `__main__`."""
