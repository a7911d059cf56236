"""MAGRPO (arXiv 2508.04652) through the real programs: returns over trees of joint actions against numbers worked out elsewhere, joint rewards
of real rollouts, and two methods trained on the same lines."""
import itertools
import json
import statistics

import pytest
from conftest import ROOT, lines, must, refused, run, trained

END = '{"type":"end","v":1,"stage":"rollout","ok":true}\n'
MAGRPO = ROOT / "tests/tests/magrpo"


def rule(node, action):
    """10 times the node, and 1, 2, … times the candidates."""
    return 10 * node + sum(weight * candidate for weight, candidate in enumerate(action, 1))


def credits(folder, agents, turns, cross, flags):
    """What `group | advantage` credits each agent's two candidates with, by (node, agent), and the number of joint actions.

    A joint action's reward is `rule` of its node, numbered depth first, and of its candidates."""
    tree, nodes = [], itertools.count()

    def write(path, turn):
        number = next(nodes)
        node = {"v": 1, "episode": "0.0", "turn": turn, "node": path or None}
        name = f"0.0/n{number}/{turn}/agent-{{}}/{{}}".format
        tree.extend({"type": "sample", "agent": f"agent-{agent}", "branch": branch, "branches": 2, "id": name(agent, branch), "prompt_ids": [number + 1],
                     "reward": 0} | node for agent in range(agents) for branch in (0, 1))
        actions = list(itertools.product((0, 1), repeat=agents)) if cross else [(0,) * agents, (1,) * agents]
        below = [f"{path}.{index}" if path else str(index) for index in range(len(actions))]
        tree.extend({"type": "joint", "id": f"0.0/{child}", "parent": f"0.0/{path}" if path else None, "members": list(itertools.starmap(name, enumerate(action))),
                     "reward": rule(number, action)} | node for child, action in zip(below, actions))
        for child in below if turn + 1 < turns else []:
            write(child, turn + 1)

    write("", 0)
    (folder / "lines").write_text("".join(json.dumps(line) + "\n" for line in tree) + END)
    found = {}
    for line in lines(must(f"group --quiet < lines | advantage --quiet --credit tree {flags}", folder), "sample"):
        found.setdefault((line["prompt_ids"][0] - 1, int(line["agent"][-1])), []).append(line["advantage"])
    return found, sum(line["type"] == "joint" for line in tree)


def test_returns_are_those_of_the_reference_package(tmp_path):
    """The numbers come from the reference package's tests."""
    found, actions = credits(tmp_path, 2, 2, False, "--estimator raw")
    assert actions == 6 and all([found[node, agent] for node in (0, 1, 2)] == [[11.5, 24.5], [10, 13], [20, 23]] for agent in (0, 1))
    found, actions = credits(tmp_path, 2, 2, True, "--estimator raw --combine sum")
    assert actions == 20 and (found[0, 0], found[0, 1]) == ([35, 77], [44, 68])
    assert all(found[node, 0] == [20 * node + 2, 20 * node + 4] and found[node, 1] == [20 * node + 1, 20 * node + 5] for node in (1, 2, 3, 4))
    # The package's spelling `crossed` credits the first candidates with the first of the four returns 11.5, 23.5, 32.5 and 44.5,
    # whoever's they are. Here each candidate gets the returns it is part of, and the spelling is refused. Means are those sums
    # over the number of combinations.
    found, _ = credits(tmp_path, 2, 2, True, "--estimator raw")
    assert (found[0, 0], found[0, 1]) == ([17.5, 38.5], [22, 34])
    for cross in (False, True):
        found, actions = credits(tmp_path, 1, 2, cross, "--estimator raw")
        assert actions == 6 and [found[node, 0] for node in (0, 1, 2)] == [[10.5, 21.5], [10, 11], [20, 21]]


