"""A taskset of verifiers (its v1), with the environment that plays it: one agent, or several in any order.

    python3 examples/from_verifiers.py my-taskset tasks --count 8
    python3 examples/from_verifiers.py my-taskset --env user-sim --config '{"user": {"max_turns": 4}}' tasks --count 8

Needs `pip install verifiers==0.4.0` and the taskset's package. In verifiers an environment calls its agents
(`Env.run(task, agents)`). Here the agents are stand-ins, which pass every question to the policy with their name and wait. So an
environment's `run`, `setup` and `finalize`, and the task's rewards, metrics and stops, are the code of verifiers and the taskset.

A task is its position in the taskset; the digest of its key decides the split. A state is the task and the texts so far: an
environment's `run` is a running Python function, which cannot be copied, so each step runs it again from the start with these
texts (about 1 ms, plus the environment's work). It has to be repeatable: Python's generator is seeded by the task.

The agent that is asked acts and sees its conversation; the others skip. Nothing is paid until `run` ends. Then the mean reward of
the traces that have one is the team's, and the mean of the agent's traces is its local reward, scaled from `--range LOW HIGH` (0 1)
to 0..1. A success is a team reward at the upper end. `demo` works for tasks with a field `answer`.

Not supported, and refused: tools, tasks that need a container or a runtime, and judges, which are models served elsewhere.
"""

import argparse
import asyncio
import contextlib
import functools
import itertools
import json
import logging
import random

import adapter
from troupe_rl import Environment, Probe, Start, Step, clamp, is_test

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("taskset", help="the id of an installed taskset")
parser.add_argument("--taskset-config", type=json.loads, default={}, help="settings of the taskset, as JSON")
parser.add_argument("--env", default="", help="the id of an environment (default: the taskset's, or one agent)")
parser.add_argument("--config", type=json.loads, default={}, help="settings of the environment, as JSON")
parser.add_argument("--turns", type=int, default=8, help="turns of an episode at most; in a turn each agent acts at most once")
parser.add_argument("--range", nargs=2, type=float, default=[0.0, 1.0], metavar=("LOW", "HIGH"), help="of rewards")


class Seat:
    """A stand-in for verifiers' Agent: it waits for the policy's texts."""

    def __init__(self, stage, name, config):
        self.stage, self.name, self.config = stage, name, config
        self.trainable = True

    def trace(self, task):
        if type(task).NEEDS_CONTAINER or task.data.image or type(task).toolsets(task.config) or task.config.judges:
            raise ValueError(f"{type(task).__name__} needs a container, tools or a judge")
        record = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        trace = vf.Trace(task=record, agent=vf.AgentInfo(config=self.config, name=self.name, trainable=self.trainable))
        # The class of a task's state is a parameter of the task.
        states = [kind for kind in getattr(type(task).__orig_bases__[0], "__args__", ()) if isinstance(kind, type) and issubclass(kind, vf.State)]
        if states:
            trace.state = states[0]()
        return trace

    async def run(self, task, *, runtime=None, tools=None, on_trace=None, collect_artifacts=False):
        async with self.interaction(task, on_trace=on_trace) as interaction:
            await interaction.turn()
        return interaction.trace

    @contextlib.asynccontextmanager
    async def interaction(self, task, *, runtime=None, tools=None, on_trace=None):
        interaction = Talk(self, task)
        if on_trace:
            on_trace(interaction.trace)
        await task.setup(interaction.trace, None)
        yield interaction
        trace = interaction.trace
        trace.stop("agent_completed")
        await task.finalize(trace, None)
        await task.score(trace, None)
        trace.ok = True
        self.stage.traces.append(trace)


