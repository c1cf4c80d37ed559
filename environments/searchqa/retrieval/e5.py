"""E5 sentence embeddings (Wang et al. 2022, arXiv 2212.03533) by transformers.

A BM25 server never imports this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from environments.searchqa.corpus import SearchDataError

MAX_TOKENS = 256


class E5:
    """Encoder that averages the last layer over a text's tokens and scales the result to length 1.

    Runs on the GPU if there is one. Texts are truncated to `MAX_TOKENS` tokens.
    """

    def __init__(self, model: str) -> None:
        """Load the model.

        Args:
            model: Name or folder, e.g. "intfloat/e5-base-v2".

        Raises:
            SearchDataError: The model cannot be loaded.
        """
        try:
            torch, transformers = import_module("torch"), import_module("transformers")
        except ImportError as missing:
            raise SearchDataError(
                f"dense retrieval needs {missing.name}, which is not installed; run: pip install "
                "torch transformers"
            ) from missing
        self._torch = torch
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(model)
            self._model = transformers.AutoModel.from_pretrained(model).eval().to(self._device)
        except (OSError, ValueError) as fault:
            reason = " ".join(str(fault).split())
            raise SearchDataError(f"the encoder {model!r} cannot be loaded: {reason}") from fault

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode n texts into vectors of shape (n, d)."""
        torch = self._torch
        tokens = self._tokenizer(
            list(texts), padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
        ).to(self._device)
        with torch.inference_mode():
            states = self._model(**tokens).last_hidden_state.float()
            mask = tokens["attention_mask"].unsqueeze(-1).float()
            mean = (states * mask).sum(1) / mask.sum(1)
            vectors: NDArray[np.float32] = torch.nn.functional.normalize(mean, dim=-1).cpu().numpy()
        return vectors
