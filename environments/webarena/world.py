"""WebArena: tasks on web sites, done in a real browser and judged by what was answered, reached or changed."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from environments.environment import EpisodeOverError, InvalidActionError, OracleError, Step, TaskIndexError
from environments.task_lists import named
from environments.webarena import RENAMED_TASK_LISTS, page_scripts
from environments.webarena.actions import Stop, parse_action
from environments.webarena.addresses import EMBEDDED, Addresses, from_environment
from environments.webarena.browser import BrowserError, Browsers, SiteUnreachableError
from environments.webarena.evaluators import evaluate
from environments.webarena.judge import Judge, judge_from_environment
from environments.webarena.observation import describe, observation
from environments.webarena.oracle import Oracle
from environments.webarena.reserve import Reserve
from environments.webarena.sites import content_data, forum_data, gate, repositories_data, shop_data
from environments.webarena.sites.pages import LOGIN_COOKIE
from environments.webarena.task_files import TaskFile, read_tasks
from environments.webarena.tasks import VERSION, embedded_tasks, plan, task_lists
from environments.webarena.window import CONTEXT, ImpossibleError, Window

RESET_S, STEP_S, EVALUATION_S = 120.0, 60.0, 180.0
"""Deadlines for the embedded sites and for real ones; a page that needs longer is cut off and its session ends with a fault."""

_ACCOUNTS = {
    "shopping": shop_data.CUSTOMER,
    "reddit": forum_data.MEMBER,
    "gitlab": repositories_data.USER,
    "shopping_admin": content_data.EDITOR,
}


class LoginMissingError(BrowserError):
    """The file with the cookies of a signed-in account is missing or unreadable."""


class WebArenaEnvironment:
    """One session. An episode ends when the agent stops; then it earns 1 if the task is done, else 0. Nothing else earns anything.

    Attributes:
        task: The task in progress, None when there is none.
    """

    def __init__(self, world: WebArena) -> None:
        self.task: TaskFile | None = None
        self._world = world
        self._window: Window | None = None
        self._episode: gate.Episode | None = None
        self._oracle: Oracle | None = None
        self._last = ""

    @property
    def objective(self) -> str:
        """What the agent is asked to do."""
        return self.task.intent if self.task else ""

    @property
    def sites(self) -> str:
        """WebArena's names of the task's sites, with spaces between them."""
        return " ".join(self.task.sites) if self.task else ""

    def reset(self, index: int) -> str:
        """Begins task `index` in a fresh window, on sites in their known state; see `Environment.reset`.

        Raises:
            TaskIndexError: There is no such task, or it needs a judge and none is configured.
            BrowserError: The browser failed.
        """
        task = self._world.task(index)
        self.close()
        self.task = task
        self._oracle = self._world.oracle(task)
        try:
            self._last = self._world.browsers.call(self._begin, RESET_S)
        except BaseException:
            self.close()
            raise
        return self._last

    def step(self, action: str) -> Step:
        """Performs one action; see `Environment.step`. An action that cannot be done changes nothing but is answered with why.

        Raises:
            BrowserError: The browser or the page failed, or did not come to rest in time. The episode is lost.
        """
        if self.task is None or self._window is None:
            raise EpisodeOverError("no WebArena episode is in progress; reset first")
        if self._oracle is not None:
            self._oracle.performed(action, self._last)
        try:
            meant = parse_action(action)
        except InvalidActionError as refused:
            return Step(str(refused), 0.0, False)
        window = self._window

        async def perform() -> str:
            seen = window.seen
            assert seen is not None
            previous = describe(meant, seen, self._world.addresses)
            await window.perform(meant)
            return await self._observe(window, previous)

        try:
            if isinstance(meant, Stop):
                return self._stop(window, meant.answer)
            self._last = self._world.browsers.call(perform, self._world.step_s)
        except ImpossibleError as impossible:
            return Step(str(impossible), 0.0, False)
        except BaseException:
            self.close()
            raise
        return Step(self._last, 0.0, False)

    def oracle_action(self) -> str:
        """The next action of the task's plan; see `Environment.oracle_action`. Only the embedded tasks have plans."""
        if self._oracle is None or self._window is None:
            raise OracleError("no episode of an embedded task is in progress")
        return self._oracle.action(self._last)

    def picture(self) -> bytes:
        """What the window shows now, as a PNG.

        Raises:
            EpisodeOverError: There is no window to draw.
            BrowserError: The browser or the page failed.
        """
        window = self._window
        if window is None:
            raise EpisodeOverError("no WebArena episode is in progress; reset first")
        return self._world.browsers.call(lambda: window.page.screenshot(animations="disabled"), self._world.step_s)

    def close(self) -> None:
        """Ends the episode and gives back its window and its part of the sites."""
        window, self._window = self._window, None
        episode, self._episode = self._episode, None
        self.task = None
        self._oracle = None

        async def end() -> None:
            if window is not None:
                await window.close()
            if episode is not None:
                self._world.browsers.gate.close(episode)

        if window is not None or episode is not None:
            self._world.browsers.call_soon(end)

    def _stop(self, window: Window, answer: str) -> Step:
        world, task = self._world, self.task
        assert task is not None
        score = world.browsers.call(lambda: evaluate(task, answer, window, world.addresses, world.judge), EVALUATION_S)
        self.close()
        return Step(f"You stopped with the answer: {answer[:200]}" if answer else "You stopped.", score, True)

    async def _begin(self) -> str:
        world, task = self._world, self.task
        assert task is not None
        browsers, hosts = world.browsers, world.addresses.hosts(task.sites)
        if world.addresses.embedded:
            opened = await world.reserve.take()
            window = self._window = Window(opened.context, opened.close, world.addresses, hosts)
            self._episode = browsers.gate.open(hosts)
            await window.context.add_cookies(_cookies(self._episode, task))  # type: ignore[arg-type]
            await window.open(task.start_urls, opened.tab)
            first = await self._observe(window, "None")
            world.reserve.refill()
            return first
        options: dict[str, Any] = dict(CONTEXT)
        if task.geolocation is not None:
            latitude, longitude = task.geolocation
            options |= {"geolocation": {"latitude": latitude, "longitude": longitude}, "permissions": ["geolocation"]}
        options["proxy"] = {"server": browsers.gate.address, "bypass": ",".join(hosts)}
        options["storage_state"] = world.login(task)
        context, close = await browsers.open_context(**options)
        window = self._window = Window(context, close, world.addresses, hosts)
        await context.add_init_script(page_scripts.STILL)
        await window.open(task.start_urls)
        return await self._observe(window, "None")

    async def _observe(self, window: Window, previous: str) -> str:
        seen = await window.look()
        if self._episode is not None and self._episode.fault is not None:
            raise SiteUnreachableError(f"a site failed: {self._episode.fault!r}"[:300]) from self._episode.fault
        return observation(seen, await window.titles(), window.front, self._world.addresses.to_shown(seen.url), self.objective, previous)


