"""Tests that a secret is sent only to the address that it was set for.

A real server stands for the other addresses and records the headers.
"""

from __future__ import annotations

import asyncio
import base64
import time
from pathlib import Path

import pytest

from environments.client import EnvironmentClient
from environments.http import HttpClient
from environments.openenv.world import OpenEnvError
from environments.registry import load_world
from environments.token import DRAWN, URLS, VARIABLE, shared_token
from environments.webarena.judge import Judge, JudgeError
from tasks.agents.agent import Budgets
from tasks.agents.chat_agent import ADDRESS, KEY, ChatAgent
from tasks.inference.engine import EngineError
from tasks.inference.token_guard import VARIABLE as ENGINE_TOKEN
from tasks.inference.vllm_client import VllmClient
from tests.support.listener import Listener, listener, use_proxy
from tests.support.processes import run_python


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "sk-secret")
    for name in (ADDRESS, VARIABLE, DRAWN, URLS):
        monkeypatch.delenv(name, raising=False)


def ask_endpoint(url: str) -> str:
    async def ask() -> str:
        agent = ChatAgent(url, "model", action_format="bare", instruction=None)
        try:
            asked = [{"role": "user", "content": "go"}]
            return (await agent.answer(asked, Budgets(1.0, 8, 64), 0)).text
        finally:
            await agent.close()

    return asyncio.run(ask())


def test_the_key_of_openai_is_not_sent_to_another_endpoint() -> None:
    with listener() as stranger:
        assert ask_endpoint(stranger.url) == "CORRECT"
    assert [headers.get("authorization") for headers in stranger.headers] == [None]


def test_endpoint_gets_the_key_of_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with listener() as own, listener() as stranger:
        monkeypatch.setenv(ADDRESS, f"{own.origin}/other-path")
        ask_endpoint(own.url)
        ask_endpoint(stranger.url)
        ask_endpoint(own.url.replace("127.0.0.1", "localhost"))
    assert [headers.get("authorization") for headers in own.headers] == ["Bearer sk-secret", None]
    assert [headers.get("authorization") for headers in stranger.headers] == [None]


def test_endpoint_that_requires_a_key_names_the_setting() -> None:
    with (
        listener(status=401) as stranger,
        pytest.raises(EngineError, match=f"{ADDRESS}={stranger.url}"),
    ):
        ask_endpoint(stranger.url)
    assert len(stranger.headers) == 1


def test_redirects_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    with listener() as stranger, listener(status=307, location=stranger.url) as own:
        monkeypatch.setenv(ADDRESS, own.url)
        with pytest.raises(EngineError):
            ask_endpoint(own.url)
        with pytest.raises(JudgeError):
            asyncio.run(
                Judge(own.url, "model", "judge-key").says_the_same(
                    "question", "reference", "answer"
                )
            )
    assert {headers["authorization"] for headers in own.headers} == {
        "Bearer sk-secret",
        "Bearer judge-key",
    }
    assert stranger.headers == []


def test_a_proxy_does_not_get_the_token_of_vllm_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(url: str) -> None:
        client = VllmClient(url, 1.0)
        try:
            await client.model()
        finally:
            await client.close()

    monkeypatch.setenv(ENGINE_TOKEN, "engine-secret")
    with listener() as proxy, listener(answer={"data": [{"id": "policy"}]}) as server:
        use_proxy(proxy, monkeypatch)
        asyncio.run(ask(server.origin))
    assert [headers.get("authorization") for headers in server.headers] == ["Bearer engine-secret"]
    assert proxy.headers == []


BYPASSED = """
import os, sys
from pathlib import Path
from urllib.request import proxy_bypass
if sys.argv[1] == "command":
    from flows.command import LocalRecords
    LocalRecords()
else:
    from tasks.provision.supervisor import _Services
    os.environ |= _Services(Path(os.environ["AGENTGYM_RUNS"]))._environment
print(*(host for host in ("127.0.0.1", "localhost", "own", "other") if proxy_bypass(host)))
"""


@pytest.mark.parametrize("client", ["command", "services"])
@pytest.mark.parametrize(
    ("given", "bypassed"), [("own", "127.0.0.1 localhost own"), ("", "127.0.0.1 localhost")]
)
def test_a_proxy_gets_no_request_to_a_server_of_this_machine(
    client: str, given: str, bypassed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", given)
    monkeypatch.setenv("AGENTGYM_RUNS", str(tmp_path))
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")  # so that no server starts
    assert run_python(BYPASSED, client) == bypassed


@pytest.mark.parametrize("moved", [False, True])
def test_the_token_of_an_openenv_server_reaches_no_other_server(
    moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listener() as stranger, listener(307 if moved else 200, stranger.url) as server:
        use_proxy(stranger, monkeypatch)
        monkeypatch.setenv("OPENENV_URL", server.origin)
        monkeypatch.setenv("OPENENV_TOKEN", "secret")
        with pytest.raises((OpenEnvError, KeyError)):
            load_world("openenv")
    assert server.headers[0]["authorization"] == "Bearer secret"
    assert stranger.headers == []


def get(*servers: Listener) -> None:
    async def ask() -> None:
        http = HttpClient(2)
        for server in servers:
            await http.exchange("GET", server.url, time.monotonic() + 30)
        await http.close()

    asyncio.run(ask())


def test_generated_token_is_sent_only_to_own_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    with listener() as started_here, listener() as elsewhere:
        monkeypatch.setenv(URLS, f"textcraft={elsewhere.origin}")
        token = shared_token()
        get(started_here, elsewhere)
    assert [headers.get("authorization") for headers in started_here.headers] == [f"Bearer {token}"]
    assert [headers.get("authorization") for headers in elsewhere.headers] == [None]


def test_configured_token_is_sent_to_configured_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    with listener() as elsewhere:
        monkeypatch.setenv(URLS, elsewhere.origin)
        monkeypatch.setenv(VARIABLE, "set")
        assert shared_token() == "set"
        get(elsewhere)
    assert [headers.get("authorization") for headers in elsewhere.headers] == ["Bearer set"]


def test_login_in_an_address_is_sent_instead_of_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "set")

    async def ask(address: str) -> None:
        async with EnvironmentClient([address], deadline_s=1) as client:
            await client.health()

    with listener() as server:
        asyncio.run(ask(server.url.replace("//", "//agent:secret@")))
    login = base64.b64encode(b"agent:secret").decode()
    assert [headers.get("authorization") for headers in server.headers] == [f"Basic {login}"]
