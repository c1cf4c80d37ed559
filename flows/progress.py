"""Progress of a flow: a bar on a terminal or one line per step, and the flow run's page."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Self

from tqdm import tqdm

from tasks.training.messages import Event, Progress, StepDone

LOG_SECONDS = 10.0
"""Minimum time between two step lines in the log on the flow run's page."""
DETAIL_SECONDS = 20.0
"""Minimum time between two lines about one activity, without a terminal."""


def on_terminal() -> bool:
    """Return whether stderr is a terminal. In a log file, a redrawn bar would leave fragments."""
    return sys.stderr.isatty()


class Details:
    """The progress of one activity without a terminal: a line from time to time."""

    def __init__(self) -> None:
        self._shown_at = time.monotonic()

    def __call__(self, line: str) -> None:
        """Print a line, unless the last one or the start was less than DETAIL_SECONDS ago."""
        if time.monotonic() - self._shown_at >= DETAIL_SECONDS:
            self._shown_at = time.monotonic()
            say(line)


class RunBar:
    """The training steps of a run, and its current activity."""

    def __init__(
        self,
        steps: int,
        log: Callable[[str], object] = lambda _: None,
        page: Callable[[int, str], object] = lambda _step, _line: None,
    ) -> None:
        """
        Args:
            steps: Total number of training steps of the run.
            log: Takes the lines that also go to the flow run's page.
            page: Takes the number of finished steps and a line about the last one, for the bar on
                that page.
        """
        self._steps = steps
        self._log = log
        self._page = page
        self._logged_at = float("-inf")
        self._figures = ""
        self._now = ""
        self._details = Details()
        self._terminal = on_terminal()
        self._bar = tqdm(
            total=steps,
            unit="step",
            desc="training",
            dynamic_ncols=True,
            file=sys.stderr,
            mininterval=0.2,
            smoothing=0.1,
            disable=not self._terminal,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def done_before(self, step: int) -> None:
        """Set the bar to the step that an earlier run of the command has reached."""
        self._page(step, f"step {step}/{self._steps}, from the checkpoint")
        if self._terminal:
            self._bar.n = self._bar.initial = step
            self._bar.refresh()

    def doing(self, what: str) -> None:
        """Show the current activity."""
        if what == self._now:
            return
        self._now = what
        if self._terminal:
            self._bar.set_description(what)
        else:
            self._details = Details()
            say(what)
        self._log(what[:1].upper() + what[1:])

    def detail(self, what: str) -> None:
        """Show the progress of the current activity."""
        if self._terminal:
            self._bar.set_description(what)
        else:
            self._details(what)

    def training(self, what: str) -> None:
        """Show what is being trained now.

        The time since the last step was spent on other work and is excluded from the estimated time
        left.
        """
        self.doing(what)
        if self._terminal:
            self._bar.unpause()

    def show(self, event: Event) -> None:
        """Show an event of the trainer."""
        if isinstance(event, Progress):
            self._bar.set_postfix_str(f"{self._figures}episode {event.finished}/{event.all}")
        elif isinstance(event, StepDone):
            line = step_line(event, self._steps)
            self._page(event.step, line)
            figures = line.partition(": ")[2]
            self._figures = f"{figures}, " if figures else ""
            if self._terminal:
                self._bar.set_postfix_str(figures)
                self._bar.update(event.step - self._bar.n)
            else:
                say(line)
            if event.step == self._steps or time.monotonic() - self._logged_at >= LOG_SECONDS:
                self._logged_at = time.monotonic()
                self._log(f"{self._now}, {line}")

    def close(self) -> None:
        """Stop the bar and leave it on the screen. A second call does nothing."""
        self._bar.close()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self._terminal:
            self._bar.write(text, file=sys.stderr)
        else:
            say(text)
        self._log(text)


class EpisodeBar:
    """The episodes of a collection."""

    def __init__(self, episodes: int, before: int, name: str = "") -> None:
        """
        Args:
            episodes: Total number of episodes.
            before: Number of episodes already on disk.
            name: Name of the collection, if there are several.
        """
        self._name = name
        self._all = episodes
        self._done = before
        self._terminal = on_terminal()
        self._bar = tqdm(
            total=episodes,
            initial=before,
            unit="episode",
            desc=name or None,
            dynamic_ncols=True,
            file=sys.stderr,
            disable=not self._terminal or before == episodes,
        )

    def finished(self, figures: str) -> None:
        """Count one episode and show `figures`.

        Without a terminal, print a line at every 10 % of the total.
        """
        self._done += 1
        self._bar.set_postfix_str(figures, refresh=False)
        self._bar.update()
        if not self._terminal and 10 * self._done // self._all > 10 * (self._done - 1) // self._all:
            name = f"{self._name}: " if self._name else ""
            say(f"{name}episode {self._done}/{self._all}, {figures}")

    def close(self) -> None:
        """Stop the bar and leave it on the screen."""
        self._bar.close()


def step_line(event: StepDone, steps: int) -> str:
    """Return a training step in one line, e.g. "step 3/40: success 31 %, 9.1 turns, 5.2 s"."""
    metrics, figures = event.metrics, []
    if "rollout/success" in metrics:  # imitation methods may play no episodes
        figures = [
            f"success {metrics['rollout/success']:.0%}",
            f"{metrics['rollout/turns']:.1f} turns",
        ]
    seconds = sum(
        metrics.get(name, 0.0) for name in ("rollout/seconds", "update/seconds", "sync/seconds")
    )
    return f"step {event.step}/{steps}: {', '.join([*figures, f'{seconds:.1f} s'])}"


def say(line: str) -> None:
    """Print a line about the progress."""
    print(line, file=sys.stderr, flush=True)
