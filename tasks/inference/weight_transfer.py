"""Weight transfer over NCCL from the trainer's GPU to the vLLM servers' GPUs, without a file.

It uses vLLM's own weight transfer.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import requests
import torch
from vllm.distributed.weight_transfer.base import ParamMeta, TrainerWeightTransferEngine, WeightSource
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from tasks.inference.token_guard import authorization

Tensors = list[tuple[str, torch.Tensor]]


class WeightTransfer:
    """Sends weights to all workers of all servers at once.

    They form a process group with this process as rank 0. The servers are started with
    `--weight-transfer-config '{"backend": "nccl"}'`. Each GPU belongs to only one of the processes.
    """

    def __init__(self, deadline_s: float, kind: type[NCCLTrainerInitInfo] = NCCLTrainerInitInfo) -> None:
        """Configure the transfer without creating the process group.

        Args:
            deadline_s: Deadline of a transfer in seconds. If it is exceeded, a member counts as
                dead.
            kind: Class that selects one of vLLM's transfers.
        """
        self._deadline_s, self._kind = deadline_s, kind
        self._source = _Source()
        self._members: dict[str, int] = {}
        self._group: TrainerWeightTransferEngine[Any] | None = None

    def send(self, weights: Tensors, servers: Mapping[str, int], *, new_group: bool) -> None:
        """Send the weights to every server. No request may be in flight there.

        Args:
            weights: Names and whole tensors, all on one device.
            servers: Maps the URL to the number of workers.
            new_group: Whether a server was restarted since the last transfer, and so has left the group.

        Raises:
            RuntimeError: The servers did not get the weights. The next call creates a new group.
        """
        if new_group or self._members != dict(servers):
            self.leave()
        self._source.weights = weights
        try:
            self._within_deadline(lambda: self._send(servers))
        except Exception as fault:
            self.leave()
            raise RuntimeError(f"the weights could not be sent to {', '.join(servers)}: {fault}") from fault
        finally:
            self._source.weights = []

    def leave(self) -> None:
        """Leave the process group, if there is one."""
        if self._group is not None:
            self._group.shutdown()
        self._group, self._members = None, {}

    def _send(self, servers: Mapping[str, int]) -> None:
        if self._source.weights[0][1].is_cuda:
            # the current device is set per thread
            torch.cuda.set_device(self._source.weights[0][1].device)
        if self._group is None:
            address, port = _reachable_address(next(iter(servers)))
            info = self._kind(rank=0, master_address=address, master_port=port, world_size=1 + sum(servers.values()))
            client = _Servers(servers, self._deadline_s)
            self._group = WeightTransferTrainerFactory.trainer_init(info, client=client, source=self._source)
            self._members = dict(servers)
        self._group.send_weights()

    def _within_deadline(self, work: Callable[[], None]) -> None:
        """Run `work` in a daemon thread, because a collective waits for a dead member forever.

        The thread is abandoned at the deadline.

        Raises:
            TimeoutError: `work` is not done within the deadline.
        """
        faults: list[Exception] = []

        def run() -> None:
            try:
                work()
            except Exception as fault:  # noqa: BLE001 - raised below
                faults.append(fault)

        thread = Thread(target=run, name="weight transfer", daemon=True)
        thread.start()
        thread.join(self._deadline_s)
        if thread.is_alive():
            raise TimeoutError(f"the weight transfer took more than {self._deadline_s:g} s")
        if faults:
            raise faults[0]


class _Source(WeightSource):
    """Weights of the current transfer."""

    def __init__(self) -> None:
        self.weights: Tensors = []

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.weights]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self.weights)


class _Client(HTTPVLLMWeightSyncClient):
    """vLLM's client with the token."""

    def _post(self, path: str, json: dict[str, Any] | None = None) -> None:
        url = f"{self.base_url}/{path}"
        answer = requests.post(url, json=json, headers=authorization(), timeout=self.timeout, allow_redirects=False)
        answer.raise_for_status()


class _Servers:
    """The client interface of vLLM's trainer side, called on all servers at once."""

    def __init__(self, servers: Mapping[str, int], deadline_s: float) -> None:
        self._clients = [_Client(url, deadline_s) for url in servers]
        self._workers_before = list(accumulate(servers.values(), initial=0))[:-1]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        first = init_info["rank_offset"]
        self._on_all(lambda client, before: client.init_weight_transfer_engine({**init_info, "rank_offset": first + before}))

    def start_weight_update(self) -> None:
        def start(client: _Client, _: int) -> None:
            try:
                client.start_weight_update()
            except requests.HTTPError:  # an earlier update was killed before its end
                client.finish_weight_update()
                client.start_weight_update()

        self._on_all(start)

    def update_weights(self, update_info: Any) -> None:
        self._on_all(lambda client, _: client.update_weights(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._on_all(lambda client, _: client.finish_weight_update(weight_version))

    def _on_all(self, call: Callable[[_Client, int], None]) -> None:
        """Run `call` with each server and the number of workers of the preceding servers."""
        with ThreadPoolExecutor(len(self._clients)) as pool:
            list(pool.map(call, self._clients, self._workers_before))


def _reachable_address(url: str) -> tuple[str, int]:
    """Return this machine's address as seen by a server, and a free port there.

    A port that is free on the loopback need not be free on that address.
    """
    server = urlsplit(url)
    with socket.create_connection((server.hostname, server.port or 80), timeout=10) as connection:
        address = str(connection.getsockname()[0])
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as listener:
        return address, int(listener.getsockname()[1])
