"""Writes each part of stdin into the folder of its step: RUN/steps/NNNNNN/NAME, from STEP on. What is written goes on to stdout;
with `last` only the numbers of the steps whose `end` is ok.

    tee_steps.py RUN STEP NAME [last]
"""

import json, os, sys

run, step, name, last = sys.argv[1], int(sys.argv[2]), sys.argv[3], len(sys.argv) > 4
output, file = sys.stdout.buffer, None
try:
    for line in sys.stdin.buffer:
        file = file or open(f"{run}/steps/{step:06d}/{name}", "wb")
        file.write(line)
        if not last:
            output.write(line)
        if line.startswith(b"{\"type\":\"end\""):
            file.close()
            file = None
            if last and json.loads(line)["ok"]:
                output.write(b"%d\n" % step)
            output.flush()
            step += 1
except BrokenPipeError: # whoever went away says why
    os._exit(0)
except OSError as error:
    sys.exit(f"pipeline.sh: {error}")
