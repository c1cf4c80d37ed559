"""Worker extension of a vLLM server on a CPU whose linear layers follow each load of weights.

It is imported before the model is loaded (see `vllm_cpu`).
"""

from __future__ import annotations

from vllm.platforms import current_platform

from tasks.inference.vllm_cpu import prepare_vllm

if current_platform.is_cpu():
    prepare_vllm()


class FollowingWeights:
    """An empty extension of vLLM's worker. Importing this module has the effect."""
