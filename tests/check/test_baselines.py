"""Tests of the scripted policies and the nearest-neighbour replay baseline."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from configs.environment import World
from configs.evaluation_grid import EvaluationGrid
from configs.infrastructure import InfraSettings
from configs.recipe import load_recipe
from environments.registry import load_world
from environments.searchqa.scripts import CHOICES, READER, play
from environments.textcraft.goals import goals
from environments.textcraft.lists import task_lists
from environments.textcraft.tasks import depth
from flows.evaluate import learned_in
from flows.scripted_policies import scripted_results
from tasks.agents.nearest_neighbour_replay import NearestNeighbourReplay
from tasks.evaluation.baselines import (
    NEEDS,
    NO_REPEAT,
    ORACLE,
    RANDOM,
    REPLAY,
    SIMILAR,
    VERSIONS,
    baseline_table,
    baselines,
    main,
)
from tasks.evaluation.behaviour import answer_sources
from tasks.rollout.trajectory import Trajectory, Turn


def test_replay_fails_on_held_out_templates_and_succeeds_on_known_ones(
    tmp_path: Path,
) -> None:
    held_out = task_lists()["wood-test"]
    found = baselines("textcraft", held_out, task_lists()["train"], 8, tmp_path)
    assert found[REPLAY].success.value == 0.0
    assert found[ORACLE].success.value == 1.0
    assert 0.0 < found[RANDOM].success.value < 1.0
    # Replay succeeds if training has the same templates with other woods. The splits prevent this.
    birches = [goals().index(name) for name in ("birch fence", "birch button", "birch sign")]
    oaks = [goals().index(name) for name in ("oak fence", "oak button", "oak sign")]
    assert baselines("textcraft", birches, oaks, 8, tmp_path, [REPLAY])[REPLAY].success.value == 1.0


@pytest.mark.parametrize(
    ("learned", "first", "replayed"),
    [
        (("birch fence", "birch button"), None, 1.0),
        (("chest",), None, 0.0),
        (("chest", "birch fence", "birch button"), 1, 0.0),
    ],
)
def test_replay_baseline_of_a_run_searches_its_training_tasks(
    tmp_path: Path, learned: tuple[str, ...], first: int | None, replayed: float
) -> None:
    given = {
        "environment.train_tasks": [goals().index(name) for name in learned],
        "environment.n_train_tasks": first,
    }
    experiment = load_recipe("textcraft", given)
    oaks = [goals().index(name) for name in ("oak fence", "oak button")]
    found = scripted_results(experiment.environment, oaks, 8, InfraSettings(runs=tmp_path))
    assert found[REPLAY].success.value == replayed


def test_replay_baseline_of_a_checkpoint_searches_its_training_tasks(
    tmp_path: Path,
) -> None:
    oaks = [goals().index(name) for name in ("oak fence", "oak button")]
    trained = {
        "environment.train_tasks": [goals().index(name) for name in ("birch fence", "birch button")]
    }
    (tmp_path / "recipe.yaml").write_text(
        yaml.safe_dump(load_recipe("textcraft", trained).model_dump(mode="json"))
    )
    grid = EvaluationGrid.model_validate(
        {
            "environment": "textcraft",
            "source": {"kind": "model", "model": str(tmp_path)},
            "tasks": [oaks],
            "horizons": [8],
        }
    )
    found = scripted_results(learned_in(grid), oaks, 8, InfraSettings(runs=tmp_path / "runs"))
    assert found[REPLAY].success.value == 1.0
    elsewhere = grid.model_copy(update={"environment": World(name="babyai")})
    assert learned_in(elsewhere) == World(name="babyai")


def test_replayed_plan_uses_the_words_of_the_task() -> None:
    world = load_world("textcraft")
    replay = NearestNeighbourReplay(
        world, [goals().index("oak fence gate"), goals().index("chest")]
    )
    assert replay.actions("birch fence gate") == [
        "get 1 birch logs",
        "craft 4 birch planks using 1 birch logs",
        "craft 4 stick using 2 birch planks",
        "craft 1 birch fence gate using 4 stick, 2 birch planks",
    ]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nowhere"], "'nowhere'"),
        (["textcraft", "--tasks", "wod-test"], "'wood-test'"),
        (["textcraft", "--policies", "replay"], "--policies"),
    ],
)
def test_unknown_world_task_list_or_policy_is_named_in_the_error(
    arguments: list[str],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["baselines", *arguments])
    with pytest.raises(SystemExit):
        main()
    assert named in capsys.readouterr().err


def test_replayed_search_uses_the_words_of_the_question() -> None:
    world = load_world("searchqa")
    one, *others = world.tasks("islands-no-lake-train")[:12]
    replay, session = NearestNeighbourReplay(world, [one]), world.create()
    session.reset(one)
    learned = replay.actions(session.objective)
    for task in others:
        session.reset(task)
        if replay.actions(session.objective) != learned:
            break
    else:
        pytest.fail("every replayed search equals that of the training question")


def test_truncated_baseline_is_not_a_success_and_results_are_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [index for index in task_lists()["test"] if depth(index) > 2][:4]
    short = baselines("textcraft", tasks, task_lists()["train"], 3, tmp_path, [ORACLE])[ORACLE]
    assert (short.success.value, short.truncated, short.turns) == (0.0, 1.0, 3.0)
    monkeypatch.setattr(
        "tasks.evaluation.baselines.play", lambda *_: pytest.fail("the tasks were played again")
    )
    assert (
        baselines("textcraft", tasks, task_lists()["train"], 3, tmp_path, [ORACLE])[ORACLE].tallies
        == short.tallies
    )


def test_results_of_an_earlier_version_of_a_policy_are_not_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = task_lists()["test"][:2]

    def files() -> set[str]:
        baselines("textcraft", tasks, tasks, 3, tmp_path, [REPLAY])
        return {file.name for file in tmp_path.iterdir()}

    before = files()
    assert files() == before
    monkeypatch.setitem(VERSIONS, REPLAY, VERSIONS[REPLAY] + 1)
    assert len(files() - before) == 1


def test_scripted_policies_are_judged_by_the_success_score_of_the_recipe(tmp_path: Path) -> None:
    infrastructure = InfraSettings(runs=tmp_path)
    world = World(name="babyai", rules="agentgym")  # a reward falls with each turn
    tasks = load_world("babyai", "agentgym").tasks("test")[:1]
    usual = scripted_results(world, tasks, 20, infrastructure)[ORACLE]
    strict = scripted_results(
        world.model_copy(update={"success_score": 1.0}), tasks, 20, infrastructure
    )[ORACLE]
    assert usual.success.value == 1.0
    assert strict.success.value == 0.0
    assert strict.reward == usual.reward


def test_baseline_table_has_each_policy_and_the_oracle_turns(tmp_path: Path) -> None:
    table = baseline_table(
        {
            "wood-test": baselines(
                "textcraft", task_lists()["wood-test"][:6], task_lists()["wood-train"], 8, tmp_path
            )
        }
    )
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
    ]
    assert header == ["policy", "wood-test"]
    assert [row[0] for row in rows] == [*NEEDS, "craft every line", "oracle's turns"]
    assert all(row[1] for row in rows)


def test_policies_avoid_repeats_and_prefer_the_most_similar_action(
    tmp_path: Path,
) -> None:
    tasks = task_lists()["one-command-test"][:20]
    found = baselines(
        "textcraft",
        tasks,
        task_lists()["one-command-train"][:20],
        8,
        tmp_path,
        [RANDOM, NO_REPEAT, SIMILAR],
    )
    assert found[NO_REPEAT].repeated == 0.0
    assert found[RANDOM].repeated > 0.1
    assert found[SIMILAR].success.value > found[NO_REPEAT].success.value


def test_answer_is_traced_to_the_passage_that_contains_it(tmp_path: Path) -> None:
    world = load_world("searchqa")
    tasks = world.tasks("islands-validation")[:40]
    found = baselines(
        "searchqa", tasks, world.tasks("islands-train")[:20], 6, tmp_path, ["first passage", ORACLE]
    )
    assert found["first passage"].answers_from == {"passage 1": 1.0}
    places = found[ORACLE].answers_from
    assert {*places} == {"passage 1", "passage 2", "passage 3"}
    assert sum(places.values()) == pytest.approx(1.0)
    assert found["first passage"].by_tag["right passage first"].value == 1.0
    assert found["first passage"].by_tag["right passage not first"].value == 0.0


@pytest.mark.parametrize(
    "title", ["Mercury", "Mercury (planet)", '"Mercury (planet)"', "(a) Mercury"]
)
def test_passages_with_any_title_are_recognised(title: str) -> None:
    found = (
        "<information>Doc 1(Title: Venus) Its moons are none.\n"
        f"Doc 2(Title: {title}) The lake (large) of Badok Defam is Lake Habim.</information>"
    )
    query, answer = "lake of Badok Defam", "<answer>Lake Habim</answer>"
    script = play(CHOICES[READER], f"What is the {query}?")
    assert next(script) == f"<search>{query}</search>"
    assert script.send(found) == answer
    turns = [Turn([1], [-0.5], f"<search>{query}</search>", found), Turn([1], [-0.5], answer)]
    sources = answer_sources([Trajectory("searchqa", 0, 0, 0, 0, 6, 0, "vllm", turns=turns)])
    assert sources == {"passage 2": 1.0}
    turns[1] = Turn([1], [-0.5], "<answer> </answer>")
    assert answer_sources([Trajectory("searchqa", 0, 0, 0, 0, 6, 0, "vllm", turns=turns)]) == {}
