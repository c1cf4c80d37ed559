"""Timeline of one training step: engine, environments and trainer, and every episode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import duckdb

from dashboards.figures import BLUE, COLOURS, GREEN, GREY, ORANGE, PURPLE, Figure, figure
from dashboards.index import Index
from dashboards.run_folders import RunFolder
from tasks.tracking.timeline import TIMELINE, Span, read_spans

READ = """
select "group", member, began, seconds,
    list_transform(turns, lambda t: [t.began, t.generate_seconds, t.environment_seconds, t.policy_version]) as turns
from read_parquet(?) where began > 0 order by began
"""
MAX_EPISODES = 200
"""Maximum number of episodes drawn one by one. The lanes above include all episodes."""
PARTS = {
    "update": ("update", ORANGE),
    "sync": ("weight sync", PURPLE),
    "checkpoint": ("checkpoint", GREY),
    "evaluation": ("evaluation", GREEN),
}
CURRENT, WAITING = "generation, current weights", "waiting for the environment"
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """Times of a turn, in seconds since 1970, and the training step of the weights behind it.

    Attributes:
        number: Turn number, from 1.
        began: Start of the generation.
        written: End of the generation.
        answered: Time of the observation.
        weights: Training step of the policy's weights.
    """

    number: int
    began: float
    written: float
    answered: float
    weights: int


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """Times of an episode, in seconds since 1970.

    Attributes:
        step: Training step, from 1, that trains on the episode.
        member: Index within the group.
    """

    step: int
    group: int
    member: int
    began: float
    ended: float
    turns: list[PlayedTurn]


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """Everything that happened during a training step.

    Attributes:
        step: The step, from 1.
        window: Its start and end, in seconds since 1970.
        spans: Activities of the trainer.
        episodes: The episodes of this step. With off-policy collection, also episodes of later
            steps that started within the window.
    """

    step: int
    window: Interval
    spans: list[Span]
    episodes: list[PlayedEpisode]

    def busy_shares(self) -> dict[str, float]:
        """Return the fraction of the step in which engine, environments and trainer were busy.

        The activities overlap, so the fractions need not add up to 1.
        """
        turns = [turn for episode in self.episodes for turn in episode.turns]
        return {
            "engine": self._share((turn.began, turn.written) for turn in turns),
            "environments": self._share((turn.written, turn.answered) for turn in turns),
            "trainer": self._share((span.began, span.ended) for span in self.spans),
        }

    def max_staleness(self) -> int:
        """Return the largest staleness of the weights behind this step's turns, in steps."""
        return max(
            (
                self.step - 1 - t.weights
                for e in self.episodes
                if e.step == self.step
                for t in e.turns
            ),
            default=0,
        )

    def _share(self, intervals: Iterable[Interval]) -> float:
        begin, end = self.window
        clipped = [(max(a, begin), min(b, end)) for a, b in intervals if b > begin and a < end]
        return covered(clipped) / (end - begin) if end > begin else 0.0


def step_timeline(index: Index, run: RunFolder, step: int) -> StepTimeline | None:
    """Read the times of a step. None if the step has no turn with a time."""
    spans = [span for span in read_spans(run.path / TIMELINE) if span.step == step]
    ahead = int(run.field("rollout.max_off_policy_steps", 0))
    own = list(_episodes(index, run, step))
    if not own:
        return None
    begins = [span.began for span in spans] or [episode.began for episode in own]
    ends = [span.ended for span in spans if span.part != "evaluation"] or [
        episode.ended for episode in own
    ]
    window = min(begins), max(ends)
    later = [
        episode
        for each in range(step + 1, step + ahead + 1)
        for episode in _episodes(index, run, each)
        if episode.began < window[1]
    ]
    work = [span for span in spans if span.part in PARTS and span.began < window[1]]
    return StepTimeline(step, window, work, [*own, *later])


