"""An environment of OpenEnv: a class in this process, or a running server.

    python3 examples/from_openenv.py my_env.server.my_env_environment:MyEnvironment tasks --count 8
    python3 examples/from_openenv.py http://localhost:8000 --action message tasks --count 8

Needs `pip install openenv==0.10.0`. OpenEnv contains no environment; `openenv init my_env` writes one that echoes. OpenEnv has one
agent. Its text fills the action's only required field (for a server: `--action FIELD`), or is the whole action as JSON if there are
more. It sees the observation's fields except `done`, `reward` and `metadata`. A text that is not a valid action earns 0 and changes
nothing.

A task is a seed, and its digest decides the split. If the environment lists tasks (`num_tasks`), a task is a split and an index, and
the splits are the environment's: `--splits TRAIN,TEST` names them. A state is the task and the actions so far. A class is copied
(deepcopy) if possible, and else replayed from the start (always with `--replay`): one `reset`, and a `step` for each action. A
server is always replayed, in a new session: on one machine 2 ms for the session and 0.3 ms for each action.

An environment that ignores the seed, or is too slow to replay, cannot run two candidates from one state. `--live` keeps each episode
in one session and refuses a second candidate, so use `rollout --sampling parallel --threads 1`, which needs none. With `--live` the
same seed no longer means the same bytes, and `envs check`, which tries everything twice, says so.

A step's reward, scaled from `--range LOW HIGH` (0 1) to 0..1, is both the team's and the agent's. A finished episode is a success if
its rewards add up to at least `--success SUM` (the upper end). There is no `demo`: OpenEnv does not know which actions are legal.
"""

import argparse
import copy
import functools
import itertools
import json
import random
import typing

import adapter
from troupe_rl import Environment, Probe, Start, Step, clamp, is_test

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("source", help="MODULE:CLASS of an Environment, or the URL of a server")
parser.add_argument("--action", help="the field of the action that a text fills (default: the one that is required)")
parser.add_argument("--splits", default="train,test", help="names of the environment's own splits to train and to test on")
parser.add_argument("--turns", type=int, default=4, help="turns of an episode at most")
parser.add_argument("--range", nargs=2, type=float, default=[0.0, 1.0], metavar=("LOW", "HIGH"), help="of rewards")
parser.add_argument("--success", type=float, help="the sum of rewards that solves a task")
parser.add_argument("--replay", action="store_true", help="play an episode again instead of copying the environment")
parser.add_argument("--live", action="store_true", help="one try from each state, in a session that is kept")


class NoAction(Exception):
    """A text that is no action."""


class Local:
    """An environment in this process."""

    def __init__(self):
        module, _, name = options.source.partition(":")
        self.kind = getattr(adapter.package(module, f"the package of {module}"), name)
        self.action = typing.get_type_hints(self.kind.step)["action"]
        required = [name for name, field in self.action.model_fields.items() if field.is_required()]
        self.field = options.action or (required[0] if len(required) == 1 else None)
        self.provider = self.kind() if hasattr(self.kind, "num_tasks") else None
        self.copies = not options.replay

    def start(self, spec):
        environment = self.kind()
        seed_all(spec)
        return environment, environment.reset(**reset_arguments(spec)), random.getstate()

    def step(self, session, text):
        environment, _, draws = session
        action = self.read(text)
        random.setstate(draws)
        return environment, environment.step(action), random.getstate()

    def read(self, text):
        try:
            return self.action.model_validate({self.field: text} if self.field else json.loads(text))
        except (ValueError, RecursionError) as error:
            raise NoAction from error

    def twin(self, session):
        """A copy to go on with, or None if it cannot be copied."""
        try:
            return copy.deepcopy(session[0]), session[1], session[2]
        except Exception:
            self.copies = False
            return None

    def parts(self, session):
        told = session[1]
        fields = told.model_dump(mode="json")
        return {name: value for name, value in fields.items() if name not in ("done", "reward", "metadata")}, told.reward, told.done

    def close(self, session):
        pass  # its copies go on


class Remote:
    """A server of OpenEnv."""

    provider, copies = None, False

    def start(self, spec):
        client = openenv.core.GenericEnvClient(base_url=options.source).sync()
        client.connect()
        return client, client.reset(**reset_arguments(spec)), None

    def step(self, session, text):
        try:
            action = {options.action: text} if options.action else json.loads(text)
        except (ValueError, RecursionError) as error:
            raise NoAction from error
        if not isinstance(action, dict):
            raise NoAction
        try:
            return session[0], session[0].step(action), None
        except RuntimeError as error:  # how the client says that the server refused an action
            raise NoAction from error

    def twin(self, session):
        return None

    def parts(self, session):
        told = session[1]
        return dict(told.observation), told.reward, told.done

    def close(self, session):
        if session is not None:
            session[0].close()


def reset_arguments(spec):
    if "seed" in spec:
        return {"seed": spec["seed"], "episode_id": str(spec["seed"])}
    return {"split": spec["split"], "index": spec["index"]}


