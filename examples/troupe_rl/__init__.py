"""Environments in Python for Troupe: a subclass of `Environment`, and `main` makes a program of it.

    class Guess(troupe_rl.Environment):
        name = "guess"
        def tasks(self, split, seed): ...       # (name, spec) forever
        def reset(self, spec): ...              # -> Start
        def step(self, state, agent, text): ... # -> Step

    if __name__ == "__main__":
        Guess().main()

    python3 guess.py                 answers requests, for `rollout --env-command 'python3 guess.py'`
    python3 guess.py tasks|demo      prints task lines, and demonstrations for a warm-up
    python3 guess.py check           tests the contract by `envs check`; `python3 -m troupe_rl.check guess.py` is the same

A state is JSON and comes with every request, so `rollout` can try K candidates from one state and play many episodes with one
process. A state that cannot be JSON, or is too large to travel, stays here: `handles = True`. docs/stream-format.md specifies the lines.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import faulthandler
import hashlib
import itertools
import json
import os
import random
import signal
import sys
import traceback
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, TextIO, Tuple, Union

for stream in (sys.stdin, sys.stdout):
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(encoding="utf-8")  # JSON is UTF-8 in every locale

__all__ = ["Environment", "Probe", "Start", "Step", "clamp", "digest", "is_test", "tool_calls"]

Sight = Union[str, Sequence[Mapping[str, Any]], Mapping[str, Any], None]
"""What an agent sees: a text (one message of a user), messages, or None, with which it skips its turn. An agent that may call tools sees
{"messages": messages, "tools": tools}, the tools as chat templates take them; `step` then has an argument `calls`, a list of
{"name", "arguments"} (in `joint` by agent)."""


class Start(NamedTuple):
    """The beginning of an episode."""

    state: Any
    observations: Mapping[str, Sight]
    """By agent. Agents that `turn` leaves out need none."""
    agents: Sequence[str]
    order: Union[str, Sequence[Sequence[str]]] = "sequential"
    """"sequential", "parallel", or stages as lists of agents."""
    turns: int = 4
    """Turns of an episode at most; in a turn each agent acts at most once."""
    turn: Union[str, Sequence[str], None] = None
    """Who acts next; default: whoever has an observation."""
    reward_range: Tuple[float, float] = (0.0, 1.0)
    """The least and the greatest reward."""


class Step(NamedTuple):
    """What an action came to."""

    state: Any
    observations: Mapping[str, Sight]
    team: float = 0.0
    """The team's reward, in [0, 1]. A meaningless text earns 0; it is no error."""
    local: Union[float, Mapping[str, float]] = 0.0
    """The agent's local reward; in `joint`, by agent. By agent otherwise, too, it may pay those who do not act, for their last action:
    `rollout --sampling parallel` adds that to the sample, and in a tree of several candidates no sample gets it."""
    components: Mapping[str, float] = {}
    """What the rewards are made of: any numbers."""
    terminated: bool = False
    success: bool = False
    """The task is solved, which ends the episode."""
    turn: Union[str, Sequence[str], None] = None
    info: Mapping[str, Any] = {}
    """For people: the record keeps it and the page shows it, at most 4,096 bytes of JSON. No agent sees it."""


class Probe(NamedTuple):
    """For checks and demonstrations."""

    actions: Sequence[str]
    """Actions worth trying in this state; empty at the end of the episode."""
    best: Optional[str] = None
    """An action that no other outscores."""
    solved: bool = False


