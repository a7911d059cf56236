"""Credit rules through the pipe: lines by hand into `group | advantage`, advantages against numbers computed elsewhere.

The numbers come from an independent script, and from the papers' packages where these could be called."""
import itertools
import json
import math

import pytest
from conftest import ROOT, lines, must, refused, run

GRPO, MEAN = "group -q | advantage -q", "group -q | advantage -q --estimator dr-grpo"


def close(found, expected, by=2e-6):
    """Below `by` two numbers of six digits are one."""
    return len(found) == len(expected) and all(abs(one - other) < by for one, other in zip(found, expected))


def sample(name, agent="a", branch=0, branches=1, **more):
    return {"type": "sample", "v": 1, "env": "toy", "task": "t", "episode": "0.0", "turn": 0, "agent": agent, "branch": branch, "branches": branches,
            "id": str(name), "prompt_ids": [1], "completion_ids": [2], "reward": 0} | more


def group(rewards, more=lambda branch: {}):
    """The members of one group with these rewards, and with more by member."""
    return [sample(branch, branch=branch, branches=len(rewards), reward=reward) | more(branch) for branch, reward in enumerate(rewards)]


def text(given):
    return "".join(json.dumps(line) + "\n" for line in [*given, {"type": "end", "v": 1, "stage": "rollout", "ok": True}])


@pytest.fixture
def ask(tmp_path):
    """Runs a pipe on lines: exit code, stdout, stderr."""
    def call(given, pipe):
        (tmp_path / "lines").write_text(text(given))
        return run(f"cat {tmp_path}/lines | {pipe}", tmp_path)
    return call


@pytest.fixture
def through(ask):
    """The advantages that a pipe gives lines, in their order, and the counts of its end."""
    def call(given, pipe):
        code, printed, said = ask(given, pipe)
        assert code == 0, f"{pipe}\n{said}"
        found = {line["id"]: line["advantage"] for line in lines(printed, "sample")}
        return [found[line["id"]] for line in given if line.get("id") in found], lines(printed)[-1]["counts"]
    return call


@pytest.fixture
def check(through):
    def call(given, pipe, expected):
        found, counts = through(given, pipe)
        assert close(found, expected), f"{pipe}\n{found}\ninstead of\n{expected}"
        return counts
    return call


def played():
    """A solver, then a checker, with four episodes of a task: the first ends after a turn, the others after two; the last
    checker is paid. Ordered by episode, turn and agent."""
    tokens = [[[2, 1]], [[3, 1], [3, 1]], [[4, 2], [5, 3]], [[5, 2], [2, 2]]]
    form = [[[1, 1]], [[1, 0], [1, 1]], [[0, 0], [1, 0]], [[1, 1], [0, 0]]]
    given = []
    for episode, earned in enumerate((1, 1, 0, 0.5)):
        parent, path = None, []
        for turn, agents in enumerate(tokens[episode]):
            for index, (agent, count) in enumerate(zip(("solver", "checker"), agents)):
                # The solvers see the task, and the second turns of the middle episodes look alike.
                prompt = 1 if (index, turn) == (0, 0) else 2 if (index, turn) == (0, 1) and episode in (1, 2) else 10 + 10 * episode + 2 * turn + index
                ends = (turn, index) == (len(tokens[episode]) - 1, 1)
                name, before = f"0.0/{turn}/{agent}/{episode}", ".".join(path)
                path.append(str(episode))
                reward = earned if ends else 0
                given.append(sample(name, agent, episode, 4, turn=turn, sampling_mode="parallel", prompt_ids=[prompt], reward=reward, parent=parent,
                                    completion_ids=[3] * count, policy="both",
                                    reward_components={"success": earned, "format": form[episode][turn][index]}))
                given.append({"type": "joint", "v": 1, "episode": "0.0", "branch": episode, "turn": turn, "id": f"0.0/{'.'.join(path)}",
                              "members": [name], "reward": reward, "terminated": ends, "parent": f"0.0/{before}" if before else None})
                parent = name
    return given


def by_episode(*values):
    """One number an episode, as often as it has samples."""
    return [value for value, count in zip(values, (2, 4, 4, 4)) for _ in range(count)]


