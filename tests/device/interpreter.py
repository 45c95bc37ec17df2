"""Runs kernels on a CPU with Triton's interpreter, one program after the other. Import this before anything that imports Triton.

The interpreter patches a module's language at every call of a helper; once per launch is enough, and several times faster.
Attention, which is most of the work, is computed in plain torch here (`plain`); its kernels have tests of their own.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import numpy
import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.language
    from triton.runtime import interpreter

    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched = set()

    def patch_once(fn):
        if id(fn.__globals__) in patched:
            return None
        patched.add(id(fn.__globals__))
        return patch(fn)

    def launch_anew(self, *args, **kwargs):
        patched.clear()
        return launch(self, *args, **kwargs)

    def sort(x, dim=None, descending=False):
        """The interpreter's own sorts by sums in a Python loop."""
        data = numpy.sort(x.handle.data)
        return triton.language.tensor(interpreter.TensorHandle(data[::-1].copy() if descending else data, x.handle.dtype), x.type)

    triton.language.sort = sort
    interpreter._patch_lang = patch_once
    interpreter.GridExecutor.__call__ = launch_anew

    from bestfirst.engine.device import device_bart, device_step
    from bestfirst.engine.device.modules import own_modules
    from device import plain

    device_step.attend = device_bart.attend = plain.PlainAttend()
    own_modules.attend_tree, own_modules.attend_packed = plain.attend_tree, plain.attend_packed
