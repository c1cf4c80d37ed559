"""vLLM servers as one engine: on this machine or on many, by their URLs.

An episode stays with one server, whose prefix cache holds its former turns; the episodes of a server that dies go on with another. As a
request says everything (token ids, seed), moving one loses nothing but the cache. A server that comes back gets the present
weights before it gets an episode; a restart that nobody noticed is found out by its new connection.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tasks.inference.engine import EngineError, Generation, Sampling
from tasks.inference.event_loop import in_event_loop
from tasks.inference.vllm_client import Model, ServerUnavailableError, VllmClient
from tasks.provision.private_files import OwnedFolder

if TYPE_CHECKING:
    import torch

    from tasks.inference.weight_transfer import WeightTransfer

log = logging.getLogger(__name__)

PROBE_S = 0.5
"""Pause between two looks at a server that is down."""


@dataclass(eq=False)
class Member:
    """One of the servers, and what goes on with it.

    Attributes:
        server: How it is asked.
        sessions: Episodes that stay with it.
        requests: Requests that wait for it.
        down: Why it gets no requests now; empty when it does.
        kv_cache_tokens: Tokens that its KV cache holds; None where it does not tell.
        look_at: When to look at it again (time.monotonic()).
        looked_at: Whether somebody does so now.
    """

    server: VllmClient
    sessions: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    requests: int = 0
    down: str = ""
    kv_cache_tokens: int | None = None
    look_at: float = 0.0
    looked_at: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """Weights that servers were given.

    Attributes:
        folder: Where they can be read; None where they were sent.
        version: What a server that has them answers when asked for its version.
    """

    folder: Path | None
    version: str


class VllmPoolEngine:
    """An `Engine` that is one or more vLLM servers of the same model.

    The servers need `--logprobs-mode processed_logprobs`; `--enable-prompt-tokens-details` for the prefix cache's hit rate; and
    VLLM_SERVER_DEV_MODE=1 where weights are to be loaded. `launch_command.command` gives the whole command.

    Attributes:
        model: What the servers were started with: a Hugging Face name or folder, where the tokenizer is.
        moved: Requests that went on with another server.
        loaded: The weights that the servers were given last; None while they have those of their start.
    """

    name = "vllm"
    out_of_process = True
    batch_invariant = False

    def __init__(
        self,
        urls: Sequence[str],
        *,
        request_seconds: float = 60.0,
        weights_folder: Path | None = None,
        transfer: WeightTransfer | None = None,
    ) -> None:
        """Asks every server for its model.

        Args:
            urls: Base URLs, without /v1.
            request_seconds: A server that has not answered a request by then is taken for stuck; the request goes to another.
            weights_folder: Where new weights are put for the servers to read: on one machine any folder, best in memory (/dev/shm,
                the default where there is one); on many a shared one.
            transfer: What sends new weights to the servers instead.

        Raises:
            EngineError: A server does not answer, or they serve different models, or not as they should.
        """
        if not urls:
            raise EngineError("no URL of a vLLM server is given")
        self.members = [Member(VllmClient(url, request_seconds)) for url in urls]
        memory = Path("/dev/shm")
        temporary = memory if memory.is_dir() else Path(tempfile.gettempdir())
        self._folder = OwnedFolder("weights-", weights_folder or temporary)  # swept by the next engine if this process is killed
        self.loaded: Loaded | None = None
        self._loads = 0
        self._transfer = transfer
        self._seats: weakref.WeakKeyDictionary[Any, Member] = weakref.WeakKeyDictionary()
        self._lookers: set[asyncio.Task[None]] = set()
        self._in_flight = 0
        self.generated_tokens = self.prompt_tokens = self.cached_tokens = self.policy_version = self.moved = 0
        models = in_event_loop(self._models())
        self._model, self.model = models[0].id, models[0].root or models[0].id
        self.context_length = min(model.max_model_len or 2**31 for model in models)

    @property
    def kv_cache_tokens(self) -> int | None:
        """What the servers that are up hold together; None where one of them does not tell."""
        up = [member for member in self.members if not member.down]
        told = [member.kv_cache_tokens for member in up if member.kv_cache_tokens]
        return sum(told) if up and len(told) == len(up) else None

    async def generate(self, tokens: Sequence[int], sampling: Sampling, session: object | None = None) -> Generation:
        """Continues `tokens`; see `Engine.generate`. Goes from server to server until one answers or the caller's patience ends."""
        body = msgspec.json.encode(
            {
                "model": self._model,
                "prompt": list(tokens),
                "temperature": sampling.temperature,
                "max_tokens": sampling.max_tokens,
                "stop_token_ids": sampling.stop_tokens,
                "ignore_eos": True,  # what ends a message is said by stop_tokens alone
                "seed": sampling.seed,
                "logprobs": 0,
                "return_token_ids": True,
                "skip_special_tokens": False,
            }
        )
        self._in_flight += 1
        try:
            while True:
                member = self._seat(session)
                if member is None:
                    await asyncio.sleep(PROBE_S / 5)
                    continue
                try:
                    return await self._ask(member, body)
                except ServerUnavailableError as gone:
                    self._put_down(member, str(gone))
                    self.moved += 1
        finally:
            self._in_flight -= 1

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Gives every server the weights, through a folder or by its transfer; see `Engine.load`.

        A server that is down gets them when it comes back, or where they are sent with the next ones.

        Raises:
            EngineError: Requests are in flight, or no server took the weights.
        """
        if self._in_flight:
            raise EngineError(f"weights cannot change while {self._in_flight} requests are in flight")
        self._loads += 1
        version = f"{self._folder.path.name}/{self._loads}"
        if self._transfer is not None:
            self._send([(name, tensor.detach()) for name, tensor in weights], version, self._transfer)
        else:
            self._write(weights, version)
        if all(member.down for member in self.members):
            raise EngineError(f"no vLLM server took the weights: {'; '.join(member.down for member in self.members)}")

    def follow(self, loaded: Loaded) -> None:
        """Goes on with the weights that another process has loaded into the same servers; one that has others is down until it has them."""
        self.loaded = loaded
        in_event_loop(self._put_down_unless(self._check_weights))

    def close(self) -> None:
        """Closes the connections and removes the folder of the weights; the servers stay as they are."""
        in_event_loop(self._disconnect())
        self._folder.remove()

    async def _disconnect(self) -> None:
        for looker in self._lookers:
            looker.cancel()
        await asyncio.gather(*(member.server.close() for member in self.members))

    def _write(self, weights: Iterable[tuple[str, torch.Tensor]], version: str) -> None:
        """Into a folder that each server reads."""
        from safetensors.torch import save_file

        folder = self._folder.path / str(self._loads)
        folder.mkdir()
        save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights}, folder / "model.safetensors")
        former, self.loaded = self.loaded, Loaded(folder, version)
        in_event_loop(self._put_down_unless(lambda member: member.server.read_weights(folder, version)))
        if former is not None and former.folder is not None:
            shutil.rmtree(former.folder, ignore_errors=True)

    def _send(self, weights: list[tuple[str, torch.Tensor]], version: str, transfer: WeightTransfer) -> None:
        """To all servers at once: all stand still until all have them."""
        workers: dict[Member, int] = {}
        stayed: list[bool] = []
        former = self.loaded.version if self.loaded else ""

        async def prepare(member: Member) -> None:
            await member.server.pause()
            number, had = await member.server.workers(), await member.server.weights_version()
            workers[member] = number
            stayed.append(had == former)

        async def accept(member: Member) -> None:
            if member not in workers:
                raise ServerUnavailableError(member.down)
            await member.server.renew(version)
            await member.server.resume()

        in_event_loop(self._put_down_unless(prepare))
        if not workers:
            return
        try:
            transfer.send(weights, {member.server.url: number for member, number in workers.items()}, anew=not all(stayed))
        except RuntimeError as fault:
            in_event_loop(self._put_down_unless(lambda member: member.server.resume_if_paused()))
            raise EngineError(
                f"{fault}; servers that weights are sent to were started with --weight-transfer-config and VLLM_SERVER_DEV_MODE=1"
            ) from fault
        self.loaded = Loaded(None, version)
        in_event_loop(self._put_down_unless(accept))

    def _seat(self, session: object | None) -> Member | None:
        """The server of a session: the one it had, else the up one with the fewest sessions and requests; None when all are down."""
        self._look_at_the_down()
        member = self._seats.get(session) if session is not None else None
        if member is not None and not member.down:
            return member
        up = [each for each in self.members if not each.down]
        if not up:
            return None
        best = min(up, key=lambda each: (len(each.sessions), each.requests))
        if session is not None:
            if member is not None:
                member.sessions.discard(session)
            self._seats[session] = best
            best.sessions.add(session)
        return best

    async def _ask(self, member: Member, body: bytes) -> Generation:
        version = self.policy_version
        member.requests += 1
        try:
            answer = await member.server.complete(body)
        finally:
            member.requests -= 1
        if answer.fresh:
            await self._check_weights(member)
        self.generated_tokens += len(answer.tokens)
        self.prompt_tokens += answer.prompt_tokens
        self.cached_tokens += answer.cached_tokens
        return Generation(answer.tokens, answer.log_probabilities, version)

    def _put_down(self, member: Member, why: str) -> None:
        if not member.down:
            log.warning("a vLLM server is down: %s", why)
        member.down = why
        member.look_at = time.monotonic()  # a connection may break without the server

    def _look_at_the_down(self) -> None:
        now = time.monotonic()
        for member in self.members:
            if member.down and not member.looked_at and member.look_at <= now:
                member.looked_at = True
                task = asyncio.ensure_future(self._look_at(member))
                self._lookers.add(task)
                task.add_done_callback(self._lookers.discard)

    async def _look_at(self, member: Member) -> None:
        """Takes a server back once it is healthy and has the present weights."""
        server, loaded = member.server, self.loaded
        try:
            await server.healthy()
            if loaded is not None and loaded.folder is not None and await server.weights_version() != loaded.version:
                await server.read_weights(loaded.folder, loaded.version)
            await self._check_weights(member)  # others may have been loaded meanwhile
            member.down = ""
            log.warning("a vLLM server is back: %s", server.url)
        except (ServerUnavailableError, EngineError) as still:
            member.down = str(still)
        finally:
            member.looked_at = False
            member.look_at = time.monotonic() + PROBE_S

    async def _models(self) -> list[Model]:
        async def ask(member: Member) -> Model:
            server = member.server
            try:
                model = await server.model()
                await server.resume_if_paused()  # whoever paused it to load weights may have been killed
                await server.check_log_probabilities(model.id)
                member.kv_cache_tokens = await server.kv_cache_tokens()
            except (ServerUnavailableError, msgspec.DecodeError, IndexError) as fault:
                raise EngineError(f"{server.url} is not a vLLM server that can be used: {fault}") from fault
            return model

        models = await asyncio.gather(*(ask(member) for member in self.members))
        for member, model in zip(self.members, models, strict=True):
            if (model.id, model.root) != (models[0].id, models[0].root):
                raise EngineError(
                    f"{member.server.url} serves {model.id} ({model.root}), but {self.members[0].server.url} serves {models[0].id} "
                    f"({models[0].root})"
                )
        return list(models)

    async def _check_weights(self, member: Member) -> None:
        """A server that was restarted has the weights of its start, and one that was down when new ones came has older ones."""
        if self.loaded is not None and (version := await member.server.weights_version()) != self.loaded.version:
            raise ServerUnavailableError(f"{member.server.url} has the weights {version!r}, not {self.loaded.version!r}")

    async def _put_down_unless(self, succeeds: Callable[[Member], Awaitable[None]]) -> None:
        async def attempt(member: Member) -> None:
            try:
                await succeeds(member)
                member.down = ""
            except (ServerUnavailableError, EngineError) as fault:
                self._put_down(member, str(fault))

        await asyncio.gather(*(attempt(member) for member in self.members))
