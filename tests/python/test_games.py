"""Examples whose right answer is known exactly: Kuhn poker, split information, and the credit rules of small games."""
import json

import pytest
from conftest import ROOT, keeps_the_contract, lines, must, plays, trains

EXAMPLES = f"python3 {ROOT}/examples"
TOYS = f"{EXAMPLES}/toy_credit.py"


def test_exploitability_in_kuhn_poker_is_exact(tmp_path):
    """Six answers in each situation, so the expected values are exact."""
    program = f"{EXAMPLES}/kuhn_poker.py"
    keeps_the_contract(program, 40)
    keeps_the_contract(f"{program} --play second", 40)

    def exploited(bold):
        text = ""
        for played, moves in (("nothing", ("check", "bet")), ("c", ("check", "bet")), ("b", ("fold", "call")), ("cb", ("fold", "call"))):
            for card in "JQK":
                prompt = [{"role": "user", "content": f"card {card} after {played} say {moves[0]} or {moves[1]}"}]
                text += "".join(json.dumps({"type": "sample", "prompt": prompt, "completion": moves[number < bold(card, played)]}) + "\n"
                                for number in range(6))
        (tmp_path / "samples").write_text(text)
        printed = json.loads(must(f"{program} exploitability < samples", tmp_path))
        return printed["exact"], printed["value"]

    def equilibrium(card, played):
        """Kuhn 1950, of six: `first` bets a third of its jacks."""
        if card == "K":
            return 6
        return {("J", "nothing"): 2, ("J", "c"): 2, ("Q", "b"): 2, ("Q", "cb"): 4}.get((card, played), 0)

    assert exploited(equilibrium) == ("0", pytest.approx(-1 / 18, abs=1e-12))
    assert exploited(lambda card, played: 3) == ("11/24", pytest.approx(0.125, abs=1e-12))
    assert exploited(lambda card, played: 3 if (card, played) == ("J", "nothing") else equilibrium(card, played))[0] != "0"
    # Showdowns alone: whoever bets against a player who always folds wins 1 a game.
    assert exploited(lambda card, played: 0) == ("1", 0)


@pytest.mark.parametrize("command", [
    "tic_tac_toe.py", "tic_tac_toe.py --reward win", "philosophers.py --own", "philosophers.py --philosophers 2 --reward four --prose",
    "strbuild.py --turns 1", "strbuild.py --turns 2 --letters 1 --discussion", "strbuild.py --agents 1 --letters 1",
])
def test_games_keep_the_contract(command):
    keeps_the_contract(f"{EXAMPLES}/{command}", 12, 20)


def test_split_information_needs_a_channel():
    program = f"{EXAMPLES}/split_information.py"
    for flags, most in (("--numbers 4 --words 1", "1/4"), ("--numbers 4 --words 2", "1/2"), ("--numbers 4", "1"), ("--numbers 4 --alone", "1"),
                        ("--numbers 26 --words 13", "1/2")):
        assert must(f"{program} {flags} optimum").strip() == most, flags
    keeps_the_contract(f"{program} --numbers 4", 8)
    # The word passes on; the sum is 3 + 6 modulo 8.
    answers = plays(program, "d", "1")
    own, total = answers[0]["state"]["own"], answers[0]["state"]["told"] + answers[0]["state"]["own"]
    assert answers[1]["observations"]["chooser"][0]["content"] == f"told d see {own} say the sum"
    assert answers[2]["success"] == (total % 8 == 1)
    # Without a word the chooser sees nothing of the teller's number.
    assert plays(f"{program} --words 1", "d")[1]["observations"]["chooser"][0]["content"] == f"told a see {own} say the sum"


