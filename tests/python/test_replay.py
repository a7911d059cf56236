"""Replays a rollout from its lines in another program: every prompt, reward, choice, stop and advantage.

`envs step` is told the task and then each candidate, one at a time, so all output of `rollout` must follow from the tasks and the texts alone. This
rules out typical mistakes of multi-agent training: prompts that do not follow from the applied actions (a tree that never advances, agents in
sequence that do not see each other), candidates scored by anything but their consequence (given the choices of the others, if agents act at once),
groups of other than K candidates of one prompt, groups that mix tasks, choices that are not the first best, running out of turns as a success."""
import collections
import json
import statistics
import subprocess

from conftest import lines, must


def advantages(rewards):
    """(r - mean) / (std + 1e-6), std over n - 1; 0 where all are equal."""
    mean, std = statistics.fmean(rewards), statistics.stdev(rewards)
    return [0 if std == 0 else (reward - mean) / (std + 1e-6) for reward in rewards]


def replay(ask, workflow, branches, turns, weight, tasks, stream):
    """Checks the lines of a rollout; counts what it has met, so that the test can tell that it tested something."""
    seen, samples = collections.Counter(), collections.defaultdict(list)
    for sample in (line for line in stream if line["type"] == "sample"):
        samples[sample["episode"], sample["turn"], sample["agent"]].append(sample)
    episodes = {line["episode"]: line for line in stream if line["type"] == "episode"}

    def worth(answer):
        team, local = answer["rewards"]["team"], answer["rewards"]["local"]
        assert 0 <= team <= 1 and 0 <= local <= 1
        return weight * team + local

    for index, task in enumerate(tasks):
        name = f"5.{index}"
        episode = episodes[name]
        assert episode["task"] == task["task"]
        now = ask({"request": 0, "task": task, "workflow": workflow})
        agents, order = now["agents"], now["order"]
        stages = order if isinstance(order, list) else [agents] if order == "parallel" else [[agent] for agent in agents]
        turn, total, over = 0, 0, None
        while over is None and turn < turns:
            for stage in stages:
                # The choice is the best candidate alone, the first of equals.
                groups, best = {agent: samples.pop((name, turn, agent)) for agent in stage}, {}
                for agent, members in groups.items():
                    alone = [worth(ask({"state": now["state"], "agent": agent, "action": member["completion"]})) for member in members]
                    best[agent] = alone.index(max(alone))
                chosen = {agent: members[best[agent]]["completion"] for agent, members in groups.items()}
                for agent, members in groups.items():
                    assert len(members) == branches
                    others, answers = {other: text for other, text in chosen.items() if other != agent}, []
                    for branch, member in enumerate(members):
                        answer = ask({"state": now["state"], "agent": agent, "action": member["completion"], "beside": others})
                        assert (member["id"], member["group"]) == (f"{name}/{turn}/{agent}/{branch}", f"{name}/{agent}/{turn}")
                        assert (member["task"], member["prompt"]) == (task["task"], now["observations"][agent]), member["id"]
                        assert member["prompt_ids"] == members[0]["prompt_ids"], member["id"]
                        for key in ("rewards", "reward_components", "terminated"):
                            assert member.get(key) == answer.get(key), member["id"]
                        assert member["reward"] == worth(answer) and member["selected"] is (branch == best[agent]), member["id"]
                        answers.append(answer)
                    rewards = [member["reward"] for member in members]
                    assert all(abs(member["advantage"] - wanted) < 1e-9 for member, wanted in zip(members, advantages(rewards))), members
                    seen.update(groups=1, later=turn > 0, unequal=len(set(rewards)) > 1)
                    total += rewards[best[agent]] / len(stage)
                    after = answers[best[agent]]
                now = ask({"state": now["state"], "actions": chosen}) if len(stage) > 1 else after
                if now["terminated"]:
                    over = now["success"] is True
                    break
            turn += 1
        assert (episode["success"], episode["stop"]) == (over is True, {True: "success", False: "terminated", None: "turns"}[over]), name
        assert episode["turns"] == turn and abs(episode["reward"] - total) < 1e-9, name
        seen.update(out_of_turns=over is None, successes=over is True)
    assert not samples, "samples of episodes that were over"
    # Every group is counted once by every stage, and nothing is filtered unless it is asked for.
    end = stream[-1]
    rollout = end["after"][0]["after"][0]["counts"]
    assert {counts["groups"] for counts in (end["counts"], end["after"][0]["counts"], rollout)} == {seen["groups"]}
    assert rollout["groups_expected"] == seen["groups"] and end["counts"]["samples_written"] == seen["groups"] * branches
    return seen


def test_lines_of_rollout_follow_from_the_tasks_and_the_texts(tmp_path):
    met = collections.Counter()
    for environment, demonstrated, runs in (
        ("plan-path", "team", [("team", 4, 3, 1.0), ("team", 3, 2, 0.5), ("single", 4, 2, 1.0)]),
        ("math", "ensemble", [("team", 4, 2, 1.0), ("ensemble", 3, 2, 1.0), ("turns", 3, 3, 2.0)]),
    ):
        must(f"policy init {environment} --preset tiny --seed 3; envs demo {environment} --workflow {demonstrated} --count 720 --seed 3 | "
             f"policy encode --policy {environment} | update --policy {environment} --objective nll --optimizer muon --lr 0.03 --lr-other 4e-3 "
             "--minibatches 120 --quiet", tmp_path)
        for workflow, branches, turns, weight in runs:
            stream = must(f"envs tasks {environment} --count 12 --seed 4 | tee tasks | rollout --policy {environment} --workflow {workflow} "
                          f"--branches {branches} --select best --turns {turns} --team-weight {weight} --max-tokens 10 --step 5 --seed 6 --quiet | "
                          "group --quiet | advantage --quiet", tmp_path)
            with subprocess.Popen(["envs", "step", environment], text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as step:
                def ask(request):
                    step.stdin.write(json.dumps(request) + "\n")
                    answer = json.loads(step.stdout.readline())
                    assert "error" not in answer, (request, answer)
                    return answer

                seen = replay(ask, workflow, branches, turns, weight, lines((tmp_path / "tasks").read_text(), "task"), lines(stream))
                step.stdin.close()
            assert seen["unequal"] > 0 and seen["groups"] > 12, f"{environment} {workflow}: nothing was learned from"
            met += seen
    assert met["later"] > 50 and met["out_of_turns"] > 5 and met["successes"] > 5, met
