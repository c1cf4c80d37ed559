"""The reference of the KL term."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from peft.helpers import rescale_adapter_scale

from tasks.inference.teacher_server import TeacherServer
from tasks.training.context_parallel import ContextParallel
from tasks.training.row_tensors import Tensors, padded
from tasks.training.token_scores import log_probabilities


class Reference:
    """What the KL term compares the policy with.

    It is a teacher on a server, a frozen model, or the policy without its LoRA adapter.
    """

    def __init__(
        self, policy: Any, model: Any | None, server: TeacherServer | None, accelerator: Accelerator
    ) -> None:
        """
        Args:
            policy: The policy. It is the reference, without its adapter, if there is no other one.
            model: A frozen model with TRL's fused head, or None.
            server: Server of a teacher, or None.
            accelerator: Device and compute dtype.
        """
        self._policy, self._model, self._server = policy, model, server
        self._accelerator = accelerator

    def log_probabilities(
        self, tensors: Tensors, ranks: ContextParallel | None = None
    ) -> torch.Tensor:
        """Return the log-probabilities of the completions, shape (B, T), on the CPU.

        The arguments are those of `token_scores`.
        """
        if self._model is not None:
            return log_probabilities(self._model, tensors, self._accelerator, ranks)
        if self._server is None:
            with rescale_adapter_scale(self._policy, 0.0):
                return log_probabilities(self._policy, tensors, self._accelerator, ranks)
        rows = [
            row[own.bool()].tolist()
            for row, own in zip(tensors["input_ids"], tensors["attention_mask"], strict=True)
        ]
        lengths = tensors["completion_mask"].sum(dim=1).tolist()
        ask = partial(self._server.score, rows)
        answers = ask() if ranks is None else ranks.from_first(ask)
        scores = [
            found[len(found) - length :] for found, length in zip(answers, lengths, strict=True)
        ]
        return padded(scores, 0.0, torch.float32)
