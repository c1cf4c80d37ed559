"""Tests of the detection of fast arithmetic on the processor, against torch."""

from __future__ import annotations

import torch

from tasks.training.processor import BFLOAT16_FEATURES, multiplies_bfloat16


def test_bfloat16_support_is_detected_as_by_torch() -> None:
    known = torch.cpu.get_capabilities()
    assert multiplies_bfloat16() == any(known.get(name, False) for name in BFLOAT16_FEATURES)
