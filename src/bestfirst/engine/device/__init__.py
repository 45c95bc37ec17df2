"""Whole searches on a GPU: beams, rows, decoder and top-k in one graph of kernels, which the host only sets off."""

from .device_engine import DeviceEngine

__all__ = ["DeviceEngine"]
