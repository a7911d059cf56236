#!/usr/bin/env python3
"""StrBuild: two builders draw a word with blocks, as text commands without a game (arXiv 2601.21972, by MAGRPO's authors).

Each builder has two kinds of blocks and half of the commands, one a line: `/setblock x y 0 block`. Neighboring blocks should look
different, so that good walls need both builders. The score of a wall is 2 coverage - 1.5 extra - adjacent - 0.25 for each builder that
left out a kind of block: coverage is the share of the word's cells that have a block, extra the share of the other cells that have one,
adjacent the share of neighboring blocks that look alike. Each turn begins with an empty wall and earns the team its score; the last
one decides about success. Letters are of five by five cells, not in the game's font.

    --agents 1|2           who builds; one builder has the first palette and all commands [2]
    --letters N            letters of a word at most, 1 to 12; each number is as likely [4]
    --turns N              turns of an episode [4]
    --commands N           commands of both builders together [300]
    --feedback KIND        what is told after a turn: plain (nothing), position (the word's cells) or score [position]
    --discussion           builders see each other's earlier texts, too
    --success SHARE        share of the greatest score, 2, that is a success [0.9]

    env='python3 examples/strbuild.py'
    ($env tasks --count 50; $env tasks --split test --count 50) | envs check --tasks 1 --env-command "$env"
"""

import argparse
import random
import re

from troupe_rl import Environment, Probe, Start, Step, is_test

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--agents", type=int, choices=[1, 2], default=2)
parser.add_argument("--letters", type=int, choices=range(1, 13), default=4, metavar="N")
parser.add_argument("--turns", type=int, default=4, metavar="N")
parser.add_argument("--commands", type=int, default=300, metavar="N")
parser.add_argument("--feedback", choices=["plain", "position", "score"], default="position")
parser.add_argument("--discussion", action="store_true")
parser.add_argument("--success", type=float, default=0.9, metavar="SHARE")

FONT = """
    A ..#.. .#.#. ##### #...# #...#   B ####. #...# ####. #...# ####.   C .###. #...# #.... #...# .###.
    D ###.. #..#. #...# #..#. ###..   E ##### #.... ###.. #.... #####   F ##### #.... ###.. #.... #....
    G .###. #.... #..## #...# .###.   H #...# #...# ##### #...# #...#   I .###. ..#.. ..#.. ..#.. .###.
    J ....# ....# ....# #...# .###.   K #..#. #.#.. ##... #.#.. #..#.   L #.... #.... #.... #.... ####.
    M #...# ##.## #.#.# #.#.# #...#   N #...# ##..# #.#.# #..## #...#   O .###. #...# #...# #...# .###.
    P ####. #...# ####. #.... #....   Q .###. #...# #.#.# #..#. .##.#   R ####. #...# ####. #..#. #...#
    S .#### #.... .###. ....# ####.   T ##### ..#.. ..#.. ..#.. ..#..   U #...# #...# #...# #...# .###.
    V #...# #...# .#.#. .#.#. ..#..   W #...# #.#.# #.#.# ##.## #...#   X #...# .#.#. ..#.. .#.#. #...#
    Y #...# .#.#. ..#.. ..#.. ..#..   Z ##### ...#. ..#.. .#... #####
""".split()
# The rows of a letter from the top.
LETTERS = {FONT[place]: FONT[place + 1:place + 6] for place in range(0, len(FONT), 6)}
SIDE, GAP = 5, 2
# The blocks of each builder; no two look alike.
PALETTES = (("oak_planks", "stone"), ("white_concrete", "obsidian"))
RANGE = (-3.0, 2.0)
# A longer text counts as empty.
LONGEST = 64 * 1024
# A line may be a list item.
COMMAND = re.compile(r"[\s\-*`]*(?:\d+[.)])?[\s/]*(?i:setblock)\s+([+-]?\d{1,9})\s+([+-]?\d{1,9})\s+[+-]?0+\s+(?:minecraft:)?(\S+)")


