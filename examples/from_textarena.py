"""A game of TextArena. Policies play all players, or some of them; the others play random legal moves.

    python3 examples/from_textarena.py TicTacToe-v0 tasks --count 8
    python3 examples/from_textarena.py KuhnPoker-v0 --play player_1 tasks --count 8
    ./pipeline.sh --env-command 'python3 examples/from_textarena.py Nim-v0 --play player_0' --run runs/nim

Needs `pip install textarena==0.7.4` (some games also numpy, words of nltk, or a served model, and say so). A task is a seed; its
digest decides the split. Games without chance (TicTacToe, Nim) are the same game for every seed. TextArena draws from Python's
global generator, also during a game, so a state is the seed and the texts so far. The process keeps copies of recent games with
the generator, and replays a game that it has not seen: a copy takes 0.1 to 0.4 ms in most games, a replay 0.5 ms and a step for
each text.

The player to move sees TextArena's text; the others skip. A text that TextArena refuses earns 0, and the player is asked again;
after a second refusal in a row most games are lost. A game pays at its end: the player gets its reward, scaled from
`--range LOW HIGH` to 0..1, and so does the team if this player is `--team` (default: the first that a policy plays). Until then a
legal move earns a local reward of 0.1. A success is a reward of `--team` at the upper end, unless somebody forfeited the game.

`--play a,b` names the players that policies play. The others draw one of the moves that TextArena lists in brackets ('[4]') and
accepts; if it lists none, one or two numbers ('[0 3]') that it accepts. `demo` plays all players like this: legal moves, not good
ones.
"""

import argparse
import copy
import functools
import random
import re

import adapter
from troupe_rl import Environment, Probe, Start, Step, clamp, is_test

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("game", help="an id of TextArena, for example TicTacToe-v0")
parser.add_argument("--players", type=int, help="players (default: 2, or as few or many as the game asks for)")
parser.add_argument("--play", help="the players that policies play, with commas (default: all)")
parser.add_argument("--team", help="the player whose result is the team's (default: the first that policies play)")
parser.add_argument("--range", nargs=2, type=float, default=[-1.0, 1.0], metavar=("LOW", "HIGH"), help="of rewards")
parser.add_argument("--lines", type=int, help="what a player sees: the last lines alone, for policies with short prompts (default: all)")
parser.add_argument("--turns", type=int, default=12, help="turns of an episode at most; in a turn each player acts at most once")
LEGAL = 0.1  # what a legal move earns while the game goes on
BEGINNING = 4000  # letters of a text that a game gets to see


class Position:
    """A game in progress with the generator that it draws from."""

    def __init__(self, game):
        self.game, self.refused, self.done = game, False, False
        self.look()

    def look(self):
        """Who is to move, and what that player sees: TextArena forgets it once it was asked."""
        self.player, seen = self.game.get_observation()
        self.view = seen if isinstance(seen, str) else "\n".join(str(part) for part in seen)
        self.draws = random.getstate()

    def after(self, text):
        """The position after a text, which leaves this one as it is; None where the game cannot cope with the text."""
        twin = copy.copy(self)
        twin.game = copy.deepcopy(self.game)
        random.setstate(self.draws)
        try:
            twin.done = bool(twin.game.step(text[:BEGINNING])[0])
        except Exception:
            return None
        twin.refused = any(now > before for now, before in zip(twin.errors(), self.errors()))
        if not twin.done:
            twin.look()
        return twin

    def errors(self):
        """Texts refused since the last legal move, and players who lost by one."""
        state = self.game.state
        return getattr(state, "error_count", 0), sum(bool(info.get("invalid_move")) for info in state.game_info.values())

    def rewards(self):
        """By player, once the game is over."""
        return {f"player_{player}": reward for player, reward in (self.game.state.rewards or {}).items()}


def first(seed):
    """The beginning of the game of a seed. A new one each time: some games change their arguments."""
    for players in [options.players] if options.players else [2, 1, 3, 4, 5, 6, 7, 8]:
        game = textarena.make(options.game)
        random.seed(seed)
        try:
            game.reset(num_players=players, seed=seed)
        except AssertionError as error:
            refused = error
            continue
        return Position(game)
    raise refused


@functools.lru_cache(maxsize=512)
def position(seed, texts):
    """The position after these texts, by the player that said them."""
    with adapter.quiet():
        if not texts:
            return first(seed)
        after = position(seed, texts[:-1]).after(texts[-1])
    if after is None:
        raise ValueError("a state with a text that the game cannot cope with")
    return after


def at(state):
    # In steps, so that a long game does not fill Python's stack.
    texts = tuple(state["texts"])
    for length in range(0, len(texts), 50):
        position(state["seed"], texts[:length])
    return position(state["seed"], texts)


def name(player):
    return f"player_{player}"


