"""Teams of every shape: one policy for all agents, one per role, some shared; policies of different families, sizes and tokenizers; chained
updates; every workflow from the command line; absent agents; known mistakes of multi-agent training code."""
import json
import os
import shutil

import pytest
from conftest import ROOT, lines, must, refused, run

AGENTS = ["reasoner-1", "reasoner-2", "tool-1", "judge"]
# Random tiny policies earn nothing: this reward differs within a group, so there is something to learn.
REWARD = "jq -c 'if .type==\"sample\" then .reward = (.completion_ids[0] % 7) else . end'"


@pytest.fixture
def policies(tmp_path):
    """Policies of three families, four sizes and two tokenizers."""
    golden = ROOT / "tests/golden"
    must("policy init tiny --preset tiny --seed 1; policy init other --preset tiny --seed 2; "
         f"policy init llama --from {golden}/llama-2-1-scaled-rope; policy init qwen2 --from {golden}/qwen2-2-1-bias; "
         f"policy init qwen3 --from {golden}/qwen3-8-2-untied", tmp_path)
    return tmp_path


def flags(**owners):
    return " ".join(f"--policy {agent.replace('_', '-')}={policy}" for agent, policy in owners.items())


def ensemble(folder, owners, step):
    """The lines of one step of an ensemble, up to `advantage`; also in the file `samples`."""
    return lines(must(f"envs tasks math --count 3 --seed {step} | rollout --workflow ensemble {owners} --branches 3 --turns 2 --max-tokens 6 "
                      f"--step {step} --quiet | {REWARD} | group --quiet | advantage --quiet | tee samples", folder))


def of_type(given, kind):
    return [line for line in given if line["type"] == kind]


def current(folder, policy):
    return os.readlink(folder / policy / "current")


def test_policies_of_different_families_sizes_and_tokenizers_are_one_team(policies):
    owners = flags(reasoner_1="tiny", reasoner_2="llama", tool_1="qwen2", judge="qwen3")
    for step in (1, 2):
        samples = of_type(ensemble(policies, owners, step), "sample")
        assert all(sample["policy_version"].startswith(f"{step - 1}:") for sample in samples)
        # Each tokenizer has different tokens for the same text; no text is decoded and encoded again.
        reported = lines(must(f"update {owners} --lr 1e-3 --lr-warmup 0 --minibatches 1 --quiet < samples", policies))
        metrics = {line["policy"]: line for line in of_type(reported, "metrics")}
        assert sorted(metrics) == ["llama", "qwen2", "qwen3", "tiny"]
        for policy, line in metrics.items():
            assert line["sampling/logp_difference_max"] == 0, f"{policy}: sampler and trainer differ"
            assert line["grad_norm"] > 0 and current(policies, policy) == f"step-{step:06}"
            assert (line["optimizer_steps"], line["lr"]) == (1, 1e-3)
        assert reported[-1]["counts"]["samples_passed_by"] == 0


@pytest.mark.parametrize(("owners", "owned"), [
    ("--policy tiny", {"tiny": AGENTS}),
    (flags(reasoner_1="tiny", reasoner_2="tiny", tool_1="other", judge="tiny"), {"tiny": ["reasoner-1", "reasoner-2", "judge"], "other": ["tool-1"]}),
    # One policy by name, and one for all other agents.
    ("--policy tiny --policy judge=other", {"tiny": AGENTS[:3], "other": ["judge"]}),
])
def test_map_from_roles_to_policies_trains_each_policy_on_its_own_agents(policies, owners, owned):
    samples = of_type(ensemble(policies, owners, 1), "sample")
    counts = lines(must(f"update {owners} --quiet < samples", policies))[-1]["counts"]["policies"]
    assert len(counts) == len(owned)
    for policy, agents in owned.items():
        assert {sample["agent"] for sample in samples if sample["policy"] == policy} == set(agents)
        assert counts[policy] == sum(sample["agent"] in agents for sample in samples)


def test_chained_updates_pass_through_what_they_do_not_own_and_equal_one_update(policies):
    reasoners, rest = flags(reasoner_1="tiny", reasoner_2="tiny"), flags(tool_1="other", judge="other")
    samples = of_type(ensemble(policies, f"{reasoners} {rest}", 1), "sample")
    own = sum(sample["agent"].startswith("reasoner") for sample in samples)
    must(f"mkdir one; cp -r tiny other one; (cd one; update {reasoners} {rest} --lr 1e-3 --quiet < ../samples > ../metrics); "
         f"update {reasoners} --lr 1e-3 --quiet --pass-through < samples | tee between | update {rest} --lr 1e-3 --quiet --pass-through > after", policies)
    for policy in ("tiny", "other"):
        assert current(policies, policy) == "step-000001"
        weights = [(policies / at / policy / "current/model.safetensors").read_bytes() for at in ("", "one")]
        assert weights[0] == weights[1], policy
    # Every sample, owned or not, passes through both byte for byte, in order.
    before, between, after = ([line for line in (policies / name).read_text().splitlines() if '"type":"sample"' in line]
                              for name in ("samples", "between", "after"))
    assert before == between == after and 0 < own < len(samples)
    ends = {}
    for name, passed in (("between", len(samples) - own), ("after", own)):
        ends[name] = lines((policies / name).read_text())[-1]
        counts = ends[name]["counts"]
        assert (counts["samples"], counts["samples_passed_by"], counts["samples_owned"]) == (len(samples), passed, len(samples) - passed)
    assert len(lines((policies / "after").read_text(), "metrics")) == 2, "the metrics of both"
    assert ends["after"]["after"][0]["stage"] == "update", "the second saw the end of the first"


