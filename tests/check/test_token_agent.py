"""Tests of the budgets of a token agent. The reached budget is named."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tasks.agents.agent import Budgets, TokenBudgetError
from tasks.agents.token_agent import TokenAgent
from tasks.inference.engine import EngineError, Generation, Sampling

STOP = 0


class Writer:
    """An engine that writes `length` tokens up to the budget. The last one is the stop token."""

    name = "writer"
    out_of_process = False
    prompt_tokens = cached_tokens = 0
    kv_cache_tokens = progress = None

    def __init__(self, length: int, context_length: int) -> None:
        self.length, self.context_length, self.policy_version = length, context_length, 5
        self.asked: list[Sampling] = []

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, session: object | None = None
    ) -> Generation:
        assert len(tokens) + sampling.max_tokens <= self.context_length
        self.asked.append(sampling)
        tokens = [*[3] * (self.length - 1), STOP][: sampling.max_tokens]
        return Generation(tokens, [-1.0] * len(tokens), self.policy_version)


class Words:
    """A chat format in which an observation of n letters has n tokens."""

    stop_tokens = (STOP,)
    rewrites = compacts = False

    def prompt(self, observation: str) -> list[int]:
        return [1] * len(observation)

    def reply(self, observation: str, last_tokens: Sequence[int]) -> list[int]:
        return [2] * len(observation)

    def text(self, tokens: Sequence[int]) -> str:
        return "go"

    def action_in(self, text: str) -> str:
        return text


def cut_and_end(
    length: int, context_length: int, budgets: Budgets, prompt: int = 10, observation: int = 4
) -> tuple[list[str], str]:
    """Play an episode, and return what cut each message and what ended the episode."""

    async def play() -> tuple[list[str], str]:
        policy = TokenAgent(Writer(length, context_length), [Words()])  # type: ignore[arg-type]
        conversation = await policy.begin(0, 1, "x" * prompt, budgets)
        cuts: list[str] = []
        try:
            for turn in range(100):
                message = await conversation.act(turn)
                assert message.policy_version == 5
                cuts.append(message.cut)
                await conversation.observe("x" * observation)
        except TokenBudgetError as spent:
            return cuts, str(spent)
        raise AssertionError("no budget was reached")

    return asyncio.run(play())


def test_messages_are_sampled_at_the_temperature_of_the_episode() -> None:
    engine = Writer(3, 1000)

    async def play() -> None:
        policy = TokenAgent(engine, [Words()])  # type: ignore[arg-type]
        conversation = await policy.begin(0, 1, "x", Budgets(0.25, 8, 500))
        await conversation.act(0)

    asyncio.run(play())
    assert [sampling.temperature for sampling in engine.asked] == [0.25]


@pytest.mark.parametrize(
    ("length", "context_length", "budgets", "cuts", "end"),
    [
        # 10 + 2 x (6 + 4) tokens
        (6, 1000, Budgets(1.0, 20, 30), ["", ""], "rollout.trajectory_tokens"),
        (6, 30, Budgets(1.0, 20, 1000), ["", ""], "context length of the engine (30)"),
        (50, 1000, Budgets(1.0, 6, 30), ["rollout.turn_tokens"] * 2, "rollout.trajectory_tokens"),
        # the last message has room for 5 tokens
        (
            50,
            1000,
            Budgets(1.0, 6, 25),
            ["rollout.turn_tokens", "rollout.trajectory_tokens"],
            "rollout.trajectory_tokens",
        ),
        (
            50,
            25,
            Budgets(1.0, 6, 40),
            ["rollout.turn_tokens", "context length of the engine (25)"],
            "context length of the engine (25)",
        ),
    ],
)
def test_reached_budget_is_named(
    length: int, context_length: int, budgets: Budgets, cuts: list[str], end: str
) -> None:
    assert cut_and_end(length, context_length, budgets) == (cuts, end)


@pytest.mark.parametrize(
    ("context_length", "budget", "named"),
    [
        (1000, 10, "rollout.trajectory_tokens"),
        (10, 1000, "context length of the engine"),
        (1000, 15, "rollout.turn_tokens"),  # 5 tokens are left for a message of 6
        (15, 1000, "rollout.turn_tokens"),
    ],
)
def test_a_prompt_without_room_for_a_message_is_a_fault_and_not_a_failed_episode(
    context_length: int, budget: int, named: str
) -> None:
    with pytest.raises(EngineError, match=named):
        cut_and_end(6, context_length, Budgets(1.0, 6, budget))


def test_turn_seeds_follow_from_the_episode_seed() -> None:
    def seeds(seed: int) -> list[int]:
        engine = Writer(3, 1000)

        async def play() -> None:
            conversation = await TokenAgent(engine, [Words()]).begin(
                0, seed, "x", Budgets(1.0, 8, 500)
            )  # type: ignore[arg-type]
            for turn in range(3):
                await conversation.act(turn)
                await conversation.observe("x")

        asyncio.run(play())
        return [sampling.seed for sampling in engine.asked]

    assert seeds(1) == seeds(1)
    assert len({*seeds(1), *seeds(2)}) == 6


PAGE = (
    "".join(f"[{n:03}] link 'somewhere'\n" for n in range(100))
    + "URL: http://shop.test\nOBJECTIVE: buy\nPREVIOUS ACTION: None"
)


class Letters(Words):
    """A chat format in which every letter of an observation is its own token."""

    def prompt(self, observation: str) -> list[int]:
        return [*map(ord, observation)]

    def reply(self, observation: str, last_tokens: Sequence[int]) -> list[int]:
        return [*map(ord, observation)]


def played(budgets: Budgets, observations: int) -> list[str]:
    """Show `PAGE` to an agent repeatedly, and return what it reads.

    Args:
        budgets: Token budgets of the agent.
        observations: Number of pages after the first, if no budget ends the episode before.
    """

    async def play() -> list[str]:
        agent = TokenAgent(Writer(4, 100_000), [Letters()])  # type: ignore[arg-type]
        conversation = await agent.begin(0, 1, PAGE, budgets)
        read = ["".join(map(chr, conversation.prompt))]
        try:
            for turn in range(observations):
                await conversation.act(turn)
                read.append("".join(map(chr, await conversation.observe(PAGE))))
        except TokenBudgetError:
            pass
        return read

    return asyncio.run(play())


def test_first_observation_above_the_budget_is_cut_and_leaves_room_for_a_turn() -> None:
    [first] = played(Budgets(1.0, 50, 1_000), 0)
    assert 900 < len(first) <= 950
    shown = first.count("link")
    assert first.startswith("[000] link")
    assert first.endswith(
        f"\n[observation cut: {100 - shown} more lines]\nURL: http://shop.test\nOBJECTIVE: "
        "buy\nPREVIOUS ACTION: None"
    )
    assert len(played(Budgets(1.0, 50, 1_000), 5)) == 1  # no room remains for another page


def test_later_observation_is_cut_to_the_remaining_budget() -> None:
    first, second = played(Budgets(1.0, 50, len(PAGE) + 700), 1)
    assert first == PAGE
    assert len(second) <= 700 - 4 - 50
    assert "[observation cut: " in second


def test_an_observation_leaves_room_for_a_whole_message() -> None:
    [first] = played(Budgets(1.0, 50, len(PAGE) + 10), 0)
    assert 256 < len(first) <= len(PAGE) - 40
    length = len(PAGE) + 4 + len(PAGE)
    _, second = played(Budgets(1.0, 50, length + 10), 1)
    assert 256 < len(second) <= len(PAGE) - 40
    assert played(Budgets(1.0, 50, length + 50), 1) == [PAGE, PAGE]


def test_observation_is_not_cut_below_the_minimum() -> None:
    assert played(Budgets(1.0, 50, len(PAGE) + 300), 1) == [PAGE]
    assert played(Budgets(1.0, 50, 2 * len(PAGE) + 100), 1) == [PAGE, PAGE]
