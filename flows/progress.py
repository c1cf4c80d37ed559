"""What a person sees while a run goes on: one bar over the training steps, one line for each thing that is finished."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from tqdm import tqdm

from tasks.training.messages import Event, Progress, StepDone


class RunBar:
    """A progress bar over the training steps of a run."""

    def __init__(self, steps: int) -> None:
        """`steps` is the number of all training steps of the run."""
        self._bar = tqdm(total=steps, unit="step", desc="training", dynamic_ncols=True, file=sys.stderr, mininterval=0.2, smoothing=0.1)
        self._figures = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def done_before(self, step: int) -> None:
        """Sets the bar to a step that a former run of the command has reached."""
        self._bar.n = self._bar.initial = step
        self._bar.refresh()

    def doing(self, what: str) -> None:
        """Says what is being done now."""
        self._bar.set_description(what)

    def training(self, what: str) -> None:
        """Says what is trained now; the time since the last step, in which other things were done, does not count for the forecast."""
        self.doing(what)
        self._bar.unpause()

    def show(self, event: Event) -> None:
        """Shows an event of the trainer."""
        if isinstance(event, Progress):
            self._bar.set_postfix_str(f"{self._figures}episode {event.finished}/{event.all}")
        elif isinstance(event, StepDone):
            metrics = event.metrics
            if "rollout/success" in metrics:  # sft and dpo play nothing
                self._figures = f"success {metrics['rollout/success']:.0%}, {metrics['rollout/turns']:.1f} turns, "
            self._bar.set_postfix_str(self._figures.rstrip(", "))
            self._bar.update(event.step - self._bar.n)

    def close(self) -> None:
        """Leaves the bar as it is; a second call does nothing."""
        self._bar.close()

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        self._bar.write(text, file=sys.stderr)
