"""Tests of WebArena's embedded tasks and their splits, and of WebArena's own task files."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from environments.environment import SettingsError, TaskIndexError
from environments.registry import load_world
from environments.server.app import Options, application
from environments.webarena.addresses import (
    EMBEDDED,
    Addresses,
    OutsideSitesError,
    from_environment,
)
from environments.webarena.drawn_shops import LISTS, NO_ANSWER_LISTS, drawn_plan, drawn_task
from environments.webarena.evaluators import string_match
from environments.webarena.settings import Settings
from environments.webarena.sites.database import drawn_state
from environments.webarena.task_files import TaskFileError, parse_task, read_tasks
from environments.webarena.tasks import embedded_entries, embedded_tasks, plan, task_lists
from environments.webarena.world import SharedSites, WebArena
from tests.support.processes import run_python

REAL = {
    "SHOPPING": "http://shop.example:7770",
    "REDDIT": "http://forum.example/",
    "SHOPPING_ADMIN": "http://shop.example:7780/admin",
}


def entry(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "sites": ["shopping"],
        "task_id": 21,
        "require_login": True,
        "storage_state": "./.auth/shopping_state.json",
        "start_url": "__SHOPPING__/a.html |AND| __REDDIT__",
        "geolocation": None,
        "intent_template": "List {{x}}",
        "instantiation_dict": {"x": 1},
        "intent": "List 1",
        "require_reset": False,
        "eval": {
            "eval_types": ["string_match", "program_html"],
            "reference_answers": {"must_include": ["1"]},
            "reference_url": "",
            "program_html": [
                {
                    "url": "__SHOPPING__/b",
                    "locator": "",
                    "required_contents": {"must_include": ["a |OR| b", "__REDDIT__/f/a"]},
                },
                {
                    "url": "last",
                    "locator": "document.title",
                    "required_contents": {"exact_match": "__SHOPPING__/b"},
                },
            ],
            "string_note": "",
            "reference_answer_raw_annotation": "1",
        },
        "intent_template_id": 222,
    }
    return made | changes


def test_the_registry_finds_the_world() -> None:
    world = load_world("webarena")
    assert isinstance(world, WebArena)
    assert (
        len(world.tasks("train")) + len(world.tasks("validation")) + len(world.tasks("test"))
        == len(embedded_tasks())
        >= 60
    )
    with pytest.raises(KeyError, match="webarena-ours-50"):
        world.tasks("nothing")
    with pytest.raises(TaskIndexError, match="99999"):
        world.create().reset(99999)


def test_a_server_opens_at_most_max_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WebArena, "max_sessions", 1)

    client = TestClient(application(WebArena({}), Options())[0])
    assert [client.post("/v1/create", json={"items": [{}]}).status_code for _ in range(2)] == [
        200,
        503,
    ]


def test_every_site_has_tasks_of_every_kind() -> None:
    found = {(task.sites[0], task.kind) for task in embedded_tasks().values()}
    sites = ("shopping", "reddit", "gitlab", "shopping_admin")
    assert found == {
        (site, kind) for site in sites for kind in ("information", "navigation", "change")
    }


def test_splits_share_no_intent_template_and_cover_all_tasks() -> None:
    tasks, lists = embedded_tasks(), task_lists(embedded_tasks().values())
    templates = [
        {tasks[index].template for index in lists[split]}
        for split in ("train", "validation", "test")
    ]
    assert all(templates)
    assert len(set.union(*templates)) == sum(map(len, templates))
    assert sorted(lists["train"] + lists["validation"] + lists["test"]) == sorted(tasks)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_read_only_list_has_the_tasks_of_its_split_that_change_nothing(split: str) -> None:
    tasks, lists = embedded_tasks(), task_lists(embedded_tasks().values())
    expected = [index for index in lists[split] if tasks[index].kind != "change"]
    assert expected
    assert list(lists[f"read-only-{split}"]) == expected


def test_the_lists_in_drawn_shops_share_no_shop_and_no_task_with_other_lists() -> None:
    assert {name: len(some) for name, some in LISTS.items()} == {
        "drawn-shops-train": 4000, "drawn-shops-validation": 64, "drawn-shops-test": 120,
    }  # fmt: skip
    assert len(set().union(*LISTS.values())) == sum(map(len, LISTS.values()))
    assert not set(embedded_tasks()) & set().union(*LISTS.values())
    for some in LISTS.values():
        assert Counter(drawn_task(index).template for index in some[:40]) == dict.fromkeys(
            range(10_000, 10_008), 5
        )
    world = WebArena({})
    for name, some in LISTS.items():
        assert list(world.tasks(name)) == list(some)
        assert world._shared.task(some[0]).sites == ("shopping",)
        assert [world.tag(index) for index in some[5:8]] == ["information", "navigation", "change"]
    assert world.tasks("train") == task_lists(embedded_tasks().values())["train"]


def test_a_quarter_of_the_drawn_training_tasks_requires_no_answer() -> None:
    [(name, some)] = NO_ANSWER_LISTS.items()
    assert WebArena({}).tasks(name) == some
    assert set(some) < set(LISTS["drawn-shops-train"])
    assert len(some) == 1000
    asked = Counter(re.sub('".*"', "_", drawn_task(index).intent) for index in some[:200])
    assert asked == {"Go to the page of _": 100, "Put _ on my wish list": 100}


def test_shops_differ_and_each_is_reproducible() -> None:
    def rows(number: int) -> list[tuple[object, ...]]:
        return [
            tuple(row)
            for row in drawn_state(number).execute(
                "SELECT name, price, colour, description FROM products"
            )
        ]

    numbers = [some[place] for some in LISTS.values() for place in (0, 1, 2, 3)]
    shops = [rows(number) for number in numbers]
    assert len({str(sorted(map(str, shop))) for shop in shops}) == len(shops)
    assert {len(shop) for shop in shops} == {24}
    drawn_state.cache_clear()
    assert [rows(number) for number in numbers] == shops


def test_answers_in_drawn_shops_differ_between_shops() -> None:
    colours: dict[str, list[str]] = {}
    for index in LISTS["drawn-shops-train"][::8]:
        colours.setdefault(drawn_task(index).intent, []).append(str(drawn_task(index).answers))
    asked_again = [answers for answers in colours.values() if len(answers) > 1]
    assert sum(len(set(answers)) > 1 for answers in asked_again) > 0.8 * len(asked_again) > 80


def test_the_evaluation_list_is_50_tasks_of_the_test_split_from_all_its_templates() -> None:
    tasks, lists = embedded_tasks(), task_lists(embedded_tasks().values())
    chosen = lists["webarena-ours-50"]
    assert len(chosen) == 50
    assert set(chosen) <= set(lists["test"])
    assert {tasks[index].template for index in chosen} == {
        tasks[index].template for index in lists["test"]
    }


def test_intents_are_unique() -> None:
    intents = [task.intent for task in embedded_tasks().values()]
    assert len(set(intents)) == len(intents)


def test_every_task_has_a_plan_that_stops() -> None:
    for moves in [*map(plan, embedded_tasks()), *map(drawn_plan, LISTS["drawn-shops-test"])]:
        verbs = [move.verb for move in moves]
        assert verbs[-1] == "stop"
        assert "stop" not in verbs[:-1]
        assert len(verbs) <= 15


def test_constant_answers_are_wrong_and_the_plans_answer_is_right() -> None:
    tasks = embedded_tasks()
    answers = {str(answer) for task in tasks.values() for _, answer in task.answers}
    for index, task in tasks.items():
        if task.answers:
            for constant in (" ".join(map(str, range(10_000))), " ".join(sorted(answers))):
                assert not asyncio.run(string_match(task, constant, None)), task.intent
            assert asyncio.run(string_match(task, plan(index)[-1].text, None)), task.intent


def test_tasks_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "import json; from hashlib import sha256; from environments.webarena.tasks import *; from "
        "environments.webarena.tasks import plan;"
        "t = json.dumps(embedded_entries()) + repr([plan(i) for i in embedded_tasks()]) + "
        "repr(task_lists(embedded_tasks().values()));"
        "from environments.webarena.drawn_shops import LISTS, drawn_plan, drawn_task;"
        "t += repr([(drawn_task(i), drawn_plan(i)) for i in LISTS['drawn-shops-test']]);"
        "print(sha256(t.encode()).hexdigest())"
    )
    text = (
        json.dumps(embedded_entries())
        + repr([plan(index) for index in embedded_tasks()])
        + repr(task_lists(embedded_tasks().values()))
    )
    text += repr([(drawn_task(index), drawn_plan(index)) for index in LISTS["drawn-shops-test"]])
    assert run_python(code, PYTHONHASHSEED="4242") == sha256(text.encode()).hexdigest()


def test_embedded_tasks_can_be_read_from_task_files(tmp_path: Path) -> None:
    for made in embedded_entries():
        (tmp_path / f"{made['task_id']}.json").write_text(json.dumps(made))
    (tmp_path / "list.json").write_text(json.dumps(embedded_entries()))
    addresses = Addresses(EMBEDDED)
    assert (
        read_tasks(tmp_path, addresses)
        == list(embedded_tasks().values())
        == read_tasks(tmp_path / "list.json", addresses)
    )


def test_a_task_file_is_read_with_urls_for_placeholders() -> None:
    task = parse_task(
        entry(geolocation={"latitude": 40.4, "longitude": -80}), from_environment(REAL), "21.json"
    )
    assert task.start_urls == ("http://shop.example:7770/a.html", "http://forum.example")
    assert (task.index, task.template, task.kind, task.geolocation) == (
        21,
        222,
        "change",
        (40.4, -80.0),
    )
    assert [(check.url, check.included, check.exact) for check in task.checks] == [
        ("http://shop.example:7770/b", ("a |OR| b", "http://forum.example/f/a"), None),
        ("last", (), "http://shop.example:7770/b"),
    ]
    assert not task.needs_judge


@pytest.mark.parametrize(
    ("made", "field"),
    [
        ([1], ""),
        (entry(task_id="21"), "task_id"),
        (entry(intent=None), "intent"),
        (entry(eval={"eval_types": ["magic"]}), "eval_types"),
        (entry(eval={"eval_types": []}), "eval_types"),
        (
            entry(eval={"eval_types": ["string_match"], "reference_answers": None}),
            "reference_answers",
        ),
        (
            entry(eval={"eval_types": ["string_match"], "reference_answers": {"close_to": "x"}}),
            "reference_answers",
        ),
        (
            entry(eval={"eval_types": ["url_match"], "reference_url": "x", "url_note": "EXACT"}),
            "url_note",
        ),
        (
            entry(
                eval={
                    "eval_types": ["program_html"],
                    "program_html": [{"url": "last", "locator": "", "required_contents": {}}],
                }
            ),
            "required_contents",
        ),
    ],
)
def test_an_invalid_task_file_is_refused_naming_file_and_field(made: Any, field: str) -> None:
    with pytest.raises(TaskFileError, match=rf"21\.json.*{field}"):
        parse_task(made, from_environment(REAL), "21.json")


def test_missing_folder_broken_file_and_duplicate_index_are_refused(tmp_path: Path) -> None:
    addresses = from_environment(REAL)
    with pytest.raises(TaskFileError, match="none"):
        read_tasks(tmp_path / "none", addresses)
    with pytest.raises(TaskFileError, match=re.escape(str(tmp_path))):
        read_tasks(tmp_path, addresses)
    (tmp_path / "1.json").write_text("{")
    with pytest.raises(TaskFileError, match=r"1\.json"):
        read_tasks(tmp_path, addresses)
    (tmp_path / "all.json").write_text(json.dumps([entry(), entry()]))
    with pytest.raises(TaskFileError, match=r"all\.json.*task_id 21"):
        read_tasks(tmp_path / "all.json", addresses)


def test_tasks_on_sites_without_a_url_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "0.json").write_text(json.dumps(entry(task_id=0)))
    (tmp_path / "1.json").write_text(
        json.dumps(entry(task_id=1, sites=["map"], start_url="__MAP__"))
    )
    assert [task.index for task in read_tasks(tmp_path, from_environment(REAL))] == [0]


def test_the_same_tasks_on_other_copies_of_the_sites_are_the_same_version(tmp_path: Path) -> None:
    (tmp_path / "config_files").mkdir()
    versions = []
    for changes in ({}, {}, {"intent": "Something else"}):
        with socket.create_server(("127.0.0.1", 0)) as site:
            address = f"http://127.0.0.1:{site.getsockname()[1]}"
            task = entry(task_id=0, storage_state=None) | {"start_url": "__SHOPPING__/x"} | changes
            (tmp_path / "config_files" / "0.json").write_text(json.dumps(task))
            settings = {"WEBARENA_TASKS": str(tmp_path / "config_files")}
            versions.append(WebArena(dict.fromkeys(REAL, address) | settings).version)
    assert versions[0] == versions[1] != versions[2]


def test_a_task_that_needs_a_judge_is_refused_without_one_and_never_listed(tmp_path: Path) -> None:
    fuzzy = {"eval_types": ["string_match"], "reference_answers": {"fuzzy_match": ["about 5"]}}
    (tmp_path / "config_files").mkdir()
    for index, changes in enumerate(({}, {"eval": fuzzy})):
        (tmp_path / "config_files" / f"{index}.json").write_text(
            json.dumps(entry(task_id=index) | changes)
        )
    (tmp_path / ".auth").mkdir()
    (tmp_path / ".auth" / "shopping_state.json").write_text('{"cookies": []}')
    with socket.create_server(
        ("127.0.0.1", 0)
    ) as listening:  # stands for the site and for the judge
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        settings = dict.fromkeys(REAL, address) | {"WEBARENA_TASKS": str(tmp_path / "config_files")}
        judge = {"WEBARENA_JUDGE_URL": f"{address}/v1", "WEBARENA_JUDGE_MODEL": "m"}
        without, judged, again, other = (
            WebArena(settings | changes)
            for changes in (
                {},
                judge,
                judge | {"WEBARENA_JUDGE_KEY": "k"},
                judge | {"WEBARENA_JUDGE_MODEL": "n"},
            )
        )
        embedded = WebArena(judge)
    assert [
        index for split in ("train", "validation", "test") for index in without.tasks(split)
    ] == [0]
    with pytest.raises(TaskIndexError, match="WEBARENA_JUDGE_URL"):
        without.create().reset(1)
    assert judged._shared.task(1).needs_judge
    assert judged.version == again.version
    assert len({without.version, judged.version, other.version, WebArena({}).version}) == 4
    assert embedded.version == WebArena({}).version


def test_the_agent_sees_published_addresses_in_place_of_real_ones() -> None:
    addresses = from_environment(REAL)
    assert addresses.to_shown("http://shop.example:7770/a?b=1") == "http://onestopmarket.com/a?b=1"
    assert addresses.to_shown("http://shop.example:7780/admin/x") == "http://luma.com/admin/x"
    assert addresses.to_shown("http://shop.example:77700/a") == "http://shop.example:77700/a"
    assert addresses.to_real("http://reddit.com") == "http://forum.example"
    assert addresses.to_real("https://reddit.com/f/books") == "http://forum.example/f/books"
    text = "See http://reddit.com/f/a, http://luma.com/admin and (http://onestopmarket.com)."
    assert addresses.to_real(text) == (
        "See http://forum.example/f/a, http://shop.example:7780/admin and "
        "(http://shop.example:7770)."
    )
    for other in ("http://reddit.community", "http://reddit.com.example", "http://reddit.com:1"):
        assert addresses.to_real(other) == other
    assert addresses.hosts(("shopping", "shopping_admin")) == (
        "shop.example:7770",
        "shop.example:7780",
    )
    assert Addresses(EMBEDDED).to_shown("http://shop.test/x") == "http://shop.test/x"


def test_pages_reach_the_sites_of_their_task_and_the_services_alone(tmp_path: Path) -> None:
    file = tmp_path / "task.json"
    file.write_text(json.dumps(entry(sites=["shopping"], storage_state=None)))
    addresses = from_environment(REAL)
    services = ("routes.example:5000", "routes.example:5001")
    settings = Settings(file, tmp_path, addresses, None, services=services)
    shared = SharedSites(settings, 1.0)
    options = shared.context_options(shared.task(21))
    assert options["proxy"]["bypass"].split(",") == ["shop.example:7770", *services]
    with pytest.raises(OutsideSitesError):
        addresses.resolve("http://routes.example:5000/route", addresses.hosts(("shopping",)))


@pytest.mark.parametrize(
    ("settings", "variable"),
    [({}, "SHOPPING"), ({"GITLAB": "gitlab.example"}, "GITLAB"), ({"MAP": "ftp://x"}, "MAP")],
)
def test_wrong_addresses_are_refused_naming_the_variable(
    settings: dict[str, str], variable: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        from_environment(settings)
    assert variable in refused.value.variable


def test_a_placeholder_without_a_url_names_the_variable_to_set() -> None:
    with pytest.raises(SettingsError) as refused:
        from_environment(REAL).fill("__GITLAB__/x")
    assert refused.value.variable == "GITLAB"
