"""Holds a run to the values that it was started with: writes RUN/run.json, or compares them with it.

Values bind once there are policies made with them: a mistake in the first command is mended by the second.
"""

import json, os, sys

run, path, values = sys.argv[1], f"{sys.argv[1]}/run.json", dict(zip(sys.argv[2::2], sys.argv[3::2]))
if os.path.exists(f"{run}/policies/done") and os.path.exists(path):
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        before = json.load(file)
    for name in [*before, *values]:
        if before.get(name) != values.get(name):
            old, new = (json.dumps({name: side[name]})[1:-1] if name in side else f"no {name}" for side in (before, values))
            print(f"pipeline.sh: {run} was started with {old} and not {new}\n"
                  "hint: resume with the same values (--steps may grow), or choose another --run", file=sys.stderr)
            sys.exit(2)
else:
    with open(f"{path}.tmp", "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(json.dumps(values, indent=2, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.tmp", path)