@pytest.mark.parametrize(("pipe", "expected"), [
    ("group -q --by episode | advantage -q --credit episode", by_episode(0.783348, 0.783348, -1.305580, -0.261116)),
    # Both agents earn the same, so that Dr. MAS differs only where calls count.
    ("group -q --by agent | advantage -q --credit episode", by_episode(0.783348, 0.783348, -1.305580, -0.261116)),
    ("group -q --by agent | advantage -q --credit episode --count-by calls", by_episode(0.952659, 0.952659, -1.270212, -0.158776)),
    (f"{MEAN} --credit tree", [0.375, 0.375, 0.375, 0.375, 0.5, 0.5, -0.625, -0.625, -0.5, -0.5, -0.125, -0.125, 0, 0]),
    (f"{GRPO} --credit tree", [0.783348, 0.783348, 0.783348, 0.783348, 0.999998, 0.999998, -1.305580, -1.305580, -0.999998, -0.999998, -0.261116,
                               -0.261116, 0, 0]),
    (f"{GRPO} --credit episode --estimator opo", [0.464286, 0.5, 0.464286, 0.5, 0.6, 0.666667, -0.535714, -0.5, -0.4, -0.333333, -0.035714, 0, 0.1,
                                                  0.166667]),
    ("group -q --by agent --anchor prompt | advantage -q --credit gigpo --gamma 0.95",
     [1.624119, 0.783348, 1.517354, 0.783348, 1.490454, 0.783348, -2.600100, -1.305580, -2.012685, -1.305580, -0.541373, -0.261116, -0.261116,
      -0.261116]),
    ("group -q --by agent --anchor prompt | advantage -q --credit gigpo --gamma 0.95 --estimator dr-grpo",
     [0.768750, 0.375, 0.718750, 0.375, 0.875, 0.375, -1.231250, -0.625, -1.125, -0.625, -0.256250, -0.125, -0.125, -0.125]),
    ("group -q --by agent | advantage -q --estimator gdpo --components success=1,format=1 --whiten tokens",
     [1.135020, 1.439869, 1.135020, 0.260314, 1.135020, 1.439869, -1.558638, -1.141206, -0.266500, -1.141206, 0.434260, 0.739109, -0.857878,
      -0.440446]),
    ("group -q --by agent | advantage -q --estimator gdpo --components success=1,format=1 --whiten samples",
     [0.919350, 1.208331, 0.919350, 0.090176, 0.919350, 1.208331, -1.634093, -1.238390, -0.409215, -1.238390, 0.255067, 0.544048, -0.969810,
      -0.574107]),
    (f"{GRPO} --estimator raw --credit episode --whiten tokens", by_episode(1.288275, 1.288275, -1.090079, 0.099098)),
    (f"{GRPO} --estimator raw --credit episode --whiten samples --epsilon 0", by_episode(0.991561, 0.991561, -1.322081, -0.165260)),
    (f"{MEAN} --credit episode --whiten tokens", [1.174750] * 4 + [1.476828] * 2 + [-1.241878] * 2 + [-0.939800] * 2 + [-0.033564] * 2
     + [0.268514] * 2),
    (f"{MEAN} --credit episode --whiten samples --epsilon 0", [0.877346] * 4 + [1.169795] * 2 + [-1.462244] * 2 + [-1.169795] * 2 + [-0.292449] * 2
     + [0] * 2),
])
def test_one_record_of_episodes_is_scored_by_every_rule(check, pipe, expected):
    counts = check(played(), pipe, expected)
    assert counts.get("count", "calls") == "calls" or "calls" not in pipe
    if "anchor" in pipe:
        assert (counts["anchors"], counts["anchor_size_mean"]) == (10, 1.4)
    if "samples" in pipe and "gdpo" in pipe:
        assert counts["whiten"]["policies"]["both"]["count"] == 14


def test_gigpo_adds_a_comparison_of_equal_prompts(through):
    """Its part without the episode's."""
    mean = "group -q --by agent --anchor prompt | advantage -q --credit gigpo --gamma 0.95 --estimator dr-grpo"
    whole, half = through(played(), mean)[0], through(played(), f"{mean} --anchor-weight 0.5")[0]
    assert close([2 * (one - other) for one, other in zip(whole, half)],
                 [0.39375, 0, 0.34375, 0, 0.5, 0, -0.60625, 0, -0.5, 0, -0.13125, 0, 0, 0])


