"""A world with one correct word, and policies with known success that always say one word."""

from __future__ import annotations

from pathlib import Path

from environments.environment import SPLITS, Environment, EpisodeOverError, Step, World

RIGHT, WRONG = "yes", "no"
WORLD = f"{__name__}:OneWord"

PLANTED = {
    "name": "planted",
    "environment.name": WORLD,
    "environment.train_tasks": "train",
    "evaluation.tasks": "test",
    "evaluation.samples": 1,
    "evaluation.horizon": 1,
    "algorithm.steps": 1,
    "algorithm.micro_batches": 1,
    "curriculum": {"kind": "fixed", "horizon": 1},
    "rollout.tasks_per_step": 2,
    "rollout.group_size": 2,
    "rollout.turn_tokens": 4,
    "rollout.trajectory_tokens": 64,
}
"""Recipe fields of a nightly run with one step in `OneWord`."""


class OneWordEpisode(Environment):
    def __init__(self) -> None:
        self.over = True

    def reset(self, index: int) -> str:
        self.over = False
        return f"Say {RIGHT}, not {WRONG}."

    def step(self, action: str) -> Step:
        if self.over:
            raise EpisodeOverError("the episode is over")
        self.over = True
        return Step("", 1.0 if RIGHT in action else 0.0, True)

    def oracle_action(self) -> str:
        return RIGHT

    def close(self) -> None:
        pass


class OneWord(World):
    """A world in which every episode is one turn."""

    name = "oneword"
    version = "1"
    instruction = f"Say {RIGHT}."
    lists = dict.fromkeys(SPLITS, range(12))

    def create(self) -> OneWordEpisode:
        return OneWordEpisode()


def build_saying(folder: Path, word: str) -> str:
    """Save a policy to `folder` whose every message is `word`, and return the folder.

    The layers add nothing to the residual stream, so the next token depends only on the last one.
    After the word it is the end of the message, and after any other token it is the word.
    """
    import torch

    from tasks.starter.starting_model import build_model, build_tokenizer
    from tests.support.tiny_policy import TINY

    tokenizer = build_tokenizer([f"Say {RIGHT}, not {WRONG}.", RIGHT, WRONG])
    model = build_model(TINY, tokenizer, 0)
    tokens = tokenizer.encode(word, add_special_tokens=False)
    assert len(tokens) == 1, f"the tokenizer splits {word!r} into {len(tokens)} tokens"
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embeddings, head = model.model.embed_tokens.weight, model.lm_head.weight
        embeddings.zero_()
        embeddings[:, 0] = 1.0
        embeddings[tokens[0], 0], embeddings[tokens[0], 1] = 0.0, 1.0
        head[tokens[0], 0] = head[tokenizer.eos_token_id, 1] = 10.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
