"""Steps compiled for CPUs by numba, ahead of time where possible: float32 or int8, nothing padded."""
