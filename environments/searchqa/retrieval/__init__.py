"""Passage retrieval: lexical (BM25) or semantic (dense vectors)."""
