#!/usr/bin/env python3
"""What each credit rule can see, on six games of two agents, two actions and two turns.

    python3 examples/toy_credit.py table                 the exact gradients, by enumeration of all draws
    python3 examples/toy_credit.py lines stag at-grpo 500 | group | advantage --estimator grpo |
        python3 examples/toy_credit.py gradient stag     the same from 500 sampled records, through the programs

Agents a and b act at once. A policy is one logit for each agent and turn; the probability of action 1 is p. The gradient by a
logit is E[mean over the agent's samples of the turn of A (x - p)]: x is the action, A the advantage, K = 2 candidates.
Standard library only. Left out: tokens, and updates.
"""

import itertools
import json
import math
import random
import signal
import sys
from collections import defaultdict

AGENTS = "ab"
K = 2


class Toy:
    """A game: what the team earns, when it ends, and how likely action 1 is by (agent, turn)."""

    def __init__(self, reward, ends=lambda turn, a, b: False, p=None):
        self.reward, self.ends, self.p = reward, ends, defaultdict(lambda: 0.5, p or {})

    def pay(self, history):
        """What the last joint action of a history earns."""
        return self.reward(len(history) - 1, history)

    def over(self, history):
        return len(history) == 2 or self.ends(len(history) - 1, *history[-1])


def last(rule):
    return lambda turn, h: 0.0 if turn == 0 else float(rule(h))


TOYS = {
    "late": Toy(last(lambda h: h == ((1, 1), (1, 1)))),
    "idle": Toy(lambda turn, h: 1.0 if h[-1][0] else 0.75, ends=lambda turn, a, b: a == 1),
    "rider": Toy(lambda turn, h: float(h[-1][1])),
    "stag": Toy(last(lambda h: {(1, 1): 1.0, (0, 0): 0.6}.get(h[1], 0.0)), p={(0, 1): 0.4, (1, 1): 0.4}),
    "hard": Toy(last(lambda h: h[1][0] if h[0][1] else 0.1 * (1 - h[1][0])), p={(1, 0): 0.2}),
    "luck": Toy(lambda turn, h: 4.0 * h[0][1] if turn == 0 else float(h[1][0])),
}


def mean_only(values):
    center = sum(values) / len(values)
    return [value - center for value in values]


def deviation(values):
    """(r - mean) / std, n - 1: GRPO."""
    center = mean_only(values)
    scale = math.sqrt(sum(value * value for value in center) / max(len(values) - 1, 1))
    return [value / scale if scale > 0 else 0.0 for value in center]


def leave_one_out(values):
    """r - mean of the others; a single member has none."""
    count = len(values)
    return [value * count / (count - 1) if count > 1 else 0.0 for value in mean_only(values)]


