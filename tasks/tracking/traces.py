"""Store trajectories as MLflow traces, so that MLflow's trace page can show episodes.

The root span is the whole episode (agent), e.g. "textcraft 12: truncated after 6 turns, horizon".
Its children are "reset" (tool) and two spans per turn: "turn 3: craft 4 oak planks using 1 oak log"
(chat model) and "answer 3: Crafted 4 oak planks" (tool).

The assessments of a trace are "success", "score" and "refused_turns". An episode that failed for
infrastructure has none. A session holds the episodes of one task in a run.

The spans of many episodes are sent in one request, which takes 20 ms for an episode of 10 turns.
MLflow's tracer sends each span separately and takes 150 ms.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tasks.rollout.trajectory import Outcome, Trajectory, refused_share
from tasks.tracking.store import Store

if TYPE_CHECKING:
    from mlflow.entities import Assessment, Span

_NAME_LENGTH = 60  # maximum length of a span's name, in characters
# A policy may write NUL characters. PostgreSQL rejects such texts and everything after them.
_NO_NUL = "\N{REPLACEMENT CHARACTER}"
# Does not match an escaped backslash followed by "u0000".
_NUL_IN_JSON = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_AT_ONCE = 50  # episodes per request; MLflow links at most 100 traces at once


def sample_of(trajectories: Sequence[Trajectory], count: int) -> list[Trajectory]:
    """Return at most `count` trajectories that cover outcomes and tasks evenly.

    First each outcome that occurs is taken once, the rarest first. Then the task with the fewest
    samples is taken next, and within it the outcome with the fewest samples. Ties are broken by the
    order in the batch.
    """
    frequency = Counter(each.outcome for each in trajectories)
    outcomes: Counter[Outcome] = Counter()
    tasks: Counter[int] = Counter()
    left = list(enumerate(trajectories))
    sample: list[Trajectory] = []

    def rank(item: tuple[int, Trajectory]) -> tuple[bool, int, int, int, int]:
        place, each = item
        return (
            outcomes[each.outcome] > 0,
            tasks[each.task],
            outcomes[each.outcome],
            frequency[each.outcome],
            place,
        )

    while left and len(sample) < count:
        taken = min(left, key=rank)
        left.remove(taken)
        sample.append(taken[1])
        outcomes[taken[1].outcome] += 1
        tasks[taken[1].task] += 1
    return sample


def log_traces(
    store: Store,
    run_id: str,
    trajectories: Sequence[Trajectory],
    tags: Mapping[str, str],
    time: int,
) -> None:
    """Store trajectories as traces and link them to a run.

    The trace id is derived from the run and the episode. Trajectories that are already stored are
    skipped.

    Args:
        run_id: The run that they are linked to.
        trajectories: Any number of episodes.
        tags: Tags of all traces. Environment, task, step, horizon and outcome are added to each.
        time: Time at which they were recorded, in ms. The episodes end at this time.
    """
    from mlflow.entities.trace_state import TraceState
    from mlflow.tracing.client import TracingClient
    from mlflow.tracing.constant import TraceMetadataKey

    tracing, ended = TracingClient(store.uri), time * 1_000_000
    for begin in range(0, len(trajectories), _AT_ONCE):
        part = {
            _trace_number(run_id, each): each for each in trajectories[begin : begin + _AT_ONCE]
        }
        ids = [_trace_id(number) for number in part]
        stored = {trace.info.trace_id for trace in tracing.batch_get_traces(ids)}
        new = [(number, each) for number, each in part.items() if _trace_id(number) not in stored]
        tracing.log_spans(
            store.experiment_id,
            [span for number, each in new for span in _spans(number, each, tags, ended)],
        )
        episodes = {_trace_id(number): each for number, each in new}
        for trace in tracing.batch_get_traces(sorted(episodes)) if episodes else []:
            info, each = trace.info, episodes[trace.info.trace_id]
            if each.outcome in (Outcome.FINISHED, Outcome.TRUNCATED):
                # MLflow counts every root span without an error as a success. The state of the
                # trace itself takes precedence.
                info.state = TraceState.STATE_UNSPECIFIED
            info.trace_metadata[TraceMetadataKey.TRACE_SESSION] = (
                f"{run_id} {each.environment} {each.task}"
            )
            info.assessments = _assessments(info.trace_id, each)
            tracing.start_trace(info)
        store.client.link_traces_to_run(ids, run_id)


def _assessments(trace_id: str, trajectory: Trajectory) -> list[Assessment]:
    """Return what MLflow's evaluation pages show of an episode. Their ids do not change."""
    from mlflow.entities import AssessmentSource, Feedback

    t = trajectory
    if t.outcome is Outcome.FAILED:
        return []
    source = AssessmentSource("CODE", t.environment)
    values = {
        "success": t.outcome is Outcome.SUCCESS,
        "score": t.reward,
        "refused_turns": refused_share(t.turns),  # nan if the server does not report it
    }
    found: list[Assessment] = []
    for name, value in values.items():
        if math.isnan(value):
            continue
        feedback = Feedback(name, value, source=source, trace_id=trace_id)
        feedback.assessment_id = (
            f"a-{hashlib.sha256(f'{trace_id} {name}'.encode()).hexdigest()[:32]}"
        )
        found.append(feedback)
    return found


def _trace_number(run_id: str, trajectory: Trajectory) -> int:
    """Return a 128-bit id that is always the same for the same episode of a run."""
    t = trajectory
    identity = (
        run_id,
        t.environment,
        t.task,
        t.group,
        t.member,
        t.seed,
        t.horizon,
        t.policy_version,
    )
    return int.from_bytes(hashlib.sha256(repr(identity).encode()).digest()[:16], "big")


