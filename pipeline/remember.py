"""Holds a run to the values that it was started with: writes RUN/run.json, or compares them with it.

Values bind once there are policies made with them: a mistake in the first command is mended by the second. What differs is
said as flags, all of it at once.
"""

import json, os, shlex, sys

run, path, values = sys.argv[1], f"{sys.argv[1]}/run.json", dict(zip(sys.argv[2::2], sys.argv[3::2]))


def same(old, new):
    """Whether two values are one: 1e-3 is 0.001."""
    try:
        return old == new or float(old) == float(new)
    except (TypeError, ValueError):
        return False


def flags(name, value):
    """What of a command line is this value of run.json; a missing one is the program's own."""
    if name == "build":
        return f"the build {value}"
    if name.startswith("input "):
        return f"the weights {value} of {name[6:]}"
    if name.startswith("flags of "):
        flag, values = "--flags", [f"{name[9:]}={value}"]
    elif name == "stages":
        flag, values = "--stage", value.rstrip(";").split(";") if value else []
    else:
        flag = "--set" if name == "settings" else f"--{name.replace('_', '-')}"
        values = (value or "").split() if name in ("settings", "train", "policies") else [value]
    if value is None or not any(values):
        return f"no {flag}"
    return " ".join(f"{flag} {shlex.quote(one)}" for one in values)


if os.path.exists(f"{run}/policies/done") and os.path.exists(path):
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        before = json.load(file)
    names = [name for name in {**before, **values} if not same(before.get(name), values.get(name))]
    if names:
        old, new = (" ".join(flags(name, side.get(name)) for name in names) for side in (before, values))
        print(f"pipeline.sh: {run} was started with {old}, not with {new}\n"
              f"hint: {os.environ['TROUPE_CALLED']} --resume {shlex.quote(run)} goes on as it was started (--steps may grow); or choose another --run",
              file=sys.stderr)
        sys.exit(2)
else:
    with open(f"{path}.tmp", "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(json.dumps(values, indent=2, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.tmp", path)
