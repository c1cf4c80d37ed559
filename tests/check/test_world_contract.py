"""Tests of the contract of worlds and environments: defaults, misspelt names and entry points."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from environments.environment import (
    SPLITS,
    ContractError,
    Environment,
    NotOfferedError,
    OracleError,
    Step,
    World,
)
from environments.registry import UnknownWorldError, entry_of, load_world, world_names
from environments.textcraft.world import TextCraft


class Still(Environment):
    def reset(self, index: int) -> str:
        return ""

    def step(self, action: str) -> Step:
        return Step("", 0.0, False)

    def close(self) -> None:
        pass


class Plain(World):
    name, version, instruction = "plain", "1", "Play."
    lists = dict.fromkeys(SPLITS, range(0))

    def create(self) -> Still:
        return Still()


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("max_session", "max_sessions"),
        ("blockng", "blocking"),
        ("rewards_range", "reward_range"),
        ("tags", "tag"),
    ],
)
def test_a_misspelt_attribute_of_a_world_is_refused_with_the_nearest(
    wrong: str, meant: str
) -> None:
    for namespace in ({wrong: 3}, {"__annotations__": {wrong: int}}, {wrong: lambda self: 3}):
        with pytest.raises(ContractError, match=f"{wrong!r}.*{meant!r}"):
            type("Wrong", (Plain,), namespace)
    with pytest.raises(ContractError, match=f"{wrong!r}.*{meant!r}"):
        setattr(Plain(), wrong, 3)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("oracle_thougt", "oracle_thought"),
        ("valid_action", "valid_actions"),
        ("statekey", "state_key"),
    ],
)
def test_a_misspelt_member_of_an_environment_is_refused_with_the_nearest(
    wrong: str, meant: str
) -> None:
    with pytest.raises(ContractError, match=f"{wrong!r}.*{meant!r}"):
        type("Wrong", (Still,), {wrong: lambda self: ""})


def test_an_environment_names_the_optional_members_that_it_implements() -> None:
    plain = Still()
    assert plain.offers == frozenset()
    assert (plain.oracle_thought(), plain.state_key()) == ("", None)
    with pytest.raises(OracleError):
        plain.oracle_action()
    with pytest.raises(NotOfferedError):
        plain.valid_actions()
    assert type("Keyed", (Still,), {"state_key": lambda self: "key"}).offers == {"state_key"}  # type: ignore[attr-defined]
    assert TextCraft().create().offers == {
        "oracle_action",
        "oracle_thought",
        "state_key",
        "objective",
        "valid_actions",
    }


@pytest.mark.parametrize(
    ("code", "missing"),
    [
        (
            "class Odd(World):\n    name, version, instruction = 'odd', '1', ''\n    def "
            "create(self): ...",
            "lists",
        ),
        (
            "class Odd(World):\n    version, instruction, lists = '1', '', {}\n    def "
            "create(self): ...",
            "name",
        ),
        ("class Odd:\n    name = 'odd'", "World"),
        ("class Odd(World):\n    blockng = True", "blocking"),
    ],
)
def test_a_world_that_breaks_the_contract_is_refused_when_it_is_loaded(
    code: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_world.py").write_text(f"from environments.environment import World\n{code}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ContractError, match=missing):
        load_world("odd_world:Odd")
    sys.modules.pop("odd_world", None)


def installed(folder: Path, package: str, points: str) -> None:
    """Write the metadata of an installed package."""
    metadata = folder / f"{package}-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[agentgym.worlds]\n{points}\n")


def test_a_world_of_an_installed_package_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, "outside", "chess = outside.world:Chess\ntwice = outside.world:One")
    installed(tmp_path, "another", "twice = another:Two")
    monkeypatch.syspath_prepend(tmp_path)
    assert {"chess", "textcraft", "twice"} <= set(world_names())
    assert entry_of("chess") == "outside.world:Chess"
    with pytest.raises(UnknownWorldError, match=re.escape("another:Two, outside.world:One")):
        entry_of("twice")
    with pytest.raises(UnknownWorldError, match="'chess'"):
        entry_of("ches")
