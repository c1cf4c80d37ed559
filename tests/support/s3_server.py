"""An S3 server (moto) in its own process, and a proxy that can cut the connection to it."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import requests

from tasks.provision.local import free_port

BUCKET = "bucket"


@contextmanager
def s3_server() -> Iterator[str]:
    """Start a server on loopback with one empty bucket, and yield its address."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while True:
            assert server.poll() is None
            with suppress(requests.ConnectionError):
                requests.put(f"{address}/{BUCKET}", timeout=60).raise_for_status()
                break
            time.sleep(0.1)
        yield address
    finally:
        server.kill()
        server.wait()


def credentials(address: str) -> dict[str, str]:
    """Return the environment variables that direct s3fs to the server."""
    return {
        "AWS_ACCESS_KEY_ID": "agentgym",
        "AWS_SECRET_ACCESS_KEY": "agentgym",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": address,
    }


class StorageProxy:
    """A TCP proxy on loopback that can be closed and stalled.

    Attributes:
        address: Address of the proxy, for clients.
        sent: Number of bytes that clients have sent.
        stalls_at: Once clients have sent this many bytes, nothing more is forwarded. None disables
            this.
        stalled: Set once the limit is reached.
    """

    def __init__(self, address: str) -> None:
        self._target = ("127.0.0.1", int(address.rpartition(":")[2]))
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.sent, self.stalls_at = 0, None
        self.stalled = threading.Event()
        self._connections: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self.open()

    def open(self) -> None:
        """Accept clients."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Cut all connections and refuse new ones."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._connections.clear()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            self._connections += [client, server]
            threading.Thread(target=self._forward, args=(client, server, True), daemon=True).start()
            threading.Thread(
                target=self._forward, args=(server, client, False), daemon=True
            ).start()

    def _forward(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while chunk := source.recv(1 << 16):
                if counted:
                    self.sent += len(chunk)
                    if self.stalls_at is not None and self.sent >= self.stalls_at:
                        self.stalled.set()
                        return
                target.sendall(chunk)
        if not self.stalled.is_set():
            for each in (source, target):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
