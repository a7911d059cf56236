"""Plan-Path for Gymnasium and PettingZoo, written as usual there, with observations and actions as text.

    python bench/speed/environment_peers.py check FILE         # does it play FILE's episodes exactly as Troupe did?
    python bench/speed/environment_peers.py time FILE SECONDS  # steps per CPU-second, as a line of JSON

FILE is the output of `cargo bench -p envs --bench episodes -- write WORKFLOW COUNT`: the Gymnasium environment plays `single`,
the PettingZoo one `team`. Distances are computed once per board, and words are looked up in tables. They are timed bare, as
returned by `gymnasium.make` and PettingZoo's usual `env()` (with wrappers that check their use), and with a copy before each
step, which scoring several candidates from one state needs: a copy written by hand, and `copy.deepcopy`, which works for any
environment.
"""

import copy
import json
import string
import sys
import time

import gymnasium
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils import wrappers

UNREACHABLE = 65535
PLACES = {f"{chr(97 + column)}{row}": (row, column) for column in range(26) for row in range(30)}
NAMES = {place: name for name, place in PLACES.items()}
TEXT = spaces.Text(4096, min_length=0, charset=string.printable + "\0")
STEPS = {(-1, 0): "U", (1, 0): "D", (0, -1): "L", (0, 1): "R"}


