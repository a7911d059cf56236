"""The step protocol in Python, between an environment and `rollout --env-command`.

An environment is three pure functions; `serve` reads a request per line and writes an answer per line. Nothing is kept
between two lines, because the state of an episode comes with every request. So `rollout` can try K candidates from one
state, and play many episodes at once with one process. RECORD.md specifies the lines.

`main` adds `tasks`, which prints task lines for the stdin of `rollout`, and `demo`, which prints imperfect demonstrations
for the warm-up of a new policy, if the environment has a `probe` (which knows the best action).

Agents that act in parallel send their actions one after another, unless the environment has a fourth function, `joint`.
"""

import argparse
import itertools
import json
import os
import random
import re
import sys
import traceback

told = set()


def protect_stdout():
    """Stdout is for answers: from now on all that is printed goes to stderr, also by a library in C. Returns where answers go."""
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def called(function, *arguments, **named):
    """Calls a function of the environment; the traceback of a fault in it goes to stderr, the first time."""
    try:
        return function(*arguments, **named)
    except Exception as error:
        place = tuple((frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__))
        if place not in told:
            told.add(place)
            traceback.print_exc()
        raise


def serve(reset, step, probe=None, joint=None, answers=None):
    """Answers requests until stdin ends; what the functions print goes to stderr.

    reset(spec) -> (situation, agents, order, turns): the names of the agents; "sequential", "parallel", or stages as lists
        of agents; the turn limit.
    step(state, agent, text) -> (situation, rewards, components, terminated, success): rewards are {"team": …, "local": …}
        in [0, 1]; components are what they are made of. A meaningless text earns 0; it is no error.
    probe(state, agent) -> (probes, oracle, solved): optional, for `envs check` alone.
    joint(state, actions) -> as step, for the actions (text by agent) of all who act in parallel; local rewards by agent. With it,
        `step` gets a fourth argument: what the others chose (text by agent), or None.

    A situation is a pair: the state, which is any JSON, and what each agent sees of it, {agent: text}, or {agent: messages} where it is more than
    one message of a user, or {agent: {"messages": messages, "tools": tools}} where it may call tools, which are listed as for a chat template:
    `step` then has an argument `calls`, {"name": …, "arguments": {…}} of each call in the text (of `joint`: by agent). An agent that skips its turn sees None; one agent acts, or the episode is over.
    """
    answers = answers or protect_stdout()
    for line in sys.stdin:
        answer = {}
        try:
            request = json.loads(line)
            answer["request"] = request.get("request")
            answer.update(respond(request, reset, step, probe, joint))
        except Exception as error:  # an error answers this line, and the next one is read
            answer["error"] = f"{type(error).__name__}: {error}"
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def respond(request, reset, step, probe, joint):
    if "task" in request:
        (state, seen), agents, order, turns = called(reset, request["task"]["spec"])
        answer = {"state": state, "observations": messages(seen), "agents": agents, "order": order, "turns": turns}
        return {**answer, "together": True} if joint else answer
    if probe and request.get("probe"):
        probes, oracle, solved = called(probe, request["state"], request["agent"])
        return {"probes": probes, "oracle": oracle, "solved": solved}
    calls = {"calls": request["tool_calls"]} if "tool_calls" in request else {}
    if joint and "actions" in request:
        outcome = called(joint, request["state"], request["actions"], **calls)
    else:
        others = [request.get("beside")] if joint else []
        outcome = called(step, request["state"], request["agent"], request["action"], *others, **calls)
    (state, seen), rewards, components, terminated, success = outcome
    return {
        "state": state,
        "rewards": rewards,
        "reward_components": components,
        "terminated": terminated,
        "success": success,
        "observations": {} if terminated else messages(seen),
    }


def messages(seen):
    return {agent: [{"role": "user", "content": sight}] if isinstance(sight, str) else sight for agent, sight in seen.items()}


