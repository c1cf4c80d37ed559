"""Read a trajectory for display: turns, token texts, observations and durations."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboards.index import Index
from dashboards.train_samples import TrainedToken, train_samples_of, trained_tokens
from tasks.files import read_json
from tasks.rollout.trajectory import Trajectory

WHOLE = """
select t.*, tags.tag, files.path
from trajectories t join files on t.file = files.id left join tags using (environment, task)
where t.run = ? and t.kind = ? and t.name = ? and t."group" = ? and t.member = ?
"""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a trajectory in the viewer."""

    run: str
    kind: str
    name: str
    group: int
    member: int

    @property
    def group_path(self) -> str:
        """Path of the group's page."""
        return f"/groups/{self.run}/{self.kind}/{self.name}/{self.group}"

    @property
    def path(self) -> str:
        """Path of the trajectory's page."""
        return f"/trajectories/{self.run}/{self.kind}/{self.name}/{self.group}/{self.member}"


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a message.

    Attributes:
        text: Text of the token. Special tokens are included.
        id: Index in the vocabulary.
        log_probability: Log-probability at sampling. None if it was not recorded.
        in_action: Whether the token belongs to the parsed action.
        trained: Training data of the token. None if its step recorded none, or no step trained on
            it.
    """

    text: str
    id: int
    log_probability: float | None
    in_action: bool
    trained: TrainedToken | None = None

    @property
    def gap(self) -> float | None:
        """The trainer's log-probability minus the engine's, in nats."""
        if (
            self.trained is None
            or self.trained.log_probability is None
            or self.log_probability is None
        ):
            return None
        return self.trained.log_probability - self.log_probability

    @property
    def description(self) -> str:
        """Description of the token with all known values."""
        trained, gap = self.trained, self.gap
        parts = [f"token {self.id}"]
        if self.log_probability is not None:
            parts.append(f"log-probability {self.log_probability:.3f}")
        if trained is not None:
            parts.append(
                f"advantage {trained.advantage:+.3f}" if trained.in_loss else "not in the loss"
            )
        if trained is not None and trained.entropy is not None:
            parts.append(f"entropy {trained.entropy:.3f}")
        if gap is not None:
            parts.append(f"gap (trainer minus engine) {gap:+.2g}")
        return " · ".join(parts)


@dataclass(frozen=True, slots=True)
class TurnView:
    """One turn for display.

    The fields are as in `tasks.rollout.trajectory.Turn`, except that the tokens have texts.
    """

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
        """Mean advantage of the turn's tokens in the loss. None if there are none."""
        return _mean_advantage(self.tokens)


@dataclass(frozen=True, slots=True)
class TrajectoryView:
    """One trajectory for display.

    Attributes:
        path: Its parquet file.
        row: Its columns in the index, and the tag of its task.
        prompt: Text of the tokens before the first turn. Empty without a tokenizer.
        first_observation: First observation of the environment.
        has_train_samples: Whether its training step recorded the training data.
    """

    address: Address
    path: Path
    row: dict[str, Any]
    prompt: str
    first_observation: str
    turns: list[TurnView]
    has_train_samples: bool = False

    @property
    def advantage(self) -> float | None:
        """Mean advantage of the policy tokens in the loss.

        None if there are none, because no training data was recorded or no step trained on the
        trajectory.
        """
        return _mean_advantage([token for turn in self.turns for token in turn.tokens])

    @property
    def has_uniform_advantage(self) -> bool:
        """Whether all its tokens have the same advantage."""
        found = {
            round(t.trained.advantage, 6)
            for turn in self.turns
            for t in turn.tokens
            if t.trained and t.trained.in_loss
        }
        return len(found) <= 1


def load_trajectory(index: Index, address: Address) -> TrajectoryView | None:
    """Read a trajectory from its parquet file. None if it does not exist."""
    rows = index.query(
        WHOLE, [address.run, address.kind, address.name, address.group, address.member]
    )
    return _load(index, address, rows[0]) if rows else None


def group_of(index: Index, address: Address) -> list[TrajectoryView]:
    """Return all members of a trajectory's group, in order."""
    rows = index.query(
        'select member from trajectories where run = ? and kind = ? and name = ? and "group" = ? '
        "order by member",
        [address.run, address.kind, address.name, address.group],
    )
    members = (
        load_trajectory(
            index, Address(address.run, address.kind, address.name, address.group, row["member"])
        )
        for row in rows
    )
    return [member for member in members if member is not None]


