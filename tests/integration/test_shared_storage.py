"""What shared storage is refused, and what is kept there beside runs."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from configs.infrastructure import SettingsError, infra_settings
from flows.shared_storage import with_kept_starter
from tasks.tracking.shared_storage import SharedStorage, SharedStorageError, opened
from tests.support.s3_server import BUCKET, Way


def test_a_starter_policy_is_built_once_for_all_machines(storage: SharedStorage, tmp_path: Path) -> None:
    def build(machine: str) -> str:
        folder = tmp_path / machine / "tiny"
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / "model.safetensors").write_text(f"built by {machine}")
            (folder / "starter.json").write_text("{}")
        return str(folder)

    for machine in ("first", "second"):
        policy = with_kept_starter(storage, tmp_path / machine, "tiny", lambda machine=machine: build(machine))
        assert (Path(policy) / "model.safetensors").read_text() == "built by first"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file:///no/such/folder", r"cannot open it \(there is no folder /no/such/folder\)\. Make the folder, mount it on every node"),
        (f"s3://{BUCKET}-that-is-not/runs", r"cannot write to it \(The specified bucket does not exist\)\. The bucket must exist"),
        ("gs://bucket/runs", rf"the package for gs:// is not installed: pip install 'gcsfs=={fsspec.__version__}', on every node"),
        ("nothing://bucket", r"which fsspec cannot open: Protocol not known: nothing"),
    ],
)
def test_a_storage_that_cannot_be_used_is_refused_with_setting_address_and_what_to_do(way: Way, url: str, said: str) -> None:
    with pytest.raises(SharedStorageError, match=f"^AGENTGYM_SHARED_STORAGE is {url}, .*{said}"):
        opened(url)


def test_a_storage_that_does_not_answer_is_refused(way: Way) -> None:
    way.close()
    with pytest.raises(SharedStorageError, match=r"cannot write to it \(Could not connect to the endpoint"):
        opened(f"s3://{BUCKET}/runs")


def test_a_relative_path_is_refused_as_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_SHARED_STORAGE", "bucket/runs")
    with pytest.raises(SettingsError, match=r"AGENTGYM_SHARED_STORAGE.*give the absolute path of a folder, or a URL"):
        infra_settings()
