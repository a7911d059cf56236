"""Elo ratings of the versions of a policy, from games that they played against each other.

    python3 examples/elo.py one other          # streams of rollout

The agent with the larger return wins an episode. The ratings are the maximum likelihood of the model of Bradley and Terry
(Biometrika 39, 1952): a beats b with probability 1 / (1 + 10^((R_b - R_a) / 400)), and a draw counts as half a win for both. The
oldest version has rating 0. A standard error is for the difference to it, from the inverse of the observed information. Let each
pair play in both seats, because the model knows no advantage of a seat.
"""

import argparse
import collections
import itertools
import json
import math
import sys

SCALE = 400 / math.log(10)


def read_games(lines, scores):
    """Adds the results of a stream: wins, draws and losses of each version against each other, as scores[one, other]."""
    seats, ended = {}, False
    for line in map(json.loads, lines):
        if line["type"] in ("sample", "served"):
            seat = seats.setdefault((line["episode"], line["branch"]), {})
            seat[line["agent"]] = line.get("policy_version") or line.get("model") or ""
        elif line["type"] == "episode":
            seat = seats.pop((line["episode"], line.get("branch", 0)), {})
            if "returns" not in line:
                sys.exit("elo.py: no episode says what each agent earned: the environment pays both players by name (`rewards.local`)")
            earned = [(seat[agent], value) for agent, value in line["returns"].items() if agent in seat]
            for (one, first), (other, second) in itertools.combinations(earned, 2):
                if one != other:
                    result = 1 if first == second else 0 if first > second else 2
                    scores[one, other][result] += 1
                    scores[other, one][2 - result] += 1
        elif line["type"] == "end":
            ended = line["ok"]
    if not ended:
        sys.exit("elo.py: a stream ended without an `end` line that is ok")


def invert(matrix):
    """The inverse of a symmetric positive definite matrix, by Gauss and Jordan."""
    size = len(matrix)
    rows = [row + [float(place == column) for column in range(size)] for place, row in enumerate(matrix)]
    for place in range(size):
        rows[place] = [value / rows[place][place] for value in rows[place]]
        for other in range(size):
            if other != place:
                factor = rows[other][place]
                rows[other] = [value - factor * pivot for value, pivot in zip(rows[other], rows[place])]
    return [row[size:] for row in rows]


def maximize_likelihood(points):
    """Natural log-odds of each player against the first, and their standard errors, by Newton's method."""
    players = range(len(points))
    strengths = [0.0] * len(points)
    for _ in range(200):
        win = lambda one, other: 1 / (1 + math.exp(strengths[other] - strengths[one]))
        games = lambda one, other: points[one][other] + points[other][one]
        weight = lambda one, other: games(one, other) * win(one, other) * win(other, one)
        gradient = [sum(points[one][other] - games(one, other) * win(one, other) for other in players if other != one) for one in players[1:]]
        information = [[sum(weight(one, third) for third in players if third != one) if one == other else -weight(one, other)
                        for other in players[1:]] for one in players[1:]]
        inverse = invert(information)
        step = [sum(map(float.__mul__, row, gradient)) for row in inverse]
        longest = max(map(abs, step))
        # A long step is cut, because the likelihood is flat far out.
        scale = min(1, 2 / longest) if longest else 1
        strengths = [0.0] + [strength + scale * part for strength, part in zip(strengths[1:], step)]
        if longest < 1e-12:
            return strengths, [0.0] + [math.sqrt(inverse[place][place]) for place in range(len(inverse))]
    sys.exit("elo.py: the ratings did not converge: play more games")


def find_separated(points):
    """A player and one that it cannot reach by points against: the likelihood then has no finite maximum (Ford, 1957)."""
    for start in range(len(points)):
        seen, open_players = set(), [start]
        while open_players:
            player = open_players.pop()
            if player not in seen:
                seen.add(player)
                open_players.extend(other for other, row in enumerate(points) if row[player] > 0)
        if len(seen) < len(points):
            return start, min(set(range(len(points))) - seen)
    return None


def rate(scores):
    """A row for each version, the oldest first: version, won, drawn, lost, elo, error."""
    age = lambda version: (int(version.split(":")[0]) if version.split(":")[0].isdigit() else math.inf, version)
    versions = sorted({one for one, _ in scores}, key=age)
    score = lambda one, other: scores[one, other] if (one, other) in scores else [0, 0, 0]
    points = [[score(one, other)[0] + 0.5 * score(one, other)[1] for other in versions] for one in versions]
    if separated := find_separated(points):
        one, other = (versions[place] for place in separated)
        sys.exit(f"elo.py: {one} and the versions that it beat never lost or drew against {other}: play more games")
    strengths, errors = maximize_likelihood(points)
    rows = []
    for version, strength, error in zip(versions, strengths, errors):
        won, drawn, lost = (sum(score(version, other)[result] for other in versions) for result in range(3))
        rows.append({"version": version, "won": won, "drawn": drawn, "lost": lost, "elo": SCALE * strength, "error": SCALE * error or None})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="+", type=argparse.FileType(encoding="utf-8"), help="a stream of rollout; - is stdin")
    parser.add_argument("--json", action="store_true", help="print an object for each version")
    arguments = parser.parse_args()
    scores = collections.defaultdict(lambda: [0, 0, 0])
    for file in arguments.file:
        read_games(file, scores)
    if not scores:
        sys.exit("elo.py: no game between two versions: rollout --policy first=RUN/policies/NAME/step-000010 --policy second=…")
    rows = rate(scores)
    if arguments.json:
        print(*map(json.dumps, rows), sep="\n")
        return
    print(f"{'version':<20} {'games':>7} {'won':>7} {'drawn':>7} {'lost':>7} {'Elo':>8} {'± s.e.':>8}")
    for version, won, drawn, lost, elo, error in map(dict.values, rows):
        error = "–" if error is None else f"{error:.0f}"
        print(f"{ascii(version)[1:-1]:<20} {won + drawn + lost:>7} {won:>7} {drawn:>7} {lost:>7} {elo:>8.0f} {error:>8}")


if __name__ == "__main__":
    main()
