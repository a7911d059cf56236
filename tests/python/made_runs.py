"""Runs made by hand, for tests of `report`."""
import json

AGENTS = ("tool", "planner")
END = {"type": "end", "v": 1, "ok": True}


def put(run, name, text):
    path = run / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if isinstance(text, str) else "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in text))


def small_samples(step):
    """Two agents at one turn, two candidates each; the planner's group is flat. The text is what a page must not trip over."""
    found = [{"type": "sample", "v": 1, "step": step, "env": "e", "task": "t", "episode": f"{step}.0", "turn": 0, "agent": agent, "branch": branch,
              "branches": 2, "id": f"{step}.0/0/{agent}/{branch}", "selected": branch == 1, "prompt": [{"role": "user", "content": "what now? <b>&amp;"}],
              "completion": "</script><script>alert(1)</script>", "prompt_ids": [1, 2], "completion_ids": [5, 4], "finish_reason": "stop",
              "reward": reward, "reward_components": {"format": 1.0, "oracle": reward}, "group": f"{step}.0/{agent}/0", "group_size": 2,
              "advantage": reward - 0.5} for agent, rewards in (("tool", (0.25, 1.0)), ("planner", (0.5, 0.5))) for branch, reward in enumerate(rewards)]
    rollout = END | {"stage": "rollout", "timing": {"seconds": 1.5},
                     "counts": {"groups_expected": 1 + step, "groups": 2, "dropped_groups": {"policy": 0, "env": step - 1}}}
    group = END | {"stage": "group", "after": [rollout], "counts": {"by": "agent-turn", "equal_prompts": True, "groups_expected": 1 + step,
                                                                    "dropped_groups": {"incomplete": 0, "unscored": 0}}}
    return [*found, {"type": "episode", "v": 1, "step": step, "env": "e", "task": "t", "episode": f"{step}.0", "success": step == 2, "turns": 1,
                     "reward": 1.5, "stop": "success"}, END | {"stage": "advantage", "counts": {"dropped_groups": {"flat": 0}}, "after": [group]}]


def small_run(folder, name="made-by-hand"):
    """A run directory of two committed steps and an evaluation, with a third step begun. In step 2 an episode broke off."""
    run = folder / name
    put(run, "run.json", '{\n  "env": "e",\n  "workflow": "team",\n  "policies": "shared",\n  "branches": "2"\n}\n')
    put(run, "steps/000000/done", "{}")
    for step in (1, 2):
        put(run, f"steps/00000{step}/samples.jsonl", small_samples(step))
        put(run, f"steps/00000{step}/metrics.jsonl", [
            {"type": "metrics", "v": 1, "step": step, "policy": "shared", "loss": 0.5, "kl": None, "grad_norm": 1.0, "agents": list(AGENTS),
             "by_agent": {"tool": {"entropy": 1.5, "clip_ratio": 0.25, "grad_norm": 0.75},
                          "planner": {"entropy": None, "clip_ratio": 0.0, "grad_norm": 0.0}},
             "sampling/logp_difference_max": 1e-5, "timing": {"training_seconds": 0.25}},
            END | {"stage": "update", "timing": {"seconds": 2.0, "reading_seconds": 1.5}}])
        put(run, f"steps/00000{step}/done", "{}")
    put(run, "steps/000003/samples.jsonl", '{"type":"sample","v":1,"st')
    put(run, "eval/step-000000.jsonl", [
        {"type": "episode", "v": 1, "step": 0, "env": "e", "task": "t", "episode": "0.0", "success": True, "turns": 1, "reward": 1, "stop": "success"},
        END | {"stage": "rollout", "timing": {"seconds": 2.0}}])
    return run