# An independent program enumerated these: late a0 and a1, idle a0, noise of a over the gradient of b in `rider`, stag a1, hard a1, and
# noise over signal in `luck`.
ENUMERATED = {
    "trajectory, mean": (0.015625, 0.015625, -0.078125, 1.414, 0.0048, 0.015, 4.123),
    "trajectory, std": (0.022097, 0.022097, -0.176776, 1.491, 0.006788, -0.077780, 2.646),
    "MAGRPO parallel, mean": (0.015625, 0.015625, -0.078125, 1.414, 0.0048, 0.015, 1.0),
    "own turn, mean": (0.0, 0.015625, 0.031250, 1.0, 0.0048, 0.015, 1.0),
    "AT-GRPO, mean": (0.0, 0.015625, 0.031250, 0.0, 0.0048, 0.015, None),
    "AT-GRPO, std": (0.0, 0.022097, 0.176776, 0.0, -0.033941, -0.106064, None),
    "aligned tree, mean": (0.015625, 0.015625, -0.078125, 1.225, 0.0048, 0.015, None),
    "aligned tree, leave one out (C3)": (0.031250, 0.031250, -0.156250, 1.225, 0.0096, 0.03, None),
    "aligned tree, std": (0.038670, 0.022097, -0.176776, 1.333, 0.006788, -0.106064, None),
    "cross, mean": (0.015625, 0.015625, -0.078125, 0.5, 0.0048, 0.015, None),
    "cross, std": (0.085453, 0.033146, -0.176776, 1.210, 0.047517, -0.106064, None),
    "GiGPO, mean": (0.031250, 0.019531, -0.156250, 1.414, 0.006, 0.0135, 3.388),
    "GiGPO, std": (0.044194, 0.027621, -0.353553, 1.491, 0.008485, -0.130812, 2.285),
    "RAE, baseline J": (0.031250, 0.031250, -0.156250, 1.0, 0.0096, 0.03, 2.828),
    "RAE, baseline 0": (0.031250, 0.031250, -0.156250, 1.732, 0.0096, 0.03, 4.528),
}


def test_exact_gradients_agree_with_another_enumeration():
    rows = [json.loads(row) for row in must(f"{TOYS} table").splitlines()[1:]]
    assert [row[0] for row in rows] == list(ENUMERATED)
    for rule, *found in rows:
        for column, (value, expected) in enumerate(zip(found, ENUMERATED[rule], strict=True)):
            # The others add 1e-6 to a deviation, and noise has three digits.
            close = 6e-4 if column in (3, 6) else 4e-6
            assert value == "-" if expected is None else abs(float(value) - expected) < close, (rule, column)


EPISODES, GIGPO = "group -q --by episode | advantage -q --credit episode", "group -q --by agent --anchor prompt | advantage -q --credit gigpo"


@pytest.mark.parametrize("toy, kind, pipe, rule, agent, turn", [
    ("stag", "at-grpo", "group -q | advantage -q", "AT-GRPO, std", "a", 1),
    ("stag", "at-grpo", "group -q | advantage -q --std none", "AT-GRPO, mean", "a", 1),
    ("idle", "at-grpo", "group -q | advantage -q --std none", "AT-GRPO, mean", "a", 0),
    ("hard", "parallel", EPISODES, "trajectory, std", "a", 1),
    ("hard", "parallel", f"{EPISODES} --estimator dr-grpo", "trajectory, mean", "a", 1),
    ("hard", "parallel", GIGPO, "GiGPO, std", "a", 1),
    ("late", "parallel", f"{GIGPO} --estimator dr-grpo", "GiGPO, mean", "a", 0),
    ("late", "parallel", f"{EPISODES} --estimator raw", "RAE, baseline 0", "b", 0),
])
def test_records_through_the_programs_have_the_exact_gradient(toy, kind, pipe, rule, agent, turn):
    exact = float(must(f"{TOYS} exact '{rule}' {toy} {agent} {turn}"))
    rows = map(json.loads, must(f"{TOYS} lines {toy} {kind} 4000 | {pipe} | {TOYS} gradient {toy}").splitlines())
    row = next(row for row in rows if (row["agent"], row["turn"]) == (agent, turn))
    assert abs(row["gradient"] - exact) < 4 * row["error"], row
    # Enough records to tell its sign.
    assert abs(exact) > 2 * row["error"], row


