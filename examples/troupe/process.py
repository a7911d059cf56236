"""An environment in a process of its own, so that a check outlives its death and its silence."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import select
import signal
import sys
import time
import traceback
from typing import Any, Dict, Iterator, Mapping, Set, TextIO, Tuple

from . import Environment
from .answers import shown

FIRST_NOTE = 5.0
"""Seconds of work until stderr says how far it is; each later note takes twice as long."""
POLL = 0.5
"""Seconds between looks at a process that says nothing."""
PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent ends."""
PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): processes whose parent ends become children of this one."""
LONGEST = 1 << 26
"""Bytes of an answer."""


class Gone(Exception):
    """No answer: the process has ended, or was silent for too long."""


class Inline:
    """The environment in this process: a debugger can stop in it, and it has no time limit."""

    at = ""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.tasks: Iterator[Dict[str, Any]] = iter(())

    def ask(self, question: Mapping[str, Any]) -> Dict[str, Any]:
        """`setup`, `begin` a stream of tasks, the `next` task, or a `request`; `error` says what went wrong."""
        try:
            reply = self.reply(question)
        except Exception as error:
            if "request" not in question:  # the environment shows its own tracebacks of requests
                traceback.print_exc()
            return {"error": f"{type(error).__name__}: {error}"}
        try:
            found: Dict[str, Any] = json.loads(json.dumps(reply, allow_nan=False))
        except (TypeError, ValueError) as error:
            return {"error": f"{type(error).__name__}: {error}"}
        before, after = (of.get("answer", {}).get("state") for of in (reply, found))
        if before != after and not self.environment.handles:
            found["changed"] = f"{before!r} becomes {after!r}"
        return found

    def reply(self, question: Mapping[str, Any]) -> Dict[str, Any]:
        if "setup" in question:
            self.environment.setup()
        elif "begin" in question:
            self.tasks = self.environment.task_lines(*question["begin"])
        elif "next" in question:
            return {"task": next(self.tasks, None)}
        elif "request" in question:
            return {"answer": self.environment.respond(question["request"])}
        return {"handles": self.environment.handles}

    def close(self) -> None:
        """It stays."""


class Watched:
    """The environment in a child process, with `limit` seconds for an answer."""

    def __init__(self, environment: Environment, limit: float) -> None:
        self.name, self.limit, self.at = environment.name, limit, "setup"
        self.answers, self.began, self.note = 0, time.monotonic(), FIRST_NOTE
        self.ended, self.status, self.was_silent = False, 0, False
        self.unread = b""
        self.others = children()  # such as a server that the environment has started
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        sys.stdout.flush()
        sys.stderr.flush()
        asked, self.questions = os.pipe()
        self.replies, told = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            os.close(self.questions)
            os.close(self.replies)
            faulthandler.register(signal.SIGUSR1, all_threads=True)
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it does not outlive a check that is killed
            answer_all(Inline(environment), os.fdopen(asked, encoding="utf-8"), os.fdopen(told, "w", encoding="utf-8"))
            sys.exit()
        os.close(asked)
        os.close(told)
        os.set_blocking(self.questions, False)

    def ask(self, question: Mapping[str, Any]) -> Dict[str, Any]:
        """Like `Inline.ask`, but raises `Gone` if there is no answer."""
        unsent = (json.dumps(question) + "\n").encode()
        deadline = time.monotonic() + self.limit
        read = b""
        while b"\n" not in read:
            readable, writable, _ = select.select([self.replies], [self.questions] if unsent else [], [], POLL)
            if writable:
                try:
                    unsent = unsent[os.write(self.questions, unsent):]
                except BrokenPipeError:
                    self.fail()
            if readable:
                read = os.read(self.replies, 1 << 16)
                self.unread += read
                if not read:
                    self.fail()
            if time.monotonic() > deadline or len(self.unread) > LONGEST:
                self.fail_silent()
            self.tell(question)
        line, self.unread = self.unread.split(b"\n", 1)
        self.answers += 1
        found: Dict[str, Any] = json.loads(line)
        return found

    def tell(self, question: Mapping[str, Any]) -> None:
        seconds = time.monotonic() - self.began
        if seconds >= self.note:
            self.note = 2 * seconds
            now = shown(json.dumps(question), 120)
            sys.stderr.write(f"{self.name}: check: {seconds:.0f} s, {self.at}, {self.answers} answers; now asked {now}\n")
            sys.stderr.flush()

    def fail(self) -> None:
        """It has closed its pipes: says how it ended."""
        status = self.wait(self.limit)
        code = -status if status < 0 else status
        raise Gone(f"the process ended without an answer ({'signal' if status < 0 else 'exit status'}: {code})")

    def fail_silent(self) -> None:
        self.was_silent = True
        os.kill(self.child, signal.SIGUSR1)  # its stack goes to stderr
        time.sleep(POLL)
        self.wait(0)
        raise Gone(f"no answer within {self.limit:g} s (stderr shows where it is; --timeout sets the limit)")

    def wait(self, seconds: float) -> int:
        """The exit status, negative for a signal; a process that does not end within some seconds is killed."""
        self.ended = True
        until = time.monotonic() + seconds
        found, status = os.waitpid(self.child, os.WNOHANG)
        while not found and time.monotonic() < until:
            time.sleep(0.005)
            found, status = os.waitpid(self.child, os.WNOHANG)
        if not found:
            os.kill(self.child, signal.SIGKILL)
            status = os.waitpid(self.child, 0)[1]
        self.status = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1
        return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def close(self) -> None:
        """Ends the process as it ends by itself, within a moment, and whatever it has started."""
        os.close(self.questions)
        if not self.ended:
            self.wait(self.limit)
        while left := children() - self.others:  # the children of a killed one come to this process
            for child in left:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def children() -> Set[int]:
    """The processes whose parent is this one, where /proc tells."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc") if sys.platform == "linux" else []):
        try:
            with open(f"/proc/{name}/stat") as file:
                parent = file.read().rpartition(")")[2].split()[1]
        except OSError:  # it has ended
            continue
        if int(parent) == os.getpid():
            found.add(int(name))
    return found


def answer_all(environment: Inline, questions: TextIO, replies: TextIO) -> None:
    for line in questions:
        reply = json.dumps(environment.ask(json.loads(line)))
        try:
            replies.write(reply + "\n")
            replies.flush()
        except BrokenPipeError:
            return
