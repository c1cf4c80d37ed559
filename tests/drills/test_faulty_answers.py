"""Tests that faulty answers of a server do not change any result.

`tests/soaks/faulty_answers.py` covers every fault with more episodes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.evaluation.benchmark import IncompleteEvaluationError, read_evaluation
from tests.soaks.faulty_answers import drills
from tests.support import small_runs
from tests.support.faulty_proxy import faulty_proxy
from tests.support.playing import starting


@pytest.mark.slow
def test_evaluation_with_late_answers_is_incomplete_and_can_be_completed(tmp_path: Path) -> None:
    truth, [late] = drills(tmp_path, 16, ["late"], 0.1)
    assert 0 < late.disturbed.result.failed < 16
    assert late.disturbed.status != 0
    assert "INCOMPLETE" in late.disturbed.first
    assert "INCOMPLETE" in late.disturbed.described
    assert {"success", "reward"}.isdisjoint(late.disturbed.published)
    assert "success" in late.repeated.published
    low, high = late.disturbed.result.bounds
    assert low.value <= truth.success.value <= high.value
    assert (late.repeated.status, late.repeated.result.tallies) == (0, truth.tallies)
    assert late.wrong(truth) == ""


@pytest.mark.slow
def test_run_stops_at_an_incomplete_evaluation_and_can_be_completed(
    policy: str,
    tmp_path: Path,
    state_dir: Path,
    prefect_api: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = tmp_path / "runs"
    fields = {
        "algorithm__steps": 2,
        "rollout__engine": "transformers",
        "rollout__turn_seconds": 10,
        "rollout__retries": 0,
    }
    with (
        starting("textcraft", state_dir) as start,
        faulty_proxy(start().url, "lost", 0.0) as (proxied, proxy),
    ):
        monkeypatch.setenv("AGENTGYM_ENVIRONMENT_URLS", proxied)
        run = small_runs.start(runs, policy, prefect=prefect_api, **fields)
        small_runs.wait_for(lambda: list(runs.glob("small-*/trainer.json")), run)
        proxy._share = 1.0  # while the trainer loads
        assert run.wait(1500) != 0
        shown = (runs / "terminal.log").read_text()
        assert IncompleteEvaluationError.__name__ in shown, shown[-6000:]
        found = small_runs.folder(runs) / "evaluations"
        assert [path.name for path in found.iterdir()] == ["start.parquet"]
        [recorded] = small_runs.mlflow_runs(runs)
        assert "evaluation/success" not in recorded.data.metrics
        proxy._share = 0.0
        small_runs.finish(small_runs.start(runs, policy, prefect=prefect_api, **fields), runs)
        assert read_evaluation(found / "start.json").complete
