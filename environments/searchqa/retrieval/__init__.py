"""Finding passages: by their words (BM25) or by their meaning (dense vectors)."""