def test_rewards_of_a_joint_action_are_discounted_once(check):
    """Two agents at once, after one parent, share one reward of the team: R of a play is theirs once."""
    given = []
    for branch, agent, turn in itertools.product((0, 1), "ab", (0, 1)):
        team = float(turn == 1 and branch == 0)
        given.append(sample(f"{turn}{agent}{branch}", agent, branch, 2, turn=turn, sampling_mode="parallel", prompt_ids=[turn + 1], reward=team,
                            rewards={"team": team, "local": 0}, parent=f"p{turn}{branch}"))
    # R: 2 against 0, as each agent is paid. G at turn 1: 1 against 0; at turn 0: 0.5 against 0.
    one = [1.25, 1.5, 1.25, 1.5]
    check(given, "group -q --by agent --anchor prompt | advantage -q --credit gigpo --gamma 0.5 --estimator dr-grpo", one + [-value for value in one])


def test_gdpo_normalizes_each_component_by_itself(check, through):
    def of(pairs, task):
        return group([sum(pair) for pair in pairs], lambda branch: {"episode": f"0.{task}", "id": f"{task}/{branch}",
                     "reward_components": dict(zip(("success", "format"), pairs[branch]))})

    one = of([(1, 0), (0, 1), (0, 0), (1, 1)], 0)
    gdpo = f"{GRPO} --estimator gdpo --components success,format"
    check(one, gdpo, [0, 0, -1.732048, 1.732048])
    check(one, GRPO, [0, 0, -1.224743, 1.224743])
    two = one + of([(0, 1), (0, 0), (0, 1), (0, 1)], 1)
    check(two, f"{gdpo} --epsilon 1e-4", [0, 0, -1.731751, 1.731751, 0.499900, -1.499700, 0.499900, 0.499900])
    check(two, f"{gdpo} --epsilon 1e-4 --whiten samples", [0, 0, -1.527404, 1.527404, 0.440912, -1.322735, 0.440912, 0.440912])
    # With weights of opposite sign the sum is flat and the components are not.
    found, counts = through(of([(1, 0), (0, 1), (0.5, 0.5), (0.5, 0.5)], 0), f"{GRPO} --drop-flat --estimator gdpo --components success=1,format=0.5")
    assert (len(found), counts["groups_flat"]) == (4, 0) and found[0] > 0.6 and found[0] + found[1] < 1e-9


@pytest.mark.parametrize(("flags", "rewards", "expected"), [
    ("--estimator max-rl", [1, 0, 0, 0], [3, -1, -1, -1]),
    ("--estimator max-rl", [0.5, 0.2, 0, 0.9], [0.25, -0.5, -1, 1.25]),
    ("--estimator max-rl", [0] * 4, [0] * 4),
    ("--estimator max-at --k 2", [1, 0, 0, 1], [0.666667, 0, 0, 0.666667]),
    ("--estimator max-at", [0.5, 0.2, 0, 0.9], [0.266667, 0.066667, 0, 0.666667]),
    ("--estimator max-at --k 4", [0.5, 0.2, 0, 0.9], [0, 0, 0, 0.4]),
    ("--estimator max-at --k 4", [1, 0, 0, 1], [0] * 4),
    ("--estimator dr-grpo", [1, 0, 0, 1], [0.5, -0.5, -0.5, 0.5]),
    ("--estimator max-rl", [0.7], [0]), ("--estimator max-at", [0.7], [0]), ("--estimator opo", [0.7], [0]),
    # All equal is nothing to divide by, and no error.
    ("--estimator raw --whiten tokens", [1, 1, 1], [0] * 3),
    # Hierarchical GRPO: proposers across their group, solvers against attempts at the same problem; the mean alone.
    ("--estimator dr-grpo", [0.5, 0, 1], [0, -0.5, 0.5]),
    ("--estimator dr-grpo", [1, 0], [0.5, -0.5]), ("--estimator dr-grpo", [0, 0], [0, 0]), ("--estimator dr-grpo", [1, 1], [0, 0]),
    # Variances over tokens have a floor.
    ("--estimator raw --whiten tokens", [1e-4, -1e-4], [0.577350, -0.577350]),
    ("--estimator grpo --epsilon 0", [0, 1, 2, 5], [-0.92582, -0.46291, 0, 1.38873]),
])
def test_estimator_is_its_formula(check, flags, rewards, expected):
    check(group(rewards), f"{GRPO} {flags}", expected)