def width(word):
    return len(word) * (SIDE + GAP) - GAP


def cells(word):
    """The cells of a word, (column from the left, row from the bottom): from the top, each row from the left."""
    return [(place * (SIDE + GAP) + column, SIDE - 1 - row) for row in range(SIDE) for place, letter in enumerate(word)
            for column in range(SIDE) if LETTERS[letter][row][column] == "#"]


def build(blocks, text, palette, most, word):
    """Executes the commands in a text, at most `most` that have an effect: a block of `palette` or air, inside the wall."""
    done = 0
    for line in text.split("\n"):
        command = COMMAND.match(line)
        if not command or done == most:
            continue
        cell, block = (int(command[1]), int(command[2])), command[3]
        if 0 <= cell[0] < width(word) and 0 <= cell[1] < SIDE and block in (*palette, "air"):
            done += 1
            blocks.pop(cell, None)
            if block != "air":
                blocks[cell] = block


def score(word, blocks, builders):
    """The score of a wall, and its parts."""
    wanted = cells(word)
    covered = sum(cell in blocks for cell in wanted)
    extra = len(blocks) - covered
    alike = [blocks[x, y] == blocks[near] for x, y in blocks for near in ((x + 1, y), (x, y + 1)) if near in blocks]
    lazy = sum(not set(palette) <= set(blocks.values()) for palette in PALETTES[:builders])
    parts = {"coverage": covered / len(wanted), "extra": extra / (SIDE * width(word) - len(wanted)),
             "adjacent": sum(alike) / len(alike) if alike else 0.0, "palettes": 1 - lazy / builders, "iou": covered / (len(wanted) + extra)}
    return 2 * parts["coverage"] - 1.5 * parts["extra"] - parts["adjacent"] - 0.25 * lazy, parts


def classes(word):
    """The word's cells, each with a class 0 or 1: neighbors differ, and each connected part gives its larger half to the class with fewer
    cells so far."""
    left, found = cells(word), []
    while left:
        part = [left.pop()]
        for x, y in part:
            near = [cell for cell in left if abs(cell[0] - x) + abs(cell[1] - y) == 1]
            part += near
            left = [cell for cell in left if cell not in near]
        odds, ones = sum(sum(cell) % 2 for cell in part), sum(group for _, group in found)
        flip = (2 * odds > len(part)) == (2 * ones > len(found))
        found += [(cell, (sum(cell) + flip) % 2) for cell in part]
    return found


def best(word, builders):
    """Texts that score 2 if every builder has two cells: each builds one class, and alternates its blocks."""
    texts, used = [""] * builders, [0, 0]
    for (x, y), group in classes(word):
        builder, block = (0, group) if builders == 1 else (group, used[group] % 2)
        used[group] += 1
        texts[builder] += f"/setblock {x} {y} 0 {PALETTES[builder][block]}\n"
    return texts


