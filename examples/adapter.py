"""What adapters to other people's packages share: quiet and repeatable packages, and limits of time."""

import contextlib
import functools
import importlib
import os
import signal
import sys

SECONDS = 5  # of processor time that a package may take over one text


class TooLong(Exception):
    """A package took more processor time over a text than it may."""


def fix_hashes():
    """Python draws a new order of sets in each process unless PYTHONHASHSEED says otherwise, and `rollout` starts several: the program
    begins again with a fixed one."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *(f"-W{filter}" for filter in sys.warnoptions), *sys.argv])


def package(name, distribution):
    """A package that may not be there: then one line and a hint, and exit code 69."""
    try:
        with quiet():
            return importlib.import_module(name)
    except Exception as error:  # a package may raise anything while it is imported
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