@pytest.mark.parametrize(("rewards", "mean", "rloo", "most", "normal"), [
    ([2, 0.5], [0.75, -0.75], [1.5, -1.5], [0, -1.5], [1, -1]),
    ([1.94, 0.29], [0.825, -0.825], [1.65, -1.65], [0, -1.65], [1, -1]),
    ([11.5, 24.5], [-6.5, 6.5], [-13, 13], [-13, 0], [-1, 1]),
    ([35, 77], [-21, 21], [-42, 42], [-42, 0], [-1, 1]),
    ([44, 68], [-12, 12], [-24, 24], [-24, 0], [-1, 1]),
    ([0, 1, 2, 5], [-2, -1, 0, 3], [-2.666667, -1.333333, 0, 4], [-5, -4, -3, 0], [-1.069045, -0.534522, 0, 1.603567]),
    ([3] * 4, [0] * 4, [0] * 4, [0] * 4, [0] * 4),
])
def test_estimators_of_magrpo(check, rewards, mean, rloo, most, normal):
    for flags, expected in (("dr-grpo", mean), ("rloo", rloo), ("group-max", most), ("grpo --std population --epsilon 0", normal), ("raw", rewards)):
        check(group(rewards), f"{GRPO} --estimator {flags}", expected)


def test_gate_makes_a_group_flat_whatever_shaping_says(check):
    def of(success, rewards):
        return group(rewards, lambda branch: {"reward_components": {"success": success[branch]}})

    failed, shaped = of([0] * 4, [0.03, 0.01, 0.02, 0]), [1.161805, -0.387268, 0.387268, -1.161805]
    check(failed, GRPO, shaped)
    counts = check(failed, f"{GRPO} --gate success", [0] * 4)
    assert (counts["groups_flat"], counts["groups_gated"]) == (1, 1)
    check(failed, f"{GRPO} --flat-below 0.05", [0] * 4)
    check(failed, f"{GRPO} --flat-below 0.029", shaped)
    for flags in ("", "--gate success"):
        check(of([1, 0, 0, 0], [1.03, 0.01, 0.02, 0]), f"{GRPO} {flags}", [1.499805, -0.499935, -0.480330, -0.519540])
    solved = of([1] * 4, [1.03, 1.01, 1.02, 1])
    check(solved, f"{GRPO} --gate success", [0] * 4)
    check(solved, GRPO, shaped)
    assert check(failed, f"{GRPO} --gate success --drop-flat", [])["dropped_groups"] == {"flat": 0, "gate": 1}


def tree(*leaves):
    """Solvers, and below each of them checkers, with the rewards of the leaves."""
    joint = {"type": "joint", "v": 1, "episode": "0.0", "turn": 0}
    given = []
    for solver in range(len(leaves)):
        given += [sample(f"s{solver}", "solver", solver, len(leaves)),
                  joint | {"id": f"0.0/{solver}", "parent": None, "members": [f"s{solver}"], "reward": 0, "terminated": False}]
    for solver, rewards in enumerate(leaves):
        for checker, leaf in enumerate(rewards):
            name = f"c{solver}{checker}"
            given += [sample(name, "checker", checker, len(rewards), node=str(solver), prompt_ids=[solver + 2], reward=leaf),
                      joint | {"id": f"0.0/{solver}.{checker}", "node": str(solver), "parent": f"0.0/{solver}", "members": [name], "reward": leaf,
                               "terminated": True, "success": leaf == 1}]
    return given


HALF = math.sqrt(0.5)