class Talk:
    """A stand-in for verifiers' Interaction: one conversation of one agent."""

    def __init__(self, seat, task):
        self.seat, self.task, self.trace, self.over = seat, task, seat.trace(task), False
        data = task.data
        if data.system_prompt:
            self.note(vf.SystemMessage(content=data.system_prompt))
        for message in [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else data.prompt or []:
            self.note(message)

    def note(self, message, sampled=False):
        parent = len(self.trace.nodes) - 1 if self.trace.nodes else None
        self.trace.nodes.append(vf.MessageNode(parent=parent, message=message, sampled=sampled))

    async def turn(self, message=None):
        if self.over:
            raise RuntimeError("the exchange is over")
        for part in [vf.UserMessage(content=message)] if isinstance(message, str) else message or []:
            self.note(as_message(part))
        most = self.seat.config.max_turns
        if most is not None and self.trace.num_turns >= most:
            self.trace.stop("max_turns")
            self.over = True
        elif await self.stopped():
            self.over = True
        if self.over:
            return vf.Segment(messages=[], terminated=True)
        said = vf.AssistantMessage(content=await self.seat.stage.ask(self.seat.name, self.trace.messages))
        self.note(said, sampled=True)
        return vf.Segment(messages=[said])

    async def stopped(self):
        if not self.trace.num_turns:
            return False
        return any([await stop(**{"trace": self.trace}) for stop in self.task.hooks("stop")])


def as_message(part):
    kinds = {"system": vf.SystemMessage, "user": vf.UserMessage, "assistant": vf.AssistantMessage, "tool": vf.ToolMessage}
    return kinds[part["role"]](**part) if isinstance(part, dict) else part


class Stage:
    """One run of an environment on a task, up to the first question that has no answer yet."""

    def __init__(self, texts):
        self.texts, self.traces, self.open, self.asked = list(texts), [], [], asyncio.Event()

    async def ask(self, name, messages):
        answer = asyncio.get_running_loop().create_future()
        self.open.append((name, messages, answer))
        self.asked.set()
        return await answer

    async def play(self, task):
        """(Who is asked, what it sees), or None where the run has ended."""
        run = asyncio.ensure_future(self.episode(task))
        try:
            while True:
                asked = asyncio.ensure_future(self.asked.wait())
                await asyncio.wait({run, asked}, return_when=asyncio.FIRST_COMPLETED)
                asked.cancel()
                if run.done():
                    run.result()
                    return None
                name, messages, answer = self.open[0]
                if not self.texts:
                    return name, messages
                self.open.pop(0)
                if not self.open:
                    self.asked.clear()
                answer.set_result(self.texts.pop(0))
        finally:
            run.cancel()
            with contextlib.suppress(BaseException):
                await run

    async def episode(self, task):
        made = environment()
        agents = vf.Agents(made.config, lambda name, config: Seat(self, name, config))
        record = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        episode = vf.Episode(env=vf.EnvInfo(id=made.config.env_id), task=record)
        self.traces = episode.traces
        await made.setup(agents)
        await made.run(task, agents)
        episode.ok = True
        await made.finalize(task, episode)
        self.traces = episode.traces


@functools.lru_cache(maxsize=1)
def environment():
    taskset = {"id": options.taskset, **options.taskset_config}
    return vf.load_environment(vf.resolve_env_config({"id": options.env, **options.config, "taskset": taskset}))


READ = []  # tasks read so far


@functools.lru_cache(maxsize=1)
def reader():
    return iter(environment().taskset)


def task_at(index):
    """None behind the last one."""
    while len(READ) <= index:
        task = next(reader(), None)
        if task is None:
            return None
        READ.append(task)
    return READ[index]


def names():
    return [name for name, value in environment().config if isinstance(value, vf.AgentConfig)]


@functools.lru_cache(maxsize=256)
def played(index, texts):
    with adapter.quiet():
        task = task_at(index)
        if task is None:
            raise ValueError(f"{options.taskset} has no task {index}")
        random.seed(f"{options.taskset}/{index}")
        stage = Stage(texts)
        return asyncio.run(stage.play(task)), stage.traces


def as_lines(messages):
    return [{"role": message.role, "content": content(message)} for message in messages]


def content(message):
    parts = [message.content] if isinstance(message.content, str) else [getattr(part, "text", "") for part in message.content or []]
    return "\n".join(parts) or " "


def see(state, asked):
    return state, {asked[0]: as_lines(asked[1])}


def mean(traces, wanted):
    rewards = [clamp(trace.reward, *options.range) for trace in traces if trace.rewards and wanted(trace)]
    return sum(rewards) / len(rewards) if rewards else 0.0


class Taskset(Environment):
    parser = parser

    def setup(self):
        global options, vf
        options, self.name = self.options, f"verifiers-{self.options.taskset}"
        logging.disable(logging.WARNING)
        vf = adapter.package("verifiers.v1", "verifiers==0.4.0")
        try:
            with adapter.quiet():
                environment()
        except Exception as error:
            adapter.fail(f"{options.taskset}: {type(error).__name__}: {error}", "a taskset is a package that exports its Taskset; is it installed?")

    def tasks(self, split, seed):
        """The tasks of a split, in an order by seed; of a taskset without an end as they come."""
        wanted = []
        for index in itertools.count():
            with adapter.quiet():
                task = task_at(index)
            if task is None:
                break
            if is_test(task.key) == (split == "test"):
                named = task.key[:16], {"index": index}
                if not environment().taskset.bounded:
                    yield named
                else:
                    wanted.append(named)
        if not wanted:
            adapter.fail(f"no task of {options.taskset} falls into the split {split}", "it needs more tasks", 65)
        draws = random.Random(seed if split == "train" else 0)
        while True:
            yield from draws.sample(wanted, len(wanted))

    def reset(self, spec):
        asked, _ = played(spec["index"], ())
        if asked is None:
            raise ValueError("the environment asked no agent")
        return Start(*see({"index": spec["index"], "texts": [], "over": None}, asked), names(), turns=options.turns, turn=asked[0])

    def step(self, state, agent, text):
        if state["over"] is not None:
            raise ValueError("the episode is over")
        asked, _ = played(state["index"], tuple(state["texts"]))
        if agent != asked[0]:
            raise ValueError(f"{asked[0]} was asked, not {agent}")
        texts = [*state["texts"], text]
        asked, traces = played(state["index"], tuple(texts))
        if asked is not None:
            return Step(*see(dict(state, texts=texts), asked), turn=asked[0])
        team, own = (mean(traces, lambda trace: True), mean(traces, lambda trace: trace.agent.name == agent))
        parts = {name: clamp(reward.value, *options.range) for trace in traces for name, reward in trace.rewards.items() if reward}
        return Step(dict(state, texts=texts, over=team >= 1.0), {}, team, own, parts, True, team >= 1.0)

    def probe(self, state, agent):
        if state["over"] is not None:
            return Probe([], solved=state["over"])
        answer = getattr(task_at(state["index"]).data, "answer", None)
        return Probe([*([str(answer)] if answer is not None else []), "yes", "0", "I do not know."])

    def demonstrate(self, state, agent):
        """The task's answer, half of the time."""
        answer = getattr(task_at(state["index"]).data, "answer", None)
        return self.probe(state, agent)._replace(best=None if answer is None else str(answer))


if __name__ == "__main__":
    adapter.fix_hashes()
    Taskset().main()