class WebArena:
    """The world; see `World`. `tasks` also knows the lists of `environments.webarena.tasks.task_lists`.

    Without settings it hosts the embedded sites and their tasks. With WEBARENA_TASKS, a folder or file of WebArena's task files, it
    plays those on the real sites that SHOPPING, SHOPPING_ADMIN, REDDIT, GITLAB, MAP, WIKIPEDIA and HOMEPAGE name; files with login
    cookies are looked for where the tasks name them, below WEBARENA_LOGINS (by default the folder that holds the tasks).
    """

    name = "webarena"
    blocking = True
    max_sessions = 64
    """Windows of one process: some 30 MB each."""
    instruction = (
        "You use web sites to do what the objective asks for. Every message shows the part of the page that is in view as a list of "
        "elements, each with its number in brackets, then the address, the objective and your last action. "
        "Answer every message with one action, between triple backticks:\n"
        "click [id]: click on an element\n"
        "type [id] [text] [press_enter_after=0|1]: replace the text of a field; Enter is pressed afterwards unless the last is 0\n"
        "hover [id]: move the mouse over an element\n"
        "press [key_comb]: press keys, such as Control+a or ArrowDown\n"
        "scroll [down|up]: see the next or the previous part of the page\n"
        "new_tab, tab_focus [n], close_tab: open an empty tab, go to tab n, close the current one\n"
        "goto [url], go_back, go_forward: open an address, go back, go forward\n"
        "stop [answer]: end, when the task is done. If something was asked, give the answer in the brackets, as short as possible; if the "
        "task cannot be done, answer N/A."
    )

    def __init__(self, environment: Mapping[str, str] | None = None, *, step_s: float = STEP_S) -> None:
        """
        Args:
            environment: The variables that configure it; those of the process unless given.
            step_s: Deadline of a step.

        Raises:
            TaskFileError, SiteMissingError, ValueError: The configuration is wrong; the message says where.
        """
        environment = os.environ if environment is None else environment
        path = environment.get("WEBARENA_TASKS")
        self.browsers = Browsers()
        self.reserve = Reserve(self.browsers)
        self.judge: Judge | None = judge_from_environment(environment)
        self.step_s = step_s
        if path:
            self.addresses = from_environment(environment)
            tasks = read_tasks(Path(path), self.addresses)
            self._all: Mapping[int, TaskFile] = {task.index: task for task in tasks}
            self._logins = Path(environment.get("WEBARENA_LOGINS") or Path(path).parent)
            self.version = f"files-{sha256(repr(tasks).encode()).hexdigest()[:12]}"
        else:
            self.addresses = Addresses(EMBEDDED)
            self._all = embedded_tasks()
            self.version = VERSION
        self._lists = task_lists(task for task in self._all.values() if self.judge or not task.needs_judge)

    def create(self) -> WebArenaEnvironment:
        """A new session, before its first reset."""
        return WebArenaEnvironment(self)

    def tasks(self, name: str) -> tuple[int, ...]:
        """The task indices of a split or of another named list, ascending. Tasks that need a judge are left out without one.

        Raises:
            KeyError: No list has this name; the message names those that exist.
        """
        return named(self._lists, name, self.name, RENAMED_TASK_LISTS)

    @property
    def lists(self) -> Mapping[str, Sequence[int]]:
        """Every task list; of WebArena's own task files theirs."""
        return self._lists

    def tag(self, index: int) -> str:
        """The sites that task `index` begins on, e.g. "shopping" or "gitlab reddit"."""
        return " ".join(self.task(index).sites)

    def task(self, index: int) -> TaskFile:
        """The task of that index.

        Raises:
            TaskIndexError: There is none, or it needs a judge and none is configured.
        """
        task = self._all.get(index)
        if task is None:
            raise TaskIndexError(f"webarena has no task {index}; its tasks are {min(self._all, default=0)} to {max(self._all, default=0)}")
        if task.needs_judge and self.judge is None:
            raise TaskIndexError(
                f"task {index} needs a language model to judge its answer: set WEBARENA_JUDGE_URL to an endpoint that speaks OpenAI's chat "
                "completions, WEBARENA_JUDGE_MODEL and, if it needs one, WEBARENA_JUDGE_KEY"
            )
        return task

    def oracle(self, task: TaskFile) -> Oracle | None:
        """What solves the task; None for tasks on sites that are not ours."""
        return Oracle(plan(task.index), task.start_urls[0]) if self.addresses.embedded else None

    def login(self, task: TaskFile) -> dict[str, Any] | None:
        """The cookies of the account that the task is signed in with, None if it is not.

        Raises:
            LoginMissingError: The file is missing or unreadable.
        """
        if task.storage_state is None:
            return None
        path = self._logins / task.storage_state
        try:
            state: dict[str, Any] = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as fault:
            message = f"task {task.index} needs the login cookies in {path} (Playwright's storage state): {fault}"
            raise LoginMissingError(f"{message}; write them there or set WEBARENA_LOGINS to the folder that holds .auth") from fault
        return state


def _cookies(episode: gate.Episode, task: TaskFile) -> list[dict[str, str]]:
    """What marks the episode on all its hosts, and the sign-in of the sites that the name of the login file lists."""
    cookies = [{"name": gate.EPISODE_COOKIE, "value": episode.token, "url": f"http://{host}/"} for host in sorted(episode.hosts)]
    if task.storage_state is not None:
        names: Collection[str] = Path(task.storage_state).stem.removesuffix("_state").split(".")
        addresses = Addresses(EMBEDDED)
        cookies += [
            {"name": LOGIN_COOKIE, "value": _ACCOUNTS[name], "url": f"http://{addresses.hosts((name,))[0]}/"}
            for name in names
            if name in _ACCOUNTS
        ]
    return cookies