class Level:
    """A board: wall-aware distances to the goal, and the words with which every prompt on it begins."""

    __slots__ = ("stride", "moves", "turns", "goal", "start", "distance", "first", "preamble", "offset", "names")

    def __init__(self, spec):
        size = spec["size"]
        stride = self.stride = size + 2
        self.moves, self.turns = spec["moves"], spec["turns"]
        index = lambda place: (place[0] + 1) * stride + place[1] + 1
        free = [False] * (stride * stride)
        for row in range(1, size + 1):
            free[row * stride + 1 : row * stride + size + 1] = [True] * size
        for wall in spec["walls"]:
            free[index(PLACES[wall])] = False
        distance = [UNREACHABLE] * (stride * stride)
        self.goal, self.start = index(PLACES[spec["goal"]]), index(PLACES[spec["start"]])
        distance[self.goal] = 0
        free[self.goal] = False
        queue = [self.goal]
        for cell in queue:
            further = distance[cell] + 1
            for near in (cell - stride, cell + stride, cell - 1, cell + 1):
                if free[near]:
                    free[near] = False
                    distance[near] = further
                    queue.append(near)
        self.distance = distance
        self.first = distance[self.start]
        self.preamble = " ".join(["walls", *spec["walls"], "goal", spec["goal"], "at "])
        self.offset = {"U": -stride, "D": stride, "L": -1, "R": 1}
        self.names = [NAMES.get((cell // stride - 1, cell % stride - 1), "") for cell in range(stride * stride)]


class Game:
    """The rules of both environments: position, best distance so far, the tool's proposal."""

    __slots__ = ("level", "position", "best", "proposal")

    def __init__(self, level):
        self.level = level
        self.position = level.start
        self.best = level.first
        self.proposal = ""

    def copy(self):
        other = Game.__new__(Game)
        other.level, other.position, other.best, other.proposal = self.level, self.position, self.best, self.proposal
        return other

    def read_moves(self, words):
        offset, moves = self.level.offset, []
        for word in words:
            step = offset.get(word)
            if step is None:
                return None
            moves.append(step)
        return moves if 0 < len(moves) <= self.level.moves else None

    def read_route(self, words):
        """The moves of a route, and whether each cell is adjacent to the previous one."""
        level = self.level
        if not 0 < len(words) <= level.moves:
            return None, False
        row, column = PLACES[level.names[self.position]]
        moves, connected = [], True
        for word in words:
            place = PLACES.get(word)
            if place is None:
                return None, False
            if connected:
                step = STEPS.get((place[0] - row, place[1] - column))
                if step is None:
                    connected = False
                else:
                    moves.append(level.offset[step])
                row, column = place
        return moves, connected

    def act(self, moves, connected, carried_out):
        """team, local, format, legal, oracle, arrived."""
        level = self.level
        if moves is None:
            self.proposal = ""
            return 0.0, 0.0, 0.0, 0.0, 0.0, False
        distance, goal, cell = level.distance, level.goal, self.position
        now = least = here = distance[cell]
        agrees, agreeing, blocked = True, 0, False
        for step in moves:
            if cell == goal:
                break
            there = distance[cell + step]
            if there == UNREACHABLE:
                blocked = True
                break
            if agrees and there < here:
                agreeing += 1
            else:
                agrees = False
            if there < least:
                least = there
            here = there
            cell += step
        first, most = level.first, level.moves
        if here == 0:
            team = 1.0
        else:
            last = first - most * (-(-first // most) - 1)
            team = max(max(self.best, last) - max(here, last), 0) / first
        legal = 1.0 if connected and not blocked else 0.0
        oracle = agreeing / min(most, now)
        local = (1.0 + legal + 8.0 * oracle) / 10.0
        if not carried_out:
            return team, local, 1.0, legal, oracle, False
        self.position, self.proposal = cell, ""
        if least < self.best:
            self.best = least
        return team, local, 1.0, legal, oracle, cell == goal


class GymnasiumPlanPath(gymnasium.Env):
    """The planner alone."""

    metadata = {}

    def __init__(self):
        self.observation_space = self.action_space = TEXT

    def reset(self, *, seed=None, options=None):
        level = options if isinstance(options, Level) else Level(options)
        self.game, self.turn, self.preamble, self.names = Game(level), 0, level.preamble, level.names
        return f"{self.preamble}{self.names[self.game.position]} planner", {}

    def step(self, action):
        game = self.game
        team, local, form, legal, oracle, arrived = game.act(game.read_moves(action.split()), True, True)
        self.turn += 1
        info = {"team": team, "local": local, "format": form, "legal": legal, "oracle": oracle}
        truncated = not arrived and self.turn == game.level.turns
        return f"{self.preamble}{self.names[game.position]} planner", team + local, arrived, truncated, info


class PettingZooPlanPath(AECEnv):
    """A tool that proposes a route, and the planner who sees it."""

    metadata = {"name": "plan_path"}

    def __init__(self):
        self.possible_agents = ["tool", "planner"]
        self.observation_spaces = {agent: TEXT for agent in self.possible_agents}
        self.action_spaces = dict(self.observation_spaces)

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def reset(self, seed=None, options=None):
        level = options if isinstance(options, Level) else Level(options)
        self.game, self.turn = Game(level), 0
        self.agents = ["tool", "planner"]
        self.rewards = {"tool": 0.0, "planner": 0.0}
        self._cumulative_rewards = {"tool": 0.0, "planner": 0.0}
        self.terminations = {"tool": False, "planner": False}
        self.truncations = {"tool": False, "planner": False}
        self.infos = {"tool": {}, "planner": {}}
        self.agent_selection = "tool"

    def observe(self, agent):
        game = self.game
        level = game.level
        if agent == "tool":
            return f"{level.preamble}{level.names[game.position]} tool"
        return f"{level.preamble}{level.names[game.position]} route{game.proposal} planner"

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        game = self.game
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        words = action.split()
        if agent == "tool":
            moves, connected = game.read_route(words)
            team, local, form, legal, oracle, arrived = game.act(moves, connected, False)
            if moves is not None:
                game.proposal = " " + " ".join(words)
            self.agent_selection = "planner"
        else:
            moves = game.read_moves(words)
            team, local, form, legal, oracle, arrived = game.act(moves, True, True)
            self.turn += 1
            self.agent_selection = "tool"
            if arrived:
                self.terminations = {"tool": True, "planner": True}
            elif self.turn == game.level.turns:
                self.truncations = {"tool": True, "planner": True}
        self.infos[agent] = {"team": team, "local": local, "format": form, "legal": legal, "oracle": oracle}
        self.rewards[agent] = team + local
        self._accumulate_rewards()


def read(file):
    with open(file) as lines:
        return [json.loads(line) for line in lines]


def same(step, number, observation, reward, info, terminated):
    rewards, parts = step["rewards"], step["components"]
    seen = (observation, reward, info["team"], info["local"], info["format"], info["legal"], info["oracle"], terminated)
    team, local = rewards["team"], rewards["local"]
    wanted = (step["observation"], team + local, team, local, parts["format"], parts["legal"], parts["oracle"], step["terminated"])
    if seen != wanted:
        sys.exit(f"episode {number}: {seen} is not {wanted}")


def check(episodes):
    """Checks that every observation, reward, component and end is exactly equal, including all bits of doubles."""
    steps = 0
    for number, episode in enumerate(episodes):
        if episode["workflow"] == "single":
            env = GymnasiumPlanPath()
            seen, _ = env.reset(options=episode["spec"])
            for step in episode["steps"]:
                before = seen
                seen, reward, terminated, truncated, info = env.step(step["action"])
                same(step, number, before, reward, info, terminated)
            over = terminated or truncated
        else:
            env = PettingZooPlanPath()
            env.reset(options=episode["spec"])
            for step in episode["steps"]:
                seen, *_ = env.last()
                if env.agent_selection != step["agent"]:
                    sys.exit(f"episode {number}: {env.agent_selection} acts, not {step['agent']}")
                env.step(step["action"])
                agent = step["agent"]
                same(step, number, seen, env.rewards[agent], env.infos[agent], env.terminations[agent])
            over = all(env.terminations.values()) or all(env.truncations.values())
        if not over:
            sys.exit(f"episode {number} goes on after its last step")
        steps += len(episode["steps"])
    return steps


def bare(env):
    return env


def copy_by_hand(env):
    env.game = env.game.copy()
    return env


def play_gymnasium(env, options, actions, before=bare):
    env.reset(options=options)
    for action in actions:
        env = before(env)
        observation, reward, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            break


def play_pettingzoo(env, options, actions, before=bare):
    env.reset(options=options)
    action = iter(actions)
    if before is bare:
        for agent in env.agent_iter():
            observation, reward, terminated, truncated, info = env.last()
            env.step(None if terminated or truncated else next(action))
        return
    # `agent_iter` belongs to one environment object. If it is replaced by its copy, this loop does the same.
    while env.agents:
        observation, reward, terminated, truncated, info = env.last()
        if terminated or truncated:
            env.step(None)
            continue
        env = before(env)
        env.step(next(action))


def rate(play, env, episodes, seconds, **how):
    """Steps per CPU-second over complete passes."""
    began, done, steps = time.process_time(), 0, sum(len(actions) for _, actions in episodes)
    while time.process_time() - began < seconds:
        for options, actions in episodes:
            play(env, options, actions, **how)
        done += steps
    return done / (time.process_time() - began)


def main():
    command, file, *rest = sys.argv[1:]
    episodes = read(file)
    if command == "check":
        print(f"{check(episodes)} steps of {len(episodes)} episodes are the same")
        return
    seconds = float(rest[0])
    if episodes[0]["workflow"] == "single":
        env, play = GymnasiumPlanPath(), play_gymnasium
        gymnasium.register("PlanPath-v0", entry_point=GymnasiumPlanPath)
        made = gymnasium.make("PlanPath-v0")
    else:
        env, play = PettingZooPlanPath(), play_pettingzoo
        made = wrappers.OrderEnforcingWrapper(PettingZooPlanPath())
    actions = [[step["action"] for step in episode["steps"]] for episode in episodes]
    prepared = list(zip([Level(episode["spec"]) for episode in episodes], actions))
    whole = list(zip([episode["spec"] for episode in episodes], actions))
    measured = {
        "steps": rate(play, env, prepared, seconds),
        "made": rate(play, made, prepared, seconds),
        "whole": rate(play, env, whole, seconds),
        "copy": rate(play, env, prepared, seconds, before=copy_by_hand),
        "deepcopy": rate(play, env, prepared[:200], seconds, before=copy.deepcopy),
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
