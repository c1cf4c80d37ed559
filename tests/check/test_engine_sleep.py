"""Tests of recipes and settings that conflict with sleep mode or with vLLM servers."""

from __future__ import annotations

import pytest

from configs.infrastructure import InfraSettings, SettingsError, infra_settings
from configs.recipe import RecipeError, load_recipe
from flows.checks import check_experiment

SLEEP = InfraSettings(engine_sleep=True)


def test_off_policy_collection_is_refused_with_the_field() -> None:
    with pytest.raises(
        RecipeError, match=r"rollout\.max_off_policy_steps: .*AGENTGYM_ENGINE_SLEEP"
    ):
        check_experiment(load_recipe("textcraft", {"rollout.max_off_policy_steps": 2}), SLEEP)


def test_an_engine_without_sleep_mode_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"rollout\.engine: .*AGENTGYM_ENGINE_SLEEP"):
        check_experiment(load_recipe("textcraft", {"rollout.engine": "transformers"}), SLEEP)
    check_experiment(load_recipe("textcraft"), SLEEP)


@pytest.mark.parametrize(
    ("settings", "variable"),
    [
        (InfraSettings(engine_servers=1), "AGENTGYM_ENGINE_SERVERS"),
        (
            InfraSettings(engine_urls=["http://a:1"], engine_token="secret"),
            "AGENTGYM_ENGINE_URLS",
        ),
    ],
)
def test_vllm_servers_do_not_replace_another_engine(settings: InfraSettings, variable: str) -> None:
    with pytest.raises(RecipeError, match=rf"rollout\.engine: .*{variable}"):
        check_experiment(load_recipe("textcraft", {"rollout.engine": "transformers"}), settings)
    check_experiment(load_recipe("textcraft"), settings)


@pytest.mark.parametrize(
    ("variable", "value"), [("ENGINE_SERVERS", "2"), ("ENGINE_URLS", "http://a:1,http://b:1")]
)
def test_engine_servers_are_refused(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTGYM_ENGINE_SLEEP", "true")
    monkeypatch.setenv(f"AGENTGYM_{variable}", value)
    with pytest.raises(SettingsError, match=f"engine_sleep.*{variable.lower()}.*{value}"):
        infra_settings()