@pytest.mark.parametrize(("leaves", "flags", "expected"), [
    (([1, 1, 0], [0, 0, 0], [1, 0, 0.5]), "rloo", [0.416667, -0.583333, 0.166667, 0.5, 0.5, -1, 0, 0, 0, 0.75, -0.75, 0]),
    (([1, 1, 0], [0, 0, 0], [1, 0, 0.5]), "dr-grpo", [0.277778, -0.388889, 0.111111, 0.333333, 0.333333, -0.666667, 0, 0, 0, 0.5, -0.5, 0]),
    (([1, 1, 0], [0, 0, 0], [1, 0, 0.5]), "grpo --std population --epsilon 0",
     [0.980581, -1.372813, 0.392232, HALF, HALF, -2 * HALF, 0, 0, 0, 1.224745, -1.224745, 0]),
    # Two solvers with four checkers each.
    (([1, 0, 1, 0], [0, 0, 1, 0]), "rloo", [0.25, -0.25, 0.666667, -0.666667, 0.666667, -0.666667, -0.333333, -0.333333, 1, -0.333333]),
    (([1, 0, 1, 0], [0, 0, 1, 0]), "grpo --std population --epsilon 0", [1, -1, 1, -1, 1, -1, -0.577350, -0.577350, 1.732051, -0.577350]),
    # The gate asks what a sample's leaves achieved: solver 1 never succeeds, nor do its checkers.
    (([1, 0, 0.2], [0.3, 0.1, 0.2], [0, 0.3, 0.6]), "dr-grpo --gate success", [0.1, -0.1, 0, 0.6, -0.4, -0.2, 0, 0, 0, 0, 0, 0]),
])
def test_c3_compares_siblings_by_the_mean_of_their_leaves(check, leaves, flags, expected):
    counts = check(tree(*leaves), f"{GRPO} --credit tree --estimator {flags}", expected)
    assert "gate" not in flags or counts["groups_gated"] == 2


def test_component_of_a_joint_action_gates_its_tree(check):
    """The component counts, not whether the leaf's play was a success: the first checkers agree in it."""
    leaves = tree([0, 1], [0.5, 1])
    for line, success in zip((line for line in leaves if line.get("terminated")), (0, 0, 0, 1)):
        line["reward_components"] = {"success": success}
    check(leaves, f"{MEAN} --credit tree --gate success", [-0.125, 0.125, 0, 0, -0.25, 0.25])


@pytest.mark.parametrize(("rewards", "pipe", "expected"), [
    # Anchors do not teach a gated group.
    ([1, 0], "group -q --by agent --anchor prompt | advantage -q --estimator dr-grpo --credit gigpo --gate success", [0, 0]),
    # A negative weight punishes; components are flat below a bound.
    ([1, 0], f"{GRPO} --estimator gdpo --components cost=-0.5", [-0.353553, 0.353553]),
    ([0.5, 0.55], f"{GRPO} --estimator gdpo --components cost --flat-below 0.1", [0, 0]),
])
def test_rule_of_one_expression(check, rewards, pipe, expected):
    check(group(rewards, lambda branch: {"sampling_mode": "parallel", "reward_components": {"success": 0, "cost": rewards[branch]}}), pipe, expected)


def test_cut_answers_count_in_no_comparison(through):
    """Without the second answer both means, of the group and of the anchor, are 1/3."""
    given = group([1, 1, 0, 0], lambda branch: {"sampling_mode": "parallel", "finish_reason": "length" if branch == 1 else "stop"})
    found, _ = through(given, "group -q --by agent --anchor prompt | advantage -q --estimator dr-grpo --credit gigpo --cut drop")
    assert found.pop(1) is None and close(found, [4 / 3, -2 / 3, -2 / 3]), found


def test_nothing_follows_a_joint_action_at_the_turn_limit(check):
    """The second solver's has no children, because it met the limit; the first one's do: 1 and 0."""
    given = [line | ({"truncated": True} if line["id"] == "0.0/1" else {}) for line in tree([1, 0], [0, 0])
             if line.get("parent") != "0.0/1" and not line["id"].startswith("c1")]
    check(given, f"{MEAN} --credit tree", [0.25, -0.25, 0.5, -0.5])


def test_turn_without_a_reward_is_no_turn_that_was_skipped(ask):
    given = [sample(f"{branch}{turn}", branch=branch, branches=2, turn=turn, sampling_mode="parallel", reward=None if (branch, turn) == (0, 1) else 1)
             for branch in (0, 1) for turn in (0, 1, 2)]
    refused(ask(given, "group -q --by episode --unscored drop-sample | advantage -q --credit episode"), 65, "no executed sample of a at turn 1")


