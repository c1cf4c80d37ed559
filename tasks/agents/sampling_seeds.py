"""Deterministic sampling seeds, hashed from their purpose."""

from __future__ import annotations

import hashlib


def stable_seed(*parts: int | str) -> int:
    """Return a 48-bit seed that depends only on `parts`, on every machine and in every process."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6], "big")
