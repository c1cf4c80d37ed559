"""WebArena: tasks on web sites in a real browser, judged by answers, final pages or changes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from environments.environment import (
    Environment,
    EpisodeOverError,
    InvalidActionError,
    OracleError,
    Step,
    TaskIndexError,
    World,
)
from environments.webarena import page_scripts
from environments.webarena.actions import Stop, parse_action
from environments.webarena.browser import Browsers, SiteUnreachableError
from environments.webarena.drawn_shops import (
    LISTS,
    NO_ANSWER_LISTS,
    drawn_plan,
    drawn_task,
    shop_of,
)
from environments.webarena.evaluators import evaluate
from environments.webarena.observation import describe, observation
from environments.webarena.oracle import Oracle
from environments.webarena.page_parts import PAGE_CHARACTERS
from environments.webarena.possible_actions import possible_actions
from environments.webarena.settings import Settings
from environments.webarena.sign_in import embedded_cookies, storage_states
from environments.webarena.sites import gate
from environments.webarena.task_files import TaskFile, read_tasks
from environments.webarena.tasks import VERSION, embedded_tasks, plan, task_lists
from environments.webarena.tools import TOOLS
from environments.webarena.window import CONTEXT, ImpossibleError, Window

RESET_S, STEP_S, EVALUATION_S = 120.0, 60.0, 180.0
"""Deadlines in seconds for embedded and real sites.

A slower page is stopped and its session fails.
"""
STAND_IN = "stand-ins on small sites of this package; docs/webarena-sites.md sets up WebArena's own sites and tasks"


class WebArenaEnvironment(Environment):
    """One session. An episode ends when the agent stops.

    The reward is 1 if the task is then complete, else 0. Earlier steps have reward 0.

    Attributes:
        task: The current task. None if no episode is in progress.
    """

    def __init__(self, shared: SharedSites) -> None:
        self.task: TaskFile | None = None
        self._shared = shared
        self._window: Window | None = None
        self._episode: gate.Episode | None = None
        self._oracle: Oracle | None = None
        self._last = ""

    @property
    def objective(self) -> str:
        """The task's intent. Empty if no episode is in progress."""
        return self.task.intent if self.task else ""

    @property
    def sites(self) -> str:
        """WebArena's names of the task's sites, separated by spaces."""
        return " ".join(self.task.sites) if self.task else ""

    def reset(self, index: int) -> str:
        """Start task `index` in a fresh window on sites in their initial state.

        See `Environment.reset`.

        Raises:
            TaskIndexError: The task does not exist, or it needs a judge and none is configured.
            BrowserError: The browser failed.
        """
        task = self._shared.task(index)
        self.close()
        self.task = task
        self._oracle = self._shared.oracle(task)
        try:
            self._last = self._shared.browsers.call(self._begin, RESET_S)
        except BaseException:
            self.close()
            raise
        return self._last

    def step(self, action: str) -> Step:
        """Perform one action, see `Environment.step`.

        An impossible action changes nothing. Its observation states the reason.

        Raises:
            BrowserError: The browser or the page failed or exceeded the deadline. The episode is
                lost.
        """
        if self.task is None or self._window is None:
            raise EpisodeOverError("no WebArena episode is in progress; reset first")
        if self._oracle is not None:
            self._oracle.performed(action, self._last)
        try:
            meant = parse_action(action)
        except InvalidActionError as refused:
            return Step(str(refused), 0.0, False, refused=True)
        window = self._window

        async def perform() -> str:
            seen = window.seen
            assert seen is not None
            previous = describe(meant, seen, self._shared.addresses)
            await window.perform(meant)
            return await self._observe(window, previous)

        try:
            if isinstance(meant, Stop):
                return self._stop(window, meant.answer)
            self._last = self._shared.browsers.call(perform, self._shared.step_s)
        except ImpossibleError as impossible:
            return Step(str(impossible), 0.0, False, refused=True)
        except BaseException:
            self.close()
            raise
        return Step(self._last, 0.0, False)

    def valid_actions(self) -> list[str]:
        """List actions on the links, buttons and fields in view, and stops with a name on the page.

        Fields are paired with every quoted or capitalised phrase of the objective.
        See `Environment.valid_actions`.
        """
        if self.task is None or self._window is None or self._window.seen is None:
            raise EpisodeOverError("no WebArena episode is in progress; reset first")
        return possible_actions(self._window.seen, self.task.intent)

    def oracle_action(self) -> str:
        """Return the next action of the task's plan. Only embedded tasks have plans.

        See `Environment.oracle_action`.
        """
        if self._oracle is None or self._window is None:
            raise OracleError("no episode of an embedded task is in progress")
        return self._oracle.action(self._last)

    def picture(self) -> bytes:
        """Return a PNG screenshot of the window.

        Raises:
            EpisodeOverError: No window is open.
            BrowserError: The browser or the page failed.
        """
        window = self._window
        if window is None:
            raise EpisodeOverError("no WebArena episode is in progress; reset first")
        return self._shared.browsers.call(
            lambda: window.page.screenshot(animations="disabled"), self._shared.step_s
        )

    def close(self) -> None:
        """End the episode, and release its window and its copy of the sites."""
        window, self._window = self._window, None
        episode, self._episode = self._episode, None
        self.task = None
        self._oracle = None

        async def end() -> None:
            if window is not None:
                await window.close()
            if episode is not None:
                self._shared.browsers.gate.close(episode)

        if window is not None or episode is not None:
            self._shared.browsers.call_soon(end)

    def _stop(self, window: Window, answer: str) -> Step:
        shared, task = self._shared, self.task
        assert task is not None
        meant = shared.addresses.to_real(answer)
        score = shared.browsers.call(
            lambda: evaluate(task, meant, window, shared.addresses, shared.judge), EVALUATION_S
        )
        self._check_sites()
        self.close()
        return Step(
            f"You stopped with the answer: {answer[:200]}" if answer else "You stopped.",
            score,
            True,
        )

    async def _begin(self) -> str:
        shared, task = self._shared, self.task
        assert task is not None
        browsers, hosts = shared.browsers, shared.addresses.hosts(task.sites)
        page, close = await browsers.open_page(**shared.context_options(task))
        window = self._window = Window(
            page.context, close, shared.addresses, hosts, shared.page_characters, shared.services
        )
        if shared.addresses.embedded:
            self._episode = browsers.gate.open(hosts, shared.shop(task.index))
            await window.context.add_cookies(embedded_cookies(self._episode, task))  # type: ignore[arg-type]
        else:
            await window.context.add_init_script(page_scripts.STILL)
        await window.open(task.start_urls)
        return await self._observe(window, "None")

    async def _observe(self, window: Window, previous: str) -> str:
        self._check_sites()
        seen = await window.look()
        url = self._shared.addresses.to_shown(seen.url)
        return observation(
            window.parts.shown(seen.text),
            await window.titles(),
            window.front,
            url,
            self.objective,
            previous,
        )

    def _check_sites(self) -> None:
        """Raise SiteUnreachableError if one of the embedded sites raised an exception."""
        fault = self._episode.fault if self._episode is not None else None
        if fault is not None:
            raise SiteUnreachableError(f"a site failed: {fault!r}"[:300]) from fault


