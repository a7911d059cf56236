"""What adapters to other people's packages share: arguments of their own, quiet and repeatable packages, and splits by hash.

`start` is called before the package is imported. Python draws a new order of sets in each process unless PYTHONHASHSEED says
otherwise, and `rollout` starts several: the program begins again with a fixed one.
"""

import contextlib
import functools
import hashlib
import importlib
import os
import signal
import sys

TEST_SHARE = 8  # one task in this many is a test task
SECONDS = 5  # of processor time that a package may take over one text


class TooLong(Exception):
    """A package took more processor time over a text than it may."""


def start(parser):
    """The adapter's own options; what follows them (`tasks …`, `demo …`) is left in sys.argv for step_protocol."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *(f"-W{filter}" for filter in sys.warnoptions), *sys.argv])
    words = sys.argv[1:]
    places = [place for place, word in enumerate(words) if word in ("tasks", "demo")]
    own = words[: places[0]] if places else words
    sys.argv[1:] = words[len(own):]
    return parser.parse_args(own)


def package(name, distribution):
    """A package that may not be there: then one line and a hint, and exit code 69."""
    try:
        with quiet():
            return importlib.import_module(name)
    except Exception as error:  # what a package raises while it is imported is its own
        fail(f"{name} cannot be imported: {type(error).__name__}: {error}", f"pip install {distribution}", 69)


def fail(cause, hint, code=2):
    program = os.path.basename(sys.argv[0])
    sys.stderr.write(f"{program}: {' '.join(str(cause).split())}\nhint: {hint}\n")
    sys.exit(code)


def quiet():
    """Whatever a package prints goes to stderr: stdout is for answers alone."""
    return contextlib.redirect_stdout(sys.stderr)


def limited(function):
    """`function`, which raises TooLong after SECONDS of processor time: a busy machine changes nothing."""

    @functools.wraps(function)
    def run(*arguments):
        def stop(*_):
            raise TooLong(f"{SECONDS} s of processor time")

        before = signal.signal(signal.SIGVTALRM, stop)
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        try:
            with quiet():
                return function(*arguments)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)

    return run


def digest(text):
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def is_test(text):
    """Whether what is named so is a test task: the same for every seed, so that train and test never share one."""
    return int(digest(text)[:8], 16) % TEST_SHARE == 0


def clamp(value, low=0.0, high=1.0):
    """`value` from low..high as 0..1; what is no number is 0."""
    value = float(value) if isinstance(value, (bool, int, float)) else low
    return min(1.0, max(0.0, (value - low) / (high - low))) if value == value else 0.0
