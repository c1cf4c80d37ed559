"""One trajectory as it is shown: its turns, the text behind each token, what the world answered, and how long it all took."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboards.index import Index
from dashboards.train_samples import LearnedToken, learned_tokens, record_of
from tasks.rollout.trajectory import Trajectory

WHOLE = """
select t.*, tags.tag, files.path
from trajectories t join files on t.file = files.id left join tags using (environment, task)
where t.run = ? and t.kind = ? and t.name = ? and t."group" = ? and t.member = ?
"""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a trajectory stands: the words of its page's address."""

    run: str
    kind: str
    name: str
    group: int
    member: int

    @property
    def group_path(self) -> str:
        """The address of its group."""
        return f"/groups/{self.run}/{self.kind}/{self.name}/{self.group}"

    @property
    def path(self) -> str:
        """The address of its page."""
        return f"/trajectories/{self.run}/{self.kind}/{self.name}/{self.group}/{self.member}"


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a message.

    Attributes:
        text: What it stands for, special tokens included.
        id: Its number in the vocabulary.
        log_probability: As sampled; None where it was not recorded.
        in_action: Whether it is part of the action that was read from the message.
        learned: What the loss read of it; None where the step left no record, or where nobody learned from it.
    """

    text: str
    id: int
    log_probability: float | None
    in_action: bool
    learned: LearnedToken | None = None

    @property
    def gap(self) -> float | None:
        """The trainer's log-probability less the engine's, in nats."""
        if self.learned is None or self.learned.log_probability is None or self.log_probability is None:
            return None
        return self.learned.log_probability - self.log_probability

    @property
    def words(self) -> str:
        """All that is known of it, in words."""
        learned, gap = self.learned, self.gap
        parts = [f"token {self.id}"]
        if self.log_probability is not None:
            parts.append(f"log-probability {self.log_probability:.3f}")
        if learned is not None:
            parts.append(f"advantage {learned.advantage:+.3f}" if learned.in_loss else "not in the loss")
        if learned is not None and learned.entropy is not None:
            parts.append(f"entropy {learned.entropy:.3f}")
        if gap is not None:
            parts.append(f"trainer less engine {gap:+.2g}")
        return " · ".join(parts)


@dataclass(frozen=True, slots=True)
class ShownTurn:
    """One turn as it is shown: its fields as recorded (`tasks.rollout.trajectory.Turn`), and its tokens with their texts."""

    number: int
    tokens: list[Token]
    action: str
    message: str
    observation: str
    reward: float
    malformed: bool
    refused: bool | None
    cut: str
    generate_seconds: float
    environment_seconds: float
    policy_version: int

    @property
    def advantage(self) -> float | None:
        """The mean advantage of its tokens in the loss; None where there is none."""
        return _mean_advantage(self.tokens)


@dataclass(frozen=True, slots=True)
class Shown:
    """One trajectory as it is shown.

    Attributes:
        address: Where it stands.
        path: Its file.
        row: Its columns in the index, and the tag of its task.
        prompt: Text of the tokens before the first turn; empty where no tokenizer is at hand.
        first_observation: What the world said first.
        turns: Its turns.
        recorded: Whether its training step left a record of what it learned from.
    """

    address: Address
    path: Path
    row: dict[str, Any]
    prompt: str
    first_observation: str
    turns: list[ShownTurn]
    recorded: bool = False

    @property
    def advantage(self) -> float | None:
        """The mean advantage of the policy's tokens in the loss; None where none was recorded, or nobody learned from it."""
        return _mean_advantage([token for turn in self.turns for token in turn.tokens])

    @property
    def one_advantage(self) -> bool:
        """Whether all its tokens have the same advantage."""
        found = {round(t.learned.advantage, 6) for turn in self.turns for t in turn.tokens if t.learned and t.learned.in_loss}
        return len(found) <= 1

    @property
    def actions(self) -> list[str]:
        """The actions that the world was asked to perform, in order; a message without one asked for none."""
        return [turn.action for turn in self.turns if not turn.malformed]

    def observation_at(self, turn: int) -> str:
        """What the policy saw before it wrote turn `turn`, from 0."""
        return self.turns[turn - 1].observation if turn else self.first_observation


def shown(index: Index, address: Address) -> Shown | None:
    """Reads one trajectory from its parquet file; None where there is none."""
    rows = index.query(WHOLE, [address.run, address.kind, address.name, address.group, address.member])
    return _shown(index, address, rows[0]) if rows else None


def group_of(index: Index, address: Address) -> list[Shown]:
    """All members of a trajectory's group, in order."""
    rows = index.query(
        'select member from trajectories where run = ? and kind = ? and name = ? and "group" = ? order by member',
        [address.run, address.kind, address.name, address.group],
    )
    members = (shown(index, Address(address.run, address.kind, address.name, address.group, row["member"])) for row in rows)
    return [member for member in members if member is not None]


