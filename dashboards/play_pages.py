"""Pages to play episodes.

An episode starts from a task or branches off a recorded trajectory. It can be watched while it
runs, and saved.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from configs.collection import Source
from configs.environment import World
from configs.recipe import explain
from dashboards.figure_pages import drawing_of
from dashboards.filters import FilterError, real_number, whole_number
from dashboards.live_episode import MAX_TURNS, LiveEpisode
from dashboards.lookup import requested_run
from dashboards.players import Players, budgets_of, checkpoint_source, world_of
from dashboards.run_folders import RunFolder, checkpoints_of, run_folder, run_folders
from dashboards.templating import TEMPLATES, NotFoundError, html
from dashboards.trajectory import Address, load_trajectory, view_of
from environments.registry import world_names
from tasks.rollout.trajectory_parquet import read_trajectories, write_trajectories

MAX_EPISODES = 32
"""Maximum number of open episodes. A new one replaces the oldest."""


async def choose(request: Request) -> Response:
    """Show what can be played."""
    return html(request, "play_choose.html", worlds=world_names())


async def start(request: Request) -> Response:
    """Start an episode of a task, given by its index, or of the first held-out task."""
    words = await request.form()
    environment = str(words.get("environment", ""))
    if environment not in world_names():
        raise FilterError(
            "environment", f"must be one of {', '.join(world_names())}, not {environment!r}"
        )
    return await _register(
        request, await _players(request).begin(World(name=environment), _task(words))
    )


async def branch(request: Request) -> Response:
    """Start an episode from the state of a recorded trajectory after some turns."""
    words = request.path_params
    address = Address(words["run"], words["kind"], words["name"], words["group"], words["member"])
    index = request.app.state.index
    found = load_trajectory(index, address)
    if found is None:
        raise NotFoundError(f"There is no trajectory {address.path}.")
    turns = whole_number(str((await request.form()).get("turn", "0")), "turn")
    recorded = read_trajectories(Path(found.path))[found.row["row"]]
    world = world_of(run_folder(index.runs, address.run), found.row["environment"])
    episode = await _players(request).begin(world, recorded.task, recorded.seed)
    try:
        await episode.replay(
            recorded.first_observation, recorded.turns[: max(0, min(turns, len(recorded.turns)))]
        )
    except BaseException:
        await episode.close()
        raise
    return await _register(request, episode, address)


async def watch_policy(request: Request) -> Response:
    """Start a held-out task of a run, played by one of its checkpoints.

    The settings are those of the recipe's evaluation.
    """
    index, run, words = request.app.state.index, requested_run(request), await request.form()
    players = _players(request)
    world = world_of(run, str(run.field("environment.name", "textcraft")))
    held_out = index.query(
        "select min(task) as task from trajectories where run = ? and kind = 'evaluations'",
        [run.name],
    )[0]["task"]
    task = _task(words)
    source, _ = _source(request, {"agent": f"{run.name}/{words.get('checkpoint', '')}"}, None)
    episode = await players.begin(
        world,
        held_out if task is None else task,
        horizon=int(run.field("evaluation.horizon", MAX_TURNS)),
    )
    episode.play_on(
        lambda: players.agent(world, source),
        budgets_of(run, float(run.field("evaluation.temperature", 1.0))),
    )
    return await _register(request, episode)


async def watch(request: Request) -> Response:
    """Show the page of an episode in progress."""
    number, episode, origin = _episode(request)
    run = run_folder(request.app.state.index.runs, origin.run) if origin else None
    agents = [(f"{run.name}/{path.name}", path.name) for path in checkpoints_of(run)] if run else []
    others = [
        (f"{each.name}/{path.name}", f"{each.path.name} {path.name}")
        for each in run_folders(request.app.state.index.runs)
        if (run is None or each.name != run.name)
        and each.field("environment.name", "textcraft") == episode.trajectory.environment
        for path in checkpoints_of(each)[-1:]
    ]
    return html(
        request, "play.html", origin=origin, checkpoints=agents + others, **_state(number, episode)
    )


async def state(request: Request) -> Response:
    """Return the turns of an episode in progress as an HTML fragment, and whether it is running."""
    number, episode, _ = _episode(request)
    known = _state(number, episode)
    return JSONResponse(
        {
            "html": TEMPLATES.get_template("play_turns.html").render(request=request, **known),
            "turns": len(episode.trajectory.turns),
            "playing": episode.playing,
            "over": episode.over,
            "ending": episode.ending if episode.over else "",
            "outcome": episode.trajectory.outcome if episode.over else "",
            "reason": episode.trajectory.reason if episode.over else "",
            "note": episode.note,
        }
    )


async def act(request: Request) -> Response:
    """Play a turn by hand, let an agent play one or all turns, pause it, or save the episode."""
    number, episode, origin = _episode(request)
    words = await request.form()
    what = str(words.get("do", ""))
    episode.note = ""
    try:
        if what == "act":
            await episode.act(str(words.get("action", "")))
        elif what == "pause":
            episode.pause()
        elif what == "keep":
            episode.note = f"Saved as {save(request.app.state.index.runs, number, episode)}"
        elif what in ("turn", "rest"):
            source, run = _source(request, words, origin)
            own = run_folder(request.app.state.index.runs, origin.run) if origin else None
            players, world = _players(request), world_of(own, episode.trajectory.environment)
            budgets = budgets_of(
                run, real_number(str(words.get("temperature", "1")), "temperature", 0, 10)
            )
            if what == "turn":
                name, agent = await players.agent(world, source)
                await episode.advance(name, agent, budgets)
            else:
                episode.play_on(lambda: players.agent(world, source), budgets)
        else:
            raise FilterError("do", f"must be act, turn, rest, pause or keep, not {what!r}")
    except FilterError:
        raise
    except Exception as problem:  # noqa: BLE001 - the page shows the error
        episode.note = f"{type(problem).__name__}: {problem}"
    return await state(request)


def save(runs: Path, number: str, episode: LiveEpisode) -> str:
    """Save an episode in the format of `flows.collect` and return the collection's name."""
    folder = runs / "collected" / f"{episode.trajectory.environment}-played"
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "settings.json"
    if not settings.is_file():
        settings.write_text(
            json.dumps(
                {"environment": episode.trajectory.environment, "source": {"kind": "viewer"}}
            )
            + "\n",
            encoding="utf-8",
        )
    write_trajectories(folder / f"played-{number}.parquet", [episode.trajectory])
    (folder / f"played-{number}.json").write_text(
        json.dumps({"by": episode.players}) + "\n", encoding="utf-8"
    )
    return f"{folder.relative_to(runs)}/played-{number}"