def listed(here):
    """The texts in brackets that the player was shown last, the latest line that has some first."""
    lines = [re.findall(r"\[[^\[\]\n]{1,40}\]", line) for line in here.view.splitlines()]
    found = [text for line in reversed(lines) for text in line if not re.match(r"\[(GAME|Player|You|Moderator)", text)]
    return list(dict.fromkeys(found))[:64]


# Moves to try in a game that lists no move that it accepts: a number, and two.
NUMBERS = [f"[{number}]" for number in range(1, 21)]
PAIRS = [f"[{first} {second}]" for first in range(6) for second in range(6)]


@functools.lru_cache(maxsize=512)
def accepted(seed, texts):
    here = position(seed, texts)
    with adapter.quiet():
        for candidates in (listed(here), NUMBERS, PAIRS):
            afters = [(text, here.after(text)) for text in candidates]
            moves = [text for text, after in afters if after is not None and not after.refused]
            if moves:
                return moves
    return []


def legal(state):
    """The moves that the game accepts here, of the moves that are tried."""
    at(state)
    return accepted(state["seed"], tuple(state["texts"]))


def answered(state):
    """The state after the players that no policy plays have moved, by draws of the seed and the number of the move."""
    here = at(state)
    while not here.done and name(here.player) not in playing():
        moves = legal(state)
        if not moves:
            raise ValueError(f"{options.game} lists no legal move for {name(here.player)}: it takes a policy (--play)")
        move = random.Random(f"{state['seed']}/{len(state['texts'])}").choice(moves)
        state = dict(state, texts=[*state["texts"], move])
        here = at(state)
    return state, here


@functools.lru_cache(maxsize=None)
def players():
    with adapter.quiet():
        return [name(player) for player in range(first(0).game.state.num_players)]


def playing():
    return options.play.split(",") if options.play else players()


def see(state, here):
    lines = here.view.splitlines()
    return state, {name(here.player): "\n".join(lines[-options.lines :]) if options.lines else here.view}


def worth(here, agent):
    return clamp(here.rewards().get(agent, options.range[0]), *options.range)


def won(here, agent):
    """True if a player has all that a game pays, and no opponent forfeited it."""
    forfeited = any(info.get("invalid_move") for info in here.game.state.game_info.values())
    return worth(here, agent) >= 1.0 and not forfeited


class Game(Environment):
    parser = parser

    def setup(self):
        global options, textarena
        options, self.name = self.options, f"textarena-{self.options.game}"
        textarena = adapter.package("textarena", "textarena==0.7.4")
        try:
            unknown = set(playing()) - set(players()) | ({options.team} - set(players()) if options.team else set())
        except Exception as error:
            adapter.fail(f"{options.game}: {type(error).__name__}: {error}", "python3 -c 'import textarena; print(*textarena.envs.registration.ENV_REGISTRY)' lists ids")
        if unknown:
            adapter.fail(f"{options.game} has no {', '.join(sorted(unknown))}", f"its players are {', '.join(players())}")

    def tasks(self, split, seed):
        draws = random.Random(seed if split == "train" else 0)
        while True:
            number = draws.randrange(1 << 31)
            if is_test(str(number)) == (split == "test"):
                yield str(number), {"seed": number}

    def reset(self, spec):
        state, here = answered({"seed": spec["seed"], "texts": [], "over": False})
        if here.done:
            raise ValueError("the game was over before a policy could move")
        return Start(*see(state, here), playing(), turns=options.turns, turn=name(here.player))

    def step(self, state, agent, text):
        here = at(state)
        if state["over"]:
            raise ValueError("the episode is over")
        if agent != name(here.player):
            raise ValueError(f"it is the turn of {name(here.player)}, not of {agent}")
        with adapter.quiet():
            after = here.after(text)
        if after is None:  # the game itself failed on it, so the state stays
            return Step(*see(state, here), components={"legal": 0.0}, turn=agent)
        state, here = answered(dict(state, texts=[*state["texts"], text[:BEGINNING]]))
        valid = not after.refused
        if not here.done:
            state["over"] = len(state["texts"]) >= options.turns * len(players())
            parts, turn = {"legal": float(valid)}, name(here.player)
            return Step(*see(state, here), local=LEGAL * valid, components=parts, terminated=state["over"], turn=turn)
        team = options.team or playing()[0]
        earned = worth(here, agent) if valid else 0.0
        parts = {"legal": float(valid), "game": worth(here, agent)}
        return Step(dict(state, over=True), {}, earned if agent == team else 0.0, earned, parts, True, won(here, team))

    def probe(self, state, agent):
        if state["over"]:
            return Probe([], solved=won(at(state), options.team or playing()[0]))
        return Probe([*legal(state)[:6], "[nothing]", "a word"])

    def demonstrate(self, state, agent):
        return Probe([] if state["over"] else legal(state))


if __name__ == "__main__":
    adapter.fix_hashes()
    Game().main()