# Two turns; the second pays 1, but fails after a first answer with an odd sum of bytes.
SOMETIMES = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    turn, odd = asked.get("state") or (0, 0)
    told = {"request": asked.get("request"), "agents": ["a"], "order": "sequential", "turns": 2}
    if "task" in asked:
        told["state"] = (0, 0)
    elif turn and odd:
        told["error"] = "the tool is down"
    else:
        told.update(state=(turn + 1, sum(asked["action"].encode()) % 2), rewards={"team": turn, "local": 0}, terminated=turn == 1, success=turn == 1)
    told["observations"] = {"a": [{"role": "user", "content": str(turn)}]}
    print(json.dumps(told), flush=True)"""


def test_failed_episode_has_no_part_to_compare(tmp_path):
    """Its first turn is no episode that earned 0; the others earned the same."""
    (tmp_path / "sometimes.py").write_text(SOMETIMES)
    (tmp_path / "tasks").write_text("".join(json.dumps(line) + "\n" for line in (
        {"type": "task", "v": 1, "env": "sometimes", "task": "t", "split": "train", "spec": {}},
        {"type": "end", "v": 1, "stage": "tasks", "ok": True, "counts": {"tasks": 1}})))
    printed = must("policy init a --preset tiny > init; rollout --quiet --env-command 'python3 sometimes.py' --policy a --max-tokens 2 --sampling parallel "
                   "--branches 8 --max-error-rate 1 < tasks | group -q --by episode | advantage -q --credit episode --estimator dr-grpo", tmp_path)
    failed = {line["branch"] for line in lines(printed, "episode") if line["stop"] == "error"}
    samples = lines(printed, "sample")
    assert 0 < len(failed) < 8 and {line["branch"] for line in samples} == set(range(8)) - failed
    assert {line["advantage"] for line in samples} == {0}
    counts = lines(printed)[-1]["after"][0]["after"][0]["counts"]
    assert counts["groups_expected"] == counts["groups"] + counts["dropped_groups"]["env"] == 16


def plays(step, *rewards):
    """The samples of a step of two players, in order of play, with what each play paid."""
    return [sample(f"{step}.{index}", agent, step=step, episode=f"{step}.{index}", sampling_mode="parallel", reward=reward)
            for index, (agent, reward) in enumerate(rewards)]


def test_rae_keeps_its_baselines_from_step_to_step(ask, check, tmp_path):
    kept = tmp_path / "baselines"
    pipe = ("group -q --by agent --allow-incomplete | advantage -q --estimator rae --credit episode-own --decay 0.9 "
            f"--baselines {kept}")

    def read(step):
        return json.loads((kept / f"{step:06}.json").read_text())

    # All of a step are compared with the baseline of its start.
    counts = check(plays(0, ("x", 1), ("o", -1), ("x", 1), ("o", -1), ("x", -1), ("o", 1)), pipe, [1, -1, 1, -1, -1, 1])["baselines"]
    assert counts["file"] == "000000.json" and counts["roles"]["toy/x"]["episodes"] == 3
    baseline = read(0)["toy/x"][0]
    assert close([baseline], [0.090333]) and read(0)["toy/o"] == [-baseline, 3]
    # A role that does not play keeps its baseline; a step that is repeated writes the same bytes, in any order of the lines.
    second = plays(1, ("x", 1), ("x", 0))
    check(second, pipe, [1 - baseline, -baseline])
    written = read(1)
    assert written["toy/o"] == [-baseline, 3] and written["toy/x"][1] == 5
    assert close(written["toy/x"][:1], [0.81 * baseline + 0.19 * 0.5], by=1e-12)
    check(second, pipe, [1 - baseline, -baseline])
    assert read(1) == written
    check(second[::-1], pipe, [-baseline, 1 - baseline])
    assert read(1) == written
    # It does not begin anew in the middle of a run.
    refused(ask(plays(3, ("x", 1)), pipe), 2, "000002.json", "only step 0 begins with 0")
    (kept / "000002.json").write_text('{"toy/x": 3}')
    refused(ask(plays(3, ("x", 1)), pipe), 65, "000002.json")
    refused(ask(plays(0, ("x", 1)) + plays(1, ("x", 1)), pipe), 65, "step is 1, but 0 before")


def test_rae_credits_an_agent_with_its_own_episode(check, through, tmp_path):
    """An agent's rewards over its whole episode count once, however many turns it takes."""
    given = [line | {"reward": 0.25 if line["agent"] == "solver" else 1.0} for line in played() if line["type"] == "sample"]
    expected = [own * turns for turns in (1, 2, 2, 2) for own in (0.25, 1) * turns]
    counts = check(given, f"group -q | advantage -q --estimator rae --credit episode-own --baselines {tmp_path}/b", expected)
    solver = counts["baselines"]["roles"]["toy/solver"]
    assert (solver["episodes"], solver["mean"]) == (4, 0.4375)
    # Of whole episodes each role has a baseline, also in one group of both.
    roles = through(given, f"group -q --by episode | advantage -q --estimator rae --credit episode --baselines {tmp_path}/whole")[1]["baselines"]["roles"]
    assert [roles[role]["episodes"] for role in ("toy/solver", "toy/checker")] == [4, 4]


