"""Weight transfer over NCCL from the trainer's GPU to the vLLM servers' GPUs, without a file.

It uses vLLM's own weight transfer. The id of the NCCL group travels in the request that has the
token. vLLM's other way, a TCPStore, has no login and unpickles what it is sent.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate
from threading import Thread
from typing import Any, TypeAlias

import requests
import torch
from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary
from vllm.distributed.weight_transfer.base import (
    ParamMeta,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
)
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
from vllm.distributed.weight_transfer.nccl_common import (
    NCCLWeightTransferInitInfo,
    uid_init_process_group,
    worker_init_payload,
)
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine

from tasks.inference.token_guard import authorization
from tasks.inference.weight_stream import WeightStream

Group: TypeAlias = "TrainerWeightTransferEngine[Any]"
REFUSAL_S = 2.0
"""Time in seconds in which servers refuse to enter a group, e.g. for want of an option."""
CreateGroup = Callable[[int, VLLMWeightSyncClient, WeightSource], Group]
"""Arguments: number of members, the servers, the weights."""


def nccl_group(members: int, servers: VLLMWeightSyncClient, weights: WeightSource) -> Group:
    """Create an NCCL group with this process as rank 0 and the servers' workers after it."""
    unique_id = bytes(NCCLLibrary().ncclGetUniqueId().internal)
    group = NCCLTrainerWeightTransferEngine(client=servers, source=weights)
    device = torch.accelerator.current_device_index()
    with ThreadPoolExecutor(1) as pool:  # all members enter at the same time
        payload = worker_payload(unique_id, members)
        workers = pool.submit(servers.init_weight_transfer_engine, payload)
        with suppress(TimeoutError):  # servers that enter answer only once this process does too
            workers.result(timeout=REFUSAL_S)
        group.model_update_group = uid_init_process_group(unique_id, 0, members, device)
        workers.result()
    return group


def worker_payload(unique_id: bytes, members: int) -> dict[str, Any]:
    """Return the request by which the servers' workers enter the NCCL group as ranks 1 and up."""
    payload: dict[str, Any] = worker_init_payload(
        NCCLWeightTransferInitInfo(
            nccl_unique_id_b64=base64.b64encode(unique_id).decode(),
            rank_offset=1,
            world_size=members,
            packed=True,  # as NCCLTrainerWeightTransferEngine sends
        )
    )
    return payload


class WeightTransfer:
    """Sends weights to all workers of all servers at once.

    They form a process group with this process as rank 0. The servers are started with
    `--weight-transfer-config '{"backend": "nccl"}'`. Each GPU belongs to only one of the processes.
    """

    def __init__(self, deadline_s: float, create_group: CreateGroup = nccl_group) -> None:
        """Configure the transfer without creating the process group.

        Args:
            deadline_s: Deadline of a transfer in seconds. If it is exceeded, a member counts as
                dead.
            create_group: Creates the process group for one of vLLM's transfers.
        """
        self._deadline_s, self._create_group = deadline_s, create_group
        self._source = _Source()
        self._members: dict[str, int] = {}
        self._group: Group | None = None
        self._device: int | None = None

    def send(self, weights: WeightStream, servers: Mapping[str, int], *, new_group: bool) -> None:
        """Send the weights to every server. No request may be in flight there.

        Args:
            weights: The weights, on this process's GPU. They are gathered on the way, and vLLM
                packs them in buffers of 1 GiB.
            servers: Maps the URL to the number of workers.
            new_group: Whether a server was restarted since the last transfer, and so has left the
                group.

        Raises:
            RuntimeError: The servers did not get the weights. The next call creates a new group.
        """
        if new_group or self._members != dict(servers):
            self.leave()
        self._source.stream = weights
        if torch.cuda.is_available():
            # vLLM gathers on streams of its own, which do not wait for the update
            torch.cuda.synchronize()
            self._device = torch.cuda.current_device()
        try:
            self._within_deadline(lambda: self._send(servers))
        except Exception as fault:
            self.leave()
            raise RuntimeError(
                f"the weights could not be sent to {', '.join(servers)}: {fault}"
            ) from fault
        finally:
            self._source.stream = None

    def leave(self) -> None:
        """Leave the process group, if there is one."""
        if self._group is not None:
            self._group.shutdown()
        self._group, self._members = None, {}

    def _send(self, servers: Mapping[str, int]) -> None:
        if self._device is not None:
            torch.cuda.set_device(self._device)  # the current device is set per thread
        if self._group is None:
            members = 1 + sum(servers.values())
            self._group = self._create_group(
                members, _Servers(servers, self._deadline_s), self._source
            )
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
        self.stream: WeightStream | None = None

    def metadata(self) -> list[ParamMeta]:
        assert self.stream is not None
        return [ParamMeta(each.name, each.dtype, each.shape) for each in self.stream.shapes]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        assert self.stream is not None
        return iter(self.stream)


class _Client(HTTPVLLMWeightSyncClient):
    """vLLM's client with the token."""

    def _post(self, path: str, json: dict[str, Any] | None = None) -> None:
        url = f"{self.base_url}/{path}"
        with requests.Session() as session:
            session.trust_env = False  # a proxy would get the token
            answer = session.post(
                url, json=json, headers=authorization(), timeout=self.timeout, allow_redirects=False
            )
        answer.raise_for_status()


class _Servers:
    """The client interface of vLLM's trainer side, called on all servers at once."""

    def __init__(self, servers: Mapping[str, int], deadline_s: float) -> None:
        self._clients = [_Client(url, deadline_s) for url in servers]
        self._workers_before = list(accumulate(servers.values(), initial=0))[:-1]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        first = init_info["rank_offset"]
        self._on_all(
            lambda client, before: client.init_weight_transfer_engine(
                {**init_info, "rank_offset": first + before}
            )
        )

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
