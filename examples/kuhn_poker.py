"""Kuhn poker: two opponents, three cards, and an exact measure of how far from an equilibrium they play.

Each player antes 1 and gets one of J, Q, K. `first` checks or bets 1. After a check `second` checks (showdown) or bets; whoever faces a
bet folds or calls. The payoffs are -2 to 2 and add up to 0; in every equilibrium `first` loses 1/18 a game.

    python3 examples/kuhn_poker.py tasks --count 8
    python3 examples/kuhn_poker.py --play first tasks --count 8        second draws by an equilibrium
    python3 examples/kuhn_poker.py exploitability < samples.jsonl      what the policies of a rollout can lose, exactly
    ./pipeline.sh --env-command 'python3 examples/kuhn_poker.py --chips' --opponents past:8 --flags rollout='--sampling parallel' \
        --flags group='--by agent' --flags advantage='--credit episode-own' --stage reward='python3 examples/kuhn_poker.py measure'

`exploitability` prints how much the best response to each player gains over the game's value, on average of the two: 0 at an
equilibrium, 11/24 for players who say either at random. How often a player says what in each of its six situations follows from the
log-probabilities of the samples of a `rollout` (all branches), and without them from counts, for which it is exact. A situation that
does not occur is played at random. `measure` passes a stream on and adds a `measure` line with it, which `report` draws over the steps.

With `--chips` both players are paid their chips at the end, -2 to 2, whoever ends the game, and nothing else: for self-play. Without,
who ends a game earns its own result, -2 to 2 as 0 to 1, which is the team's reward for `--team` (first); until then a legal text earns
0.1 of its own. Results that the other player's move brings about are not credited (`--play` avoids them: all its games end with a
move of the policy's). A text that is no legal move is a check or a fold, and its player earns 0 (-2 chips) by the game. There are six deals; a task is a deal and a
number, so that test tasks differ from train tasks by name alone. `demo` plays by the equilibrium half of the time, and otherwise any legal move.
"""

import argparse
import itertools
import json
import math
import random
import signal
import sys
from fractions import Fraction

from troupe_rl import Environment, Probe, Start, Step, is_test

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--play", choices=["first", "second"], help="the player that a policy plays (default: both)")
parser.add_argument("--chips", action="store_true", help="pay both players their chips, and nothing else")
parser.add_argument("--team", choices=["first", "second"], help="the player whose result is the team's (default: first)")
CARDS = "JQK"
PLAYERS = ("first", "second")
# What was done before -> who acts and may do what: the first move gives in, the second puts money in.
MOVES = {"": ("first", "check", "bet"), "c": ("second", "check", "bet"), "b": ("second", "fold", "call"), "cb": ("first", "fold", "call")}
# An equilibrium: the probability of the second move by card and situation. A family of them has `first` bet J with a, and K with 3a.
BLUFF = Fraction(1, 3)
EQUILIBRIUM = {
    ("J", ""): BLUFF, ("Q", ""): Fraction(0), ("K", ""): 3 * BLUFF,
    ("J", "cb"): Fraction(0), ("Q", "cb"): BLUFF + Fraction(1, 3), ("K", "cb"): Fraction(1),
    ("J", "c"): Fraction(1, 3), ("Q", "c"): Fraction(0), ("K", "c"): Fraction(1),
    ("J", "b"): Fraction(0), ("Q", "b"): Fraction(1, 3), ("K", "b"): Fraction(1),
}


def payoff(cards, played):
    """What `first` wins, or None while the game goes on. c: gave in, b: put money in."""
    wins = 1 if CARDS.index(cards[0]) > CARDS.index(cards[1]) else -1
    return {"cc": wins, "bc": 1, "bb": 2 * wins, "cbc": -1, "cbb": 2 * wins}.get(played)


def value(strategy, cards, played=""):
    """What `first` wins on average from here if both play by `strategy`."""
    won = payoff(cards, played)
    if won is not None:
        return Fraction(won)
    player = MOVES[played][0]
    bold = strategy[cards[PLAYERS.index(player)], played]
    return (1 - bold) * value(strategy, cards, played + "c") + bold * value(strategy, cards, played + "b")


DEALS = ["".join(pair) for pair in itertools.permutations(CARDS, 2)]


def game_value(strategy):
    return sum(value(strategy, cards) for cards in DEALS) / len(DEALS)


def exploitability(strategy):
    """Half of what both players gain by a best response: every plan of a player is tried, of which there are 64."""
    gains = Fraction(0)
    for player, sign in (("first", 1), ("second", -1)):
        own = [situation for situation in strategy if MOVES[situation[1]][0] == player]
        plans = ({**strategy, **dict(zip(own, map(Fraction, plan)))} for plan in itertools.product((0, 1), repeat=len(own)))
        gains += max(sign * game_value(plan) for plan in plans)
    return gains / 2


def strategy_of(lines):
    """How often each situation is answered by its second move, by the sample lines of a rollout."""
    counts = {situation: [0, 0] for situation in EQUILIBRIUM}
    chances = {situation: ({}, {}) for situation in EQUILIBRIUM}
    for sample in lines:
        if sample.get("type") == "sample":
            words = sample["prompt"][-1]["content"].split()
            situation = words[1], "" if words[3] == "nothing" else words[3]
            bold = move(situation[1], sample["completion"])[0] == "b"
            counts[situation][bold] += 1
            if sample.get("completion_logprobs"):
                chances[situation][bold][tuple(sample["completion_ids"])] = math.exp(sum(sample["completion_logprobs"]))
    return {situation: chance(*counts[situation], *map(dict.values, chances[situation])) for situation in EQUILIBRIUM}


