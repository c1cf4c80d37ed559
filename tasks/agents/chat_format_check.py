"""Check that a tokenizer can carry a conversation, in a process that does not import torch.

python -m tasks.agents.chat_format_check '{"tokenizer": NAME, "form": {...}}'

Prints {"tokens": N} or {"error": TEXT}. The caller is a flow, which must not import transformers.
Without torch the import takes two seconds instead of five.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from tasks.provision.imports import without_collections


def check(request: Mapping[str, Any]) -> dict[str, Any]:
    """Load the tokenizer and derive the form of a turn from its chat template.

    Args:
        request: "tokenizer" (name or folder), and "form": the fields of `TurnFormat`.

    Returns:
        "tokens": the number of token ids that the tokenizer can produce. Or "error": the problem.
    """
    with without_collections():
        from transformers import AutoTokenizer

    from configs.experiment import TurnFormat
    from tasks.agents.chat_format import ChatFormat, ChatTemplateError

    form = TurnFormat.model_validate(request["form"])
    try:
        tokenizer = AutoTokenizer.from_pretrained(request["tokenizer"])
        # Without its files transformers builds an empty tokenizer for some kinds of model.
        if len(tokenizer) <= len(tokenizer.all_special_ids):
            return {
                "error": f"the tokenizer {request['tokenizer']!r} has no tokens besides special "
                "ones, so its files are missing; copy tokenizer.json and tokenizer_config.json "
                "into the folder"
            }
        ChatFormat(
            tokenizer,
            form.action_format,
            "instruction" if form.instruction else None,
            conversation_start=form.conversation_start,
            chat_template_kwargs=form.chat_template_kwargs,
            thinking=form.thinking,
        )
    except ChatTemplateError as problem:
        return {"error": str(problem).removeprefix("policy.model: ")}
    except (OSError, ValueError) as problem:
        return {"error": f"cannot load the tokenizer {request['tokenizer']!r}: {problem}"}
    return {"tokens": len(tokenizer)}


if __name__ == "__main__":
    sys.modules["torch"] = None  # type: ignore[assignment]  # Python's way to make an import fail
    print(json.dumps(check(json.loads(sys.argv[1]))))