class Environment:
    """An environment of one or several agents. `tasks`, `reset` and `step` are needed; `joint`, `probe`, `demonstrate`, `ask` and `close` are optional."""

    name = "environment"
    parser: Optional[argparse.ArgumentParser] = None
    """Options of the program, which come before `tasks`, `demo` and `check`; their values are in `self.options`."""
    share = 0.5
    """How often a demonstration takes the best action."""
    handles = False
    """True: a state stays in this process and may be any object, which `step` may change in place; `fork` copies it."""

    def __init__(self) -> None:
        self.options = argparse.Namespace()
        self._states: Dict[int, Any] = {}
        self._numbers = itertools.count(1)
        self.drawn = 0
        self._told: set[Tuple[Tuple[str, Optional[int]], ...]] = set()

    def tasks(self, split: str, seed: int) -> Iterator[Tuple[str, Any]]:
        """(name, spec) forever, of the split "train" or "test"; the name says what the spec is, and no seed mixes the splits."""
        raise NotImplementedError

    def reset(self, spec: Any) -> Start:
        """The beginning of the episode that `spec` describes."""
        raise NotImplementedError

    def step(self, state: Any, agent: str, text: str) -> Step:
        """What a text of an agent does. Agents who act in parallel are asked one after another, unless there is `joint`."""
        raise NotImplementedError

    def joint(self, state: Any, actions: Mapping[str, str]) -> Step:
        """What the texts of all who act in parallel do, by agent; `local` and the components' names (AGENT.NAME) are by agent, too."""
        raise NotImplementedError

    def beside(self, state: Any, agent: str, text: str, others: Optional[Mapping[str, str]]) -> Step:
        """With `joint`: what an agent's text does together with what the others of its stage chose; None: they have not chosen yet."""
        return self.step(state, agent, text)

    def probe(self, state: Any, agent: str) -> Probe:
        """Actions worth trying, and the best one."""
        raise NotImplementedError

    def demonstrate(self, state: Any, agent: str) -> Probe:
        """What demonstrations choose from; default: `probe`."""
        return self.probe(state, agent)

    def ask(self, text: str) -> Any:
        """The `spec` of a user's own question, to which no answer is known, for `pipeline.sh ask`."""
        raise NotImplementedError

    def fork(self, state: Any) -> Any:
        """With `handles`: an independent copy of a state."""
        return copy.deepcopy(state)

    def close(self, state: Any) -> None:
        """With `handles`: releases what a state holds, such as a browser or a container. Called once for each state that `reset` or `fork`
        made: when no episode needs it any more, and for those that are left when the program ends."""

    def setup(self) -> None:
        """Called once the options are read."""

    def has(self, method: str) -> bool:
        """True if this environment defines a method."""
        return getattr(type(self), method) is not getattr(Environment, method)

    def respond(self, request: Mapping[str, Any]) -> Dict[str, Any]:
        """The answer to a request of the step protocol, without its number."""
        for handle in request.get("drop", ()):
            self._close(self._states.pop(handle))
        if "task" in request:
            return self._started(self._call("reset", request["task"]["spec"]))
        state = self._states[request["state"]] if self.handles else request["state"]
        if request.get("probe"):
            if not self.has("probe"):
                raise NotImplementedError("no `probe`")
            probe = Probe(*self._call("probe", state, request["agent"]))
            return {"probes": list(probe.actions), "oracle": probe.best, "solved": probe.solved}
        if self.handles and request.get("fork"):
            state = self._call("fork", state)
        calls = {"calls": request["tool_calls"]} if "tool_calls" in request else {}
        if self.has("joint") and "actions" in request:
            step = self._call("joint", state, request["actions"], **calls)
        elif self.has("joint"):
            step = self._call("beside", state, request["agent"], request["action"], request.get("beside"), **calls)
        else:
            step = self._call("step", state, request["agent"], request["action"], **calls)
        kept = step.state
        if self.handles:
            kept = next(self._numbers) if request.get("fork") else request["state"]
            self._states[kept] = step.state
        answer = {
            "state": kept,
            "rewards": {"team": step.team, "local": step.local},
            "reward_components": step.components,
            "terminated": step.terminated,
            "success": step.success,
            "observations": {} if step.terminated else messages(step.observations),
        }
        answer |= {"info": step.info} if step.info else {}
        return _with_turn(answer, None if step.terminated else step.turn)

    def _started(self, start: Start) -> Dict[str, Any]:
        state = next(self._numbers) if self.handles else start.state
        if self.handles:
            self._states[state] = start.state
        answer: Dict[str, Any] = {"state": state, "observations": messages(start.observations), "agents": start.agents}
        answer |= {"order": start.order, "turns": start.turns}
        answer |= {"together": True} if self.has("joint") else {}
        answer |= {"handles": True} if self.handles else {}
        answer |= {"reward_range": start.reward_range} if start.reward_range != (0.0, 1.0) else {}
        return _with_turn(answer, start.turn)

    def _close(self, state: Any) -> None:
        """Calls `close`, whose error is printed, and no error of the request that dropped the state."""
        with contextlib.suppress(Exception):
            self._call("close", state)

    def _call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Calls a method; the traceback of a fault in it goes to stderr, the first time."""
        try:
            return getattr(self, method)(*arguments, **named)
        except Exception as error:
            place = tuple((frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__))
            if place not in self._told:
                self._told.add(place)
                traceback.print_exc()
            raise

    def serve(self, answers: TextIO) -> None:
        """Answers requests until stdin ends."""
        patience = float(os.environ.get("TROUPE_STACK_AFTER", 0))
        for line in sys.stdin:
            answer: Dict[str, Any] = {}
            if patience:
                faulthandler.dump_traceback_later(patience)
            try:
                request = json.loads(line)
                answer["request"] = request.get("request")
                text = json.dumps(answer | self.respond(request))
            except Exception as error:  # an error answers this line, and the next one is read
                text = json.dumps(answer | {"error": f"{type(error).__name__}: {error}"})
            if patience:
                faulthandler.cancel_dump_traceback_later()
            answers.write(text + "\n")
            answers.flush()
        for state in self._states.values():
            self._close(state)

    def demonstrations(self, count: int, seed: int, share: float) -> Iterator[Dict[str, Any]]:
        """Sample lines of episodes on `count` train tasks in which the best action is taken with probability `share`, otherwise any."""
        draws = random.Random(seed)
        for episode, (instance, spec) in enumerate(self._drawn("train", count, seed)):
            start = self.reset(spec)
            for turn, agent, sight, text in self._episode(start, draws, share):
                line = {"type": "sample", "v": 1, "env": self.name, "task": f"{self.name}/train/{instance}"}
                line |= {"episode": str(episode), "turn": turn, "agent": agent, "branch": 0, "branches": 1}
                line |= {"id": f"{episode}/{turn}/{agent}/0"}
                prompt = messages({agent: sight})[agent]
                line |= {"prompt": prompt["messages"], "tools": prompt["tools"]} if isinstance(prompt, Mapping) else {"prompt": prompt}
                yield line | {"completion": text, "finish_reason": "stop"}
            if self.handles:
                self._close(start.state)

    def _episode(self, start: Start, draws: random.Random, share: float) -> Iterator[Tuple[int, str, Sight, str]]:
        state, seen, acts = start.state, start.observations, start.turn
        for turn, stage in itertools.product(range(start.turns), stages(start)):
            before, named = seen, acts  # agents that act in parallel see the state before the stage
            said: Dict[str, str] = {}
            for agent in (agent for agent in stage if acting(agent, before, named)):
                choice = Probe(*self.demonstrate(state, agent))
                if choice.solved or not choice.actions:
                    return
                takes_best = choice.best is not None and draws.random() < share
                said[agent] = choice.best if takes_best and choice.best is not None else draws.choice(choice.actions)
                yield turn, agent, before[agent], said[agent]
                if not self.has("joint"):
                    step = self._demonstrated("step", state, before, {agent: said[agent]})
                    state, seen, acts = step.state, step.observations, step.turn
                    if step.terminated:
                        return
            if said and self.has("joint"):
                step = self._demonstrated("joint" if len(said) > 1 else "beside", state, before, said)
                state, seen, acts = step.state, step.observations, step.turn
                if step.terminated:
                    return

    def _demonstrated(self, method: str, state: Any, seen: Mapping[str, Sight], said: Mapping[str, str]) -> Step:
        """What texts come to, which are all that is said at once."""
        calls = {agent: tool_calls(text) for agent, text in said.items() if isinstance(seen[agent], Mapping)}
        step: Step
        if method == "joint":
            step = self._call(method, state, said, **({"calls": calls} if calls else {}))
            return step
        agent, text = next(iter(said.items()))
        others = [None] if method == "beside" else []
        step = self._call(method, state, agent, text, *others, **({"calls": calls[agent]} if calls else {}))
        return step

    def _drawn(self, split: str, count: int, seed: int) -> Iterator[Tuple[str, Any]]:
        """`count` tasks, fewer if there are no more; `self.drawn` counts them."""
        self.drawn = 0
        for task in itertools.islice(self.tasks(split, seed), count):
            self.drawn += 1
            yield task

    def task_lines(self, split: str, count: int, seed: int, asked: Sequence[str] = ()) -> Iterator[Dict[str, Any]]:
        """Task lines, as `rollout` reads them; with `asked` those of questions, of the split "asked"."""
        split, self.drawn = "asked" if asked else split, len(asked)
        for instance, spec in ((digest(text), self.ask(text)) for text in asked) if asked else self._drawn(split, count, seed):
            named = f"{self.name}/{split}/{instance}"
            yield {"type": "task", "v": 1, "env": self.name, "task": named, "split": split, "spec": spec}

    def main(self, arguments: Optional[Sequence[str]] = None) -> None:
        """The program: answers requests, or prints what `tasks`, `demo` and `check` ask for."""
        parser = self.parser or argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
        commands = parser.add_subparsers(dest="command")
        printing = commands.add_parser("tasks", help="print task lines for the stdin of rollout")
        printing.add_argument("--split", choices=["train", "test"], default="train")
        printing.add_argument("--count", type=int, default=1)
        printing.add_argument("--seed", type=int, default=1, help="which train tasks; the test split is the same for all")
        printing.add_argument("--ask", action="append", default=[], metavar="TEXT", help="the task of a question instead; repeatable")
        showing = commands.add_parser("demo", help="print demonstrations on train tasks, for policy encode and update")
        showing.add_argument("--count", type=int, default=1, help="tasks demonstrated")
        showing.add_argument("--seed", type=int, default=1)
        showing.add_argument("--share", type=float, help="probability of the best action")
        checking = commands.add_parser("check", help="test the contract, by `envs check`")
        checking.add_argument("--tasks", type=int, default=8, help="tasks of each split")
        checking.add_argument("--seed", type=int, default=1)
        checking.add_argument("--timeout", type=int, default=60, metavar="SECONDS", help="seconds for an answer")
        self.options = options = parser.parse_args(arguments)
        if options.command == "check":
            from .check import report

            words = getattr(sys, "orig_argv", [sys.executable, *sys.argv])  # with Python's own flags, from 3.10 on
            own = words[:len(words) - 1 - words[::-1].index("check")]
            sys.exit(report(own, options.tasks, options.seed, options.timeout))
        answers = protect_stdout()
        self.setup()
        if options.command is None:
            self.serve(answers)
        else:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a traceback
            if options.command == "demo" and not (self.has("probe") or self.has("demonstrate")):
                parser.error("this environment has no probe, so it has no best action to demonstrate")
            share = self.share if getattr(options, "share", None) is None else options.share
            asked = getattr(options, "ask", [])
            if asked and not self.has("ask"):
                parser.error("this environment has no ask, so it makes no task of a text")
            lines = self.task_lines(options.split, options.count, options.seed, asked) if options.command == "tasks" else (
                self.demonstrations(options.count, options.seed, share))
            for line in lines:
                print(json.dumps(line), file=answers)
            ended = self.drawn < (len(asked) or options.count)
            end = {"type": "end", "v": 1, "stage": self.name, "ok": not ended, "counts": {"tasks": self.drawn}, "after": [], "timing": {}}
            if ended:
                cause, _, hint = ended_early(self.drawn, options.count).partition("; ")
                end["error"] = cause
                sys.stderr.write(f"{self.name}: {cause}\nhint: {hint}\n")
            print(json.dumps(end), file=answers)
            answers.flush()
            sys.exit(int(ended))
        answers.close()


def ended_early(drawn: int, count: int) -> str:
    """What is wrong with tasks that end, and how to mend it."""
    return f"tasks() ended after {drawn} of {count} tasks; it must never end: begin again with the first ones in a new order"


def protect_stdout() -> TextIO:
    """Stdout is for answers: from now on all that is printed goes to stderr, also by a library in C. Returns where answers go."""
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def messages(seen: Mapping[str, Sight]) -> Dict[str, Any]:
    """Observations as lists of messages."""
    return {agent: [{"role": "user", "content": sight}] if isinstance(sight, str) else sight for agent, sight in seen.items()}


def tool_calls(text: str) -> List[Dict[str, Any]]:
    """The calls in a text that was written for a demonstration, as Hermes and Qwen write them; `rollout` reads the calls of policies."""
    found, mark = [], "<tool_call>"
    while mark in text:
        text = text.partition(mark)[2].lstrip()
        try:
            call, end = json.JSONDecoder().raw_decode(text)
            text = text[end:]  # a mark inside an argument is a part of it
            found.append({"name": call["name"], "arguments": dict(call.get("arguments") or {})})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            text = text.partition("</tool_call>")[2]
    return found


def stages(start: Start) -> Sequence[Sequence[str]]:
    """The agents of a turn: at once within a stage, one stage after another."""
    if isinstance(start.order, str):
        return [[agent] for agent in start.agents] if start.order == "sequential" else [start.agents]
    return start.order


def acting(agent: str, seen: Mapping[str, Sight], turn: Union[str, Sequence[str], None]) -> bool:
    """True if it is an agent's turn."""
    named = turn is None or agent == turn or (not isinstance(turn, str) and agent in turn)
    return named and seen.get(agent) is not None


def _with_turn(answer: Dict[str, Any], turn: Union[str, Sequence[str], None]) -> Dict[str, Any]:
    names: List[str] = [] if turn is None else [turn] if isinstance(turn, str) else list(turn)
    return answer if turn is None else {**answer, "turn": names}


def digest(text: str) -> str:
    """SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def is_test(text: str) -> bool:
    """True if the name is of a test task, as one in eight is: the same for every seed, so that train and test never share one."""
    return int(digest(text)[:8], 16) % 8 == 0


def clamp(value: Any, low: float = 0.0, high: float = 1.0) -> float:
    """`value` from low..high as 0..1; anything but a number is 0."""
    number = float(value) if isinstance(value, (bool, int, float)) else low
    return min(1.0, max(0.0, (number - low) / (high - low))) if number == number else 0.0