def test_returns_of_three_turns_and_of_three_agents(tmp_path):
    found, actions = credits(tmp_path, 2, 3, False, "--estimator raw")
    expected = [[38, 101], [31.5, 44.5], [20, 23], [30, 33], [91.5, 104.5], [50, 53], [60, 63]]
    assert actions == 14 and all([found[node, agent] for node in range(7)] == expected for agent in (0, 1))

    def middle(node, below):
        """Discounted: a half of the mean of the children at each turn."""
        return 10 * node + 1.5 + 0.5 * (10 * below + 1.5 + 10 * (below + 1) + 1.5) / 2

    found, _ = credits(tmp_path, 2, 3, False, "--estimator raw --gamma 0.5")
    assert found[0, 0] == [0.5 * middle(1, 2), 3 + 0.5 * middle(4, 5)]
    found, _ = credits(tmp_path, 3, 1, True, "--estimator raw --combine sum")
    assert [found[0, agent] for agent in (0, 1, 2)] == [[10, 14], [8, 16], [6, 18]]


@pytest.fixture
def rollout(tmp_path):
    """The command of a rollout of a tiny random policy with `pair.py`."""
    must("policy init policy --preset tiny --seed 1", tmp_path)

    def command(flags, **spec):
        tasks = [{"type": "task", "v": 1, "env": "pair", "task": f"pair/{index}", "spec": spec} for index in range(3)]
        (tmp_path / "tasks").write_text("".join(json.dumps(task) + "\n" for task in tasks) + END.replace("rollout", "tasks"))
        return (f"rollout --quiet --policy {tmp_path}/policy --env-command 'python3 {MAGRPO}/pair.py' --branches 4 --max-tokens 4 {flags} "
                f"< {tmp_path}/tasks")
    return command


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("credit", ["return", "tree"])
def test_parallel_sampling_is_equation_1(rollout, own, credit):
    found = json.loads(must(f"{rollout('--sampling parallel --joint aligned', own=own)} | group --quiet | "
                            f"advantage --quiet --estimator dr-grpo --credit {credit} | python3 {MAGRPO}/equation_1.py"))
    assert (found["groups"], found["samples"]) == (18, 72) and found["largest"] < 1e-12, found


def test_agents_who_act_one_after_another_share_their_return(rollout):
    """What a turn pays its last agent is credited to the first, too: the team shares it."""
    command = rollout("--sampling parallel --joint aligned", apart=True)

    def advantages(credit):
        samples = lines(must(f"{command} | group --quiet | advantage --quiet --estimator dr-grpo --credit {credit}"), "sample")
        samples.sort(key=lambda sample: (sample["episode"], sample["turn"], sample["branch"]))
        return [[sample["advantage"] for sample in samples if sample["agent"] == agent] for agent in ("first", "second")]

    first, second = advantages("tree")
    assert first == second and len(first) == 36 and any(abs(advantage) > 0.01 for advantage in first)
    assert not any(advantages("return")[0]), "its own later rewards alone"


def test_cross_reward_is_the_mean_of_its_joint_actions(rollout):
    played = lines(must(rollout("--joint cross --turns 2")))
    samples = [line for line in played if line["type"] == "sample"]
    assert len(samples) == 48
    for sample in samples:
        own = [line["reward"] for line in played if line["type"] == "joint" and sample["id"] in line["members"]]
        assert abs(sample["reward"] - statistics.fmean(own)) < 1e-12
    # Without local rewards an aligned joint action is worth the same to all of its agents.
    rewards = {}
    for sample in lines(must(rollout("--joint aligned --turns 2")), "sample"):
        rewards.setdefault((sample["episode"], sample["turn"], sample["branch"]), set()).add(sample["reward"])
    assert len(rewards) == 24 and all(len(found) == 1 for found in rewards.values())


def test_plays_to_the_end_are_worth_their_mean(rollout):
    """A joint action is worth its reward and the mean of its plays."""
    played = lines(must(f"{rollout('--joint aligned --expand ends=2 --turns 3')} | group --quiet | advantage --quiet --credit tree --estimator dr-grpo"))
    joint = [line for line in played if line["type"] == "joint"]

    def worth(action):
        below = [worth(other) for other in joint if other["parent"] == action["id"]]
        return action["reward"] + (statistics.fmean(below) if below else 0)

    groups, samples = {}, [line for line in played if line["type"] == "sample"]
    for sample in samples:
        own = worth(next(action for action in joint if sample["id"] in action["members"]))
        groups.setdefault(sample["group"], []).append((own, sample["advantage"]))
    for members in groups.values():
        mean = sum(own for own, _ in members) / len(members)
        assert all(abs(advantage - (own - mean)) < 1e-12 for own, advantage in members), members
    assert any(sample["branches"] == 1 for sample in samples) and any(abs(sample["advantage"]) > 0.01 for sample in samples)


