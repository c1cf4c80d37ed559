"""Peak memory of a real update, as recorded by torch's profiler.

As a program it measures one rank of a sharded model, and the main process writes FOLDER/peak:

    torchrun --nproc_per_node N -m tests.support.measured_update POLICY FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from configs.launch import Sharding
from tests.support.recorded import (
    RecordedBatches,
    recorded_trajectories,
    small_experiment,
    train,
    trainer_of,
)

LENGTH, ROWS = 384, 4
"""Length in tokens and number of the trajectories in a process's only micro-batch."""


def measured_peak(
    policy: str, folder: Path, lora: dict[str, int] | None = None, sharding: Sharding = "none"
) -> int:
    """Return the peak of allocated bytes during the second training step.

    The first step creates the optimiser's state.
    """
    experiment = small_experiment(
        lora,
        name="grpo",
        steps=2,
        mini_batches=1,
        micro_batches=1,
        kl_coefficient=0.1,
        kl_in="loss",
    )
    batch = [t for t in recorded_trajectories(policy, 0) if t.group == 0]
    assert len(batch) == ROWS
    for t in batch:
        t.prompt = [1] * (LENGTH - len(t.completion))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        trainer = trainer_of(experiment, policy, folder, sharding=sharding)
        train(trainer, RecordedBatches(policy, batch=batch), 1)
        with record_function("second step"):
            train(trainer, RecordedBatches(policy, batch=batch), 2, 1)
    return _peak_bytes(measured, "second step")


def _peak_bytes(measured: Any, name: str) -> int:
    """Return the peak of allocated bytes from the start of the event `name`."""
    from torch._C._profiler import _EventType

    events: list[Any] = []
    rest = list(measured.profiler.kineto_results.experimental_event_tree())
    while rest:
        events.append(rest.pop())
        rest += events[-1].children
    (phase,) = [event for event in events if event.name == name]
    sizes = [
        e.extra_fields.total_allocated
        for e in events
        if e.tag == _EventType.Allocation and e.start_time_ns >= phase.start_time_ns
    ]
    return max(sizes)


def main(policy: str, folder: Path) -> None:
    """Measure the peak of one rank, and write that of the main process."""
    from tasks.training.process_group import join

    processes = join(small_experiment(name="grpo"), folder)
    peak = measured_peak(policy, folder / "run", sharding="fsdp2")
    if processes.is_main_process:
        (folder / "peak").write_text(str(peak))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
