"""Writes each part of stdin into the folder of its step: RUN/steps/NNNNNN/NAME, from STEP on. What is written goes on to stdout.

    tee_steps.py RUN STEP NAME [TASKS]

With TASKS, the pipe that tasks go into, stdout gets only the numbers of the steps whose `end` is ok, and the next step begins at once
where RUN/tasks.next holds its tasks: they become the step's, and go into the pipe without their `end`. So it cannot end, nor
anything be published, before the step is accounted for.
"""

import contextlib, json, os, sys

run, step, name, tasks = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
END = b"{\"type\":\"end\""


def parts():
    """Yields stdin in blocks of whole lines, cut after each `end` line, and with a block the `end` line that closes it, if one does."""
    rest = b""
    while read := os.read(0, 1 << 18):
        whole, feed, rest = (rest + read).rpartition(b"\n")
        whole += feed
        while whole:
            at = 0 if whole.startswith(END) else whole.find(b"\n" + END) + 1
            if not at and not whole.startswith(END):
                yield whole, b""
                break
            after = whole.index(b"\n", at) + 1
            yield whole[:after], whole[at:after]
            whole = whole[after:]
    if rest: # of a stage that died
        yield rest, b""


def write(descriptor, text):
    """Writes all of it: a pipe may take less."""
    while text:
        text = text[os.write(descriptor, text):]


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


file = None
try:
    for text, end in parts():
        file = file or open(f"{run}/steps/{step:06d}/{name}", "wb", 0)
        write(file.fileno(), text)
        if end:
            file.close()
            file = None
        if not tasks:
            write(1, text)
        elif end and json.loads(end)["ok"]:
            write(1, b"%d%s\n" % (step, begin(step + 1, *tasks)))
        step += bool(end)
except BrokenPipeError: # whoever went away says why
    os._exit(0)
except OSError as error:
    sys.exit(f"pipeline.sh: {error}")
