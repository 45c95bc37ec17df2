"""Benchmarks: measure what best-first search saves on the user's own model and text, compared with peers in the same run."""
