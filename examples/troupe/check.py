"""The contract of an environment, tested with one process of it: like `envs check`, but sooner and with tracebacks.

    python3 -m troupe.check [--tasks 20] my_env.py [its options]
    python3 my_env.py check --tasks 20

    from troupe.check import check_env      # in a test: raises AssertionError with the rules that were broken
    def test_my_env():
        check_env(MyEnv())

Episodes are played on a few tasks of each split: by the best action (where `probe` knows it), at random, and without a word. In every
state that is met, all test actions of who acts are tried. Left out, and told by `envs check` alone: whether another process
answers the same, and the paths that collect more than the oracle's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import runpy
import sys
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, TextIO, Tuple, Union

from . import Environment, Start, acting, ended_early, stages, tool_calls
from .answers import Refused, probed, shown, started, stepped
from .process import Gone, Inline, Watched

MALFORMED = ["", " ", "\n", "\0", "[[[", '{"action":1}', '\\"', "🦀 日本", "-1e999", "so on " * 10_000]
ROUNDING = 1e-9
ANSWERED = "every question has an answer"
MANY = 300
"""Tasks of each split that are drawn: the number of an evaluation."""
SOME = 16
"""Tasks of each seed that are compared between seeds."""


class Broken(Exception):
    """A request without an answer: the rest of an episode cannot be played."""


class Finding:
    """A rule: how often it was tried, and the first case that broke it."""

    def __init__(self, rule: str, advice: bool) -> None:
        self.rule, self.advice, self.tried = rule, advice, 0
        self.case: Optional[str] = None


class Checker:
    """Asks an environment as `rollout` would, and keeps a ledger of its rules."""

    def __init__(self, environment: Environment, host: Union[Inline, Watched, None] = None) -> None:
        self.environment, self.findings = environment, {}  # type: Environment, Dict[str, Finding]
        self.host = host or Inline(environment)
        self.handles = environment.handles
        self.earned: Dict[str, Tuple[float, float]] = {}
        self.dropped: List[Any] = []

    def rule(self, rule: str, holds: bool, case: Callable[[], str], advice: bool = False) -> None:
        finding = self.findings.setdefault(rule, Finding(rule, advice))
        finding.tried += 1
        if not holds and finding.case is None:
            finding.case = case()

    def ask(self, request: Mapping[str, Any], rule: str = ANSWERED, acted: Iterable[str] = ()) -> Dict[str, Any]:
        """The answer as it travels; a fault in the environment, or an answer that `rollout` refuses, breaks `rule`."""
        sent = dict(request)
        if self.handles:
            sent["drop"], self.dropped = self.dropped, []
        reply = self.question({"request": sent}, rule)
        found: Dict[str, Any] = reply["answer"]
        self.rule("a state survives JSON", "changed" not in reply, lambda: str(reply["changed"]))
        try:
            if "task" in request:
                started(found)
            elif "probe" in request:
                probed(found)
            else:
                stepped(found, self.start.agents, acted)
        except Refused as refused:
            cause = f"{refused}, asked {shown(request)}"
            self.rule(rule, False, lambda: cause)
            raise Broken from refused
        return found

    def question(self, question: Mapping[str, Any], rule: str = ANSWERED) -> Dict[str, Any]:
        """The reply to a question, unless the environment fails, which breaks `rule`."""
        cause = ""
        try:
            reply = self.host.ask(question)
            cause = reply.get("error", "")
        except Gone as gone:
            cause = str(gone)
            raise
        finally:
            asked = question.get("request") or question
            self.rule(rule, not cause, lambda: f"{cause}, asked {shown(asked)}")
        if "error" in reply:
            raise Broken
        return reply

    def about(self, state: Any) -> Dict[str, Any]:
        """The part of a request that names a state, which stays as it is."""
        return {"state": state, "fork": True} if self.handles else {"state": state}

    def apply(self, state: Any, agent: str, text: str, others: Optional[Mapping[str, str]] = None) -> Dict[str, Any]:
        """The outcome of a text in a copy of a state; asked twice."""
        request: Dict[str, Any] = {"agent": agent, "action": text}
        request |= {"tool_calls": tool_calls(text)} if agent in self.offered else {}
        request |= {"beside": others} if others is not None else {}
        first = self.ask({**request, **self.about(state)}, "every text has an outcome", [agent])
        again = self.ask({**request, **self.about(state)}, "every text has an outcome", [agent])
        same = {**first, **again} == first or (self.handles and {**first, "state": again["state"]} == again)
        self.rule("the same line has the same answer", same, lambda: f"{shown(request)}: {first} and then {again}")
        self.dropped.append(again["state"])
        self.outcome(first, lambda: f"{agent} says {text[:40]!r} at {shown(state)}")
        return first

    def outcome(self, answer: Mapping[str, Any], place: Callable[[], str]) -> None:
        rewards = answer["rewards"]
        local = rewards["local"]
        values = [rewards["team"], *(local.values() if isinstance(local, dict) else [local])]
        least, most = self.range
        holds = all(least <= value <= most for value in values)
        self.rule("rewards stay in their range", holds, lambda: f"{place()}: {rewards}, not in [{least}, {most}]")
        self.rule("a success ends the episode", not answer["success"] or answer["terminated"], place)
        self.sights(answer, place)

    def sights(self, answer: Mapping[str, Any], place: Callable[[], str]) -> None:
        if answer.get("terminated"):
            return
        seen, turn = answer["observations"], answer.get("turn")
        self.offered = {agent for agent, sight in seen.items() if isinstance(sight, dict)}
        acts = [agent for agent in self.start.agents if acting(agent, seen, turn)]
        self.rule("one agent acts, or the episode is over", bool(acts), place)
        missing = [agent for agent in self.start.agents if turn is None and agent not in seen]
        self.rule("an observation of each agent, or null", not missing, lambda: f"{place()}: nothing for {missing}")
        prompts = [seen[agent]["messages"] if isinstance(seen[agent], dict) else seen[agent] for agent in acts]
        full = all(prompt and prompt[-1]["content"] for prompt in prompts)
        self.rule("every agent sees something", full, place)

    def probe(self, state: Any, agent: str) -> Tuple[List[str], Optional[str], bool]:
        if not self.environment.has("probe"):
            return ["0", "1", "yes", "no"], None, False
        answer = self.ask({"state": state, "agent": agent, "probe": True})
        return answer["probes"], answer["oracle"], answer["solved"]

    def episode(self, task: Mapping[str, Any], choose: Callable[[Sequence[str], Optional[str]], str]) -> Tuple[float, bool, bool]:
        """What the team earns by `choose`, whether it ends in a success, and whether there is an oracle."""
        answer = self.ask({"task": task})
        self.start = Start(answer["state"], answer["observations"], answer["agents"], answer["order"], answer["turns"])
        self.range = tuple(answer.get("reward_range", (0.0, 1.0)))
        self.sights(answer, lambda: str(task["task"]))
        total, knows, joint = 0.0, False, self.environment.has("joint")
        for stage in (stage for _ in range(self.start.turns) for stage in stages(self.start)):
            before = answer
            acts = [agent for agent in stage if acting(agent, before["observations"], before.get("turn"))]
            chosen: Dict[str, str] = {}
            for agent in acts:
                texts, best, _ = self.probe(before["state"], agent)
                knows = knows or best is not None
                chosen[agent] = choose(texts, best)
                self.tries(before["state"], agent, texts, best)
            if not acts:
                continue
            if joint and len(stage) > 1:
                answer = self.together(before["state"], chosen)
            else:
                for agent, text in chosen.items():
                    if not answer.get("terminated"):
                        answer = self.apply(answer["state"], agent, text)
            total += answer["rewards"]["team"]
            if answer["terminated"]:
                break
        return total, bool(answer.get("success")), knows

    def together(self, state: Any, chosen: Mapping[str, str]) -> Dict[str, Any]:
        answers = [self.ask({**self.about(state), "actions": dict(order)}, acted=chosen)
                   for order in (chosen.items(), reversed(list(chosen.items())))]
        place = lambda: f"{dict(chosen)} at {shown(state)}"
        same = all(answers[0][name] == answers[1][name] for name in ("rewards", "terminated", "success", "observations"))
        self.rule("a joint action has no order", same, place)
        local = answers[0]["rewards"]["local"]
        self.rule("a joint action says what each agent earned", not isinstance(local, dict) or set(chosen) == set(local), place)
        self.outcome(answers[0], place)
        return answers[0]

    def tries(self, state: Any, agent: str, texts: Sequence[str], best: Optional[str]) -> None:
        """Every test action in a state."""
        most = None if best is None else self.apply(state, agent, best)
        for text in [*texts, *MALFORMED]:
            answer = self.apply(state, agent, text)
            reward = sum(worth(answer, agent))
            least, highest = self.earned.get(agent, (reward, reward))
            self.earned[agent] = min(least, reward), max(highest, reward)
            if most is not None and text in texts:
                holds = all(ours <= theirs + ROUNDING for ours, theirs in zip(worth(answer, agent), worth(most, agent)))
                self.rule("no action scores above the oracle's", holds, lambda: (
                    f"{agent} says {text[:40]!r} at {shown(state)}: {answer['rewards']}; the oracle's {most['rewards'] if most else ''}"))
            if best is not None:
                solved = self.probe(answer["state"], agent)[2]
                self.rule("a success is one to the oracle", solved == answer["success"], lambda: f"{agent} says {text[:40]!r} at {shown(state)}")
            self.dropped.append(answer["state"])

    def task(self, task: Mapping[str, Any], draws: random.Random) -> None:
        best, solved, knows = self.episode(task, lambda texts, best: best if best is not None else texts[0] if texts else "")
        if knows:
            self.rule("the oracle solves every task", solved, lambda: str(task["task"]))
        found, _, _ = self.episode(task, lambda texts, _: draws.choice(texts) if texts else "")
        if knows:
            self.rule("random play never collects more than the oracle", found <= best + ROUNDING, lambda: f"{task['task']}: {found} against {best}")
        idle, success, _ = self.episode(task, lambda *_: "")
        self.rule("running out of turns is no success", not success, lambda: str(task["task"]))
        self.rule("saying nothing earns the team nothing", idle <= ROUNDING, lambda: f"{task['task']}: {idle:.2f} for an episode without a word", advice=True)

    def drawn(self, split: str, count: int, seed: int) -> Iterator[Dict[str, Any]]:
        """`count` task lines, or all that come."""
        try:
            self.question({"begin": [split, count, seed]})
            for number in range(count):
                task = self.question({"next": f"task of {split}, seed {seed}"})["task"]
                self.rule("tasks() never ends", task is not None, lambda: f"split {split}: {ended_early(number, count)}")
                if task is None:
                    return
                yield task
        except Broken:  # it is in the ledger
            pass

    def task_rules(self, tasks: int, seed: int) -> List[Dict[str, Any]]:
        """Rules about tasks, and the tasks to play."""
        drawn = {split: list(self.drawn(split, max(tasks, MANY), seed)) for split in ("train", "test")}
        found = {split: drawn[split][:tasks] for split in drawn}
        specs: Dict[str, Any] = {}
        for task in found["train"] + found["test"]:
            first = specs.setdefault(task["task"], task["spec"])
            self.rule("a task's name names one spec", first == task["spec"], lambda: f"{task['task']}: {first} and {task['spec']}")
        test = {name_of(task) for task in found["test"]} | {json.dumps(task["spec"]) for task in found["test"]}
        for task in found["train"]:
            known = name_of(task) in test or json.dumps(task["spec"]) in test
            self.rule("train and test are disjoint", not known, lambda: str(task["task"]))
        again = list(self.drawn("train", tasks, seed))
        self.rule("the same seed makes the same tasks", again == found["train"], lambda: f"seed {seed}")
        first = drawn["train"][:SOME]
        if len({task["task"] for task in drawn["train"]}) > SOME:  # a small set may come whole in every step
            same = all(list(self.drawn("train", SOME, seed + more)) == first for more in (1, 2))
            self.rule("another seed makes other tasks", not same, lambda: (
                f"the first {SOME} train tasks of seeds {seed}, {seed + 1} and {seed + 2} are the same, so every training step plays the same: "
                "draw from random.Random(seed)"), advice=True)
        return found["train"] + found["test"]

    def run(self, tasks: int, seed: int) -> List[Finding]:
        """All rules, on a number of tasks of each split; `Gone` if the process of the environment is."""
        draws = random.Random(seed)
        found = self.task_rules(tasks, seed)
        for number, task in enumerate(found, 1):
            self.host.at = f"task {number} of {len(found)}"
            try:
                self.task(task, draws)
            except Broken:  # it is in the ledger
                pass
        for agent, (least, most) in self.earned.items():
            self.rule("what an agent earns depends on what it says", least < most,
                      lambda: f"{agent} earned {least} in every turn: all of its groups will be flat", advice=True)
        return list(self.findings.values())


def worth(answer: Mapping[str, Any], agent: str) -> Tuple[float, float]:
    local = answer["rewards"]["local"]
    return answer["rewards"]["team"], local[agent] if isinstance(local, dict) else local


def name_of(task: Mapping[str, Any]) -> str:
    return str(task["task"].rpartition("/")[2])


def report(environment: Environment, tasks: int, seed: int, limit: float, out: TextIO) -> int:
    """Prints the rules, and returns the exit code: 1 if one is broken."""
    host = Watched(environment, limit)
    checker = Checker(environment, host)
    try:
        reply = host.ask({"setup": True})
        if "error" in reply:
            return 1
        checker.handles = reply["handles"]
        host.at = "drawing tasks"
        checker.run(tasks, seed)
    except Gone as gone:
        if not checker.findings:  # of a process that has ended, it said why
            sys.stderr.write(f"{host.name}: setup: {gone}\n" if host.was_silent else "")
            return host.status or 1
        # it is in the ledger, and nothing after it is tried
    except KeyboardInterrupt:
        return 130
    finally:
        host.close()
    findings = list(checker.findings.values())
    width = max(len(finding.rule) for finding in findings)
    for finding in findings:
        verdict = "ok" if finding.case is None else "note" if finding.advice else "BROKEN"
        print(f"{verdict:<7}{finding.rule:<{width}} {finding.tried:>9} tried", file=out)
        if finding.case is not None:
            print(f"       {shown(finding.case, 600)}", file=out)
    out.flush()
    return int(any(finding.case is not None and not finding.advice for finding in findings))


def check_env(environment: Environment, tasks: int = 8, seed: int = 0) -> None:
    """Raises AssertionError with the rules that `environment` breaks."""
    broken = [finding for finding in Checker(environment).run(tasks, seed) if finding.case is not None and not finding.advice]
    assert not broken, "\n".join(f"{finding.rule}: {finding.case}" for finding in broken)


def main() -> None:
    parser = argparse.ArgumentParser("troupe.check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="8", help="tasks of each split")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--timeout", default="30", help="seconds for an answer")
    parser.add_argument("program", help="the environment's file")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="its own options")
    words = parser.parse_args()
    if not os.path.isfile(words.program):
        sys.stderr.write(f"troupe.check: {words.program}: no such file\nhint: python3 -m troupe.check my_env.py\n")
        sys.exit(2)
    sys.path[0] = os.path.dirname(os.path.abspath(words.program))
    sys.argv = [words.program, *words.options, "check", "--tasks", words.tasks, "--seed", words.seed, "--timeout", words.timeout]
    runpy.run_path(words.program, run_name="__main__")


if __name__ == "__main__":
    main()
