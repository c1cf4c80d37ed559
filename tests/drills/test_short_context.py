"""Tests of a collection by a model whose context is shorter than the default budgets."""

from __future__ import annotations

import json
from pathlib import Path

from configs.collection import Source
from configs.experiment import Rollout
from flows.model_check import fit_source
from tasks.rollout.trajectory import Outcome
from tests.check.test_collect import ORACLE, collect, stored, url
from tests.support.tiny_policy import build_tiny_policy

__all__ = ["url"]


def test_a_short_context_limits_the_token_budgets(tmp_path: Path, url: str) -> None:
    """Lower the budgets to the model's context, since vLLM refuses a longer one."""
    folder = Path(build_tiny_policy(tmp_path / "policy"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 640}))
    source = Source(kind="model", model=str(folder), dtype="float32", action_format="bare")
    rollout = fit_source(source, Rollout())
    assert rollout.trajectory_tokens == 640
    collect(
        ORACLE.model_copy(update={"source": source, "rollout": rollout, "horizon": 2}),
        tmp_path / "out",
        url,
    )
    assert {t.outcome for t in stored(tmp_path / "out")} <= {
        Outcome.TRUNCATED,
        Outcome.FINISHED,
        Outcome.SUCCESS,
    }
