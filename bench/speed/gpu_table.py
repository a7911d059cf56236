#!/usr/bin/env python3
"""gpu_table.py [--check] [DOCUMENT] [FIGURES]: writes the table of GPU figures in docs/benchmarks.md, from bench/speed/gpu.tsv.

Writes the newest figure of each row between the document's two markers. With --check it only compares, and exits with 1 if
the document differs.
"""

import argparse
import csv
import pathlib
import sys

BEGIN, END = "<!-- by bench/speed/gpu_table.py -->", "<!-- end of the table -->"
DECODE = "decode, context {context}, batch {batch}, {sharing} share a prompt"
# The table's labels, each with the rows of the figures whose values it shows.
ROWS = [
    (
        "decode, context 1,536, 1; 4; 16; 64; 256 sequences, tokens/s",
        [
            f"decode-few:1.7B/1.7B: {DECODE.format(context=1536, batch=1, sharing=1)}",
            f"decode-few:1.7B/1.7B: {DECODE.format(context=1536, batch=4, sharing=1)}",
            f"decode-few:1.7B/1.7B: {DECODE.format(context=1536, batch=16, sharing=1)}",
            f"decode:1.7B/1.7B: {DECODE.format(context=1536, batch=64, sharing=1)}",
            f"decode:1.7B/1.7B: {DECODE.format(context=1536, batch=256, sharing=1)}",
        ],
    ),
    (
        "the same, four sequences per prompt, 64; 256",
        [f"decode:1.7B/1.7B: {DECODE.format(context=1536, batch=batch, sharing=4)}" for batch in (64, 256)],
    ),
    ("prefill, tokens/s", ["decode:1.7B/1.7B: prefill, context 1536"]),
    (
        "a rollout of two turns, 16; 64 episodes of four candidates, tokens/s of the model's time",
        [f"rollout:1.7B/1.7B: {episodes} episodes, two turns: sampled, of the model's time" for episodes in (16, 64)],
    ),
    (
        "forward and backward, 8 answers of 512 tokens to prompts of 4,096, s",
        ["train:1.7B/1.7B, 4096,512,8: a micro-batch"],
    ),
    ("the same, 4 answers of 1,024 tokens to prompts of 1,024, s", ["train:1.7B/1.7B, 1024,1024,4: a micro-batch"]),
]


def newest(path):
    """The last line of each row, among builds that gpu_visit.sh packed (their commits have twelve digits). Other lines were
    measured only for comparison."""
    with open(path, encoding="utf-8") as file:
        lines = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {line["row"]: line for line in lines if len(line["commit"]) == 12}


def value(line):
    number = float(line["value"])
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def share(lines):
    shares = [line["share"].split(" %")[0] for line in lines]
    return "; ".join(shares) + " %" if all(shares) else ""


def table(figures):
    lines = ["| what | ours | share of the roofline | commit |", "|---|---|---|---|"]
    for what, rows in ROWS:
        found = [figures[row] for row in rows]
        commits = dict.fromkeys(line["commit"] for line in found)
        lines.append(f"| {what} | {'; '.join(map(value, found))} | {share(found)} | {', '.join(commits)} |")
    return "\n".join(lines)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser = argparse.ArgumentParser(description="The table of GPU figures in docs/benchmarks.md.")
    parser.add_argument("--check", action="store_true", help="only say whether the document has the newest figures")
    parser.add_argument("document", nargs="?", type=pathlib.Path, default=root / "docs/benchmarks.md")
    parser.add_argument("figures", nargs="?", type=pathlib.Path, default=root / "bench/speed/gpu.tsv")
    arguments = parser.parse_args()
    text = arguments.document.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise SystemExit(f"gpu_table.py: {arguments.document}: no marks {BEGIN} and {END}")
    before, rest = text.split(BEGIN, 1)
    wanted = f"{before}{BEGIN}\n{table(newest(arguments.figures))}\n{END}{rest.split(END, 1)[1]}"
    if not arguments.check:
        arguments.document.write_text(wanted, encoding="utf-8")
    elif wanted != text:
        raise SystemExit(f"gpu_table.py: {arguments.document} has other figures than {arguments.figures}\nhint: bench/speed/gpu_table.py")


if __name__ == "__main__":
    sys.exit(main())
