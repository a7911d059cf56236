#!/usr/bin/env python3
"""slow_environment.py SECONDS [tasks|demo …]: Plan-Path for `--env-command` with a delay before each answer, to measure how far
`update` overlaps with a slow environment. Needs built programs, from ./pipeline.sh setup or in the folder TROUPE_BIN."""

import os
import subprocess
import sys
import time
from pathlib import Path

ENVS = Path(os.environ.get("TROUPE_BIN") or Path(__file__).resolve().parent.parent.parent / "target" / "release") / "envs"
if len(sys.argv) > 2:
    os.execv(ENVS, ["envs", sys.argv[2], "plan-path", *sys.argv[3:]])
child = subprocess.Popen([ENVS, "step", "plan-path"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
for request in sys.stdin.buffer:
    time.sleep(float(sys.argv[1]))
    child.stdin.write(request)
    child.stdin.flush()
    sys.stdout.buffer.write(child.stdout.readline())
    sys.stdout.buffer.flush()