def test_same_lines_train_either_method(rollout, tmp_path):
    """AT-GRPO compares the candidates of each agent by their rewards of the turn, MAGRPO by their returns over the tree."""
    must(f"{rollout('--joint aligned --expand all --turns 2', own=True)} > samples", tmp_path)
    weights = set()
    for name, flags in (("at-grpo", "--estimator grpo"), ("magrpo", "--credit tree --estimator dr-grpo")):
        must(f"cp -r policy {name}; group --quiet < samples | advantage --quiet {flags} | update --quiet --policy {name} --lr 1e-3 "
             "--aggregate constant=1", tmp_path)
        assert (tmp_path / name / "current").readlink().name == "step-000001"
        weights.add((tmp_path / name / "current/model.safetensors").read_bytes())
    assert len(weights) == 2


def test_rewards_are_the_published_ones_through_envs_step():
    """Through the program that a trainer of another kind would call."""
    assert len(must(f"python3 {MAGRPO}/rewards.py").splitlines()) == 6


def test_both_writers_improve(tmp_path):
    """Trained together, two writers earn more than before, and each earns more than its untrained self with the same partner."""
    trained(tmp_path / "run", "--env write --method magrpo --policies per-role --warmup 100 --steps 10 --tasks 12 --eval-every 0")

    def reward(first, second):
        """The team's reward on test tasks: mean, and half of its 95 % interval."""
        played = must(f"{ROOT}/pipeline.sh evaluate --env write --eval-tasks 150 --policies writer-1={first} --policies writer-2={second}",
                      tmp_path / "run")
        rewards = [sample["rewards"]["team"] for sample in lines(played, "sample") if sample["agent"] == "writer-1"]
        assert len(rewards) == 150
        return statistics.fmean(rewards), 1.96 * (statistics.variance(rewards) / 150) ** 0.5

    one, two, before = "policies/writer-1", "policies/writer-2", "warmup/policy"
    together, half = reward(one, two)
    for first, second in ((before, before), (before, two), (one, before)):
        mean, other = reward(first, second)
        assert together - half > mean + other, (first, second)


def test_tree_with_a_hole_is_refused(rollout, tmp_path):
    must(f"{rollout('--joint aligned --expand all --turns 2')} | group --quiet > tree; "
         f"{rollout('--joint aligned --turns 2')} | group --quiet > path", tmp_path)
    advantage = "advantage --quiet --credit tree"
    for command, cause in (
        (f"grep -v '\"type\":\"joint\"' tree | {advantage}", "0.0/0/first/0: no joint action has this sample"),
        (f"grep -v '\"id\":\"0.0/2\"' tree | {advantage}", "no joint action 0.0/2 is in the stream"),
        (f"sed 's|\"parent\":\"0.0/2\"|\"parent\":\"0.0/1\"|' tree | {advantage}", "nothing follows from this joint action"),
        ("advantage --quiet --credit return < tree", "the episode branches"),
        (f"{advantage} < path", "nothing follows from this joint action"),
        (f"sed 's|\"parent\":null,\"members\"|\"parent\":\"0.0/0.0\",\"members\"|' tree | {advantage}", ""),
    ):
        said = refused(run(command, tmp_path), 65)
        assert said.startswith("advantage: ") and cause in said.splitlines()[0], said
    for command, cause in ((rollout("--joint unknown"), "unknown"), (rollout("--joint crossed"), "crossed"), (f"{advantage} --combine unknown", "unknown"),
                           (f"{advantage} --combine crossed", "crossed"), ("group --by joint", "joint")):
        assert cause in refused(run(command), 2).splitlines()[0]