ONE, PARALLEL = group([1, -1]), group([1, 0], lambda branch: {"sampling_mode": "parallel"})
EPISODES = "group -q --by episode | advantage -q"


@pytest.mark.parametrize(("given", "pipe", "code", "cause"), [
    (ONE, f"{GRPO} --estimator max-rl", 65, "1: its credit is -1, and max-rl divides"),
    (ONE, f"{GRPO} --estimator gdpo --components success", 65, "no success: it was not scored"),
    (ONE, f"{GRPO} --gate success", 65, "no success: it was not scored"),
    (tree([1]), f"{GRPO} --credit tree --gate format", 65, "0.0/0: `reward_components` has no format"),
    (ONE, f"{GRPO} --estimator gdpo", 2, "--components"),
    (ONE, f"{GRPO} --estimator rae", 2, "--baselines"),
    (ONE, f"{GRPO} --components x", 2, "--components does nothing with --estimator grpo"),
    (ONE, f"{GRPO} --k 3", 2, "--k does nothing with --estimator grpo"),
    (ONE, f"{GRPO} --decay 0.5", 2, "--decay does nothing with --estimator grpo"),
    (ONE, f"{GRPO} --count-by calls", 2, "--count-by calls does nothing with --credit turn"),
    (ONE, f"{GRPO} --anchor-weight 2", 2, "--anchor-weight does nothing with --credit turn"),
    (ONE, f"{GRPO} --flat-below=-1", 2, "--flat-below"),
    (ONE, f"{GRPO} --estimator gdpo --components x --team-weight 1", 2, "--team-weight does nothing"),
    (ONE, f"{GRPO} --estimator gdpo --components x --credit return", 2, "--credit return does nothing"),
    (ONE, f"{GRPO} --credit episode-own", 65, "--credit episode-own compares whole episodes"),
    (PARALLEL, f"{EPISODES} --credit gigpo", 65, "`anchor` is missing"),
    (PARALLEL, f"{EPISODES} --credit gigpo --estimator rloo", 2, "its two comparisons subtract a mean each"),
    (PARALLEL, f"{EPISODES} --credit episode-own --estimator remax", 2, "whose baseline is of one prompt"),
    (group([1]), f"{GRPO} --whiten samples", 65, "one sample, which has no standard deviation"),
    (group([1]), f"{GRPO} --whiten tokens", 65, "one token, which has no standard deviation"),
    (group([1, 0], lambda branch: {"completion_ids": None}), f"{GRPO} --estimator opo", 65, "`completion_ids` is missing"),
    (group([1, 0], lambda branch: {"reward_components": {"success": None}}), f"{GRPO} --estimator gdpo --components success", 65, "reward_components"),
    (group([1], lambda branch: {"task": None}), "group -q --anchor prompt", 65, "`task` is missing"),
])
def test_samples_that_a_rule_cannot_score_are_refused(ask, given, pipe, code, cause):
    refused(ask(given, pipe), code, cause)


def test_agents_may_skip_turns(check):
    """A turn that an agent skips adds nothing, and counts in the discount. b acts in turn 1 alone; a acts in turns 0 and 3."""
    given = [sample(f"{agent}{turn}{branch}", agent, branch, 2, turn=turn, sampling_mode="parallel", reward=reward * (1 - branch))
             for agent, turn, reward in (("a", 0, 1), ("b", 1, 2), ("a", 3, 4)) for branch in (0, 1)]
    for by, credit, *expected in (
        ("--by agent", "episode --gamma 0.5", 2.5, 2.5, 2.5),
        ("--by agent", "episode-own --gamma 0.5", 1.5, 1, 1.5),
        ("", "return --gamma 0.5", 1.5, 2, 4),
        ("--by agent", "episode", 7, 7, 7),
    ):
        check(given, f"group -q {by} | advantage -q --estimator dr-grpo --credit {credit}", [sign * value / 2 for value in expected for sign in (1, -1)])


