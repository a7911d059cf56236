"""Writes each part of stdin into the folder of its step: RUN/steps/NNNNNN/NAME, from STEP on. What is written goes on to stdout.

    tee_steps.py RUN STEP NAME [TASKS]

With TASKS, the pipe that tasks go into, stdout gets only the numbers of the steps whose `end` is ok, and the next step begins at once
where RUN/tasks.next holds its tasks: they become the step's, and go into the pipe without their `end`. So it cannot end, nor
anything be published, before the step is accounted for.
"""

import contextlib, json, os, sys

run, step, name, tasks = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
# Buffers as large as a pipe: Python's default of 8 KiB would wake the process at the other end eight times as often.
lines, output, file = open(0, "rb", 1 << 16), open(1, "wb", 1 << 16), None


def begin(step, pipe):
    """Begins a step whose tasks are ready; the word that says so."""
    folder = f"{run}/steps/{step:06d}"
    if not os.path.exists(f"{run}/tasks.next"):
        return b""
    os.makedirs(folder, exist_ok=True)
    os.rename(f"{run}/tasks.next", f"{folder}/tasks.jsonl")
    with open(f"{folder}/tasks.jsonl", "rb") as drawn, contextlib.suppress(OSError): # where nobody reads, pipeline.sh says why
        with open(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK), "wb") as entry:
            os.set_blocking(entry.fileno(), True)
            entry.writelines(drawn.readlines()[:-1])
    return b" ahead"


try:
    for line in lines:
        file = file or open(f"{run}/steps/{step:06d}/{name}", "wb", 1 << 20)
        file.write(line)
        if not tasks:
            output.write(line)
        if line.startswith(b"{\"type\":\"end\""):
            file.close()
            file = None
            if tasks and json.loads(line)["ok"]:
                output.write(b"%d%s\n" % (step, begin(step + 1, *tasks)))
            output.flush()
            step += 1
except BrokenPipeError: # whoever went away says why
    os._exit(0)
except OSError as error:
    sys.exit(f"pipeline.sh: {error}")