def _load(index: Index, address: Address, row: dict[str, Any]) -> TrajectoryView:
    path = row["path"]
    (stored,) = index.query(
        "select prompt, first_observation, turns from read_parquet(?, file_row_number = true) "
        "where file_row_number = ?",
        [path, row["row"]],
    )
    tokenizer = tokenizer_of(Path(path), index.runs)
    trained = iter(trained_tokens(index, Path(path), address.group, address.member))
    turns = [
        TurnView(
            number=number,
            tokens=_tokens(tokenizer, turn, [next(trained, None) for _ in turn["tokens"]]),
            **{
                name: turn[name]
                for name in TurnView.__dataclass_fields__
                if name not in ("number", "tokens")
            },
        )
        for number, turn in enumerate(stored["turns"])
    ]
    about = {name: value for name, value in row.items() if name not in ("texts", "path", "file")}
    if tokenizer and stored["prompt"]:
        prompt = tokenizer.decode(stored["prompt"], skip_special_tokens=False)
    else:
        prompt = ""
    has_train_samples = train_samples_of(Path(path)) is not None
    return TrajectoryView(
        address, Path(path), about, prompt, stored["first_observation"], turns, has_train_samples
    )


def view_of(trajectory: Trajectory) -> TrajectoryView:
    """Convert a trajectory that is not stored yet."""
    turns = [
        TurnView(
            number=number,
            tokens=[],
            **{
                name: getattr(turn, name)
                for name in TurnView.__dataclass_fields__
                if name not in ("number", "tokens")
            },
        )
        for number, turn in enumerate(trajectory.turns)
    ]
    row = {
        "environment": trajectory.environment,
        "task": trajectory.task,
        "horizon": trajectory.horizon,
        "tag": None,
    }
    return TrajectoryView(
        Address("", "", "", 0, 0), Path(), row, "", trajectory.first_observation, turns
    )


def tokenizer_of(file: Path, runs: Path) -> Any:
    """Return the tokenizer of a file's tokens, or None if it is not available.

    It is taken from a checkpoint of the run, or else from the policy that the run started with.
    """
    for folder in file.parents:
        if (folder / "recipe.yaml").is_file():
            beside = next(iter(sorted(folder.glob("checkpoints/*/tokenizer.json"))), None)
            found = beside or _tokenizer_file(
                read_json(folder / "trainer.json").get("policy"), runs
            )
            return _load_tokenizer(found) if found else None
        if (folder / "settings.json").is_file():
            source = read_json(folder / "settings.json").get("source") or {}
            found = _tokenizer_file(source.get("tokenizer") or source.get("model"), runs)
            return _load_tokenizer(found) if found else None
        if folder == runs:
            break
    return None


def _tokenizer_file(policy: str | None, runs: Path) -> Path | None:
    """Return the tokenizer file of a policy, or None.

    The policy is a folder, also if the runs folder was moved, or a model in Hugging Face's cache.
    """
    if not policy:
        return None
    for folder in (Path(policy), runs / "starter" / Path(policy).name):
        if (folder / "tokenizer.json").is_file():
            return folder / "tokenizer.json"
    from huggingface_hub import try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(policy, "tokenizer.json")
    except ValueError:  # a path, not a model name of the hub
        return None
    return Path(cached) if isinstance(cached, str) else None


@functools.lru_cache(maxsize=8)
def _load_tokenizer(path: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))


def _tokens(
    tokenizer: Any, turn: dict[str, Any], trained: Sequence[TrainedToken | None]
) -> list[Token]:
    """Return the tokens of a message. Without a tokenizer the text is the token id."""
    ids: Sequence[int] = turn["tokens"]
    texts = (
        token_texts(tokenizer, ids) if tokenizer is not None else [f"⟨{token}⟩" for token in ids]
    )
    whole = "".join(texts)
    begin = whole.rfind(turn["action"]) if turn["action"] and not turn["malformed"] else -1
    end = begin + len(turn["action"])
    tokens, position = [], 0
    for number, (token, text) in enumerate(zip(ids, texts, strict=True)):
        inside = begin >= 0 and position < end and position + len(text) > begin
        known = turn["log_probabilities"]
        value = known[number] if number < len(known) and known[number] == known[number] else None
        tokens.append(Token(text, token, value, inside, trained[number]))
        position += len(text)
    return tokens


def _mean_advantage(tokens: Sequence[Token]) -> float | None:
    found = [
        token.trained.advantage
        for token in tokens
        if token.trained is not None and token.trained.in_loss
    ]
    return sum(found) / len(found) if found else None


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return the text that each token adds.

    If a character spans several tokens, it belongs to the last one.
    """
    texts, text_so_far = [], ""
    for end in range(1, len(ids) + 1):
        now = tokenizer.decode(list(ids[:end]), skip_special_tokens=False)
        whole = now.rstrip("\ufffd")
        texts.append(whole[len(text_so_far) :] if whole.startswith(text_so_far) else "")
        text_so_far = whole if whole.startswith(text_so_far) else text_so_far
    return texts
