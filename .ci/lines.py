#!/usr/bin/env python3
"""lines.py: the lines of Rust of each crate (code, tests, comments and blank lines) against the limits of .ci/limits.tsv.

`lines.py --reset` writes the present counts, rounded up to the next 50, as limits. A commit that raises one names what left.
"""
import collections
import subprocess
import sys

LIMITS = ".ci/limits.tsv"


def git(*arguments):
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def count():
    """The lines of Rust in each folder that has a Cargo.toml with a package."""
    tracked = git("ls-files", "-z", "*.rs", "*Cargo.toml").split("\0")
    crates = sorted((path[:-len("/Cargo.toml")] for path in tracked if path.endswith("/Cargo.toml")), key=len, reverse=True)
    lines = collections.Counter()
    for path in tracked:
        if path.endswith(".rs"):
            try:
                with open(path, encoding="utf-8") as file:
                    lines[next((crate for crate in crates if path.startswith(f"{crate}/")), ".")] += len(file.read().splitlines())
            except FileNotFoundError:
                pass  # deleted, and not committed yet
    return lines


found = count()
assert sum(found.values()) > 50_000, "files are missing: run it in the top folder"
if sys.argv[1:] == ["--reset"]:
    with open(LIMITS, "w", encoding="utf-8") as file:
        file.write("crate\tlines\n" + "".join(f"{crate}\t{-(-lines // 50) * 50}\n" for crate, lines in sorted(found.items())))
with open(LIMITS, encoding="utf-8") as file:
    limits = {crate: int(lines) for crate, lines in (row.split("\t") for row in file.read().splitlines()[1:])}
wrong = [f"{crate} has {lines} lines of Rust, more than {limits.get(crate, 0)}" for crate, lines in sorted(found.items())
         if lines > limits.get(crate, 0)]
wrong += [f"{crate} is in {LIMITS} and has no Rust" for crate in limits if crate not in found]
print(f"{sum(found.values())} lines of Rust in {len(found)} crates, at most {sum(limits.values())}")
if wrong:
    print("\n".join(wrong), f"hint: remove as much as you add, or raise {LIMITS} and name in the commit what left", sep="\n", file=sys.stderr)
sys.exit(bool(wrong))