class StrBuild(Environment):
    name, parser = "strbuild", parser

    @property
    def agents(self):
        return ["builder-1", "builder-2"] if self.options.agents == 2 else ["builder"]

    def share(self, place):
        """How many commands a builder has; the first gets the odd one."""
        return (self.options.commands + (place == 0) * (self.options.agents - 1)) // self.options.agents

    def tasks(self, split, seed):
        draws = random.Random(seed if split == "train" else 0)
        while True:
            word = "".join(draws.choices(sorted(LETTERS), k=draws.randint(1, self.options.letters)))
            if is_test(word) == (split == "test"):
                yield word, {"word": word}

    def reset(self, spec):
        word = spec["word"]
        if not 1 <= len(word) <= 12 or set(word) - set(LETTERS):
            raise ValueError("word: not 1 to 12 letters from A to Z")
        state = {"word": word, "turn": 0, "texts": {}, "told": "", "solved": False}
        return Start(state, self.see(state), self.agents, "parallel", self.options.turns, reward_range=RANGE)

    def see(self, state):
        return {agent: self.sees(state, place, agent) for place, agent in enumerate(self.agents)}

    def sees(self, state, place, agent):
        word, (one, two) = state["word"], PALETTES[place]
        wanted = set(cells(word))
        rows = ("".join(".#"[(x, y) in wanted] for x in range(width(word))) for y in reversed(range(SIDE)))
        both = "Your partner builds the same word with other blocks; yours lie below. " if len(self.agents) == 2 else ""
        text = (f"Build the word {word} as a wall of blocks. # is a cell of the word; the lower left cell is 0 0 0, the upper right cell "
                f"{width(word) - 1} {SIDE - 1} 0:\n\n" + "\n".join(rows) + f"\n\n{both}Cover every cell of the word and no other one, let "
                f"no two neighboring blocks look alike, and use both of your blocks: {one} and {two}. Write at most {self.share(place)} "
                "lines, each of the form\n\n/setblock x y 0 block\n\nand nothing else.")
        for other, said in state["texts"].items():
            if other == agent or self.options.discussion:
                text += f"\n\n{'You' if other == agent else 'Your partner'} wrote:\n\n{said.strip()}"
        return text + (f"\n\n{state['told']} Write all commands again: the wall is empty." if state["told"] else "")

    def feedback(self, word, total, parts):
        if self.options.feedback == "plain":
            return "This was not the last turn."
        if self.options.feedback == "score":
            lazy = round((1 - parts["palettes"]) * len(self.agents))
            return (f"Your wall covers {parts['coverage']:.0%} of the word; {parts['extra']:.0%} of the other cells have blocks; "
                    f"{parts['adjacent']:.0%} of neighboring blocks look alike; builders that left out a block of theirs: {lazy}. "
                    f"Score {total:.2f} of 2.")
        listed = " ".join(f"({x}, {y}, 0)" for x, y in cells(word))
        return (f"These are all cells of the word: {listed}. Take about half of them, no two side by side, and leave the others to your "
                "partner.")

    def joint(self, state, actions):
        if state["turn"] >= self.options.turns or set(actions) - set(self.agents):
            raise ValueError(f"the episode is over, or one of {', '.join(actions)} is no agent")
        texts = {agent: actions.get(agent, "") for agent in self.agents}
        texts = {agent: text if len(text) <= LONGEST else "" for agent, text in texts.items()}
        word, blocks = state["word"], {}
        for place, text in enumerate(texts.values()):
            build(blocks, text, PALETTES[place], self.share(place), word)
        total, parts = score(word, blocks, len(texts))
        over = state["turn"] + 1 == self.options.turns
        solved = over and total >= self.options.success * RANGE[1]
        state = {"word": word, "turn": state["turn"] + 1, "texts": texts, "told": self.feedback(word, total, parts), "solved": solved}
        return Step(state, self.see(state), total, dict.fromkeys(texts, 0.0), parts, over, solved)

    def beside(self, state, agent, text, others):
        if others is None and len(self.agents) == 2 and agent in self.agents:  # half a wall is no wall yet
            return Step(state, self.see(state))
        return self.joint(state, {**(others or {}), agent: text})._replace(local=0.0)

    def probe(self, state, agent):
        if state["turn"] >= self.options.turns:
            return Probe([], solved=state["solved"])
        place, word = self.agents.index(agent), state["word"]
        text, (one, two) = best(word, len(self.agents))[place], PALETTES[place]
        fits = all(said.count("\n") <= self.share(other) for other, said in enumerate(best(word, len(self.agents))))
        row = "".join(f"/setblock {x} 0 0 {one}\n" for x in range(width(word)))
        return Probe([f"```\n{text}```", text.replace(one, two), text.replace("/setblock", "/fill"), row, text + row.replace(one, "air"),
                      "/setblock 99999999999999999999 0 0 stone\n/setblock -1 0 0 stone"], text if fits else None)


if __name__ == "__main__":
    StrBuild().main()
