"""Fuse the small operations of a model's layers on a GPU: norms, rotary embeddings, SwiGLU.

They are bound by memory. One by one they take longer than the matrix products of a model of 1.5
billion parameters. Liger's kernels read and write each tensor once.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from transformers.integrations.liger import apply_liger_kernel
from transformers.utils import is_liger_kernel_available

HEAD = {"cross_entropy": False, "fused_linear_cross_entropy": False}
"""The head stays TRL's."""


def fuse_layers(model: Any, compute: torch.dtype) -> Any:
    """Let a model's layers use Liger's kernels, and keep hidden states in its compute dtype.

    Under autocast the hidden states of a float32 model are float32, and each layer converts them.
    A model stays as it is without a GPU, if it computes in float32, without the package
    liger-kernel, and if Liger has no kernels for its type. Returns the model.

    Args:
        model: A model of transformers.
        compute: Compute dtype of its layers.
    """
    if (
        not torch.cuda.is_available()
        or compute == torch.float32
        or not is_liger_kernel_available()
        or not _has_kernels(model.config.model_type)
    ):
        return model
    # It warns of each package for other hardware that is missing.
    logging.getLogger("liger_kernel.backends.registry").setLevel(logging.ERROR)
    apply_liger_kernel(model, HEAD)
    model.get_input_embeddings().register_forward_hook(lambda _, __, hidden: hidden.to(compute))
    return model


def _has_kernels(model_type: str) -> bool:
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    return model_type in MODEL_TYPE_TO_APPLY_LIGER_FN
