"""Tests of the Muon optimiser against torch's implementation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.starter.muon import ITERATIONS, Muon, orthogonalised


def test_updates_match_torch_up_to_bfloat16_rounding() -> None:
    torch.manual_seed(0)
    shapes = [(16, 48), (48, 16), (16, 16), (48, 16), (16, 48)]
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    torch_parameters = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    starts = [p.detach().clone() for p in ours]
    one = Muon(ours, lr=0.01, momentum=0.85)
    other = torch.optim.Muon(
        torch_parameters,
        lr=0.01,
        momentum=0.85,
        weight_decay=0.0,
        nesterov=True,
        ns_steps=ITERATIONS,
        adjust_lr_fn="match_rms_adamw",
    )
    for _ in range(5):
        for mine, reference in zip(ours, torch_parameters, strict=True):
            mine.grad = torch.randn_like(mine)
            reference.grad = mine.grad.clone()
        one.step()
        other.step()
    for start, mine, reference in zip(starts, ours, torch_parameters, strict=True):
        moved, apart = (reference - start).norm().item(), (reference - mine).norm().item()
        assert moved > 0.01
        assert apart < 0.03 * moved


@given(st.integers(0, 2**31), st.integers(2, 24), st.integers(24, 60), st.floats(1e-6, 1e6))
def test_singular_values_become_equal_at_any_scale(
    seed: int, rows: int, columns: int, scale: float
) -> None:
    matrix = torch.randn(3, rows, columns, generator=torch.Generator().manual_seed(seed))
    before, after = (
        torch.linalg.svdvals(matrix),
        torch.linalg.svdvals(orthogonalised(matrix * scale)),
    )
    assert after.max().item() < 1.3
    large = before > 0.1 * before.amax(dim=1, keepdim=True)
    assert after[large].min().item() > 0.4


def test_gradient_mean_decays_with_the_momentum() -> None:
    matrix = torch.nn.Parameter(torch.zeros(2, 2))
    optimiser = Muon([matrix], lr=1.0, momentum=0.5)
    for gradient in (torch.eye(2), -torch.eye(2)):
        matrix.grad = gradient
        optimiser.step()
    assert optimiser.state[matrix]["mean"] == pytest.approx(torch.eye(2) * -0.25)