def tool_calls(text):
    """The calls in a text that is written for demonstrations, as Hermes and Qwen write them; `rollout` reads those of policies."""
    found = []
    for call in re.findall(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL):
        try:
            call = json.loads(call)
            found.append({"name": call["name"], "arguments": dict(call["arguments"])})
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
    return found


def demonstrate(stream, draws, share, reset, step, probe, joint=None, act=None):
    """Episodes of demonstrators who take the best action (of `probe`, or `act`) with probability `share`, otherwise any; yields the
    instance and a list of (turn, agent, observation, action) of each."""
    for instance, spec in stream:
        (state, seen), agents, order, turns = reset(spec)
        stages = [[agent] for agent in agents] if order == "sequential" else [agents] if order == "parallel" else order
        actions, over = [], False
        for turn, stage in ((turn, stage) for turn in range(turns) for stage in stages):
            if over:
                break
            before = seen  # agents that act in parallel see the state before the stage
            for agent in (agent for agent in stage if before[agent] is not None):
                probes, oracle, solved = ([], None, True) if over else probe(state, agent)
                over = over or solved or not probes
                if over:
                    break
                best = act(state, agent) if act else oracle
                text = best if best is not None and draws.random() < share else draws.choice(probes)
                actions.append((turn, agent, before[agent], text))
                others = [None] if joint else []
                calls = {"calls": tool_calls(text)} if isinstance(before[agent], dict) else {}
                (state, seen), _, _, over, _ = step(state, agent, text, *others, **calls)
        yield instance, actions


def main(name, tasks, share=0.5, act=None, **functions):
    """`PROGRAM` answers requests; `PROGRAM tasks` prints task lines, `PROGRAM demo` demonstrations. tasks(split, seed) yields
    (instance, spec) for ever; share is how often a demonstration takes the best action: that of `probe`, or of act(state, agent)."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    commands = parser.add_subparsers(dest="command")
    printing = commands.add_parser("tasks", help="print task lines for the stdin of rollout")
    printing.add_argument("--split", choices=["train", "test"], default="train")
    printing.add_argument("--count", type=int, default=1)
    printing.add_argument("--seed", type=int, default=0, help="which train tasks; the test split is the same for all")
    showing = commands.add_parser("demo", help="print demonstrations on train tasks, for policy encode and update")
    showing.add_argument("--count", type=int, default=1, help="tasks demonstrated")
    showing.add_argument("--seed", type=int, default=0)
    showing.add_argument("--share", type=float, default=share, help="probability of the best action")
    arguments = parser.parse_args()
    answers = protect_stdout()
    if arguments.command is None:
        serve(**functions, answers=answers)
        return
    if arguments.command == "demo" and "probe" not in functions:
        parser.error("this environment has no probe, so it has no best action to demonstrate")
    stream = itertools.islice(tasks(getattr(arguments, "split", "train"), arguments.seed), arguments.count)
    if arguments.command == "tasks":
        for instance, spec in stream:
            named = f"{name}/{arguments.split}/{instance}"
            line = {"type": "task", "v": 1, "env": name, "task": named, "split": arguments.split, "spec": spec}
            print(json.dumps(line), file=answers)
    else:
        shown = demonstrate(stream, random.Random(arguments.seed), arguments.share, act=act, **functions)
        for episode, (instance, actions) in enumerate(shown):
            for turn, agent, seen, text in actions:
                line = {"type": "sample", "v": 1, "env": name, "task": f"{name}/train/{instance}"}
                line |= {"episode": str(episode), "turn": turn, "agent": agent, "branch": 0, "branches": 1}
                line |= {"id": f"{episode}/{turn}/{agent}/0"}
                prompt = messages({agent: seen})[agent]
                line |= {"prompt": prompt["messages"], "tools": prompt["tools"]} if isinstance(prompt, dict) else {"prompt": prompt}
                line |= {"completion": text, "finish_reason": "stop"}
                print(json.dumps(line), file=answers)
    counts = {"tasks": arguments.count}
    print(json.dumps({"type": "end", "v": 1, "stage": name, "ok": True, "counts": counts, "after": [], "timing": {}}), file=answers)
    answers.close()
