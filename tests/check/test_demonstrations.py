"""Tests of the oracle's demonstrations: detours, determinism, cost and the cache."""

from __future__ import annotations

from pathlib import Path
from random import Random

from environments.registry import load_world
from environments.textcraft.world import TextCraft, TextCraftEnvironment
from tasks.starter.demonstration_cache import DemonstrationCache
from tasks.starter.demonstrations import POOL, Demonstration, Demonstrator, demonstrate


def test_oracle_succeeds_with_and_without_detours() -> None:
    world = load_world("textcraft")
    environment = world.create()
    for task in list(world.tasks("wood-train"))[::9]:
        straight = demonstrate(environment, task, Random(0))
        assert all(exchange.by_oracle for exchange in straight.exchanges)
        assert straight.exchanges[-1].observation.startswith("Crafted")
        detoured = demonstrate(environment, task, Random(1), lambda right: f"not {right}", 0.5)
        assert detoured.exchanges[-1].by_oracle
        actions = [exchange.action for exchange in detoured.exchanges if exchange.by_oracle]
        assert actions == [exchange.action for exchange in straight.exchanges]


def test_demonstration_depends_on_neither_process_nor_order() -> None:
    world = load_world("textcraft")
    tasks = world.tasks("wood-train")
    forth, back = Demonstrator(world, tasks, 5, 0.3), Demonstrator(world, tasks, 5, 0.3)
    assert [forth.play(number) for number in range(8)] == [
        back.play(number) for number in reversed(range(8))
    ][::-1]


class CountingResets(TextCraft):
    """A TextCraft world that counts the resets of its sessions."""

    _resets = 0

    def create(self) -> TextCraftEnvironment:
        world = self

        class Session(TextCraftEnvironment):
            def reset(self, index: int) -> str:
                world._resets += 1
                return super().reset(index)

        return Session()


def test_demonstration_cost_does_not_grow_with_the_number_of_tasks(tmp_path: Path) -> None:
    resets = []
    for name in ("wood-train", "wood-renamed-train", "renamed-train"):
        world = CountingResets()
        cache = DemonstrationCache(
            world, load_world("textcraft").tasks(name), 0, 0.2, tmp_path / name, 1
        )
        assert len(cache.first(40)) == 40
        resets.append(world._resets)
    # One reset per demonstration, one for each solution in the pool, and some for detours.
    assert max(resets) <= 1.5 * 40 + POOL


def test_cached_demonstrations_are_reused_and_a_truncated_file_is_completed(tmp_path: Path) -> None:
    def demonstrations(count: int) -> tuple[list[Demonstration], int]:
        world = CountingResets()
        cache = DemonstrationCache(
            world, load_world("textcraft").tasks("wood-train"), 0, 0.2, tmp_path, 1
        )
        played = cache.first(count)
        cache.close()
        return played, world._resets

    first, _ = demonstrations(40)
    assert demonstrations(40) == (first, 0)
    (file,) = tmp_path.glob("demonstrations-*.jsonl")
    file.write_text(file.read_text()[:-20])
    again, resets = demonstrations(40)
    assert again == first
    assert 0 < resets <= 2 + POOL
    longer, _ = demonstrations(50)
    assert longer[:40] == first


def test_no_detour_ends_a_demonstration() -> None:
    world = load_world("searchqa")
    demonstrator = Demonstrator(world, world.tasks("islands-lessons")[:40], 0, 0.5)
    played = [demonstrator.play(number) for number in range(40)]
    assert all(demonstration.exchanges[-1].by_oracle for demonstration in played)
    assert any(
        not exchange.by_oracle for demonstration in played for exchange in demonstration.exchanges
    )