def chance(tame, bold, tame_chances, bold_chances):
    """The probability of the second move, from the log-probabilities of the answers, else from counts."""
    if tame_chances or bold_chances:  # what did not occur is shared equally
        return Fraction(min(1.0, max(0.0, (1 + sum(bold_chances) - sum(tame_chances)) / 2)))
    return Fraction(bold, tame + bold) if tame + bold else Fraction(1, 2)


def move(played, text):
    """(What a text does, whether it is a legal move)."""
    _, tame, bold = MOVES[played]
    text = text.strip().lower()
    return "b" if text == bold else "c", text in (tame, bold)


def agents():
    return [options.play] if options.play else list(PLAYERS)


def answered(state):
    """The state after the player that no policy plays has moved: by the equilibrium, with draws of the task."""
    while payoff(state["cards"], state["played"]) is None and MOVES[state["played"]][0] not in agents():
        player = MOVES[state["played"]][0]
        bold = EQUILIBRIUM[state["cards"][PLAYERS.index(player)], state["played"]]
        drawn = random.Random(f"{state['number']}/{state['cards']}/{state['played']}").random() < bold
        state = dict(state, played=state["played"] + ("b" if drawn else "c"))
    return state


def see(state):
    """The state, and what the player to move sees of it."""
    player, tame, bold = MOVES[state["played"]]
    card = state["cards"][PLAYERS.index(player)]
    return state, {player: f"card {card} after {state['played'] or 'nothing'} say {tame} or {bold}"}


def mover(state):
    return MOVES[state["played"]][0]


def result(state, player):
    won = payoff(state["cards"], state["played"])
    if player in state["fouls"]:
        return 0.0
    return (2 + (won if player == "first" else -won)) / 4


class KuhnPoker(Environment):
    name, parser = "kuhn-poker", parser

    def setup(self):
        global options
        options = self.options

    def tasks(self, split, seed):
        draws = random.Random(seed if split == "train" else 0)
        while True:
            number = draws.randrange(1 << 31)
            for cards in draws.sample(DEALS, len(DEALS)):
                if is_test(str(number)) == (split == "test"):
                    yield f"{cards}-{number}", {"cards": cards, "number": number}

    def reset(self, spec):
        state = {"cards": spec["cards"], "number": spec["number"], "played": "", "fouls": []}
        state = answered(state)
        span = (-2.0, 2.0) if options.chips else (0.0, 1.0)
        return Start(*see(state), agents(), turns=2, turn=mover(state), reward_range=span)

    def step(self, state, agent, text):
        if payoff(state["cards"], state["played"]) is not None or agent != MOVES[state["played"]][0]:
            raise ValueError("the game is over, or it is the other player's turn")
        done, legal = move(state["played"], text)
        fouls = state["fouls"] if legal else [*state["fouls"], agent]
        state = answered(dict(state, played=state["played"] + done, fouls=fouls))
        team = options.team or agents()[0]
        parts = {"legal": float(legal)}
        won = payoff(state["cards"], state["played"])
        if won is None:
            return Step(*see(state), local=0.0 if options.chips else 0.1 * legal, components=parts, turn=mover(state))
        if options.chips:
            chips = {"first": won, "second": -won}
            local = {player: float(-2 if player in state["fouls"] else chips[player]) for player in agents()}
            return Step(state, {}, 0.0, local, parts, True, result(state, team) > 0.5)
        own = result(state, agent)
        return Step(state, {}, own if agent == team else 0.0, own, parts, True, result(state, team) > 0.5)

    def probe(self, state, agent):
        if payoff(state["cards"], state["played"]) is not None:
            return Probe([], solved=result(state, options.team or agents()[0]) > 0.5)
        return Probe([*MOVES[state["played"]][1:], "all in"])

    def demonstrate(self, state, agent):
        """The equilibrium's move half of the time, otherwise any: a policy has to see that the card matters."""
        _, tame, bold = MOVES[state["played"]]
        draw = random.Random(f"{agent}/{state['number']}/{state['cards']}/{state['played']}").random()
        chance = EQUILIBRIUM[state["cards"][PLAYERS.index(agent)], state["played"]]
        return Probe([tame, bold], bold if draw < chance else tame)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a traceback
    if sys.argv[1:] == ["measure"]:
        samples = []
        for line in sys.stdin:
            parsed = json.loads(line)
            samples += [parsed] if parsed.get("type") == "sample" else []
            if parsed.get("type") == "end":
                print(json.dumps({"type": "measure", "v": 1, "exploitability": float(exploitability(strategy_of(samples)))}))
                samples = []
            sys.stdout.write(line)
        sys.exit()
    if sys.argv[1:] == ["exploitability"]:
        strategy = strategy_of(map(json.loads, sys.stdin))
        lost = exploitability(strategy)
        print(json.dumps({"exploitability": float(lost), "exact": str(lost), "value": float(game_value(strategy))}))
        sys.exit()
    KuhnPoker().main()
