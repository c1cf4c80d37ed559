"""Worker extension of a vLLM server on a CPU: imported before the model is loaded, it makes linear layers batch-invariant (`vllm_cpu`)."""

from __future__ import annotations

from vllm.platforms import current_platform

from tasks.inference.vllm_cpu import make_rows_invariant

if current_platform.is_cpu():
    make_rows_invariant()


class PlainWeights:
    """An extension of vLLM's worker; importing this module is all that it does."""
