"""Imports of large packages without garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Import modules in a `with` block without garbage collections, which take a quarter of the time.

    Later collections leave the imported objects alone. So processes that are forked afterwards go
    on sharing their memory.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
