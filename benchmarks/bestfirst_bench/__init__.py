"""Benchmarks: what was saved, measured on the user's own model and text, beside peers in the same run."""
