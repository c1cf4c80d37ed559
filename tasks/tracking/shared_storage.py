"""Access shared storage (AGENTGYM_SHARED_STORAGE) through fsspec.

It is a folder or an object store that outlives the machine. Names are relative to its URL, e.g.
"small-1a2b3c/rollouts/step-000001.parquet".
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from tasks.provision.errors import ProvisionError

SETTING = "AGENTGYM_SHARED_STORAGE"
PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}
"""Packages that must have fsspec's version. For others fsspec's error names the package."""
UNFINISHED = ".uploading"
FILES_AT_ONCE = 4
"""Number of parallel transfers with an object store. s3fs holds up to 0.5 GB of each in memory."""

Operation = Literal["import", "open", "write to", "read", "delete from"]


class SharedStorageError(ProvisionError):
    """The shared storage cannot be used. The message names the setting, its value and the fix.

    Attributes:
        operation: The operation that failed.
    """

    def __init__(self, message: str, operation: Operation = "open") -> None:
        super().__init__(message)
        self.operation = operation


class SharedStorage:
    """Files below a URL. Its methods raise the errors of the file system unless they say more."""

    def __init__(self, url: str) -> None:
        """
        Raises:
            SharedStorageError: The file system is unknown, or its package is not installed.
        """
        import fsspec  # slow import, needed only with shared storage

        self.url = url
        protocol = fsspec.utils.get_protocol(url)
        try:
            # No listings cache: other machines change the files.
            self._fs, root = fsspec.url_to_fs(
                url, use_listings_cache=False, skip_instance_cache=True
            )
        except ImportError as missing:
            package = PACKAGES.get(protocol)
            if package:
                fix = f"Run on every node: pip install '{package}=={fsspec.__version__}'"
            else:
                fix = str(missing)
            raise SharedStorageError(
                f"{SETTING} is {url}, but the package for {protocol}:// is not installed. {fix}",
                "import",
            ) from None
        except Exception as problem:
            raise SharedStorageError(
                f"{SETTING} is {url}, but fsspec cannot open it: {problem}"
            ) from problem
        self._root = str(root).rstrip("/")
        self._renames = protocol in ("file", "local")
        self._several = {"batch_size": FILES_AT_ONCE} if self._fs.async_impl else {}

    def check(self) -> None:
        """Check access: write a token, list it, read it back and delete it.

        Raises:
            SharedStorageError: One of these fails, or the folder or bucket does not exist.
        """
        name, token = f".seen-{secrets.token_hex(8)}", secrets.token_bytes(16)
        operation: Operation = "open"
        try:
            if self._renames and not self._fs.isdir(self._root):
                # Do not create the folder: a failed mount would then go unnoticed.
                raise FileNotFoundError(f"the folder {self._root} does not exist")
            operation = "write to"
            self.write(f"{name}/token", token)
            operation = "read"
            if self.read(f"{name}/token") != token or "token" not in self.files(name):
                raise OSError("the content read differs from the content written")
            operation = "delete from"
            self.remove(name)
        except Exception as problem:
            reason = " ".join(str(problem).split()) or type(problem).__name__
            if self._renames:
                fix = (
                    "Create the folder, mount it on every node and give this user write permission"
                )
            else:
                fix = "Create the bucket and allow the credentials to read, write, list and delete (docs/shared-storage.md)"
            raise SharedStorageError(
                f"{SETTING} is {self.url}, but this machine cannot {operation} it ({reason}). "
                f"{fix}, or unset {SETTING}.",
                operation,
            ) from problem

    def files(self, folder: str) -> dict[str, int]:
        """Return the names below a folder, relative to it, with their sizes in bytes."""
        try:
            found: Mapping[str, Mapping[str, Any]] = self._fs.find(self._path(folder), detail=True)
        except FileNotFoundError:
            return {}
        start = len(self._path(folder)) + 1
        return {
            path[start:]: int(about["size"])
            for path, about in found.items()
            if not path.endswith(UNFINISHED)
        }

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        try:
            return bytes(self._fs.cat_file(self._path(name)))
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically. An existing file is replaced."""
        if not self._renames:
            self._fs.pipe_file(self._path(name), content)
            return
        self._renamed(name, lambda unfinished: self._fs.pipe_file(unfinished, content))

    def put(self, files: Mapping[str, Path]) -> None:
        """Upload files (name to local path), each atomically."""
        if not self._renames and files:
            self._fs.put(
                [str(path) for path in files.values()],
                [self._path(name) for name in files],
                **self._several,
            )
            return
        for name, path in files.items():
            self._renamed(name, partial(self._fs.put_file, str(path)))

    def get(self, files: Mapping[str, Path]) -> None:
        """Download files (name to local path). After a kill, local files may be incomplete."""
        for path in files.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        self._fs.get(
            [self._path(name) for name in files],
            [str(path) for path in files.values()],
            **self._several,
        )

    def remove(self, folder: str) -> None:
        """Delete a file, or all files below a folder, if it exists."""
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
    """Return the checked shared storage of the settings, or None if it is not set.

    Raises:
        SharedStorageError: It cannot be used.
    """
    if url is None:
        return None
    storage = SharedStorage(url)
    storage.check()
    return storage
