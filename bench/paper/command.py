"""The command line that the scripts of this folder have in common: run, table, page, list."""

import argparse
import sys
from pathlib import Path

import tables
from lab import MARKS, SEEDS, Lab, replace_model, shrink


def main(text, plan, sections):
    """`plan` is what to run; `sections(lab, seeds)` yields (heading, Markdown)."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table", "page", "list"],
                        help="run: train what is missing, then print the table; table: print what is there;"
                             " page: draw what is there, one report of all runs; list: the cells")
    parser.add_argument("--root", default="runs/experiments", help="where the runs are [default: %(default)s]")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at once, each on one processor [default: 1]")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), metavar="S,S", help="[default: %(default)s]")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the cell WORLD/NAME, or those with this in their name")
    parser.add_argument("--part", type=float, default=1, choices=MARKS, metavar="P",
                        help="train and compare at this part of the token budget (1/16, 1/8, … as a decimal); a greater part"
                             " goes on from there [default: 1]")
    parser.add_argument("--small", action="store_true", help="cells of seconds, to see that everything runs: their numbers show nothing")
    parser.add_argument("--model", metavar="SOURCE",
                        help="another pretrained model where the table has one, computed in bfloat16, as `pipeline.sh --model` takes it;"
                             " give it a --root of its own")
    arguments = parser.parse_args()
    if arguments.model:
        replace_model(arguments.model)
    if arguments.small:
        shrink()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    named = [cell for cell in plan.cells if arguments.only == f"{cell.place}/{cell.name}"]
    plan.cells = named or [cell for cell in plan.cells if arguments.only in f"{cell.place}/{cell.name}"]
    lab = Lab(arguments.root, part=arguments.part)
    if arguments.what == "list":
        for cell in plan.cells:
            there = [str(seed) for seed in seeds if tables.final(lab, cell, seed)]
            print(f"{cell.place}/{cell.name}: {cell.title}; budget {cell.budget} tokens; done: {', '.join(there) or 'none'}")
        return 0
    if arguments.what == "page":
        return page(lab, [lab.directory(cell, seed) for cell in plan.cells for seed in seeds if tables.final(lab, cell, seed)])
    failed = plan.work(arguments.root, arguments.jobs, seeds, arguments.part) if arguments.what == "run" else []
    for heading, body in sections(lab, seeds):
        print(f"\n{heading}\n\n{body}")
    for title in failed:
        print(f"failed: {title}", file=sys.stderr)
    return 1 if failed else 0


def page(lab, runs):
    """One page about finished runs: the curves of the table, seeds of a method as mean and spread, and sampled episodes."""
    if not runs:
        print(f"{Path(sys.argv[0]).name}: no run is finished\nhint: {sys.argv[0]} run trains them", file=sys.stderr)
        return 1
    file = lab.root / f"{Path(sys.argv[0]).stem}.html"
    lab.run(["report", *runs, "--html", file])
    return 0