def covered(intervals: Sequence[Interval]) -> float:
    """Return the length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def timeline_figure(timeline: StepTimeline) -> Figure:
    """Draw the activities of engine, environments and trainer over a step.

    Below them each episode has a row, coloured by the staleness of the weights of its turns.
    """
    zero = timeline.window[0]
    turns = [turn for episode in timeline.episodes for turn in episode.turns]
    data = [
        _in_flight(
            [(t.began - zero, t.written - zero) for t in turns],
            "engine: messages in generation",
            BLUE,
            "y4",
        ),
        _in_flight(
            [(t.written - zero, t.answered - zero) for t in turns],
            "environments: pending actions",
            GREEN,
            "y3",
        ),
        *_trainer(timeline, zero),
        *_gantt(timeline, zero),
    ]
    layout = {
        "barmode": "overlay",
        "xaxis": {
            "title": {"text": "seconds since the start of the step"},
            "anchor": "y",
            "range": [0, timeline.window[1] - zero],
        },
        "yaxis": {
            "title": {"text": "episodes"},
            "domain": [0, 0.46],
            "showticklabels": False,
            "zeroline": False,
        },
        "yaxis2": {"domain": [0.5, 0.58], "showticklabels": False, "title": {"text": "trainer"}},
        "yaxis3": {
            "domain": [0.62, 0.78],
            "title": {"text": "environments"},
            "rangemode": "tozero",
        },
        "yaxis4": {"domain": [0.82, 1], "title": {"text": "engine"}, "rangemode": "tozero"},
        "height": 660,
        "hovermode": "closest",
    }
    return figure(data, layout)


def _episodes(index: Index, run: RunFolder, step: int) -> Iterator[PlayedEpisode]:
    path = run.path / "rollouts" / f"step-{step:06d}.parquet"
    if not path.is_file():
        return
    try:
        rows = index.query(READ, [str(path)])
    except duckdb.Error:  # written by a version without times
        return
    for row in rows:
        turns = [
            PlayedTurn(n, a, a + g, a + g + e, int(v))
            for n, (a, g, e, v) in enumerate(row["turns"], 1)
        ]
        yield PlayedEpisode(
            step, row["group"], row["member"], row["began"], row["began"] + row["seconds"], turns
        )


def _in_flight(intervals: Sequence[Interval], name: str, colour: str, axis: str) -> dict[str, Any]:
    changes = sorted([(begin, 1) for begin, _ in intervals] + [(end, -1) for _, end in intervals])
    counts = accumulate(change for _, change in changes)
    return {
        "type": "scatter", "mode": "lines", "name": name, "x": [round(at, 4) for at, _ in changes], "y": list(counts), "yaxis": axis,
        "line": {"shape": "hv", "color": colour, "width": 1}, "fill": "tozeroy",
    }  # fmt: skip


def _trainer(timeline: StepTimeline, zero: float) -> Iterator[dict[str, Any]]:
    for part, (words, colour) in PARTS.items():
        spans = [span for span in timeline.spans if span.part == part]
        if spans:
            yield {
                "type": "bar", "orientation": "h", "name": f"trainer: {words}", "yaxis": "y2", "marker": {"color": colour},
                "base": [span.began - zero for span in spans], "x": [span.ended - span.began for span in spans], "y": [0] * len(spans),
                "width": 0.8, "hovertemplate": f"{words}: %{{x:.2f}} s<extra></extra>",
            }  # fmt: skip


def _gantt(timeline: StepTimeline, zero: float) -> Iterator[dict[str, Any]]:
    """Yield one row per episode.

    Generation is coloured by the age of the weights, waiting for the environment in green.
    """
    drawn = sorted(timeline.episodes, key=lambda episode: episode.began)[:MAX_EPISODES]
    segments: dict[str, list[tuple[float, float, int, str]]] = {}
    for place, episode in enumerate(drawn):
        for turn in episode.turns:
            age = episode.step - 1 - turn.weights
            words = CURRENT if age <= 0 else f"generation, weights {age} step{'s' * (age > 1)} old"
            about = f"group {episode.group}.{episode.member}, turn {turn.number}"
            segments.setdefault(words, []).append(
                (turn.began - zero, turn.written - zero, place, f"{about}: {words}")
            )
            segments.setdefault(WAITING, []).append(
                (turn.written - zero, turn.answered - zero, place, about)
            )
    ages = (colour for colour in COLOURS if colour not in (GREEN, BLUE))
    for words in sorted(segments, key=lambda each: (each == WAITING, each != CURRENT, each)):
        colour = GREEN if words == WAITING else BLUE if words == CURRENT else next(ages, GREY)
        rows = segments[words]
        yield {
            "type": "scatter", "mode": "lines", "name": words, "line": {"color": colour, "width": 3}, "connectgaps": False,
            "x": [x for a, b, _, _ in rows for x in (round(a, 4), round(b, 4), None)],
            "y": [y for _, _, place, _ in rows for y in (place, place, None)],
            "text": [t for _, _, _, about in rows for t in (about, about, None)], "hoverinfo": "text",
        }  # fmt: skip
