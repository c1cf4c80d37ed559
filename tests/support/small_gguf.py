"""A random language model of 100,000 parameters as a quantised GGUF file with a ChatML template."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize, quantize
from tokenizers.pre_tokenizers import ByteLevel

END_OF_TEXT, START_OF_TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = [END_OF_TEXT, START_OF_TURN, END_OF_TURN]
WIDTH, INNER, LAYERS, HEADS, CONTEXT = 64, 128, 2, 2, 4096
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_small_gguf(path: Path, architecture: str = "llama") -> dict[str, np.ndarray]:
    """Write the file and return its dequantised matrices by their GGUF names."""
    random, matrices = np.random.default_rng(0), dict[str, np.ndarray]()
    tokens = SPECIAL + sorted(ByteLevel.alphabet()) + ["th", "the"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL] * len(SPECIAL)
        + [gguf.TokenType.NORMAL] * (len(tokens) - len(SPECIAL))
    )
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHATML)

    def add(name: str, *shape: int) -> None:
        quantised = quantize(
            random.normal(0, 0.2, shape).astype(np.float32), gguf.GGMLQuantizationType.Q8_0
        )
        writer.add_tensor(name, quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        matrices[name] = dequantize(quantised, gguf.GGMLQuantizationType.Q8_0)

    add("token_embd.weight", len(tokens), WIDTH)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(WIDTH, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}.weight", WIDTH, WIDTH)
        for name in ("ffn_gate", "ffn_up"):
            add(f"blk.{layer}.{name}.weight", INNER, WIDTH)
        add(f"blk.{layer}.ffn_down.weight", WIDTH, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return matrices