def made_run(folder, name, steps=12, settings={}, defaults={}, learns=True, cut=0.05, seconds=1.5, joint=False, wide=False):
    """A run of two roles, with what its page may trip over.

    learns: any episode is solved, any group differs, and log-probabilities differ. cut: the share of answers that are cut. seconds: of a step's
    rollout. joint: agents act jointly. wide: each agent has four candidates and not two."""
    run = folder / name
    settings = {"env": "plan", "workflow": "team", "policies": "per-role", "turns": "2", "seed": "1", "max_tokens": "8", "tasks": "4", "branches": "2",
                "lr": "1e-3", "build": "report 0.1.0"} | settings
    put(run, "run.json", json.dumps(settings))
    put(run, "defaults.json", json.dumps(defaults))

    def solves(step, number, of):
        """Whether the `number`th of `of` things is among a share of them that grows over the steps."""
        return learns and number * 20 < of * (4 + min(step, 12) + int(settings["seed"]))

    def episode(step, number, of, task):
        success = solves(step, number, of)
        return {"type": "episode", "v": 1, "step": step, "env": "plan", "task": f"{task}{number}", "episode": f"{step}.{number}", "success": success,
                "turns": 1, "reward": 1.0, "stop": "success" if success else "turns"}

    def samples(step):
        for number in range(4):
            name, members, branches = f"{step}.{number}", [], 4 if wide else 2
            for place, agent in enumerate(AGENTS):
                for branch in range(branches):
                    reward = 1.0 if learns and branch == 1 else 0.25
                    members.append(f"{name}/0/{agent}/{branch}")
                    yield {"type": "sample", "v": 1, "step": step, "env": "plan", "task": f"t{number}", "episode": name, "turn": 0, "agent": agent,
                           "branch": branch, "branches": branches, "id": members[-1], "selected": branch == 1,
                           "prompt": [{"role": "user", "content": "where to?"}], "completion": f"R {'D ' * branch}", "prompt_ids": [1, 2],
                           "completion_ids": [5, 4, 3], "finish_reason": "length" if number * 4 + place * 2 + branch < cut * 16 else "stop",
                           "terminated": branch == 1, "reward": reward, "reward_components": {"format": 1.0, "oracle": reward},
                           "group": f"{name}/{agent}/0", "group_size": branches, "advantage": reward - 0.6 if learns else 0.0}
            for branch in (0, 1) if joint else ():
                yield {"type": "joint", "v": 1, "step": step, "env": "plan", "task": f"t{number}", "episode": name, "turn": 0, "node": name,
                       "id": f"{name}/{branch}", "parent": None, "members": [members[branch], members[2 + branch]], "reward": branch,
                       "rewards": {"team": branch, "local": {}}, "reward_components": {}, "selected": branch == 1, "terminated": False,
                       "success": False, "truncated": False}
            yield episode(step, number, 4, "t")
        rollout = END | {"stage": "rollout", "timing": {"seconds": seconds, "model_seconds": 0.8 * seconds, "waiting_seconds": 0.1 * seconds},
                         "counts": {"groups_expected": 8, "groups": 8, "dropped_groups": {}}}
        group = END | {"stage": "group", "after": [rollout], "counts": {"equal_prompts": True, "groups_expected": 8, "dropped_groups": {}}}
        yield END | {"stage": "advantage", "counts": {}, "after": [group]}

    def evaluation(step):
        for number in range(20):
            name = f"{step}.{number}"
            yield {"type": "sample", "v": 1, "step": step, "env": "plan", "task": f"e{number}", "episode": name, "turn": 0, "agent": "tool", "branch": 0,
                   "branches": 1, "id": f"{name}/0/tool/0", "selected": True, "prompt": [{"role": "user", "content": "where to?"}], "completion": "R",
                   "prompt_ids": [1], "completion_ids": [2], "finish_reason": "length" if number < cut * 20 else "stop", "reward": 1.0,
                   "reward_components": {"format": 1.0, "distance": 0.5 + 0.01 * (number % 5) * learns}}
            yield episode(step, number, 20, "e")
        yield END | {"stage": "rollout", "timing": {"seconds": 2.0}}

    for step in range(1, steps + 1):
        at = f"steps/{step:06}"
        put(run, f"{at}/samples.jsonl", samples(step))
        put(run, f"{at}/metrics.jsonl", [
            {"type": "metrics", "v": 1, "step": step, "policy": policy, "loss": 0.01 - 0.002 * (step % 7), "grad_norm": 0.5, "entropy": 1.2 - 0.02 * step,
             "clip_ratio": 0.0003 * (step % 5), "optimizer_steps": 2, "sampling/logp_difference_max": 1e-5 / step if learns else 0.0,
             "timing": {"training_seconds": 0.3 * seconds}} for policy in AGENTS
        ] + [END | {"stage": "update", "timing": {"seconds": seconds, "reading_seconds": 0.2 * seconds}}])
        put(run, f"{at}/done", "{}")
    for step in range(0, steps + 1, 4) if steps else ():
        put(run, f"eval/step-{step:06}.jsonl", evaluation(step))
    return run


def data(page, part="data"):
    """The data inside a page."""
    return json.loads(page.split(f'<script type="application/json" id="{part}">')[1].split("</script>")[0])