def _shown(index: Index, address: Address, row: dict[str, Any]) -> Shown:
    path = row["path"]
    (stored,) = index.query(
        "select prompt, first_observation, turns from read_parquet(?, file_row_number = true) where file_row_number = ?", [path, row["row"]]
    )
    tokenizer = tokenizer_of(Path(path), index.runs)
    learned = iter(learned_tokens(index, Path(path), address.group, address.member))
    turns = [
        ShownTurn(
            number=number,
            tokens=_tokens(tokenizer, turn, [next(learned, None) for _ in turn["tokens"]]),
            **{name: turn[name] for name in ShownTurn.__dataclass_fields__ if name not in ("number", "tokens")},
        )
        for number, turn in enumerate(stored["turns"])
    ]
    about = {name: value for name, value in row.items() if name not in ("texts", "path", "file")}
    prompt = tokenizer.decode(stored["prompt"], skip_special_tokens=False) if tokenizer and stored["prompt"] else ""
    recorded = record_of(Path(path)) is not None
    return Shown(address, Path(path), about, prompt, stored["first_observation"], turns, recorded)


def as_shown(trajectory: Trajectory) -> Shown:
    """A trajectory that is not stored yet."""
    turns = [
        ShownTurn(
            number=number,
            tokens=[],
            **{name: getattr(turn, name) for name in ShownTurn.__dataclass_fields__ if name not in ("number", "tokens")},
        )
        for number, turn in enumerate(trajectory.turns)
    ]
    row = {"environment": trajectory.environment, "task": trajectory.task, "horizon": trajectory.horizon, "tag": None}
    return Shown(Address("", "", "", 0, 0), Path(), row, "", trajectory.first_observation, turns)


def tokenizer_of(file: Path, runs: Path) -> Any:
    """The tokenizer that wrote a file's tokens: beside a checkpoint of its run, or of the policy that the run began with; else None."""
    for folder in file.parents:
        if (folder / "recipe.yaml").is_file():
            beside = next(iter(sorted(folder.glob("checkpoints/*/tokenizer.json"))), None)
            found = beside or _of_policy(_named(folder / "trainer.json", "policy"), runs)
            return _loaded(found) if found else None
        if (folder / "settings.json").is_file():
            source = _named(folder / "settings.json", "source") or {}
            found = _of_policy(source.get("tokenizer") or source.get("model"), runs)
            return _loaded(found) if found else None
        if folder == runs:
            break
    return None


def _of_policy(policy: str | None, runs: Path) -> Path | None:
    """The tokenizer's file of a policy's folder, also after the runs' folder was moved, or of a model in Hugging Face's cache."""
    if not policy:
        return None
    for folder in (Path(policy), runs / "starter" / Path(policy).name):
        if (folder / "tokenizer.json").is_file():
            return folder / "tokenizer.json"
    from huggingface_hub import try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(policy, "tokenizer.json")
    except ValueError:  # a path that is no name of the hub's
        return None
    return Path(cached) if isinstance(cached, str) else None


def _named(file: Path, name: str) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8")).get(name)
    except (OSError, ValueError, AttributeError):
        return None


@functools.lru_cache(maxsize=8)
def _loaded(path: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))


def _tokens(tokenizer: Any, turn: dict[str, Any], learned: Sequence[LearnedToken | None]) -> list[Token]:
    """The tokens of a message; without a tokenizer each stands for its number."""
    ids: Sequence[int] = turn["tokens"]
    texts = pieces(tokenizer, ids) if tokenizer is not None else [f"⟨{token}⟩" for token in ids]
    whole = "".join(texts)
    begin = whole.rfind(turn["action"]) if turn["action"] and not turn["malformed"] else -1
    end = begin + len(turn["action"])
    tokens, position = [], 0
    for number, (token, text) in enumerate(zip(ids, texts, strict=True)):
        inside = begin >= 0 and position < end and position + len(text) > begin
        known = turn["log_probabilities"]
        value = known[number] if number < len(known) and known[number] == known[number] else None
        tokens.append(Token(text, token, value, inside, learned[number]))
        position += len(text)
    return tokens


def _mean_advantage(tokens: Sequence[Token]) -> float | None:
    found = [token.learned.advantage for token in tokens if token.learned is not None and token.learned.in_loss]
    return sum(found) / len(found) if found else None


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text that each token adds to those before it; a character of several tokens stands with its last one."""
    texts, said = [], ""
    for end in range(1, len(ids) + 1):
        now = tokenizer.decode(list(ids[:end]), skip_special_tokens=False)
        whole = now.rstrip("\ufffd")
        texts.append(whole[len(said) :] if whole.startswith(said) else "")
        said = whole if whole.startswith(said) else said
    return texts
