"""Real vLLM servers of a tiny policy, and reference log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from tasks.inference.token_guard import share_token
from tasks.provision.local import LocalServer
from tests.support.counting_servers import ROOT


@contextmanager
def vllm_servers(
    words: Sequence[str], state_dir: Path, name: str, number: int
) -> Iterator[list[LocalServer]]:
    """Start servers with one command, and yield them. All end with the block.

    They start one after the other, because the imports of each keep two cores busy.
    """
    share_token()
    with ExitStack() as stack:
        started = []
        for place in range(number):
            server = LocalServer(
                f"{name}-{place}",
                words,
                state_dir=state_dir,
                environment={"PYTHONPATH": str(ROOT)},
                start_deadline_s=280,
            )
            stack.callback(server.end)
            server.start()
            started.append(server)
        yield started


def log_probabilities(
    model: Any, prompt: Sequence[int], tokens: Sequence[int], temperature: float = 1.0
) -> list[float]:
    """Return the model's log-probabilities of `tokens` after `prompt`."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1].double()
    scores = torch.log_softmax(logits / temperature, dim=-1)
    return scores.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1).tolist()
