"""Shared storage (AGENTGYM_SHARED_STORAGE): a folder or an object store that outlives the machine, reached through fsspec.

Names are relative to the URL: "small-1a2b3c/rollouts/step-000001.parquet".
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tasks.provision.errors import ProvisionError

SETTING = "AGENTGYM_SHARED_STORAGE"
PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}
"""File systems that are packages of fsspec's own and of its version; of others fsspec says which they need."""

UNFINISHED = ".uploading"
FILES_AT_ONCE = 4
"""Of an object store: s3fs holds up to half a gigabyte of each in memory."""


class SharedStorageError(ProvisionError):
    """The shared storage cannot be used; the message names the setting, its value, and what to do."""


class SharedStorage:
    """Files below a URL. What fails here fails with whatever the file system raises, except in `__init__` and `check`.

    Attributes:
        url: As the setting has it.
    """

    def __init__(self, url: str) -> None:
        """
        Raises:
            SharedStorageError: There is no such file system, or its package is not installed.
        """
        import fsspec  # here and not above: a command without shared storage need not wait for it

        self.url = url
        protocol = fsspec.utils.get_protocol(url)
        try:
            # Listings are kept by default; here another machine changes them.
            self._fs, root = fsspec.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
        except ImportError as missing:
            package = PACKAGES.get(protocol)
            how = f"pip install '{package}=={fsspec.__version__}', on every node" if package else str(missing)
            raise SharedStorageError(f"{SETTING} is {url}, but the package for {protocol}:// is not installed: {how}") from None
        except Exception as problem:
            raise SharedStorageError(f"{SETTING} is {url}, which fsspec cannot open: {problem}") from problem
        self._root = str(root).rstrip("/")
        self._renames = protocol in ("file", "local")
        self._several = {"batch_size": FILES_AT_ONCE} if self._fs.async_impl else {}

    def check(self) -> None:
        """Writes a token, lists it, reads it back and deletes it.

        Raises:
            SharedStorageError: One of these cannot be done, or the folder or bucket is not there.
        """
        name, token, doing = f".seen-{secrets.token_hex(8)}", secrets.token_bytes(16), "open it"
        try:
            if self._renames and not self._fs.isdir(self._root):
                raise FileNotFoundError(f"there is no folder {self._root}")  # made here, it might lie below a mount that failed
            doing = "write to it"
            self.write(f"{name}/token", token)
            doing = "read it"
            if self.read(f"{name}/token") != token or "token" not in self.files(name):
                raise OSError("what was written is not what is read")
            doing = "delete from it"
            self.remove(name)
        except Exception as problem:
            what = " ".join(str(problem).split()) or type(problem).__name__
            raise SharedStorageError(
                f"{SETTING} is {self.url}, but this machine cannot {doing} ({what}). "
                + (
                    "Make the folder, mount it on every node, and let this user write to it"
                    if self._renames
                    else "The bucket must exist, and the credentials must allow to read, write, list and delete (docs/shared-storage.md)"
                )
                + f"; or unset {SETTING}"
            ) from problem

    def files(self, folder: str) -> dict[str, int]:
        """Names below a folder, relative to it, and their sizes in bytes; none where there is no such folder."""
        try:
            found: Mapping[str, Mapping[str, Any]] = self._fs.find(self._path(folder), detail=True)
        except FileNotFoundError:
            return {}
        start = len(self._path(folder)) + 1
        return {path[start:]: int(about["size"]) for path, about in found.items() if not path.endswith(UNFINISHED)}

    def read(self, name: str) -> bytes | None:
        """What a file holds; None where there is none."""
        try:
            return bytes(self._fs.cat_file(self._path(name)))
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Writes a file; it appears whole or not at all, and replaces an older one."""
        if not self._renames:
            self._fs.pipe_file(self._path(name), content)
            return
        self._renamed(name, lambda unfinished: self._fs.pipe_file(unfinished, content))

    def put(self, files: Mapping[str, Path]) -> None:
        """Uploads files, name to local path, several at once where the file system can. Each appears whole or not at all."""
        if not self._renames and files:
            self._fs.put([str(path) for path in files.values()], [self._path(name) for name in files], **self._several)
            return
        for name, path in files.items():
            self._renamed(name, lambda unfinished, path=path: self._fs.put_file(str(path), unfinished))  # type: ignore[misc]

    def get(self, files: Mapping[str, Path]) -> None:
        """Downloads files, name to local path; what a kill leaves there may be cut short."""
        for path in files.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        self._fs.get([self._path(name) for name in files], [str(path) for path in files.values()], **self._several)

    def remove(self, folder: str) -> None:
        """Deletes all files below a folder, or the file of this name; nothing where there is none."""
        target = self._path(folder)
        if self._fs.exists(target):
            self._fs.rm(target, recursive=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _renamed(self, name: str, make: Callable[[str], None]) -> None:
        target = self._path(name)
        folder, _, last = target.rpartition("/")
        self._fs.makedirs(folder, exist_ok=True)
        unfinished = f"{folder}/.{last}.{secrets.token_hex(4)}{UNFINISHED}"
        try:
            make(unfinished)
            self._fs.mv(unfinished, target)
        finally:
            if self._fs.exists(unfinished):
                self._fs.rm(unfinished)


def opened(url: str | None) -> SharedStorage | None:
    """The shared storage of the settings, checked; None where they name none.

    Raises:
        SharedStorageError: It cannot be used.
    """
    if url is None:
        return None
    storage = SharedStorage(url)
    storage.check()
    return storage
