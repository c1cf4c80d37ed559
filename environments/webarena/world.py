"""WebArena: tasks on web sites, done in a real browser and judged by what was answered, reached or changed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from environments.environment import EpisodeOverError, InvalidActionError, OracleError, Step, TaskIndexError
from environments.task_lists import named
from environments.webarena import RENAMED_TASK_LISTS, page_scripts
from environments.webarena.actions import Stop, parse_action
from environments.webarena.browser import Browsers, SiteUnreachableError
from environments.webarena.drawn_shops import ERRAND_LISTS, LISTS, drawn_plan, drawn_task, shop_of
from environments.webarena.evaluators import evaluate
from environments.webarena.observation import describe, observation
from environments.webarena.oracle import Oracle
from environments.webarena.page_parts import PAGE_CHARACTERS
from environments.webarena.possible_actions import possible_actions
from environments.webarena.reserve import Reserve
from environments.webarena.settings import Settings
from environments.webarena.sign_in import Logins, embedded_cookies
from environments.webarena.sites import gate
from environments.webarena.task_files import TaskFile, read_tasks
from environments.webarena.tasks import VERSION, embedded_tasks, plan, task_lists
from environments.webarena.window import CONTEXT, ImpossibleError, Window

RESET_S, STEP_S, EVALUATION_S = 120.0, 60.0, 180.0
"""Deadlines for the embedded sites and for real ones; a page that needs longer is cut off and its session ends with a fault."""
STAND_IN = "stand-ins on small sites of this package; docs/webarena-sites.md sets up WebArena's own sites and tasks"


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
            return Step(str(refused), 0.0, False, refused=True)
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
            return Step(str(impossible), 0.0, False, refused=True)
        except BaseException:
            self.close()
            raise
        return Step(self._last, 0.0, False)

    def valid_actions(self) -> list[str]:
        """Every link, button and field in view, and stopping with what a line of the page says; see `EnumerableEnvironment`.

        A field gets one of the words that the objective quotes or writes with a capital.
        """
        if self.task is None or self._window is None or self._window.seen is None:
            raise EpisodeOverError("no WebArena episode is in progress; reset first")
        return possible_actions(self._window.seen, self.task.intent)

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
            window = self._window = Window(opened.context, opened.close, world.addresses, hosts, world.page_characters)
            self._episode = browsers.gate.open(hosts, world.shop(task.index))
            await window.context.add_cookies(embedded_cookies(self._episode, task))  # type: ignore[arg-type]
            await window.open(task.start_urls, opened.tab)
            first = await self._observe(window, "None")
            world.reserve.refill()
            return first
        options: dict[str, Any] = dict(CONTEXT)
        if task.geolocation is not None:
            latitude, longitude = task.geolocation
            options |= {"geolocation": {"latitude": latitude, "longitude": longitude}, "permissions": ["geolocation"]}
        options["proxy"] = {"server": browsers.gate.address, "bypass": ",".join(hosts)}
        options["storage_state"] = world.logins.of(task)
        context, close = await browsers.open_context(**options)
        window = self._window = Window(context, close, world.addresses, hosts, world.page_characters)
        await context.add_init_script(page_scripts.STILL)
        await window.open(task.start_urls)
        return await self._observe(window, "None")

    async def _observe(self, window: Window, previous: str) -> str:
        seen = await window.look()
        if self._episode is not None and self._episode.fault is not None:
            raise SiteUnreachableError(f"a site failed: {self._episode.fault!r}"[:300]) from self._episode.fault
        url = self._world.addresses.to_shown(seen.url)
        return observation(window.parts.shown(seen.text), await window.titles(), window.front, url, self.objective, previous)


class WebArena:
    """The world; see `World` and `Settings`. `tasks` also knows the lists of `environments.webarena.tasks.task_lists`.

    Without settings it plays stand-ins: small sites that it hosts itself, with tasks of its own in WebArena's format. A score there
    cannot be compared with a score on WebArena's sites. With WEBARENA_TASKS it plays WebArena's task files on the real sites; see
    docs/webarena-sites.md.

    Attributes:
        stand_in: What stands in for WebArena's sites, "" where those are used themselves.
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
            WorldError: The configuration is wrong; the message says where.
        """
        settings = Settings.read(os.environ if environment is None else environment)
        self.browsers = Browsers()
        self.reserve = Reserve(self.browsers)
        self.judge = settings.judge
        self.addresses = settings.addresses
        self.page_characters = settings.page_characters
        self.step_s = step_s
        if settings.tasks:
            tasks = read_tasks(settings.tasks, self.addresses)
            self._all: Mapping[int, TaskFile] = {task.index: task for task in tasks}
            self._lists = task_lists(task for task in tasks if self.judge or not task.needs_judge)
            self.logins = Logins(settings.logins, tasks)
            self.stand_in = ""
            self.version = f"files-{sha256(repr(tasks).encode()).hexdigest()[:12]}"
        else:
            self._all = embedded_tasks()
            self._lists = task_lists(embedded_tasks().values()) | {name: tuple(some) for name, some in LISTS.items()} | dict(ERRAND_LISTS)
            self.stand_in = STAND_IN
            self.version = VERSION
        if self.page_characters != PAGE_CHARACTERS:
            self.version += f"-page{self.page_characters}"

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
        """The sites that task `index` begins on, e.g. "gitlab reddit"; in a drawn shop what is asked for, e.g. "information"."""
        task = self.task(index)
        return " ".join(task.sites) if self.shop(index) is None else task.kind

    def shop(self, index: int) -> int | None:
        """The number of the drawn shop that the task is done in; None if it is not in one."""
        return shop_of(index) if self.addresses.embedded else None

    def task(self, index: int) -> TaskFile:
        """The task of that index.

        Raises:
            TaskIndexError: There is none, or it needs a judge and none is configured.
        """
        task = self._all.get(index) if self.shop(index) is None else drawn_task(index)
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
        moves = plan if self.shop(task.index) is None else drawn_plan
        return Oracle(moves(task.index), task.start_urls[0]) if self.addresses.embedded else None
