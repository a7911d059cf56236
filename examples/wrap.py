"""Any PettingZoo or Gymnasium environment with discrete or text actions, as an environment of Troupe.

    python3 examples/wrap.py pettingzoo.classic.connect_four_v3 --team player_0 tasks --count 8
    python3 examples/wrap.py gymnasium:FrozenLake-v1 --turns 12 --options '{"is_slippery": false}' tasks --count 8
    (command='python3 examples/wrap.py pettingzoo.classic.rps_v2 --turns 3'; $command tasks --count 8 |
      rollout --env-command "$command" --policy run/policy --branches 4 | group | advantage | …)
    ./pipeline.sh --env-command 'python3 examples/wrap.py pettingzoo.classic.tictactoe_v3 --team player_1' --warmup 200 --steps 20

A module of PettingZoo is taken as its AEC environment (`env`), agents one after another, or with `--parallel` as its parallel one
(`parallel_env`), all at once. A task is a seed. These environments change in place, so the state is the seed and the actions
so far, and a step plays them again: what is wrapped has to be deterministic once it is seeded.

An agent sees its observation in words, the actions that it may choose (`action_mask`), and says one of them: its number, or, with
`--names up,down,left,right`, its name. A text that is no such action earns the least reward and changes nothing; the environment
does not see it, and where agents take turns the first legal action is played for the agent, so that the game goes on. An agent has
nothing to see while another one moves, and skips its turn. The team's reward is
the mean of what all agents earned by a step, or in a game of one against the other what `--team AGENT` earned; an agent's own is
its own. Both are scaled from `--range LOW HIGH` to 0..1. Where agents take turns, a move may also pay the others, for their last
move: `rollout --sampling parallel` adds that to its sample, and in a tree of several candidates no sample gets it. An episode is a success where the team's rewards add up to at least
`--success SUM`, by default the upper end of the range, without what actions earned that were played for an agent. `demo` prints random legal play for the warm-up of a tiny policy, or with
`--player MODULE:FUNCTION` that of function(agent, observation, info), which returns an action.

Left out: continuous actions, real time, and environments that draw random numbers without a seed.
"""

import argparse
import functools
import importlib
import json
import random

from troupe_rl import Environment, Probe, Start, Step, clamp

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("environment", help="a module of PettingZoo, or gymnasium:ID")
parser.add_argument("--parallel", action="store_true", help="PettingZoo's parallel environment: agents act at once")
parser.add_argument("--turns", type=int, default=8, help="turns of an episode at most; in a turn every agent acts once")
parser.add_argument("--options", type=json.loads, default={}, help="keyword arguments of the environment, as JSON")
parser.add_argument("--names", help="names of the actions, with commas")
parser.add_argument("--team", metavar="AGENT", help="whose reward is the team's, where agents play against each other")
parser.add_argument("--range", nargs=2, type=float, default=[-1.0, 1.0], metavar=("LOW", "HIGH"), help="of rewards")
parser.add_argument("--player", metavar="MODULE:FUNCTION", help="who plays in `demo`; default: any legal action")
parser.add_argument("--success", type=float, help="the sum of the team's rewards that solves a task")


class Gym:
    """A Gymnasium environment as a parallel one with one agent."""

    def __init__(self, environment):
        self.environment, self.possible_agents, self.agents = environment, ["player"], ["player"]
        self.action_space = lambda agent: environment.action_space

    def reset(self, seed):
        self.agents = ["player"]
        observation, info = self.environment.reset(seed=seed)
        return {"player": observation}, {"player": info}

    def step(self, actions):
        observation, reward, terminated, truncated, info = self.environment.step(actions["player"])
        self.agents = [] if terminated or truncated else ["player"]
        one = lambda value: {"player": value}
        return one(observation), one(float(reward)), one(terminated), one(truncated), one(info)


@functools.lru_cache(maxsize=None)
def game():
    """The environment, made once: that is slow, and `reset` forgets what was played."""
    name = options.environment
    if name.startswith("gymnasium:"):
        return Gym(importlib.import_module("gymnasium").make(name.partition(":")[2], **options.options))
    module = importlib.import_module(name)
    return module.parallel_env(**options.options) if options.parallel else module.env(**options.options)


def is_parallel():
    return options.parallel or options.environment.startswith("gymnasium:")


