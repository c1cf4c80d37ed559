"""An engine is let sleep during the update only where it can, and has nothing to do meanwhile."""

from __future__ import annotations

import pytest

from configs.infrastructure import InfraSettings, SettingsError, infra_settings
from configs.recipe import RecipeError, load_recipe
from flows.checks import check_experiment

SLEEP = InfraSettings(engine_sleep=True)


def test_a_recipe_that_plays_ahead_is_refused_with_field_value_and_fix() -> None:
    with pytest.raises(RecipeError, match=r"rollout.max_off_policy_steps: 2 .* set it to 0, or unset AGENTGYM_ENGINE_SLEEP"):
        check_experiment(load_recipe("textcraft", {"rollout.max_off_policy_steps": 2}), SLEEP)


def test_an_engine_without_sleep_mode_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"rollout.engine: transformers has no sleep mode; set it to vllm"):
        check_experiment(load_recipe("textcraft", {"rollout.engine": "transformers"}), SLEEP)
    check_experiment(load_recipe("textcraft"), SLEEP)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [("ENGINE_SERVERS", "2", "engine_servers is 2"), ("ENGINE_URLS", "http://a:1,http://b:1", "engine_urls is http://a:1,http://b:1")],
)
def test_servers_never_sleep(variable: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_ENGINE_SLEEP", "true")
    monkeypatch.setenv(f"AGENTGYM_{variable}", value)
    with pytest.raises(SettingsError, match=f"engine_sleep is true.*{message}"):
        infra_settings()
