"""Run the benchmarks and print a table: `make bench`.

Each module of this folder with a function `run` is a benchmark. The function returns rows {name,
ours, other, ratio, low, high, unit}, where `low` and `high` bound the ratio. The rows are written
to results/bench.json. A run of some benchmarks keeps the other rows of the file. Output of
libraries on stderr goes to results/NAME.log.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parents[1] / "results" / "bench.json"


def benchmarks() -> list[str]:
    """Return the names of the benchmarks."""
    names = [
        module.name
        for module in pkgutil.iter_modules([str(FOLDER)])
        if not module.name.startswith("__")
    ]
    return [
        name
        for name in sorted(names)
        if "def run(" in (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    ]


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as a table. Rows without a baseline have no ratio."""
    header = ("benchmark", "ours", "other", "ratio", "unit")
    cells = [header]
    for row in rows:
        bounds = (
            f" [{row['low']:.2f}, {row['high']:.2f}]"
            if row.get("low") is not None and row.get("high") is not None
            else ""
        )
        ratio = f"{row['ratio']:.2f}{bounds}" if row.get("ratio") is not None else ""
        other = f"{row['other']:.4g}" if row.get("other") is not None else ""
        cells.append((str(row["name"]), f"{row['ours']:.4g}", other, ratio, str(row["unit"])))
    widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


@contextmanager
def errors_to(log: Path) -> Generator[None, None, None]:
    """Redirect stderr, including that of child processes, to a file until the block ends."""
    terminal = os.dup(2)
    try:
        with log.open("w", encoding="utf-8") as file:
            os.dup2(file.fileno(), 2)
            yield
    except Exception:
        os.write(terminal, f"failed, see {log}\n".encode())
        raise
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        os.close(terminal)


def main() -> None:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="Run benchmarks and compare this project with baselines.",
        epilog="example: python -m tests.benchmarks babyai",
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one of: {', '.join(benchmarks())} (default: all)"
    )
    chosen = parser.parse_args().names
    names = chosen or benchmarks()
    if unknown := set(names) - set(benchmarks()):
        parser.error(
            f"unknown benchmark {', '.join(sorted(unknown))}. Choose from {', '.join(benchmarks())}"
        )
    before: list[dict[str, Any]] = (
        json.loads(RESULTS.read_text(encoding="utf-8")) if chosen and RESULTS.exists() else []
    )
    rows: list[dict[str, Any]] = []
    RESULTS.parent.mkdir(mode=0o700, exist_ok=True)
    for name in names:
        print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
        began = time.monotonic()
        with errors_to(RESULTS.parent / f"{name}.log"):
            rows += importlib.import_module(f"tests.benchmarks.{name}").run()
        print(f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        measured = {row["name"] for row in rows}
        stored = sorted(
            [row for row in before if row["name"] not in measured] + rows,
            key=lambda row: str(row["name"]),
        )
        RESULTS.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