def test_every_state_that_stays_in_its_process_is_closed_once(tmp_path):
    """`close` comes for each state of `reset` and `fork`: in a rollout, in checks, for demonstrations, and for what is left at the end."""
    (tmp_path / "game.py").write_text('''
import itertools, os
from troupe_rl import Environment, Probe, Start, Step
NUMBERS = itertools.count(1)
def opened():
    state = {"number": f"{os.getpid()}-{next(NUMBERS)}", "left": 2}
    print("open", state["number"], file=open("log", "a"))
    return state
class Game(Environment):
    handles = True
    def tasks(self, split, seed):
        return ((f"{split}-{number}", f"{split}-{number}") for number in itertools.count(seed))
    def reset(self, spec):
        return Start(opened(), {"player": "go on"}, ["player"], turns=3)
    def fork(self, state):
        return opened() | {"left": state["left"]}
    def step(self, state, agent, text):
        state["left"] -= text == "a"
        return Step(state, {"player": "go on"}, team=float(text == "a"), terminated=not state["left"], success=not state["left"])
    def probe(self, state, agent):
        return Probe(["a", "b"], "a") if state["left"] else Probe([], solved=True)
    def close(self, state):
        print("close", state["number"], file=open("log", "a"))
        raise RuntimeError("an error here is no error of a request")
Game().main()
''')
    environment = {"PYTHONPATH": str(ROOT / "examples")}
    must("policy init p --preset tiny --quiet; python3 game.py tasks --count 3 >tasks; python3 game.py tasks --split test --count 3 >>tasks",
         tmp_path, **environment)
    for command in ("rollout --env-command 'python3 game.py' --threads 1 --policy p --branches 3 --max-tokens 2 --quiet <tasks",
                    "envs check --env-command 'python3 game.py' --tasks 1 --episodes 2 <tasks"):
        printed = must(f"rm -f log; {command}", tmp_path, **environment)
        assert "no error of a request" not in printed
        events = (tmp_path / "log").read_text().splitlines()
        numbers = [event.split()[1] for event in events if event.startswith("close")]
        assert len(numbers) > 3 and sorted(numbers) == sorted(event.split()[1] for event in events if event.startswith("open")), events
    must("rm log; python3 game.py demo --count 2; grep -c close log | grep -qx 2", tmp_path, **environment)


def test_summarizer_passes_on_what_it_keeps_and_no_prompt_grows(tmp_path):
    for pages in (3, 6):
        program = f"{EXAMPLES}/summarizer.py --pages {pages}"
        keeps_the_contract(program)
        samples = trains(program, tmp_path, "--turns 9")
        assert {sample["agent"] for sample in samples} == {"summarizer", "answerer"} and max(sample["turn"] for sample in samples) == pages - 1
        assert max(len(sample["prompt"][0]["content"]) for sample in samples) < 420, "two pages would be more"
    program = f"{EXAMPLES}/summarizer.py"
    spec = lines(must(f"{program} tasks --count 1"))[0]["spec"]
    (one, first), (two, second) = spec["counts"][:2]
    # All of the first page, half of it with more words than are kept, nothing of it; a wrong number is no count.
    kept = [plays(program, text)[-1]["rewards"]["team"]
            for text in (f"{one} {first}, {second} {two}", f"{one}: {first} " + "and so on " * 8 + f"{two} {second}", "nothing", f"{one} {first + 1}")]
    assert kept == [1.0, 0.5, 0.0, 0.0]
    asked = dict(map(tuple, spec["counts"]))[spec["asked"]]
    for answer, right in ((f"{asked}.", True), (f"{asked} or {asked + 1}", False)):
        last = plays(program, f"{one} {first}", "none", "none", answer)[-1]
        assert (last["success"], last["rewards"]["local"], last["terminated"]) == (right, float(right), True)