def draws(toy, turn, count):
    """Candidates of both agents at a turn, (a's, b's), with their probability."""
    for actions in itertools.product((0, 1), repeat=2 * count):
        chance = 1.0
        for index, action in enumerate(actions):
            p = toy.p[index // count, turn]
            chance *= p if action else 1 - p
        yield chance, (actions[:count], actions[count:])


def plays(toy):
    """Whole episodes with their probability."""
    def go(history, chance):
        if history and toy.over(history):
            yield chance, history
            return
        for more, (a, b) in draws(toy, len(history), 1):
            yield from go(history + ((a[0], b[0]),), chance * more)
    return list(go((), 1.0))


def returns(toy, play):
    paid = [toy.pay(play[: turn + 1]) for turn in range(len(play))]
    return paid, [sum(paid[turn:]) for turn in range(len(paid))]


def parallel(rule):
    """A rule over K whole episodes: `rule(toy, episodes)` gives (episode, turn, agent, advantage)."""
    def statistics(toy):
        found = defaultdict(list)
        for pair in itertools.product(plays(toy), repeat=K):
            chance = math.prod(chance for chance, _ in pair)
            terms = defaultdict(list)
            episodes = [play for _, play in pair]
            for episode, turn, agent, advantage in rule(toy, episodes):
                terms[agent, turn].append(advantage * (episodes[episode][turn][agent] - toy.p[agent, turn]))
            for place in itertools.product((0, 1), repeat=2):
                own = terms[place]
                found[place].append((chance, sum(own) / len(own) if own else 0.0))
        return found
    return statistics


def every(episodes):
    return [(e, t, i) for e, play in enumerate(episodes) for t in range(len(play)) for i in (0, 1)]


def trajectory(scale):
    def rule(toy, episodes):
        advantages = scale([returns(toy, play)[1][0] for play in episodes])
        return [(e, t, i, advantages[e]) for e, t, i in every(episodes)]
    return parallel(rule)


def by_turn(scale, own):
    """Members of a turn are compared: by their own reward, or by their return from there on."""
    def rule(toy, episodes):
        terms = []
        for turn in (0, 1):
            alive = [e for e, play in enumerate(episodes) if turn < len(play)]
            paid = [returns(toy, episodes[e])[0 if own else 1][turn] for e in alive]
            if not alive:
                continue
            terms += [(e, turn, i, value) for e, value in zip(alive, scale(paid)) for i in (0, 1)]
        return terms
    return parallel(rule)


def gigpo(scale, gamma=1.0):
    def rule(toy, episodes):
        whole = scale([returns(toy, play)[1][0] for play in episodes])
        paid = [returns(toy, play)[0] for play in episodes]
        discounted = {(e, t): sum(gamma ** (u - t) * r for u, r in enumerate(paid[e]) if u >= t) for e, t, _ in every(episodes)}
        # The prompt of an agent is the history.
        anchors = defaultdict(list)
        for e, t, i in every(episodes):
            anchors[i, episodes[e][:t]].append((e, t))
        step = {}
        for (i, _), members in anchors.items():
            for (e, t), value in zip(members, scale([discounted[member] for member in members])):
                step[e, t, i] = value
        return [(e, t, i, whole[e] + step[e, t, i]) for e, t, i in every(episodes)]
    return parallel(rule)


def rae(baseline):
    def rule(toy, episodes):
        b = baseline(toy)
        return [(e, t, i, returns(toy, episodes[e])[1][0] - b) for e, t, i in every(episodes)]
    return parallel(rule)


def expected(toy):
    return sum(chance * returns(toy, play)[1][0] for chance, play in plays(toy))


def at_grpo(scale):
    """Candidates of one agent beside what the other executes, which is one of its candidates at random."""
    def node(toy, history):
        turn = len(history)
        for chance, candidates in draws(toy, turn, K):
            for chosen in itertools.product(range(K), repeat=2):
                a, b = candidates[0][chosen[0]], candidates[1][chosen[1]]
                paid = [[toy.pay(history + ((x, b),)) for x in candidates[0]], [toy.pay(history + ((a, y),)) for y in candidates[1]]]
                terms = [sum(A * (x - toy.p[i, turn]) for A, x in zip(scale(paid[i]), candidates[i])) / K for i in (0, 1)]
                yield chance / K**2, terms, history + ((a, b),)

    def statistics(toy):
        found = defaultdict(list)
        for chance, terms, history in node(toy, ()):
            for i in (0, 1):
                found[i, 0].append((chance, terms[i]))
            later = [] if toy.over(history) else list(node(toy, history))
            for more, terms, _ in later or [(1.0, [0.0, 0.0], None)]:
                for i in (0, 1):
                    found[i, 1].append((chance * more, terms[i]))
        return found
    return statistics


def tree(scale, cross):
    """Joint actions, all of which are followed; a candidate is worth the mean of its joint actions' returns."""
    pairs = list(itertools.product(range(K), repeat=2)) if cross else [(k, k) for k in range(K)]

    def node(toy, history):
        """By what is drawn: the terms of both agents, and the mean of the node's returns, with their probability."""
        turn, found = len(history), defaultdict(float)
        for chance, candidates in draws(toy, turn, K):
            actions = [history + ((candidates[0][k], candidates[1][l]),) for k, l in pairs]
            below = [[(1.0, (), 0.0)] if toy.over(action) else children(toy, action) for action in actions]
            for after in itertools.product(*below):
                more = chance * math.prod(chance for chance, _, _ in after)
                worth = [toy.pay(action) + value for action, (_, _, value) in zip(actions, after)]
                terms = []
                for i in (0, 1):
                    values = []
                    for k in range(K):
                        own = [value for pair, value in zip(pairs, worth) if pair[i] == k]
                        values.append(sum(own) / len(own))
                    terms.append(sum(A * (x - toy.p[i, turn]) for A, x in zip(scale(values), candidates[i])) / K)
                inner = [terms for _, terms, _ in after if terms]
                later = tuple(sum(terms[i] for terms in inner) / len(inner) if inner else 0.0 for i in (0, 1))
                found[tuple(terms), later, sum(worth) / len(worth)] += more
        return found

    def children(toy, history):
        """A node of the second turn, its equal outcomes joined."""
        return [(chance, terms, value) for (terms, _, value), chance in node(toy, history).items()]

    def statistics(toy):
        found = defaultdict(list)
        for (terms, later, _), chance in node(toy, ()).items():
            for i in (0, 1):
                found[i, 0].append((chance, terms[i]))
                found[i, 1].append((chance, later[i]))
        return found
    return statistics


RULES = {
    "trajectory, mean": trajectory(mean_only),
    "trajectory, std": trajectory(deviation),
    "MAGRPO parallel, mean": by_turn(mean_only, own=False),
    "own turn, mean": by_turn(mean_only, own=True),
    "AT-GRPO, mean": at_grpo(mean_only),
    "AT-GRPO, std": at_grpo(deviation),
    "aligned tree, mean": tree(mean_only, cross=False),
    "aligned tree, leave one out (C3)": tree(leave_one_out, cross=False),
    "aligned tree, std": tree(deviation, cross=False),
    "cross, mean": tree(mean_only, cross=True),
    "cross, std": tree(deviation, cross=True),
    "GiGPO, mean": gigpo(mean_only),
    "GiGPO, std": gigpo(deviation),
    "RAE, baseline J": rae(expected),
    "RAE, baseline 0": rae(lambda toy: 0.0),
}


def moments(terms):
    center = sum(chance * value for chance, value in terms)
    return center, math.sqrt(max(sum(chance * (value - center) ** 2 for chance, value in terms), 0.0))


def exact(rule, toy, agent, turn):
    """Mean and standard deviation of the gradient by one logit, over all draws."""
    return moments(RULES[rule](TOYS[toy])[agent, turn])


def table():
    """One line a rule: late a0, late a1, idle a0, rider noise, stag a1, hard a1, luck noise."""
    cell = "{:+.6f}".format
    print(json.dumps(["rule", "late a0", "late a1", "idle a0", "rider sd(a0)/g(b0)", "stag a1", "hard a1", "luck sd(a1)/g(a1)"]))
    for rule in RULES:
        rider, luck = RULES[rule](TOYS["rider"]), RULES[rule](TOYS["luck"])
        noise = moments(rider[0, 0])[1] / moments(rider[1, 0])[0]
        late = moments(luck[0, 1])
        spread = late[1] / late[0] if rule not in TREES else None
        cells = [exact(rule, toy, agent, turn)[0] for toy, agent, turn in [("late", 0, 0), ("late", 0, 1), ("idle", 0, 0)]]
        more = [exact(rule, toy, 0, 1)[0] for toy in ("stag", "hard")]
        print(json.dumps([rule, *map(cell, cells), f"{noise:.3f}", *map(cell, more), "-" if spread is None else f"{spread:.3f}"]))


TREES = [rule for rule in RULES if "tree" in rule or "cross" in rule or "AT-GRPO" in rule]


def lines(name, kind, count, seed=1):
    """Records of `count` tasks: at-grpo's tree, or parallel episodes."""
    toy, dice = TOYS[name], random.Random(seed)

    def sample(task, history, agent, branch, action, reward, more):
        turn = len(history)
        seen = int("1" + "".join(f"{a}{b}" for a, b in history), 2)
        print(json.dumps({
            "type": "sample", "v": 1, "env": "toy", "task": f"{name}/{task}", "episode": f"0.{task}", "turn": turn, "agent": AGENTS[agent],
            "branch": branch, "branches": K, "id": f"0.{task}/{turn}/{AGENTS[agent]}/{branch}", "prompt_ids": [seen],
            "completion_ids": [action], "reward": reward, **more}))

    def act(turn, agent):
        return int(dice.random() < toy.p[agent, turn])

    for task in range(count):
        if kind == "at-grpo":
            history = ()
            while not history or not toy.over(history):
                turn = len(history)
                candidates = [[act(turn, i) for _ in range(K)] for i in (0, 1)]
                chosen = [dice.randrange(K) for _ in (0, 1)]
                a, b = candidates[0][chosen[0]], candidates[1][chosen[1]]
                for i in (0, 1):
                    for k, x in enumerate(candidates[i]):
                        joint = (x, b) if i == 0 else (a, x)
                        sample(task, history, i, k, x, toy.pay(history + (joint,)), {"selected": k == chosen[i]})
                history += ((a, b),)
        else:
            for branch in range(K):
                history = ()
                while not history or not toy.over(history):
                    a, b = act(len(history), 0), act(len(history), 1)
                    reward = toy.pay(history + ((a, b),))
                    for i, x in enumerate((a, b)):
                        # The team is paid once: by its last agent.
                        sample(task, history, i, branch, x, reward if i else 0.0, {"sampling_mode": "parallel"})
                    history += ((a, b),)
    print(json.dumps({"type": "end", "v": 1, "stage": "toy", "ok": True}))


def gradient(name):
    """By agent and turn: mean over tasks of the mean over samples of A (x - p), and its standard error."""
    toy, terms = TOYS[name], defaultdict(lambda: defaultdict(list))
    for line in map(json.loads, sys.stdin):
        if line["type"] == "sample":
            agent, turn = AGENTS.index(line["agent"]), line["turn"]
            terms[agent, turn][line["episode"]].append(line["advantage"] * (line["completion_ids"][0] - toy.p[agent, turn]))
    for (agent, turn), by_task in sorted(terms.items()):
        means = [sum(own) / len(own) for own in by_task.values()]
        center = sum(means) / len(means)
        error = math.sqrt(sum((value - center) ** 2 for value in means) / (len(means) - 1) / len(means))
        print(json.dumps({"agent": AGENTS[agent], "turn": turn, "gradient": center, "error": error}))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a traceback
    command, *words = sys.argv[1:] or [""]
    if command == "table" and not words:
        table()
    elif command == "lines" and len(words) == 3 and words[0] in TOYS and words[1] in ("at-grpo", "parallel"):
        lines(words[0], words[1], int(words[2]))
    elif command == "exact" and len(words) == 4 and words[0] in RULES and words[1] in TOYS:
        print(exact(words[0], words[1], AGENTS.index(words[2]), int(words[3]))[0])
    elif command == "gradient" and len(words) == 1 and words[0] in TOYS:
        gradient(words[0])
    else:
        sys.exit(__doc__)
