"""Fixtures of several test modules of the engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from strict import no_warnings


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small models run faster on one thread, also beside other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_warning() -> Iterator[None]:
    with no_warnings():
        yield