def workflows():
    """(environment, workflow, agents) of all built-in environments."""
    for line in must("envs list").splitlines():
        if line.lstrip().startswith("--workflow "):
            name, agents = line.split("--workflow ")[1].strip().split(" ", 1)
            yield environment, name, agents.strip().split(" (")[0].split(", ")
        elif not line.startswith(" "):
            environment = line.split(":")[0]


@pytest.mark.parametrize("sampling", ["tree", "parallel"])
def test_workflows_are_reached_from_the_command_line(policies, sampling):
    """The groups that each workflow yields."""
    found = list(workflows())
    assert len(found) >= 18
    for environment, workflow, agents in found:
        stream = lines(must(f"envs tasks {environment} --count 1 | rollout --workflow {workflow} --policy tiny --branches 2 --turns 2 --max-tokens 4 "
                            f"--sampling {sampling} --quiet | group --quiet | advantage --quiet", policies))
        assert {sample["agent"] for sample in of_type(stream, "sample")} == set(agents), (environment, workflow)
        end, episodes = stream[-1], of_type(stream, "episode")
        assert end["ok"] is True and len(episodes) == (1 if sampling == "tree" else 2)
        assert sampling == "parallel" or end["counts"]["groups"] == episodes[0]["turns"] * len(agents), (environment, workflow)


def test_ensemble_has_as_many_agents_as_its_settings_say(policies):
    agents = "reasoner-1, reasoner-2, reasoner-3, tool-1, tool-2, judge"
    assert agents in must("envs list math --set reasoners=3 --set tools=2")
    samples = lines(must("envs tasks math --set reasoners=3 --set tools=2 --count 2 | rollout --workflow ensemble --policy tiny --policy judge=llama "
                         "--branches 2 --turns 1 --max-tokens 4 --quiet | group --quiet", policies), "sample")
    assert {sample["agent"] for sample in samples} == set(agents.split(", "))
    assert all(sample["policy"] == ("llama" if sample["agent"] == "judge" else "tiny") for sample in samples)


def test_absent_agent_says_one_text_and_all_else_stays(policies):
    def play(more):
        found = lines(must("envs tasks plan-path --count 8 --seed 5 | rollout --policy tiny --turns 2 --max-tokens 8 --seed 7 --quiet --branches 2 "
                           f"{more}", policies))
        return tuple(of_type(found, kind) for kind in ("sample", "served", "episode"))

    samples, served, episodes = play("--absent tool")
    _, none, before = play("")
    assert len(served) >= 8 and none == []
    for line in served:
        assert [line[name] for name in ("agent", "policy", "model", "completion", "completion_tokens")] == ["tool", "absent", "absent", "", 0]
    # Nothing is trained on it, and the others play the same tasks.
    assert len(samples) >= 16 and {sample["agent"] for sample in samples} == {"planner"}
    assert [(line["task"], line["episode"]) for line in episodes] == [(line["task"], line["episode"]) for line in before]
    # The others see its text.
    others, said, _ = play("--absent 'tool=b2 b3'")
    assert all(line["completion"] == "b2 b3" for line in said) and others[0]["prompt"] != samples[0]["prompt"]
    # A policy of its own is not even opened.
    assert play("--policy tool=nowhere --absent tool")[:2] == (samples, served)
    for more, cause in (("--absent nobody", "--absent nobody: the workflow has no agent named nobody"),
                        ("--absent tool --absent tool=x", "--absent tool=x: the agent is named twice"),
                        ("--absent =x", "--absent =x: no agent is named"),
                        ("--absent tool --joint aligned", "--joint: a server's agent has one candidate, like an absent one")):
        refused(run(f"envs tasks plan-path --count 1 | rollout --policy tiny {more}", policies), 2, cause, "hint: ")


def test_help_and_harm_of_a_role_are_counted_task_by_task(tmp_path):
    """Of ten tasks the team solves 1 to 6, and without a role 5 to 7."""
    for name, solved in (("with", range(1, 7)), ("without", range(5, 8))):
        (tmp_path / name).write_text("".join(json.dumps(
            {"type": "episode", "v": 1, "env": "toy", "task": f"t{task}", "episode": f"0.{task}", "success": task in solved, "turns": 1, "reward": 0.0,
             "stop": "success" if task in solved else "turns"}) + "\n" for task in range(1, 11)))
    command = "report evaluate with --against without --allow-incomplete --quiet"
    against = json.loads(must(f"{command} --format json", tmp_path))["against"]
    assert (against["helped"]["value"], against["hurt"]["value"]) == (0.4, 0.1)
    # Wilson's interval of 4 in 10.
    assert all(abs(found - expected) < 5e-5 for found, expected in zip(against["helped"]["interval"], (0.1682, 0.6873)))
    assert ("solves where without fails 40.0 % (95 % interval 16.8 to 68.7 %), fails where it solves 10.0 % (95 % interval 1.8 to 40.4 %)"
            in must(command, tmp_path))