def replay(state):
    """Plays an episode up to a state: (what each agent observes and is told, rewards of the last step, whether it is over)."""
    environment, seed = game(), state["seed"]
    for agent in environment.possible_agents:
        space = environment.action_space(agent)
        space.seed(seed)
    rewards, over = {}, False
    if is_parallel():
        observations, infos = environment.reset(seed=seed)
        for actions in state["moves"]:
            observations, rewards, _, _, infos = environment.step({agent: actions[agent] for agent in environment.agents})
            over = not environment.agents
        views = {agent: (observations[agent], infos.get(agent, {})) for agent in observations}
    else:
        environment.reset(seed=seed)
        is_out = lambda agent: environment.terminations.get(agent, True) or environment.truncations.get(agent, True)
        for move in state["moves"]:
            environment.step(move)
            # A step pays whom it pays, not only the agent that took it.
            rewards = dict(environment.rewards)
            over = all(is_out(agent) for agent in environment.agents)
            while not over and is_out(environment.agent_selection):  # it leaves the game
                environment.step(None)
            if over:
                break
        turn = [] if over else [environment.agent_selection]
        views = {agent: (environment.observe(agent), environment.infos.get(agent, {})) for agent in turn}
    return views, {agent: float(reward) for agent, reward in rewards.items()}, over


def names(agent):
    """The texts of an agent's actions, by action, or None if any text is one."""
    space = game().action_space(agent)
    if not hasattr(space, "n"):
        return None
    given = options.names.split(",") if options.names else []
    start = int(getattr(space, "start", 0))
    return {start + place: given[place] if place < len(given) else str(start + place) for place in range(int(space.n))}


def legal(agent, view):
    """The actions that an agent may choose, by text."""
    observation, info = view
    mask = observation.get("action_mask") if isinstance(observation, dict) else None
    mask = info.get("action_mask") if mask is None else mask
    known = names(agent)
    return {text: action for place, (action, text) in enumerate(known.items()) if mask is None or mask[place]}


def words(value):
    """An observation in words: arrays in rows, the rest as Python prints it."""
    if isinstance(value, dict):
        return "\n".join(f"{key}:\n{words(part)}" for key, part in value.items() if key != "action_mask")
    if hasattr(value, "ndim"):
        if value.ndim == 3 and value.shape[2] <= 4:  # planes, as board games have them: a cell is the number of its plane
            cells = [[next((str(k + 1) for k in range(value.shape[2]) if value[i][j][k]), ".")
                      for j in range(value.shape[1])] for i in range(value.shape[0])]
            return "\n".join(" ".join(row) for row in cells)
        if value.ndim == 2:
            return "\n".join(" ".join(map(plain, row)) for row in value)
        return " ".join(map(plain, value.reshape(-1)))
    return plain(value)


def plain(value):
    """A value as Python prints it, with numbers of NumPy as Python's, and whole ones without a point."""
    if isinstance(value, (tuple, list)) or getattr(value, "ndim", 0):
        open, close = "()" if isinstance(value, tuple) else "[]"
        return open + ", ".join(map(plain, value)) + close
    text = str(value)
    return text[:-2] if hasattr(value, "ndim") and text.endswith(".0") else text


def observed(agent, views):
    if agent not in views:  # it is not its turn, or its part is over
        return None
    known = names(agent)
    may = "" if known is None else "\nactions: " + " ".join(legal(agent, views[agent]))
    seen = words(views[agent][0]["observation"] if isinstance(views[agent][0], dict) and "observation" in views[agent][0]
                 else views[agent][0])
    return f"{agent}\n{seen}{may}"


def see(state, views):
    return state, {agent: observed(agent, views) for agent in game().possible_agents}


def read(agent, view, text):
    """(The action that a text names, whether it names one); any legal action, the first, where it does not."""
    if names(agent) is None:
        return text.strip(), True
    may = legal(agent, view)
    found = may.get(text.strip())
    return (next(iter(may.values())) if found is None else found), found is not None