def seed_all(spec):
    """The environment's own generator takes the seed of `reset`; those that use Python's get the same one."""
    random.seed(json.dumps(spec, sort_keys=True))


SESSIONS = {}  # with --live: episodes in progress
NUMBERS = itertools.count()


@functools.lru_cache(maxsize=256)
def played(spec, texts):
    """The session after these texts, kept to be copied; a text that is no action is not among them."""
    if not texts:
        return source.start(json.loads(spec))
    before = source.twin(played(spec, texts[:-1]))
    return source.step(before, texts[-1]) if before is not None else again(spec, texts)


def again(spec, texts):
    session = source.start(json.loads(spec))
    for text in texts:
        session = source.step(session, text)
    return session


def after(state, text):
    """The parts of the observation after the actions of a state and, unless it is None, one more text."""
    if options.live:
        if state.get("session") is None:  # one for every episode
            state["session"] = next(NUMBERS)
            SESSIONS[state["session"]] = source.start(state["spec"]), 0
        session, texts = SESSIONS.get(state["session"], (None, None))
        if texts != len(state["texts"]):
            raise ValueError("this state was tried before, or in another process: --live takes --sampling parallel --threads 1")
        session = source.step(session, text)
        SESSIONS[state["session"]] = session, texts + 1
        return source.parts(session)
    spec, texts = json.dumps(state["spec"], sort_keys=True), (*state["texts"], *([text] if text is not None else []))
    if source.copies:
        return source.parts(played(spec, texts))
    session = again(spec, texts)
    source.close(session)
    return source.parts(session)


def words(fields):
    """An observation in words: messages as they are, one field alone, several by name."""
    for value in fields.values():
        if isinstance(value, list) and value and all(isinstance(part, dict) and {"role", "content"} <= set(part) for part in value):
            return [{"role": part["role"], "content": str(part["content"])} for part in value]
    told = {name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for name, value in fields.items() if value is not None}
    text = next(iter(told.values())) if len(told) == 1 else "\n".join(f"{name}: {value}" for name, value in told.items())
    return text if text.strip() else "(nothing to see)"


class OpenEnv(Environment):
    parser = parser

    def setup(self):
        global options, openenv, source
        options = self.options
        openenv = adapter.package("openenv", "openenv==0.10.0")
        adapter.package("openenv.core", "openenv==0.10.0")
        remote = options.source.startswith(("http://", "https://"))
        if not remote and ":" not in options.source:
            adapter.fail(f"{options.source}: neither a URL nor MODULE:CLASS", "for example my_env.server.my_env_environment:MyEnvironment")
        try:
            source = Remote() if remote else Local()
        except (AttributeError, KeyError, TypeError) as error:
            adapter.fail(f"{options.source}: {type(error).__name__}: {error}", "name a subclass of openenv's Environment that says the type of its action")
        self.name = f"openenv-{options.source.rpartition('/' if remote else ':')[2]}"

    def has(self, method):
        """A session that is kept can be tried once, so there is nothing to probe."""
        return super().has(method) and not (options.live and method == "probe")

    def tasks(self, split, seed):
        draws = random.Random(seed if split == "train" else 0)
        if source.provider is not None:
            own = dict(zip(("train", "test"), options.splits.split(",")))[split]
            count = source.provider.num_tasks(own)
            while True:
                for index in draws.sample(range(count), count):
                    yield f"{own}-{index}", {"split": own, "index": index}
        while True:
            number = draws.randrange(1 << 31)
            if is_test(str(number)) == (split == "test"):
                yield str(number), {"seed": number}

    def reset(self, spec):
        state = {"spec": spec, "texts": [], "earned": 0.0, "over": None}
        with adapter.quiet():
            begun = source.start(spec) if options.live else None
            fields, _, _ = source.parts(begun) if options.live else after(state, None)
            source.close(begun)
        state["seen"] = words(fields)
        return Start(state, {"agent": state["seen"]}, ["agent"], turns=options.turns)

    def step(self, state, agent, text):
        if state["over"] is not None:
            raise ValueError("the episode is over")
        try:
            with adapter.quiet():
                fields, reward, done = after(state, text)
        except NoAction:
            return Step(state, {"agent": state["seen"]}, components={"format": 0.0})
        reward = float(reward or 0.0)
        earned = state["earned"] + reward
        goal = options.range[1] if options.success is None else options.success
        solved = bool(done) and earned >= goal
        done = bool(done) or len(state["texts"]) + 1 >= options.turns
        if done and options.live:
            source.close(SESSIONS.pop(state["session"])[0])
        state = dict(state, texts=[*state["texts"], text], earned=earned, seen=words(fields), over=solved if done else None)
        scaled = clamp(reward, *options.range)
        return Step(state, {"agent": state["seen"]}, scaled, scaled, {"format": 1.0}, done, solved)

    def probe(self, state, agent):
        if state["over"] is not None:
            return Probe([], solved=state["over"])
        return Probe(["yes", "no", "a longer answer, in words", "{}", "0"])


if __name__ == "__main__":
    adapter.fix_hashes()
    OpenEnv().main()