ANCHORS = "jq -c 'select(.type==\"sample\") | [.anchor, .anchor_size]'"


def test_agents_do_not_share_an_anchor(ask):
    """Agents with one prompt have an anchor each."""
    given = [line for agent in "ab" for line in group([1, 0], lambda branch: {"agent": agent, "id": f"{agent}{branch}"})]
    assert ask(given, f"group -q --anchor prompt | {ANCHORS}")[1] == '["a0",2]\n["a0",2]\n["b0",2]\n["b0",2]\n'


def test_anchors_count_what_is_written(tmp_path):
    """A sample that is left out is no member of its anchor, and parts of a stream do not mix."""
    given = group([1, None, 0], lambda branch: {"sampling_mode": "parallel"})
    (tmp_path / "lines").write_text(text(given) * 2)
    assert must(f"group -q --anchor prompt --unscored drop-sample --resident < lines | {ANCHORS}", tmp_path) == '["0",2]\n' * 4


def test_roles_show_who_learns_and_where_credit_points(tmp_path):
    """The solver's candidates are equal within a state and the checker's differ, so the metrics by agent show who learns."""
    given = []
    for episode, paid in (("0.0", 0.25), ("0.1", 0.75)):
        for branch in (0, 1):
            for agent, reward in (("solver", paid), ("checker", float(branch == (episode == "0.0")))):
                given.append(sample(f"{episode}/{agent}/{branch}", agent, branch, 2, episode=episode, reward=reward, selected=branch == 0,
                                    completion_ids=[1, 2], finish_reason="length" if branch else "stop"))
        given.append({"type": "episode", "v": 1, "env": "toy", "task": "t", "episode": episode, "success": episode == "0.1", "turns": 1, "reward": 1,
                      "stop": "turns"})
    (tmp_path / "lines").write_text(text(given))
    must("group -q < lines | advantage -q --std none > a; group -q < lines | advantage -q --estimator raw > b", tmp_path)
    rows = {row["agent"]: row for row in map(json.loads, must("report roles a --against b --format json", tmp_path).splitlines())}
    for key, checker, solver in (
        ("samples", 4, 4), ("groups", 2, 2), ("groups_flat", 0, 2), ("flat", 0, 1), ("advantage_mass", 1, 0), ("advantage_mean", 0, 0),
        ("advantage_largest", 0.5, 0),
        # Its executed candidate is the worse one in the failed episode and the better one in the solved one.
        ("advantage_success", 1, None), ("variance_within_state", 1, 0), ("completion_length", 2, 2), ("completions_cut", 0.5, 0.5),
    ):
        assert (rows["checker"][key], rows["solver"][key]) == (checker, solver), key
    # 1 and 0 against 0.5 and -0.5, twice.
    assert close([rows["checker"]["advantage_cosine"]], [HALF], by=1e-12)
    assert must("report roles < a", tmp_path).splitlines()[0].split() == ["checker", "solver"]
    refused(run("report roles < lines", tmp_path), 65, "`group` is missing", "what advantage writes")


@pytest.mark.parametrize("method", "at-grpo trajectory magrpo magrpo-cross c3 c3-zscore drmas gigpo gdpo rae matpo flow-grpo hierarchical".split())
def test_method_is_flags_that_its_stages_take(method):
    """Each stage reads its flags and does nothing."""
    title, *rows = must(f"./pipeline.sh explain --method {method}").splitlines()
    assert title.startswith(f"# {method}: ") and [row.split()[0] for row in rows] == ["rollout", "group", "advantage", "update"]
    for row in rows:
        must(f"TROUPE_DRY_RUN=1 {row} {'--policy p' if row.startswith(('rollout', 'update')) else ''} < /dev/null")


def test_method_without_its_flag_or_of_another_name_is_refused():
    for flags, cause in (("--method gdpo", "--method gdpo needs --components, which depends on the environment"),
                         ("--method ppo", "invalid value 'ppo' for '--method <NAME>' [possible values: at-grpo, trajectory,")):
        refused(run(f"{ROOT}/pipeline.sh {flags} --run /nonexistent/run"), 2, cause)