def advance(state, moves, valid):
    """The episode after further moves: outcomes by agent, and the team's."""
    after = {"seed": state["seed"], "moves": state["moves"] + moves}
    views, rewards, over = replay(after)
    team = rewards.get(options.team, 0.0) if options.team else sum(rewards.values()) / max(1, len(rewards))
    # Rewards of an action that stands in for another are nobody's success.
    after["earned"] = state["earned"] + (team if all(valid.values()) else min(team, 0.0))
    goal = options.range[1] if options.success is None else options.success
    success = over and after["earned"] >= goal
    local = {agent: clamp(rewards.get(agent, 0.0), *options.range) if valid[agent] else 0.0 for agent in valid}
    if not is_parallel() and all(valid.values()):  # on the same scale, what the move of one pays the others
        for agent in rewards.keys() - local.keys():
            if rewards[agent]:
                local[agent] = clamp(rewards[agent], *options.range) - clamp(0.0, *options.range)
    return see(after, views), clamp(team, *options.range) if all(valid.values()) else 0.0, local, over, success


@functools.lru_cache(maxsize=None)
def player():
    module, _, function = options.player.partition(":")
    return getattr(importlib.import_module(module), function)


def play(state, agent, views):
    """What a demonstrator says: any legal action, by a draw that the state decides, or the action of `--player`."""
    may = None if names(agent) is None else legal(agent, views[agent])
    if options.player:
        observation, info = views[agent]
        action = player()(agent, observation, info)
        return next((text for text, known in (may or {}).items() if known == action), str(action))
    draws = random.Random(json.dumps(state, sort_keys=True) + agent)
    return draws.choice(["yes", "no"] if may is None else list(may))


class Wrapped(Environment):
    parser, share = parser, 1.0

    def setup(self):
        global options
        options = self.options
        self.name = options.environment.partition(":")[2] or options.environment.rpartition(".")[2]
        try:
            if options.player:
                player()
        except (ImportError, AttributeError, ValueError) as error:
            parser.error(f"--player {options.player}: {error}; it is MODULE:FUNCTION, of a module that Python finds")

    def has(self, method):
        at_once = is_parallel() and len(game().possible_agents) > 1
        return super().has(method) and (method != "joint" or at_once)

    def tasks(self, split, seed):
        """Seeds: even ones to train, odd ones to test."""
        draws = random.Random(seed if split == "train" else 0)
        while True:
            number = 2 * draws.randrange(1 << 30) + (split == "test")
            yield str(number), {"seed": number}

    def reset(self, spec):
        state = {"seed": spec["seed"], "moves": [], "earned": 0.0}
        agents = list(game().possible_agents)
        views, _, _ = replay(state)
        order = "parallel" if is_parallel() and len(agents) > 1 else "sequential"
        takes_turns = not is_parallel() and len(agents) > 1
        return Start(*see(state, views), agents, order, options.turns, reward_range=(-1.0 if takes_turns else 0.0, 1.0))

    def beside(self, state, agent, text, others):
        """An agent's text with the texts of the others; for agents who have not spoken the first legal action is played."""
        step = self.joint(state, {**(others or {}), agent: text})
        parts = {"format": step.components.get(f"{agent}.format", 1.0)}
        return step._replace(local=step.local[agent], components=parts)

    def step(self, state, agent, text):
        views, _, over = replay(state)
        if over:
            raise ValueError("the episode is over")
        if is_parallel():
            return self.beside(state, agent, text, None)
        if agent not in views:
            raise ValueError(f"it is not {agent}'s turn")
        action, valid = read(agent, views[agent], text)
        seen, team, local, over, success = advance(state, [action], {agent: valid})
        return Step(*seen, team, local, {"format": float(valid)}, over, success)

    def joint(self, state, texts):
        """All agents at once; for those who have not spoken the first legal action is played."""
        views, _, over = replay(state)
        if over:
            raise ValueError("the episode is over")
        read_by = {agent: read(agent, views[agent], texts.get(agent, "")) for agent in game().agents}
        valid = {agent: valid for agent, (_, valid) in read_by.items() if agent in texts}
        seen, team, local, over, success = advance(state, [{agent: action for agent, (action, _) in read_by.items()}], valid)
        parts = {f"{agent}.format": float(good) for agent, good in valid.items()}
        return Step(*seen, team, {agent: local.get(agent, clamp(0.0, *options.range)) for agent in texts}, parts, over, success)

    def probe(self, state, agent):
        views, _, over = replay(state)
        if over or agent not in views:
            return Probe([], solved=over)
        known = names(agent)
        return Probe(["yes", "no"] if known is None else [*list(known.values())[:8], "no such action"])

    def demonstrate(self, state, agent):
        views, _, over = replay(state)
        return Probe([]) if over or agent not in views else Probe(["any"], play(state, agent, views))


if __name__ == "__main__":
    Wrapped().main()
