"""A summarizer who compresses the context, and is trained: no prompt grows with the number of pages.

A text comes page by page. The summarizer sees its notes and the next page, and writes new notes, of which the first 24 words are kept. After
the last page the answerer sees the notes alone, and answers a question about any page. Nobody ever sees two pages at once, so an episode
of a hundred pages has prompts as short as one of three.

Notes are paid by what they make possible: the share of all counts so far that an answerer could read from them. It is known for each
candidate at once, so siblings differ before the question is asked. Written as any environment: the state is JSON, and each turn's prompt is
made from it, which is all that "rewriting the history" takes here.

    python3 examples/summarizer.py check
    ./pipeline.sh --env-command 'python3 examples/summarizer.py' --model smollm2 --policies adapter-per-role --max-tokens 48
"""
import argparse
import random
import re

from troupe_rl import Environment, Probe, Start, Step, is_test

THINGS = ["pears", "cups", "books", "keys", "coins", "hats", "nails", "plates", "stamps", "ropes", "chairs", "lamps"]
SENTENCES = ["In the morning she counted the {thing} and found {number}.", "There were {number} {thing} on the shelf by the door.",
             "He wrote that exactly {number} {thing} had been left."]
TALK = ["It rained until noon.", "Nobody came by.", "The clock in the hall had stopped again.", "Then they had tea."]
WORDS = 24
"""The notes' length: enough for two words a count of twelve."""


def holds(notes, thing):
    """The count of a thing that notes state, next to its name; None if there is none."""
    found = re.search(rf"\b{thing}\W{{0,3}}(?:is |are |= )?(\d+)|(\d+) {thing}\b", notes.lower())
    return int(found[1] or found[2]) if found else None


class Summary(Environment):
    name = "summarizer"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=3, help="pages of an episode, up to 6; each has two counts [default: 3]")

    def tasks(self, split, seed):
        draws = random.Random(seed if split == "train" else 0)
        while True:
            things = draws.sample(THINGS, 2 * self.options.pages)
            counts = [[thing, draws.randrange(2, 60)] for thing in things]
            name = "-".join(f"{thing}{number}" for thing, number in counts)
            if is_test(name) == (split == "test"):
                sentences = [draws.choice(SENTENCES).format(thing=thing, number=number) for thing, number in counts]
                pages = [[sentences[2 * page], draws.choice(TALK), sentences[2 * page + 1]] for page in range(self.options.pages)]
                yield name, {"pages": [" ".join(page) for page in pages], "counts": counts, "asked": draws.choice(things)}

    def see(self, state):
        """What is left of the text is in the notes: a prompt has them and one page."""
        spec, page = state["spec"], state["page"]
        if page == len(spec["pages"]):
            seen = {"answerer": f"Notes: {state['notes']}\nHow many {spec['asked']} are there? Answer with the number only."}
        else:
            seen = {"summarizer": f"Notes so far: {state['notes'] or 'none'}\nNext page: {spec['pages'][page]}\nWrite the notes anew, as a list "
                                  "of all things and their numbers, such as: cups 3, hats 8. Write nothing else."}
        return state, {"summarizer": None, "answerer": None, **seen}  # None skips a turn

    def reset(self, spec):
        return Start(*self.see({"spec": spec, "page": 0, "notes": ""}), ["summarizer", "answerer"], turns=len(spec["pages"]))

    def step(self, state, agent, text):
        spec, page = state["spec"], state["page"]
        if agent == "summarizer" and page < len(spec["pages"]):
            notes = " ".join(text.split()[:WORDS])
            so_far = spec["counts"][:2 * (page + 1)]
            kept = sum(holds(notes, thing) == number for thing, number in so_far) / len(so_far)
            return Step(*self.see({**state, "page": page + 1, "notes": notes}), team=kept, components={"kept": kept})
        if agent == "answerer" and page == len(spec["pages"]):
            right = re.findall(r"\d+", text) == [str(dict(spec["counts"])[spec["asked"]])]
            return Step({**state, "solved": right}, {}, team=float(right), local=float(right), terminated=True, success=right)
        raise ValueError("not this agent's turn")

    def probe(self, state, agent):
        spec, page = state["spec"], state["page"]
        if state.get("solved") or (agent == "answerer") != (page == len(spec["pages"])):
            return Probe([], solved=state.get("solved", False))  # the end, or a turn that it skips
        if agent == "answerer":
            best = dict(spec["counts"])[spec["asked"]]
            return Probe([str(best), str(best + 1), "many"], str(best))
        best = ", ".join(f"{thing} {number}" for thing, number in spec["counts"][:2 * (page + 1)])
        return Probe([best, state["notes"] or "none", spec["pages"][page], best.replace(" ", " about 1")], best)


if __name__ == "__main__":
    Summary().main()
