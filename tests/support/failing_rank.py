"""An algorithm that fails on rank 1, as one rank may, e.g. for want of disk space."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from configs.policy_gradient import PolicyGradient

if TYPE_CHECKING:
    import torch

    from tasks.training.experience import Experience


class FailsOnRankOne(PolicyGradient):
    """Advantages of 0, and an error on rank 1."""

    def advantages(self, experience: Experience) -> torch.Tensor:
        """Return zeros."""
        if os.environ.get("RANK") == "1":
            raise OSError("the disk of rank 1 is full")
        return experience.scores().unsqueeze(1) * 0.0 * experience.policy_mask