class SharedSites:
    """The tasks and sites of one world, which its sessions share.

    Attributes:
        lists: All task lists of the configured tasks. Without a judge, tasks that need one are left
            out.
        version: Version of the tasks, with the judge of tasks from files.
        browsers: The browsers.
        step_s: Deadline of a step in seconds.
    """

    def __init__(self, settings: Settings, step_s: float) -> None:
        """Read the tasks. See `WebArena`."""
        self.browsers = Browsers()
        self.judge = settings.judge
        self.addresses = settings.addresses
        self.page_characters = settings.page_characters
        self.services = settings.services
        self.step_s = step_s
        if settings.tasks:
            tasks = read_tasks(settings.tasks, self.addresses)
            self._all: Mapping[int, TaskFile] = {task.index: task for task in tasks}
            self.lists: Mapping[str, Sequence[int]] = task_lists(
                task for task in tasks if self.judge or not task.needs_judge
            )
            self.logins = storage_states(settings.logins, tasks)
            judge = f"judge-{_digest(self.judge.model)[:8]}" if self.judge else "nojudge"
            # The same tasks on another machine's copies of the sites are the same version.
            digest = _digest(self.addresses.unfilled(repr(tasks)))[:12]
            self.version = f"files-{digest}-{judge}"
        else:
            self._all = embedded_tasks()
            self.lists = (
                task_lists(embedded_tasks().values())
                | {name: tuple(some) for name, some in LISTS.items()}
                | dict(NO_ANSWER_LISTS)
            )
            self.version = VERSION
        if self.page_characters != PAGE_CHARACTERS:
            self.version += f"-page{self.page_characters}"

    def shop(self, index: int) -> int | None:
        """Return the number of the generated shop that the task uses, or None if it uses none."""
        return shop_of(index) if self.addresses.embedded else None

    def task(self, index: int) -> TaskFile:
        """Return the task of that index.

        Raises:
            TaskIndexError: The task does not exist, or it needs a judge and none is configured.
        """
        task = self._all.get(index) if self.shop(index) is None else drawn_task(index)
        if task is None:
            raise TaskIndexError(
                f"webarena has no task {index}; its tasks are {min(self._all, default=0)} to "
                f"{max(self._all, default=0)}"
            )
        if task.needs_judge and self.judge is None:
            raise TaskIndexError(
                f"task {index} needs a language model to judge its answer: set WEBARENA_JUDGE_URL "
                "to an endpoint that speaks OpenAI's chat "
                "completions, WEBARENA_JUDGE_MODEL and, if it needs one, WEBARENA_JUDGE_KEY"
            )
        return task

    def context_options(self, task: TaskFile) -> dict[str, Any]:
        """Return Playwright's options for a window of a task.

        On real sites its pages reach the task's hosts and the services, and nothing else.
        """
        options: dict[str, Any] = dict(CONTEXT)
        if not self.addresses.embedded:
            reached = [*self.addresses.hosts(task.sites), *self.services]
            options["proxy"] = {"server": self.browsers.gate.address, "bypass": ",".join(reached)}
            options["storage_state"] = self.logins.get(task.storage_state)
        if task.geolocation is not None:
            latitude, longitude = task.geolocation
            options |= {
                "geolocation": {"latitude": latitude, "longitude": longitude},
                "permissions": ["geolocation"],
            }
        return options

    def oracle(self, task: TaskFile) -> Oracle | None:
        """Return the task's oracle. None for tasks on sites that are not embedded."""
        moves = plan if self.shop(task.index) is None else drawn_plan
        return Oracle(moves(task.index), task.start_urls[0]) if self.addresses.embedded else None


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


