"""Steps compiled for this machine's CPU (numba): float32, nothing padded."""
