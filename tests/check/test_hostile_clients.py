"""Tests of a real server with a hostile client: other clients can play, and memory is bounded."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests

from environments.client import EnvironmentClient
from environments.errors import RefusedError
from environments.server.dispatcher import CALLS
from environments.token import VARIABLE
from tasks.provision.local import LocalServer
from tests.support.counting_servers import ROOT, Serve, counting_command
from tests.support.hostile import (
    Attacker,
    guess_numbers,
    head,
    held,
    items,
    memory_mb,
    play,
    wrong_items,
)
from tests.support.processes import local_server, wait_until
from tests.support.server_requests import post, start

PATIENCE_S = 60.0
SECRET = "a secret of three words"


def cpu_s(server: LocalServer) -> float:
    root = psutil.Process(server.pid)
    return sum(sum(process.cpu_times()[:2]) for process in (root, *root.children(recursive=True)))


def healthy(url: str) -> bool:
    return requests.get(f"{url}/health", timeout=PATIENCE_S).status_code == 200


def test_a_million_wrong_items_are_refused_without_being_decoded(serve: Serve) -> None:
    server = serve()
    before = cpu_s(server)
    attacker = Attacker(server.url)
    wrong_items(attacker)
    assert set(attacker.statuses) <= {400, 413, 422}
    assert cpu_s(server) - before < 4.0  # one of the twelve requests used to take 9.5 s
    assert memory_mb(server.pid) < 200
    play(server.url)


def test_largest_allowed_batch_is_served(counting_server: str) -> None:
    with requests.Session() as client:
        wrong = client.post(
            f"{counting_server}/v1/step", data=items(*([0] * 10_000)), timeout=PATIENCE_S
        )
        right = client.post(
            f"{counting_server}/v1/close",
            data=items(*({"session": "a,b"} for _ in range(10_000))),
            timeout=PATIENCE_S,
        )
    assert (wrong.status_code, len(wrong.json()["items"])) == (422, 10_000)
    assert (right.status_code, len(right.json()["items"])) == (404, 10_000)


@pytest.fixture
def many_open_files() -> Iterator[None]:
    """Let this process and the servers that it starts open 4,096 files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_open_files")
def test_server_is_reachable_despite_many_silent_connections(serve: Serve) -> None:
    server = serve()
    with (
        held(Attacker(server.url), 1500) as silent,
        held(Attacker(server.url), 300, b"POST /v1/create HTTP/1.1\r\n"),
    ):
        assert len(silent) == 1500
        assert healthy(server.url)
        play(server.url)


def test_server_with_a_low_limit_of_open_files_is_reachable(state_dir: Path) -> None:
    command = ["bash", "-c", 'ulimit -n 256; exec "$@"', "-", *counting_command("counting")]
    with (
        local_server("few-files", command, state_dir=state_dir) as server,
        held(Attacker(server.url), 400),
    ):
        assert healthy(server.url)
        play(server.url)


def test_client_that_takes_all_sessions_does_not_block_others(serve: Serve) -> None:
    server = serve("counting", "--max-sessions", "100")
    taken = requests.post(
        f"{server.url}/v1/create",
        data=items(*({"lease_s": 86_400} for _ in range(200))),
        timeout=PATIENCE_S,
    )
    assert sum(reply["status"] == 200 for reply in taken.json()["items"]) == 100
    play(server.url, episodes=60)


def test_lone_trainer_plays_2000_sessions_at_once(serve: Serve) -> None:
    url = serve().url

    async def run() -> None:
        async with EnvironmentClient([url], deadline_s=PATIENCE_S) as client:
            started = await asyncio.gather(*(client.start(3) for _ in range(2000)))
            for _ in range(3):
                steps = await asyncio.gather(
                    *(client.step(session, "add 1") for session, _ in started)
                )
            assert all(step.done and step.reward == 1.0 for step in steps)
            await asyncio.gather(*(client.close(session) for session, _ in started))

    asyncio.run(run())
    assert requests.get(f"{url}/health", timeout=PATIENCE_S).json()["sessions"] == 0


def test_numbers_of_agentgym_sessions_cannot_be_guessed(serve: Serve) -> None:
    url = serve().url
    numbers = [
        requests.post(f"{url}/create", json={}, timeout=PATIENCE_S).json()["id"] for _ in range(50)
    ]
    assert guess_numbers(Attacker(url), 50) == []
    assert min(abs(a - b) for a in numbers for b in numbers if a != b) > 1000
    assert all(type(number) is int and number < 2**53 for number in numbers)
    for number in numbers:
        assert (
            requests.post(
                f"{url}/reset", json={"id": number, "data_idx": 3}, timeout=PATIENCE_S
            ).json()["observation"]
            == "Goal: 3."
        )


# -- clients that vanish, and the end of the server


def steps_performed(url: str) -> int:
    text = requests.get(f"{url}/metrics", timeout=PATIENCE_S).text
    return sum(
        int(float(line.split()[-1]))
        for line in text.splitlines()
        if line.startswith("environment_world_step_seconds_count")
    )