class WebArena(World):
    """The world, see `World` and `Settings`.

    For its lists see `environments.webarena.tasks.task_lists`.

    Without settings it uses stand-ins: small embedded sites with tasks in WebArena's format. Their
    scores are not comparable with scores on WebArena's sites. With WEBARENA_TASKS it uses
    WebArena's task files on the real sites, see docs/webarena-sites.md.

    Attributes:
        stand_in: Description of the stand-in data. Empty if WebArena's own sites are used.
    """

    name = "webarena"
    tools = TOOLS
    blocking = True
    max_sessions = 64
    """Maximum windows per process. Each takes about 30 MB."""
    instruction = (
        "You use web sites to do what the objective asks for. Every message shows the part of the "
        "page that is in view as a list of "
        "elements, each with its number in brackets, then the address, the objective and your last "
        "action. "
        "Answer every message with one action, between triple backticks:\n"
        "click [id]: click on an element\n"
        "type [id] [text] [press_enter_after=0|1]: replace the text of a field; Enter is pressed "
        "afterwards unless the last is 0\n"
        "hover [id]: move the mouse over an element\n"
        "press [key_comb]: press keys, such as Control+a or ArrowDown\n"
        "scroll [down|up]: see the next or the previous part of the page\n"
        "new_tab, tab_focus [n], close_tab: open an empty tab, go to tab n, close the current one\n"
        "goto [url], go_back, go_forward: open an address, go back, go forward\n"
        "stop [answer]: end, when the task is done. If something was asked, give the answer in the "
        "brackets, as short as possible; if the "
        "task cannot be done, answer N/A."
    )

    def __init__(
        self, environment: Mapping[str, str] | None = None, *, step_s: float = STEP_S
    ) -> None:
        """Read the settings and the tasks. Browsers start on first use.

        Args:
            environment: Variables that configure the world. Default: the process's variables.
            step_s: Deadline of a step in seconds.

        Raises:
            WorldError: The configuration is invalid. The message names the variable or file.
        """
        settings = Settings.read(os.environ if environment is None else environment)
        self._shared = SharedSites(settings, step_s)
        self.version = self._shared.version
        self.stand_in = "" if settings.tasks else STAND_IN

    def create(self) -> WebArenaEnvironment:
        """Create a session, which must be reset before its first step."""
        return WebArenaEnvironment(self._shared)

    @property
    def lists(self) -> Mapping[str, Sequence[int]]:
        """All task lists of the configured tasks.

        Tasks that need a judge are left out without one.
        """
        return self._shared.lists

    def tag(self, index: int) -> str:
        """Return a task's sites, e.g. "gitlab reddit".

        For a task in a generated shop, return its kind, e.g. "information".
        """
        task = self._shared.task(index)
        return " ".join(task.sites) if self._shared.shop(index) is None else task.kind

    def close(self) -> None:
        """Stop the browsers."""
        self._shared.browsers.stop()
