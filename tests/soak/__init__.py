"""Soak tests: kills, damaged files, hostile requests and unfair clients, as many as requested. `make soak`; see `__main__`."""
