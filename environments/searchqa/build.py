"""`python -m environments.searchqa.build`: build the corpus folder that SearchQA reads."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from environments.environment import WorldError

EXAMPLE = """\
examples:
  python -m environments.searchqa.build facts
  python -m environments.searchqa.build published --output data/wiki --corpus wiki-18.jsonl \\
      --questions nq-test=nq/test.jsonl hotpotqa-train=hotpot_train_v1.1.json
  SEARCHQA_DATA=data/wiki python -m environments serve searchqa
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m environments.searchqa.build",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="source", required=True)
    facts = commands.add_parser(
        "facts",
        help="the embedded questions, from facts of installed packages; servers also do this on first use",
    )
    facts.add_argument(
        "--output", type=Path, help="new folder (default: the folder that servers read)"
    )
    published = commands.add_parser(
        "published",
        help="a Wikipedia dump and published question sets",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    published.add_argument(
        "--output", type=Path, required=True, help="new folder; set SEARCHQA_DATA of servers to it"
    )
    published.add_argument(
        "--corpus",
        type=Path,
        required=True,
        help='passages: .jsonl or .jsonl.gz of {"id", "contents": "title\\ntext"}',
    )
    published.add_argument(
        "--questions",
        nargs="+",
        required=True,
        metavar="SET=FILE",
        help="nq-test, triviaqa-test, popqa-test, hotpotqa-test, 2wikimultihopqa-test, musique-test, bamboogle-test, nq-train or "
        "hotpotqa-train, each with its file as published by its authors or by FlashRAG; or test "
        "and train, with the merged parquet files of Search-R1",
    )
    published.add_argument(
        "--retriever",
        choices=("bm25", "dense"),
        default="bm25",
        help="how passages are found (default: %(default)s)",
    )
    published.add_argument(
        "--encoder",
        default="intfloat/e5-base-v2",
        help="dense: name or folder of the E5 model (default: %(default)s)",
    )
    published.add_argument(
        "--batch",
        type=int,
        default=256,
        help="dense: passages encoded per batch (default: %(default)s)",
    )
    published.add_argument(
        "--faiss-index",
        type=Path,
        help="dense: an existing FAISS index of the corpus, e.g. e5_Flat.index",
    )
    parsed = parser.parse_args(arguments)
    try:
        if parsed.output is not None and parsed.output.exists():
            parser.error(f"--output {parsed.output} exists; give another folder or remove this one")
        if parsed.source == "facts":
            from environments.searchqa.facts.cache import facts_corpus, facts_folder
            from environments.searchqa.settings import Settings

            if parsed.output is None:
                folder = facts_corpus(Settings.read().cache)
            else:
                from environments.searchqa.facts.build import build_facts

                facts_folder(parsed.output)  # reports missing packages
                folder = parsed.output
                build_facts(folder)
        else:
            from environments.searchqa.published import VectorSource, build_published, files_of_sets

            folder = parsed.output
            if parsed.retriever == "dense":
                vectors = VectorSource(parsed.encoder, parsed.batch, parsed.faiss_index)
            else:
                vectors = None
            build_published(folder, parsed.corpus, files_of_sets(parsed.questions), vectors)
    except WorldError as fault:
        sys.stderr.write(f"{fault}\n")
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
