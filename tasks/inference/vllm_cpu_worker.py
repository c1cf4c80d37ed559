"""Worker extension of a vLLM server on a CPU that makes linear layers batch-invariant.

It is imported before the model is loaded (see `vllm_cpu`).
"""

from __future__ import annotations

from vllm.platforms import current_platform

from tasks.inference.vllm_cpu import make_rows_invariant

if current_platform.is_cpu():
    make_rows_invariant()


class PlainWeights:
    """An empty extension of vLLM's worker. Importing this module has the effect."""