async def _register(
    request: Request, episode: LiveEpisode, origin: Address | None = None
) -> Response:
    episodes = request.app.state.episodes
    number = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    episodes[number] = (episode, origin)
    while len(episodes) > MAX_EPISODES:
        oldest = next(iter(episodes))
        gone, _ = episodes.pop(oldest)
        await gone.close()
    return RedirectResponse(f"/play/{number}", 303)


def _episode(request: Request) -> tuple[str, LiveEpisode, Address | None]:
    number = request.path_params["number"]
    if number not in request.app.state.episodes:
        raise NotFoundError("This episode is no longer open. Start it again.")
    episode, origin = request.app.state.episodes[number]
    return number, episode, origin


def _state(number: str, episode: LiveEpisode) -> dict[str, Any]:
    trajectory = view_of(episode.trajectory)
    return {
        "number": number,
        "episode": episode,
        "found": trajectory,
        "drawing": drawing_of(trajectory, len(trajectory.turns)),
    }


def _source(
    request: Request, words: Any, origin: Address | None
) -> tuple[Source, RunFolder | None]:
    chosen, runs = str(words.get("agent", "")), request.app.state.index.runs
    own = run_folder(runs, origin.run) if origin else None
    if chosen == "expert":
        return Source(
            kind="oracle",
            action_format=own.field("policy.action_format", "bare") if own else "bare",
        ), own
    if chosen == "endpoint":
        try:
            return Source(
                kind="openai",
                urls=(str(words.get("url", "")),),
                model=str(words.get("model", "")) or None,
            ), own
        except ValidationError as problem:
            raise FilterError(
                "endpoint", f"is invalid: {explain(problem, 'the endpoint').strip()}"
            ) from None
    name, _, step = chosen.rpartition("/")
    run = run_folder(runs, name)
    for checkpoint in checkpoints_of(run) if run else []:
        if run and checkpoint.name == step:
            return checkpoint_source(run, checkpoint), run
    raise FilterError(
        "agent", f"must be the expert, a listed checkpoint or an endpoint, not {chosen!r}"
    )


def _task(words: Any) -> int | None:
    """Return the task of a form, or None if it is empty."""
    return whole_number(str(words["task"]), "task") if words.get("task") else None


def _players(request: Request) -> Players:
    players: Players = request.app.state.players
    return players


ROUTES: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
    ("GET", "/play", choose),
    ("POST", "/play", start),
    ("POST", "/branch/{run:path}/{kind}/{name}/{group:int}/{member:int}", branch),
    ("POST", "/watch/{run:path}", watch_policy),
    ("GET", "/play/{number}", watch),
    ("GET", "/play/{number}/state", state),
    ("POST", "/play/{number}", act),
]
