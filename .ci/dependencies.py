#!/usr/bin/env python3
"""dependencies.py: what .cargo/deny.toml allows, checked from `cargo metadata`, without a network and without cargo-deny.

Every linked crate comes from crates.io, has a license of the list (an SPDX expression that the list satisfies), is not
banned, and is named with a version. cargo-deny reads the same file; it takes longer to build than Troupe.
"""
import json
import os
import re
import subprocess
import sys

os.chdir(f"{os.path.dirname(os.path.abspath(__file__))}/..")
rules = open(".cargo/deny.toml", encoding="utf-8").read()
allowed, banned = (re.findall(r'"([^"]+)"', re.search(rf"^{name} = \[(.*?)\]", rules, re.M | re.S)[1]) for name in ("allow", "deny"))


def meets(expression):
    """True if the allowed licenses satisfy an SPDX expression; `/` is the old spelling of OR, and an exception only permits more."""
    words = re.findall(r"[()]|[^\s()]+", re.sub(r" WITH \S+", "", expression).replace("/", " OR "))
    return eval(" ".join({"OR": "or", "AND": "and", "(": "(", ")": ")"}.get(word) or str(word in allowed) for word in words))


for fine in ("MIT", "GPL-3.0 OR MIT", "MIT/GPL-3.0", "(GPL-3.0 OR MIT) AND Apache-2.0", "Apache-2.0 WITH LLVM-exception"):
    assert meets(fine), fine
for bad in ("GPL-3.0", "MIT AND GPL-3.0", "(MIT OR GPL-3.0) AND AGPL-3.0", "none"):
    assert not meets(bad), bad
host = re.search("host: (.*)", subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout)[1]
command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host]
packages = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["packages"]
assert len(packages) > 50, len(packages)
wrong = []
for package in packages:
    name, source = package["name"], package["source"]
    if not meets(package["license"] or "none"):
        wrong.append(f"{name}: license {package['license']}")
    if source not in (None, "registry+https://github.com/rust-lang/crates.io-index"):
        wrong.append(f"{name}: from {source}")
    if name in banned:
        wrong.append(f"{name}: banned by .cargo/deny.toml")
    if source is None:
        wrong += [f"{name}: {dependency['name']} has no version" for dependency in package["dependencies"]
                  if dependency["req"] == "*" and not dependency.get("path")]
print("\n".join(wrong) if wrong else f"{len(packages)} packages: licenses, sources and bans are as .cargo/deny.toml allows")
sys.exit(bool(wrong))
