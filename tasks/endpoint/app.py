"""The application that serves a policy to chat clients and records their episodes.

POST /v1/chat/completions          OpenAI's form
POST /v1/messages                  Anthropic's form
GET  /v1/models                    the policy
POST /v1/episodes/{id}/reward      ends an episode with its reward
GET  /v1/episodes                  number of open and of ended episodes
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pkgutil import resolve_name
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tasks.agents.chat_format import Message
from tasks.agents.sampling_seeds import stable_seed
from tasks.endpoint.chat_tokens import (
    THOUGHTS,
    ChatTokens,
    UnsuitableMessagesError,
    UnsuitableToolsError,
)
from tasks.endpoint.episodes import Call, EpisodeError, EpisodeProblem, Episodes
from tasks.endpoint.recording import Recording
from tasks.endpoint.requests import (
    Answer,
    AnthropicRequest,
    ChatRequest,
    EpisodeReward,
    OpenAIRequest,
    RequestError,
    anthropic_body,
    anthropic_error,
    anthropic_events,
    openai_body,
    openai_error,
    openai_events,
    read,
)
from tasks.inference.engine import Engine, EngineError, Generation, Sampling
from tasks.inference.token_guard import TokenGuard

BODY_BYTES = 16 * 2**20
IDLE_S = 3600.0
OPEN_EPISODES = 10_000
STATUS: Mapping[EpisodeProblem, int] = {
    "unknown_episode": 404,
    "episode_busy": 409,
    "episode_failed": 409,
    "no_answer": 409,
    "too_many_episodes": 429,
}
_EPISODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")

Verifier = Callable[[list[Message]], float]
"""A function that returns the reward of an ended conversation."""


class VerifierError(ValueError):
    """The verifier cannot be imported."""


def load_verifier(name: str) -> Verifier:
    """Import a verifier.

    Args:
        name: Its name, as module:function.

    Raises:
        VerifierError: There is no such function.
    """
    try:
        found = resolve_name(name) if ":" in name else None
    except (ImportError, AttributeError, ValueError) as problem:
        raise VerifierError(f"{name} cannot be imported: {problem}") from None
    if not callable(found):
        raise VerifierError(f"{name!r} is not a function; give module:function")
    return found  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class ServedPolicy:
    """The policy of an endpoint and the limits of its answers.

    Attributes:
        name: Its name for clients.
        engine: The engine that samples.
        chat: Its chat template.
        temperature: Sampling temperature of the calls that give none.
        answer_tokens: Most tokens of an answer for which the client gives no limit.
        horizon: Most calls of an episode. Calls without an answer do not count.
        success_score: Smallest reward of a success.
        environment: Name of the world, for the trajectories.
        seed: Seed of the calls that give none.
    """

    name: str
    engine: Engine
    chat: ChatTokens
    temperature: float
    answer_tokens: int
    horizon: int
    success_score: float
    environment: str
    seed: int


class Endpoint:
    """Answers chat requests with a policy, and turns the conversations into trajectories.

    Attributes:
        episodes: The open episodes.
        app: The application. Every request needs the token of `TokenGuard`.
    """

    def __init__(
        self,
        policy: ServedPolicy,
        recording: Recording | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        """
        Args:
            recording: Where ended episodes are written. None: nowhere.
            verifier: Scores the episodes that end without a reward of the client.
        """
        self._policy, self._recording, self._verifier = policy, recording, verifier
        # An endpoint that continues a recording draws other seeds than those before it.
        seed = stable_seed("start", policy.seed, recording.begin() if recording else 0)
        self.episodes = Episodes(policy.chat, seed, IDLE_S, OPEN_EPISODES)
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat_completions, methods=["POST"]),
                Route("/v1/messages", self._messages, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/v1/episodes", self._counts),
                Route("/v1/episodes/{id}/reward", self._reward, methods=["POST"]),
            ],
            middleware=[Middleware(TokenGuard)],
        )

    async def _chat_completions(self, request: Request) -> Response:
        return await self._answered(
            request, OpenAIRequest, openai_body, openai_events, openai_error
        )

    async def _messages(self, request: Request) -> Response:
        return await self._answered(
            request, AnthropicRequest, anthropic_body, anthropic_events, anthropic_error
        )

    async def _answered(
        self,
        request: Request,
        form: type[ChatRequest],
        body: Callable[[Answer], dict[str, Any]],
        events: Callable[[Answer], Iterator[str]],
        error: Callable[[RequestError], dict[str, Any]],
    ) -> Response:
        """Answer a chat request in one of the forms."""
        try:
            asked = read(form, await _body(request))
            answer = await self._answer(request, asked)
        except RequestError as problem:
            return JSONResponse(error(problem), problem.status)
        headers = {"x-episode": answer.episode}
        if asked.stream:
            return StreamingResponse(
                events(answer), media_type="text/event-stream", headers=headers
            )
        return JSONResponse(body(answer), headers=headers)

    async def _answer(self, request: Request, asked: ChatRequest) -> Answer:
        """Sample an answer and record it.

        Raises:
            RequestError: The request is invalid, a budget is spent, the client is gone, or the
                engine gave no answer.
        """
        policy, messages = self._policy, asked.conversation()
        if messages[-1]["role"] == "assistant":
            raise RequestError(
                "messages: the last one is of the assistant; end with a message to the policy",
                400,
                "invalid_value",
                "messages",
            )
        try:
            call = self.episodes.begin_call(
                messages, _episode_id(request, asked), _task(request, asked), asked.schemas()
            )
        except EpisodeError as problem:
            raise RequestError(str(problem), STATUS[problem.code], problem.code) from None
        except UnsuitableMessagesError as problem:
            raise RequestError(f"messages: {problem}", 400, "invalid_value", "messages") from None
        except UnsuitableToolsError as problem:
            raise RequestError(f"tools: {problem}", 400, "unsupported_value", "tools") from None
        room = policy.engine.context_length - len(call.context)
        if call.episode.horizon_used > policy.horizon:
            raise self._spent(
                call, "horizon", f"the episode has had {policy.horizon} calls; send its reward"
            )
        if room < 1:
            raise self._spent(
                call,
                "rollout.trajectory_tokens",
                f"the messages fill the context of {policy.engine.context_length} tokens; send "
                "fewer",
            )
        limit = asked.token_limit() or policy.answer_tokens
        sampling = Sampling(
            temperature=policy.temperature if asked.temperature is None else asked.temperature,
            max_tokens=min(limit, room),
            stop_tokens=call.chat.stop_tokens,
            seed=(stable_seed(call.episode.seed, call.number) if asked.seed is None else asked.seed)
            % 2**48,
        )
        generation = await self._generate(request, call, sampling)
        is_cut = generation.tokens[-1] not in sampling.stop_tokens
        if is_cut:
            cut = "rollout.turn_tokens" if limit <= room else "rollout.trajectory_tokens"
        else:
            cut = ""
        message = self.episodes.answered(call, generation, sampling, cut)
        return Answer(
            secrets.token_hex(12),
            call.episode.id,
            policy.name,
            message["content"],
            "".join(message.get(name, "") for name in THOUGHTS),
            message.get("tool_calls", []),
            is_cut,
            len(call.context),
            len(generation.tokens),
        )

    def _spent(self, call: Call, budget: str, text: str) -> RequestError:
        """Note that a budget refuses a call, and return the error for the client."""
        call.episode.cut = call.episode.cut or budget
        self.episodes.unanswered(call, "")
        return RequestError(
            text, 400, "horizon" if budget == "horizon" else "context_length_exceeded", "messages"
        )

    async def _generate(self, request: Request, call: Call, sampling: Sampling) -> Generation:
        """Sample an answer while the client waits for it.

        Raises:
            RequestError: The client is gone, or the engine gave no answer.
        """
        generating = asyncio.ensure_future(
            self._policy.engine.generate(call.context, sampling, call.episode)
        )
        leaving = asyncio.ensure_future(_gone(request))
        fault = "the endpoint ended"
        try:
            await asyncio.wait((generating, leaving), return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                fault = "the client left before the answer"
                raise RequestError(fault, 499, "client_gone")
            try:
                generation, fault = generating.result(), ""
            except EngineError as problem:
                fault = f"EngineError: {problem}"
                raise RequestError(str(problem), 503, "engine_error") from None
            return generation
        finally:
            for each in (generating, leaving):
                each.cancel()
            if fault:
                self.episodes.unanswered(call, fault)

    async def _models(self, _: Request) -> Response:
        model = {"id": self._policy.name, "object": "model", "created": 0, "owned_by": "agentgym"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _counts(self, _: Request) -> Response:
        return JSONResponse({"open": len(self.episodes.open), **self.episodes.counts})

    async def _reward(self, request: Request) -> Response:
        episode_id = request.path_params["id"]
        try:
            given = read(EpisodeReward, await _body(request)).reward
            reward = await self._scored(episode_id) if given is None else given
            self._end(episode_id, reward)
        except EpisodeError as problem:
            refused = RequestError(str(problem), STATUS[problem.code], problem.code)
            return JSONResponse(openai_error(refused), refused.status)
        except RequestError as problem:
            return JSONResponse(openai_error(problem), problem.status)
        return JSONResponse({"episode": episode_id, "reward": reward})

    async def _scored(self, episode_id: str) -> float:
        """Return the verifier's reward of an episode.

        Raises:
            EpisodeError: The episode cannot get a reward.
            RequestError: There is no verifier, or it failed. The episode stays open.
        """
        episode = self.episodes.checked(episode_id)
        if episode.faults:
            return 0.0  # not used: the episode is left out
        if self._verifier is None:
            raise RequestError(
                "reward: is missing, and the endpoint has no verifier; send a number",
                400,
                "invalid_value",
                "reward",
            )
        try:
            reward = float(
                await asyncio.to_thread(
                    self._verifier, [dict(message) for message in episode.messages]
                )
            )
        except Exception as problem:  # noqa: BLE001 - any error of the user's function
            raise RequestError(f"the verifier failed: {problem!r}", 500, "verifier_error") from None
        if not abs(reward) < float("inf"):
            raise RequestError(
                f"the verifier returned {reward}, not a finite number", 500, "verifier_error"
            )
        return reward

    def _end(self, episode_id: str, reward: float) -> None:
        """Record an episode and end it."""
        policy = self._policy
        episode = self.episodes.checked(episode_id)
        trajectory = self.episodes.rewarded(
            episode, reward, policy.success_score, policy.environment, policy.engine.name
        )
        if self._recording is not None:
            calls = [[asdict(sampling) for sampling in row.samplings] for row in episode.rows]
            facts = {
                "id": episode_id,
                "task": episode.task,
                "reward": reward,
                "outcome": trajectory.outcome.value,
                "calls": calls,
            }
            self._recording.add(trajectory, facts)
        self.episodes.close(episode, "recorded")


async def _body(request: Request) -> bytes:
    """Return the body of a request.

    Raises:
        RequestError: It is too long, or the client is gone.
    """
    received = bytearray()
    try:
        async for chunk in request.stream():
            received += chunk
            if len(received) > BODY_BYTES:
                raise RequestError(
                    f"the body has more than {BODY_BYTES} bytes; send fewer", 413, "too_long"
                )
    except ClientDisconnect:
        raise RequestError("the client left before its request", 499, "client_gone") from None
    return bytes(received)


async def _gone(request: Request) -> None:
    """Return when the client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _episode_id(request: Request, asked: ChatRequest) -> str | None:
    """Return the episode that a client names, or None.

    A user that is not an id, e.g. an e-mail address, is replaced by a digest.

    Raises:
        RequestError: It is not an id.
    """
    found = request.headers.get("x-episode") or (asked.metadata or {}).get("episode")
    if found is None and (user := asked.client()):
        return user if _EPISODE_ID.fullmatch(user) else sha256(user.encode()).hexdigest()[:32]
    if found is not None and not _EPISODE_ID.fullmatch(str(found)):
        raise RequestError(
            f"the episode {found!r} is not an id; use up to 128 letters, digits and ._:-",
            400,
            "invalid_value",
            "x-episode",
        )
    return None if found is None else str(found)


def _task(request: Request, asked: ChatRequest) -> int | None:
    """Return the number of the task that a client names, or None.

    Raises:
        RequestError: It is not a number from 0 to 2**31 - 1.
    """
    found = request.headers.get("x-task") or (asked.metadata or {}).get("task")
    if found is None:
        return None
    if not str(found).isdecimal() or int(str(found)) >= 2**31:
        raise RequestError(
            f"the task {found!r} is not an integer from 0 to 2**31 - 1; correct it",
            400,
            "invalid_value",
            "x-task",
        )
    return int(str(found))
