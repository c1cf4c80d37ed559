"""Train with TRL's GRPOTrainer on TextCraft, served by this project in OpenEnv's protocol.

    agentgym serve textcraft --port 8000
    python examples/trl_textcraft.py MODEL [URL] [STEPS]

It needs TRL 1.16 and websockets, but no part of this project. The chat template of MODEL must
support tools.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from websockets.sync.client import ClientConnection, connect

PROMPT = "Craft the item. Call one tool in each message.\n\n"
SPLIT = "wood-train"


class TextCraft:
    """One session of the server. TRL calls the public methods as tools."""

    url = "http://127.0.0.1:8000"

    def __init__(self) -> None:
        self._socket: ClientConnection | None = None
        self._reward = 0.0

    def reset(self, index: int, **_row: Any) -> str:
        """Begin a task.

        Args:
            index: Position in the task list SPLIT.

        Returns:
            The first observation, which TRL appends to the prompt.
        """
        if self._socket is not None:  # the server may have ended an idle session
            self._socket.close()
        self._socket = connect(self.url.replace("http", "ws", 1) + "/ws", max_size=None)
        self._reward = 0.0
        return self._send("reset", {"split": SPLIT, "index": index})

    def get(self, count: int, item: str) -> str:
        """Take raw items, which nothing crafts.

        Args:
            count: How many to take.
            item: Name of the item, e.g. oak log.
        """
        return self._send("step", {"action": f"get {count} {item}"})

    def craft(self, count: int, item: str, ingredients: list[str]) -> str:
        """Carry out one of the crafting commands once.

        Args:
            count: How many items the command makes.
            item: Name of the item that it makes.
            ingredients: Count and name of each ingredient, e.g. ["2 oak planks", "1 stick"].
        """
        using = ", ".join(ingredients)
        return self._send("step", {"action": f"craft {count} {item} using {using}"})

    def inventory(self) -> str:
        """List the items that you hold."""
        return self._send("step", {"action": "inventory"})

    def get_reward(self) -> float:
        """Return the sum of the episode's rewards."""
        return self._reward

    def _send(self, kind: str, data: dict[str, Any]) -> str:
        assert self._socket is not None
        self._socket.send(json.dumps({"type": kind, "data": data}))
        answer = json.loads(self._socket.recv())
        if answer["type"] == "error":  # TRL shows the text of an exception to the model
            raise RuntimeError(answer["data"]["message"])
        self._reward += answer["data"]["reward"] or 0.0
        return str(answer["data"]["observation"]["text"])


def main() -> None:
    """Train on two tasks per step, with four episodes each."""
    model = sys.argv[1]
    TextCraft.url = sys.argv[2] if len(sys.argv) > 2 else TextCraft.url
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 20
    rows = [{"prompt": [{"role": "user", "content": PROMPT}], "index": i} for i in range(2 * steps)]
    config = GRPOConfig(
        output_dir="runs/trl",
        max_steps=steps,
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=512,
        max_tool_calling_iterations=8,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
    )
    trainer = GRPOTrainer(
        model=model,
        args=config,
        train_dataset=Dataset.from_list(rows),
        environment_factory=TextCraft,
    )
    trainer.train()
    for row in trainer.state.log_history:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
