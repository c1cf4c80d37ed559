"""Tests of shared storage: unusable addresses, and a starter policy for all machines."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from configs.infrastructure import SettingsError, infra_settings
from flows.shared_storage import shared_starter_policy
from tasks.tracking.shared_storage import SharedStorage, SharedStorageError, opened


def test_a_starter_policy_is_built_once_for_all_machines(
    storage: SharedStorage, tmp_path: Path
) -> None:
    def build(machine: str) -> str:
        folder = tmp_path / machine / "tiny"
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / "model.safetensors").write_text(f"built by {machine}")
            (folder / "starter.json").write_text("{}")
        return str(folder)

    for machine in ("first", "second"):
        policy = shared_starter_policy(
            storage, tmp_path / machine, "tiny", lambda machine=machine: build(machine)
        )
        assert (Path(policy) / "model.safetensors").read_text() == "built by first"


@pytest.mark.parametrize(
    ("url", "operation", "named"),
    [
        ("file:///no/such/folder", "open", "/no/such/folder"),
        ("gs://bucket/runs", "import", f"gcsfs=={fsspec.__version__}"),
        ("nothing://bucket", "open", "nothing"),
    ],
)
def test_unusable_storage_is_refused_with_setting_url_and_operation(
    url: str, operation: str, named: str
) -> None:
    with pytest.raises(
        SharedStorageError, match=rf"AGENTGYM_SHARED_STORAGE.*{url}.*{named}"
    ) as refused:
        opened(url)
    assert refused.value.operation == operation


def test_relative_storage_path_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_SHARED_STORAGE", "bucket/runs")
    with pytest.raises(SettingsError, match="AGENTGYM_SHARED_STORAGE"):
        infra_settings()
