"""What the processor computes fast, against torch."""

from __future__ import annotations

import torch

from tasks.training.processor import BFLOAT16_FEATURES, multiplies_bfloat16


def test_products_of_bfloat16_are_known_as_torch_knows_them() -> None:
    known = torch.cpu.get_capabilities()
    assert multiplies_bfloat16() == any(known.get(name, False) for name in BFLOAT16_FEATURES)
