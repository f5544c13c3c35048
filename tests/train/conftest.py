"""Tests that need TensorFlow run in one process of its own, kept while this folder's tests run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model import tensorflow_process


@pytest.fixture(scope="package", autouse=True)
def _tensorflow_process_ends() -> Iterator[None]:
    yield
    tensorflow_process.end()
