"""vLLM servers as one engine, on one machine or many, addressed by their URLs.

Each request is self-contained (token ids, seed), so another server can answer it when one dies.
Only the prefix cache is lost. An unnoticed restart is detected by its new connection.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tasks.inference.adapter import Adapter, save_adapter
from tasks.inference.engine import EngineBusyError, EngineError, Generation, Sampling
from tasks.inference.event_loop import in_event_loop
from tasks.inference.server_pool import PROBE_S, Loaded, Replica, ServerPool
from tasks.inference.vllm_client import ServerUnavailableError
from tasks.inference.weight_stream import PART_BYTES, WeightStream
from tasks.provision.private_files import OwnedFolder, memory_folder

if TYPE_CHECKING:
    import torch

    from tasks.inference.weight_transfer import WeightTransfer


class VllmPoolEngine:
    """An `Engine` made of one or more vLLM servers with the same model.

    The servers need `--logprobs-mode processed_logprobs`. They need
    `--enable-prompt-tokens-details` for the prefix cache's hit rate, and VLLM_SERVER_DEV_MODE=1 for
    loading weights. `launch_command.command` builds the whole command.

    Attributes:
        model: Hugging Face name or folder that the servers were started with. It also names the
            tokenizer.
        moved: Number of requests that were moved to another server.
    """

    name = "vllm"
    out_of_process = True

    def __init__(
        self,
        urls: Sequence[str],
        *,
        request_seconds: float = 60.0,
        weights_folder: Path | None = None,
        transfer: WeightTransfer | None = None,
        rank: int = 0,
        ranks: int = 1,
        update_in_flight: bool = False,
        adapters: int = 1,
    ) -> None:
        """Query every server for its model.

        Args:
            urls: Base URLs without /v1, or files that hold them (environments/address.py).
            request_seconds: Time without generated tokens after which a server with a request
                counts as stuck. The request is then sent to another server.
            weights_folder: Folder from which the servers read new weights. On one machine any
                folder works, preferably in memory (/dev/shm, the default if it exists). On many
                machines it must be shared.
            transfer: Sends new weights to the servers instead of the folder.
            rank: Number of this process, from 0.
            ranks: Number of processes that use the servers at the same time, with one engine each.
            update_in_flight: Whether requests may be in flight at a load. They continue with the
                new weights, or with the LoRA adapter that they began with.
            adapters: Number of LoRA adapters that requests in flight may use. The servers need it
                as `--max-loras`.

        Raises:
            EngineError: A server does not answer or is not a usable vLLM server, or the servers
                serve different models.
        """
        if not urls:
            raise EngineError("no URL of a vLLM server was given")
        self.pool = ServerPool(urls, request_seconds, rank, update_in_flight)
        self._ranks = ranks
        # swept by the next engine if this process is killed
        self._folder = OwnedFolder("weights-", weights_folder or memory_folder())
        self._loads = 0
        self._adapters = adapters
        self._transfer = transfer
        self._in_flight = 0
        self.prompt_tokens = self.cached_tokens = self.policy_version = self.moved = (
            self._answered
        ) = 0
        try:
            models = in_event_loop(self.pool.models())
        except BaseException:
            self.close()
            raise
        self._model, self.model = models[0].id, models[0].root or models[0].id
        self.context_length = min(model.max_model_len or 2**31 for model in models)

    @property
    def kv_cache_tokens(self) -> int | None:
        """This process's share of the KV caches of all running servers, in tokens.

        None if a server does not report its capacity.
        """
        capacity = self.pool.kv_cache_tokens
        return None if capacity is None else capacity // self._ranks

    @property
    def progress(self) -> int | None:
        """Number of answers plus generated tokens, None if a server does not report them."""
        generated = [replica.generated for replica in self.pool.replicas if replica.checked_at]
        reported = [tokens for tokens in generated if tokens is not None]
        return self._answered + sum(reported) if len(reported) == len(generated) else None

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, session: object | None = None
    ) -> Generation:
        """Continue `tokens`, as in `Engine.generate`.

        A failed request is sent to other servers until one answers or the caller cancels it.
        """
        request = {
            "prompt": list(tokens),
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
            "stop_token_ids": sampling.stop_tokens,
            "ignore_eos": True,  # only stop_tokens end a message
            "seed": sampling.seed,
            # Otherwise a server may take other values from the model's generation config.
            "top_p": 1,
            "top_k": 0,
            "min_p": 0,
            "repetition_penalty": 1,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }
        self._in_flight += 1
        try:
            while True:
                replica = self.pool.route(session)
                if replica is None:
                    await asyncio.sleep(PROBE_S / 5)
                    continue
                # A request that is sent again gets the newest adapter.
                loaded = self.pool.loaded
                model = loaded.version if loaded and loaded.adapters else self._model
                body = msgspec.json.encode({"model": model, **request})
                try:
                    return await self._ask(replica, body, sampling.max_tokens)
                except ServerUnavailableError as error:
                    self.pool.mark_down(replica, str(error))
                    self.moved += 1
        finally:
            self._in_flight -= 1

    async def _ask(self, replica: Replica, body: bytes, max_tokens: int) -> Generation:
        version = self.policy_version
        replica.requests += 1
        try:
            answer = await replica.complete(body, max_tokens, self.pool.request_seconds)
        except EngineError as problem:
            if problem.status == HTTPStatus.NOT_FOUND:  # a restarted server has no adapter
                await self.pool.check_weights(replica)
            raise
        finally:
            replica.requests -= 1
        if answer.fresh:
            await self.pool.check_weights(replica)
        self._answered += 1
        self.prompt_tokens += answer.prompt_tokens
        self.cached_tokens += answer.cached_tokens
        return Generation(answer.tokens, answer.log_probabilities, version)

    def check_weights(self) -> None:
        """Check that the servers still have the weights of this run.

        Raises:
            EngineError: Another run has loaded its own into one of them.
        """
        in_event_loop(self.pool.check_all_weights())

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Hold back new requests of this process while weights are loaded in the block.

        Each process enters the block before one of them loads. So a request's version is that of
        the weights at its start, which are the oldest that sampled it.
        """
        in_event_loop(self.pool.begin_update())
        try:
            yield
        finally:
            in_event_loop(self.pool.end_update())

    def load(self, weights: WeightStream) -> None:
        """Load the weights into every server, as in `Engine.load`.

        The weights go through a folder or the transfer. With a folder, a server that is down gets
        them when it comes back. With a transfer, it gets the next ones. This process never holds
        more than PART_BYTES of them and the largest one, or the buffers of the transfer.

        Raises:
            EngineError: Requests are in flight without `update_in_flight`, or no server took the
                weights.
        """
        version = self._next_version()
        if self._transfer is not None:
            self._send(weights, version, self._transfer)
        else:
            self._write(weights, version)
        self._check_loaded()

    def load_adapter(self, adapter: Adapter) -> None:
        """Load the adapter into every server, as in `AdapterEngine.load_adapter`.

        It goes through the folder. A server that is down gets it when it comes back.

        Raises:
            EngineError: Requests are in flight without `update_in_flight`, or no server took the
                adapter.
        """
        version = self._next_version()
        former = self.pool.loaded.adapters if self.pool.loaded else ()
        kept = (*former, version)[-self._adapters :]
        for name in set(former).difference(kept):
            shutil.rmtree(self._folder.path.parent / name, ignore_errors=True)
        folder = self._folder.path.parent / version
        save_adapter(folder, adapter, self.model)
        self._publish(Loaded(folder, version, kept))
        self._check_loaded()

    def _next_version(self) -> str:
        if self._in_flight and not self.pool.update_in_flight:
            raise EngineBusyError(
                f"weights cannot be replaced while {self._in_flight} requests are in flight"
            )
        self._loads += 1
        return f"{self._folder.path.name}/{self._loads}"

    def _check_loaded(self) -> None:
        if not all(replica.down for replica in self.pool.replicas):
            return
        reasons = "; ".join(replica.down for replica in self.pool.replicas).rstrip(".")
        hint = ""
        if self.pool.loaded is not None and self.pool.loaded.adapters:
            hint = ". Without Ray, adapters need servers on this machine"
        elif self._transfer is None:
            hint = ". For servers on other machines set AGENTGYM_ENGINE_WEIGHTS to nccl"
        raise EngineError(f"no vLLM server loaded the weights: {reasons}{hint}.")

    def adopt_weights(self, loaded: Loaded) -> None:
        """Adopt weights that another process has loaded into the same servers.

        A server with other weights counts as down until it has them.
        """
        self.pool.loaded = loaded
        in_event_loop(self.pool.on_all(self.pool.check_weights))

    def close(self) -> None:
        """Close the connections and remove the folder of the weights. The servers keep running."""
        in_event_loop(self.pool.close())
        self._folder.remove()

    def _write(self, weights: WeightStream, version: str) -> None:
        """Write the weights to a folder that each server reads, in place of the former ones."""
        from safetensors.torch import save_file

        self._remove_former()
        free = shutil.disk_usage(self._folder.path).free
        if free < weights.nbytes:
            raise EngineError(
                f"{self._folder.path.parent} has {free / 1e9:.1f} GB free, but new weights for the "
                f"vLLM servers take {weights.nbytes / 1e9:.1f} GB. Enlarge it (SHM_SIZE with "
                "Docker Compose), or set AGENTGYM_ENGINE_WEIGHTS to nccl."
            )
        folder = self._folder.path / str(self._loads)
        folder.mkdir()
        part: dict[str, torch.Tensor] = {}
        size, number = 0, 0
        for name, tensor in weights:
            part[name] = tensor.detach().cpu().contiguous().clone()
            size += part[name].nbytes
            if size >= PART_BYTES:  # parts avoid a second copy of all weights in this process
                save_file(part, folder / f"model-{number}.safetensors")
                part, size, number = {}, 0, number + 1
        if part:
            save_file(part, folder / f"model-{number}.safetensors")
        self._publish(Loaded(folder, version))

    def _remove_former(self) -> None:
        """Remove the former weights. A server that comes back meanwhile waits for the new ones."""
        if self.pool.loaded is not None and self.pool.loaded.folder is not None:
            shutil.rmtree(self.pool.loaded.folder, ignore_errors=True)

    def _publish(self, loaded: Loaded) -> None:
        """Let each server read a folder."""
        former, self.pool.loaded = self.pool.kept_version, loaded
        in_event_loop(self.pool.on_all(lambda replica: self.pool.read(replica, loaded, former)))

    def _send(self, weights: WeightStream, version: str, transfer: WeightTransfer) -> None:
        """Send the weights to all servers at once. All servers are paused until all have them."""
        workers: dict[Replica, int] = {}
        unchanged: list[bool] = []
        former = self.pool.loaded.version if self.pool.loaded else ""

        async def prepare(replica: Replica) -> None:
            await replica.server.pause(self.pool.kept_version)
            number, current = await replica.server.workers(), await replica.server.weights_version()
            workers[replica] = number
            unchanged.append(current == former)

        async def accept(replica: Replica) -> None:
            if replica not in workers:
                raise ServerUnavailableError(replica.down)
            await replica.server.set_weights_version(version)
            await replica.server.resume()

        async def give_up(replica: Replica) -> None:
            if self.pool.update_in_flight:  # a part of the weights may have arrived
                await replica.server.pause("")
            await replica.server.resume_if_paused()

        in_event_loop(self.pool.on_all(prepare))
        if not workers:
            return
        try:
            transfer.send(
                weights,
                {replica.server.url: number for replica, number in workers.items()},
                new_group=not all(unchanged),
            )
        except RuntimeError as fault:
            in_event_loop(self.pool.on_all(give_up))
            raise EngineError(
                f"{fault}. Start the vLLM servers with --weight-transfer-config and "
                "VLLM_SERVER_DEV_MODE=1."
            ) from fault
        self.pool.loaded = Loaded(None, version)
        in_event_loop(self.pool.on_all(accept))