def _trace_id(number: int) -> str:
    return f"tr-{number:032x}"


def _spans(
    number: int, trajectory: Trajectory, tags: Mapping[str, str], ended: int
) -> Iterator[Span]:
    """Yield the spans of one episode, placed so that it ends at `ended` (ns).

    Uses the durations of the turns, not their start times.
    """
    from mlflow.entities import SpanType
    from mlflow.tracing.constant import SpanAttributeKey, TraceTagKey

    t = trajectory
    played = sum(turn.generate_seconds + turn.environment_seconds for turn in t.turns)
    begin = ended - _nanoseconds(max(t.seconds, played))
    title = f"{t.environment} {t.task}: {_ending(t)}"
    named = {
        **tags,
        "environment": t.environment,
        "task": str(t.task),
        "step": str(t.policy_version),
        "horizon": str(t.horizon),
        "outcome": str(t.outcome),
        TraceTagKey.TRACE_NAME: title,
    }
    yield _span(
        number,
        0,
        title,
        SpanType.AGENT,
        (begin, ended),
        {"task": t.task, "observation": t.first_observation},
        {"outcome": str(t.outcome), "reason": t.reason, "reward": t.reward, "turns": len(t.turns)},
        {
            **{SpanAttributeKey.TRACE_TAG_PREFIX + tag: value for tag, value in named.items()},
            **{
                name: getattr(t, name) for name in ("group", "member", "seed", "engine", "attempts")
            },
        },
        status=_status(t),
    )
    yield _span(
        number,
        1,
        "reset",
        SpanType.TOOL,
        (begin, begin),
        {"task": t.task},
        {"observation": t.first_observation},
        {},
    )
    observation, read, clock = t.first_observation, len(t.prompt), begin
    for i, turn in enumerate(t.turns):
        answered = clock + _nanoseconds(turn.generate_seconds)
        stepped = answered + _nanoseconds(turn.environment_seconds)
        yield _span(
            number,
            2 + 2 * i,
            f"turn {i + 1}: "
            f"{'no action can be read' if turn.malformed else _first_words(turn.action)}",
            SpanType.CHAT_MODEL,
            (clock, answered),
            {"messages": [{"role": "user", "content": observation}]},
            {
                "choices": [
                    {"message": {"role": "assistant", "content": turn.message or turn.action}}
                ]
            },
            {
                SpanAttributeKey.CHAT_USAGE: {
                    "input_tokens": read,
                    "output_tokens": len(turn.tokens),
                    "total_tokens": read + len(turn.tokens),
                },
                "log_probability": sum(turn.log_probabilities),
                "malformed": turn.malformed,
                "refused": turn.refused,
            },
        )
        answer = f"answer {i + 1}: {_first_words(turn.observation)}"
        yield _span(
            number,
            3 + 2 * i,
            answer,
            SpanType.TOOL,
            (answered, stepped),
            {"action": turn.action},
            {"observation": turn.observation, "reward": turn.reward},
            {},
        )
        observation = turn.observation
        read = read + len(turn.tokens) + len(turn.observation_tokens)
        clock = stepped


def _ending(trajectory: Trajectory) -> str:
    """Describe how an episode ended, e.g. "truncated after 6 turns, horizon"."""
    n = len(trajectory.turns)
    outcome = "no success" if trajectory.outcome is Outcome.FINISHED else str(trajectory.outcome)
    reason = f", {_first_words(trajectory.reason)}" if trajectory.reason else ""
    return f"{outcome} after {n} turn{'' if n == 1 else 's'}{reason}"


def _status(trajectory: Trajectory) -> tuple[str, str]:
    """Return the OpenTelemetry status and its message."""
    if trajectory.outcome is Outcome.FAILED:
        return "ERROR", trajectory.reason
    return ("OK" if trajectory.outcome is Outcome.SUCCESS else "UNSET"), ""


def _first_words(text: str) -> str:
    """Return the first non-empty line of a text, cut to the maximum length of a span name."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "(nothing)")
    return line if len(line) <= _NAME_LENGTH else f"{line[: _NAME_LENGTH - 3]}..."


def _span(
    trace: int,
    place: int,
    name: str,
    kind: str,
    times: tuple[int, int],
    inputs: Any,
    outputs: Any,
    attributes: Mapping[str, Any],
    status: tuple[str, str] = ("OK", ""),
) -> Span:
    """Create a finished span. `place` 0 is the root, all others are its children. Times in ns."""
    from mlflow.entities import Span
    from mlflow.tracing.constant import SpanAttributeKey
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

    def context(place: int) -> SpanContext:
        return SpanContext(
            trace, 1 + place, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)
        )

    written = {
        SpanAttributeKey.REQUEST_ID: _trace_id(trace),
        SpanAttributeKey.SPAN_TYPE: kind,
        SpanAttributeKey.INPUTS: inputs,
        SpanAttributeKey.OUTPUTS: outputs,
        **attributes,
    }
    return Span(
        ReadableSpan(
            name.replace("\0", _NO_NUL),
            context(place),
            parent=context(0) if place else None,
            resource=Resource.get_empty(),
            attributes={
                key: _NUL_IN_JSON.sub(rf"\1{_NO_NUL}", json.dumps(value, ensure_ascii=False))
                for key, value in written.items()
            },
            start_time=times[0],
            end_time=times[1],
            status=Status(StatusCode[status[0]], status[1].replace("\0", _NO_NUL) or None),
        )
    )


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