TEAM = "--policy tool=tool --policy planner=planner"


@pytest.fixture
def team(tmp_path):
    """A team of two small policies of the same 64 tokens, and a step of samples with rewards that differ."""
    golden = ROOT / "tests/golden"
    must(f"policy init tool --from {golden}/qwen2-2-1-bias; policy init planner --from {golden}/qwen3-8-2-untied; "
         f"envs tasks plan-path --count 24 --seed 4 > tasks; rollout {TEAM} --branches 4 --turns 2 --max-tokens 12 --quiet < tasks | {REWARD} | "
         "group --quiet | advantage --quiet > samples", tmp_path)
    return tmp_path


def test_padding_tokens_are_tokens_like_all_others(team):
    """No mask is made by comparing token ids: a padding token inside a text is a token like any other."""
    # Not as the last token: something has to be scored after it.
    assert any(0 in sample["completion_ids"][:-1] for sample in lines((team / "samples").read_text(), "sample"))
    # Sampler and trainer agree on all of them, and one in the middle of a prompt changes the log-probabilities after it.
    must(f"update {TEAM} --check --quiet < samples", team)
    changed = "jq -c 'if .type==\"sample\" then .prompt_ids |= (.[:8] + [0] + .[8:]) else . end' samples"
    refused(run(f"{changed} | update {TEAM} --check --quiet", team), 1)


def test_policy_does_not_move_on_where_another_fails(team):
    """If one policy cannot be trained, the call fails and no policy is published."""
    # Samples of the planner with an unknown version, and with a token outside its vocabulary.
    for broken in ('.policy_version = "7:abcdef01"', ".completion_ids[0] = 4000"):
        refused(run(f"jq -c 'if .agent==\"planner\" then {broken} else . end' samples | update {TEAM} --lr 1e-3 --quiet", team), 65)
        assert {current(team, policy) for policy in ("tool", "planner")} == {"step-000000"}
    must(f"update {TEAM} --lr 1e-3 --quiet < samples", team)
    assert {current(team, policy) for policy in ("tool", "planner")} == {"step-000001"}


def test_samples_come_from_the_distribution_that_scores_them(team):
    """By default the full one at temperature 1; `update` refuses others."""
    for sample in lines((team / "samples").read_text(), "sample"):
        assert [sample["sampling"][name] for name in ("temperature", "top_p", "top_k", "greedy")] == [1, 1, 0, False]
    for more in ("--top-p 0.9", "--top-k 20", "--temperature 0"):
        refused(run(f"rollout {TEAM} {more} --turns 1 --max-tokens 4 --quiet < tasks | group --quiet | advantage --quiet | "
                    "update --policy tool=tool --quiet", team), 65)


def test_tree_and_parallel_sampling_are_two_algorithms(team):
    """Tree sampling is the default; parallel sampling is another algorithm and its samples say so."""
    def play(more):
        found = lines(must(f"rollout {TEAM} --branches 3 --turns 2 --max-tokens 12 --quiet {more} < tasks | group --quiet", team))
        groups = {}
        for sample in of_type(found, "sample"):
            if sample["turn"] == 1:
                groups.setdefault(sample["group"], []).append(sample)
        return of_type(found, "sample"), list(groups.values()), found[-1]["counts"]["equal_prompts"]

    default, tree, equal = play("")
    assert play("--sampling tree")[0] == default and equal is True and tree
    _, parallel, equal = play("--sampling parallel")
    assert equal is False and parallel
    for members in tree:
        assert len({member["parent"] for member in members}) == 1, "one state a group"
        assert sum(member["selected"] for member in members) == 1
    for members in parallel:
        assert all(member["selected"] for member in members), "every episode goes its own way"
        assert all(member["parent"] != members[0]["parent"] for member in members[1:])


def test_model_is_evaluated_as_it_is(tmp_path):
    """`evaluate --model NAME` plays as policies that are made from it and handed in."""
    shutil.copy(ROOT / "tests/golden/gguf/qwen2.gguf", tmp_path)

    def played(more):
        found = lines(must(f"XDG_CACHE_HOME=$PWD/cache {ROOT}/pipeline.sh evaluate --eval-tasks 2 --turns 1 --max-tokens 8 {more}", tmp_path), "sample")
        return [[line[name] for name in ("agent", "prompt", "completion_ids", "completion_logprobs", "policy_version")] for line in found]

    of_model = played("--model qwen2.gguf")
    must("policy init tool --from qwen2.gguf; policy init planner --from qwen2.gguf", tmp_path)
    # A vocabulary as small as this one would be asked in words of its own.
    assert len(of_model) == 4 and played("--policies tool=tool --policies planner=planner --set encoding=full") == of_model
    assert not (tmp_path / "runs").exists(), "a run was made"