def test_queued_steps_of_a_vanished_client_are_not_performed(serve: Serve, tmp_path: Path) -> None:
    url = serve("slow_counting").url
    sessions = [start(url) for _ in range(6)]
    first = [
        {"session": session, "turn": 0, "action": f"await {tmp_path}/{at}"}
        for at, session in enumerate(sessions)
    ]
    for item in first:
        with Attacker(url).connect() as vanishing:
            body = items(
                item,
                *(
                    {"session": item["session"], "turn": turn, "action": "add 1"}
                    for turn in range(1, 100)
                ),
            )
            vanishing.sendall(head("/v1/step", len(body)) + body)
            wait_until((tmp_path / f"{sessions.index(str(item['session']))}.begun").exists)
    for at, item in enumerate(first):
        (tmp_path / str(at)).touch()
        # The step that had begun is finished. A repeated request gets its answer.
        assert post(url, "step", item)[0]["status"] == 200
    assert [
        post(url, "step", {"session": session, "turn": 1, "action": "add 3"})[0]["observation"]
        for session in sessions
    ] == ["Count: 3" for _ in sessions]
    assert steps_performed(url) == 12


def test_server_with_a_hanging_world_answers_waiting_calls_and_ends(
    serve: Serve, tmp_path: Path
) -> None:
    server = serve("slow_counting")
    sessions = [start(server.url) for _ in range(CALLS + 1)]
    hanging = [
        {"session": session, "turn": 0, "action": f"await {tmp_path}/{at}"}
        for at, session in enumerate(sessions[1:])
    ]
    waiting = items({"session": sessions[0], "turn": 0, "action": "add 1"})
    [serving] = psutil.Process(server.pid).children()
    attacker = Attacker(server.url)
    with attacker.connect() as first, attacker.connect() as second:
        first.sendall(head("/v1/step", len(items(*hanging))) + items(*hanging))
        wait_until(lambda: all((tmp_path / f"{at}.begun").exists() for at in range(CALLS)))
        second.sendall(head("/v1/step", len(waiting)) + waiting)
        wait_until(lambda: items_accepted(server.url) == len(sessions) + len(hanging) + 1)
        serving.send_signal(signal.SIGTERM)
        status, content = attacker.answer(second)
    assert (status, json.loads(content)["error"]["type"]) == (503, "server_ending")
    psutil.wait_procs([serving], PATIENCE_S)
    assert not serving.is_running()


def items_accepted(url: str) -> int:
    """Return the number of items that the server has begun or queued."""
    text = requests.get(f"{url}/metrics", timeout=PATIENCE_S).text
    return sum(
        int(float(line.split()[-1]))
        for line in text.splitlines()
        if line.startswith("environment_items_total")
    )


# -- the token


@pytest.fixture(scope="module")
def guarded(state_dir: Path) -> LocalServer:
    """Start a server that requires a token."""
    with local_server(
        "guarded", counting_command("counting"), state_dir=state_dir, environment={VARIABLE: SECRET}
    ) as server:
        yield server  # type: ignore[misc]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {SECRET}"},
        {"Authorization": f"Digest {SECRET}"},
    ],
)
@pytest.mark.parametrize(
    "path", ["/v1/create", "/create", "/v1/world", "/metrics", "/", "/nothing"]
)
def test_only_health_is_answered_without_the_token(
    guarded: LocalServer, path: str, headers: dict[str, str]
) -> None:
    assert (
        requests.post(guarded.url + path, json={}, headers=headers, timeout=PATIENCE_S).status_code
        == 401
    )
    assert requests.get(guarded.url + path, headers=headers, timeout=PATIENCE_S).status_code == 401
    assert healthy(guarded.url)


def test_clients_send_the_token_of_their_environment_or_of_the_url(
    guarded: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(RefusedError, match="Authorization: Bearer"):
        play(guarded.url)
    with_password = guarded.url.replace("http://", f"http://agent:{requests.utils.quote(SECRET)}@")
    play(with_password)
    # AgentGym's own clients have only a URL, so its password is the token
    assert isinstance(
        requests.post(f"{with_password}/create", json={}, timeout=PATIENCE_S).json()["id"], int
    )
    monkeypatch.setenv(VARIABLE, SECRET)
    play(guarded.url)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_server_on_a_public_address_is_not_started_without_a_token(host: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-m", "environments", "serve", "textcraft", "--host", host]
    refused = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert refused.returncode == 2
    assert VARIABLE in refused.stderr
    assert "--no-token" in refused.stderr


@pytest.mark.parametrize("extra", [["--no-token"], []])
def test_server_on_a_public_address_starts_with_a_token_or_with_no_token(
    state_dir: Path, extra: list[str]
) -> None:
    environment = {"PYTHONPATH": str(ROOT), VARIABLE: "" if extra else SECRET}
    command = [*counting_command("counting"), "--host", "0.0.0.0", *extra]
    with local_server("open", command, state_dir=state_dir, environment=environment) as server:
        assert requests.get(f"{server.url}/v1/world", timeout=PATIENCE_S).status_code == (
            200 if extra else 401
        )
