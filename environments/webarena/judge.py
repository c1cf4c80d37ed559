"""Language model that compares answers by meaning, behind any OpenAI chat completions endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp

from environments.environment import WorldError

ATTEMPTS = 3
ANSWER_S = 60.0

_EQUIVALENT = """You compare an answer with the reference answer to a question. They may be worded differently; what counts is whether
they say the same. "N/A" means that what was asked for cannot be done.
Question: {question}
Reference answer: {reference}
Answer: {answer}
Reply with one word: CORRECT if the answer says what the reference says, PARTIAL if it says only some of it, INCORRECT otherwise."""
_SAME_REASON = """A task cannot be done. You are told why, and what somebody reports who tried it.
Task: {question}
Reason: {reference}
Report: {answer}
Reply with one word: SAME if the report gives that reason, even if only in a roundabout way, DIFFERENT otherwise."""


class JudgeError(WorldError):
    """The judge was unreachable or gave no verdict. The episode is not scored."""


@dataclass(frozen=True, slots=True)
class Judge:
    """The endpoint of the judge.

    Attributes:
        url: Base URL of the endpoint, e.g. "http://127.0.0.1:8000/v1".
        model: The model's name at the endpoint.
        key: Bearer token of the requests. Empty sends none.
    """

    url: str
    model: str
    key: str = ""

    async def says_the_same(self, question: str, reference: str, answer: str) -> bool:
        """Whether `answer` has the same meaning as `reference`.

        Raises:
            JudgeError: The judge gave no verdict.
        """
        text = _EQUIVALENT.format(question=question, reference=reference, answer=answer)
        return await self._ask(text, {"INCORRECT": False, "PARTIAL": False, "CORRECT": True})

    async def gives_reason(self, task: str, reason: str, report: str) -> bool:
        """Whether `report` states that `task` is impossible because of `reason`.

        Raises:
            JudgeError: The judge gave no verdict.
        """
        text = _SAME_REASON.format(question=task, reference=reason, answer=report)
        return await self._ask(text, {"DIFFERENT": False, "SAME": True})

    async def _ask(self, text: str, verdicts: Mapping[str, bool]) -> bool:
        """Ask until a reply contains a verdict, at most `ATTEMPTS` times.

        If a reply contains several verdicts, the first key of `verdicts` decides.
        """
        body = {
            "model": self.model,
            "temperature": 0,
            "max_tokens": 512,
            "messages": [{"role": "user", "content": text}],
        }
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        trouble = ""
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(ANSWER_S), headers=headers
        ) as http:
            for attempt in range(ATTEMPTS):
                await asyncio.sleep(attempt)
                try:
                    async with http.post(
                        f"{self.url.rstrip('/')}/chat/completions", json=body, allow_redirects=False
                    ) as response:
                        if response.status != HTTPStatus.OK:
                            trouble = f"it answered {response.status}"
                            continue
                        reply = str(
                            (await response.json(content_type=None))["choices"][0]["message"][
                                "content"
                            ]
                        ).upper()
                except (
                    aiohttp.ClientError,
                    TimeoutError,
                    ValueError,
                    KeyError,
                    IndexError,
                    TypeError,
                ) as fault:
                    trouble = f"{type(fault).__name__}: {fault}"
                    continue
                for verdict, meaning in verdicts.items():
                    if verdict in reply:
                        return meaning
                trouble = f"it replied {reply[:200]!r}"
        raise JudgeError(f"the judge at {self.url} gave no verdict: {trouble}")
