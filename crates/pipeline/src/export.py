"""Writes a run's team to one folder, for `pipeline.sh export`: every policy, team.json, run_team.py and a card.

The prompts are found, not declared: in the run's evaluation the texts of the task and of other agents are replaced by their names,
and what remains must be the same for all tasks. Every prompt of the evaluation is then made again from it; a team whose prompts are
not made so (a board, the output of a program) is exported without run_team.py. Arguments: RUN DIR BASE SCRIPT; TROUPE_BIN.
"""
import collections
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

RUN, OUT, BASE, SCRIPT = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4]
BIN = pathlib.Path(os.environ["TROUPE_BIN"])


class Refused(Exception):
    """Code, cause and hint."""


def program(name, *arguments):
    """What one of the programs prints; its own message is enough if it fails."""
    done = subprocess.run([BIN / name, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def best_step():
    """The folder of the policies to export, and the step of its evaluation, the last one if there is no copy of the best."""
    steps = sorted(int(path.stem[5:]) for path in (RUN / "eval").glob("step-*.jsonl"))
    if not steps:
        raise Refused(2, f"{RUN}: no run with an evaluation", "name a folder that ./pipeline.sh list prints")
    best = RUN / "best"
    if best.exists():
        match = re.fullmatch(r"best-(\d+)", best.resolve().name)
        found = {step: evaluation(step) for step in steps}
        return best, int(match[1]) if match else max(steps, key=lambda step: (found[step]["success"], found[step]["reward"] or 0, -step))
    newest = max(int(path.parent.name) for path in (RUN / "steps").glob("*/done"))
    if newest != steps[-1]:
        raise Refused(2, f"{RUN}: its last step {newest} has no evaluation", f"./pipeline.sh --resume {RUN} goes on; policy export takes policies one by one")
    return RUN / "policies", newest


def evaluation(step):
    return json.loads(program("report", "evaluate", "--quiet", "--format", "json", RUN / f"eval/step-{step:06}.jsonl"))


def texts_of(value):
    """All strings in a task's spec."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [value] if isinstance(value, str) else [text for child in children for text in texts_of(child)]


def specs():
    """The spec of each test task, by the run's own command line with the programs of today; {} if it no longer runs."""
    command = re.sub(r"^exec \S+/envs", f"exec '{BIN}/envs'", (RUN / "stages/test-tasks").read_text(encoding="utf-8"))
    done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    tasks = map(json.loads, done.stdout.splitlines())
    return {task["task"]: task["spec"] for task in tasks if task["type"] == "task"}


def named(content, question, said):
    """A prompt with names for what varies: texts behind their agent's name first, then the longest."""
    texts = {question.strip(): "question"}
    for agent, all_texts in said.items():
        for text, name in zip(all_texts[::-1], (agent, f"{agent}.before")):
            texts.setdefault(text.strip(), name)
            if text.strip():
                behind = rf"({re.escape(agent)}(?: wrote)?:\s){re.escape(text.strip())}"
                content = re.sub(behind, lambda match, name=name: f"{match[1]}{{{{{name}}}}}", content)
    for text in sorted(filter(None, texts), key=len, reverse=True):
        content = content.replace(text, "{{" + texts[text] + "}}")
    return content


def filled(content, question, said):
    def fill(match):
        name, before = re.fullmatch(r"(.*?)(\.before)?", match[1]).groups()
        known = said.get(name, [])
        return question.strip() if name == "question" else known[-2 if before else -1].strip() if len(known) > bool(before) else match[0]

    return re.sub(r"\{\{(.+?)\}\}", fill, content)


def turns_of(samples, tasks):
    """Who speaks when with which prompt, and how many of the samples' prompts come out the same; None if that is too few."""
    episodes = collections.defaultdict(list)
    for sample in samples:
        episodes[sample["episode"]].append(sample)
    order = max(([sample["agent"] for sample in episode] for episode in episodes.values()), key=len)
    known = [(episode, max((text for text in texts_of(tasks.get(episode[0]["task"], {})) if text.strip() in episode[0]["prompt"][-1]["content"]),
                           key=len, default="")) for episode in episodes.values()]
    guesses = [collections.Counter() for _ in order]
    for repeat in (False, True):
        same = 0
        for episode, question in known:
            said = collections.defaultdict(list)
            for at, sample in enumerate(episode):
                if sample["agent"] != order[at] or not question:
                    break
                if repeat:
                    prompt = json.loads(guesses[at].most_common(1)[0][0])
                    made = [{**message, "content": filled(message["content"], question, said)} for message in prompt]
                    same += made == sample["prompt"]
                else:
                    guess = [{**message, "content": named(message["content"], question, said)} for message in sample["prompt"]]
                    guesses[at][json.dumps(guess)] += 1
                said[sample["agent"]].append(sample["completion"])
    if same < 0.9 * len(samples):
        return None, same
    return [{"agent": agent, "prompt": json.loads(guess.most_common(1)[0][0])} for agent, guess in zip(order, guesses)], same


def limits(agent, policy):
    """An agent's limits, from the run's command line of evaluations, and the variables of its chat template."""
    words = shlex.split((RUN / "stages/test-rollout").read_text(encoding="utf-8").replace("\\\n", " "))
    values = lambda flag: [after for word, after in zip(words, words[1:]) if word == flag]  # noqa: E731
    of_agent = lambda flag: [value.rpartition("=")[2] for value in values(flag) if value.rpartition("=")[0] in ("", agent)]  # noqa: E731
    own = {"policy": policy, "max_tokens": int((of_agent("--max-tokens") or ["512"])[-1]), "stop": of_agent("--stop")}
    for folder in (OUT_NEW / policy, OUT_NEW / "base"):
        if (folder / "chat_template_kwargs.json").exists():
            own["chat_template_kwargs"] = json.loads((folder / "chat_template_kwargs.json").read_text(encoding="utf-8"))
    return own


def export(folder, policies):
    """Writes each policy; returns the name of the base that adapters rest on and the rank of the largest, if there are any."""
    base, rank = None, 0
    for policy in policies:
        config = folder / policy / "current/adapter_config.json"
        flags = ["--run", RUN]
        if config.exists():
            rank = max(rank, json.loads(config.read_text(encoding="utf-8"))["r"])
            base = BASE or hub_name(folder / policy / "base")
            if not base:
                base, own = "base", (folder / policy / "base").resolve()
                if not (OUT_NEW / "base").exists():
                    program("policy", "export", own, OUT_NEW / "base", "--quiet", *flags)
            flags += ["--base", base] if BASE or base == "base" else []
        program("policy", "export", folder / policy, OUT_NEW / policy, "--quiet", *flags)
    return base, rank


def hub_name(base):
    """ORG/NAME of a base from a hub: a snapshot in the hub's cache, or a copy that says so."""
    source = base / "source.json"
    if source.exists():
        return json.loads(source.read_text(encoding="utf-8")).get("hub")
    match = re.search(r"/models--([^/]+)/snapshots/", str(base.resolve()))
    return match and match[1].replace("--", "/")


def card(name, team, base, rank, before, after, step, count):
    """README.md."""
    players = {}
    for agent, own in team["agents"].items():
        players.setdefault(own["policy"], []).append(agent)
    policies = list(players)
    percent = lambda found: "{:.1f} % ({:.1f} to {:.1f}) of {}".format(  # noqa: E731
        100 * found["success"], *(100 * bound for bound in found["success_interval"]), found["episodes"])
    earned = lambda found: "–" if found["reward"] is None else "{:.2f}".format(found["reward"])  # noqa: E731
    shown, evaluations = json.loads((RUN / "run.json").read_text(encoding="utf-8")), len(list((RUN / "eval").glob("step-*.jsonl")))
    rows = "".join(f"| {agent} | `{own['policy']}` | {after['completion_tokens_by_agent'].get(agent, 0) / max(after['episodes'], 1):.1f} | {own['max_tokens']} |\n"
                   for agent, own in team["agents"].items())
    chosen = f", the best of {evaluations} evaluations on these tasks" if evaluations > 1 and (RUN / "best").exists() else ""
    front = f"base_model: {base}\n" if base and base != "base" else ""
    library = "peft" if base else "transformers"
    text = (f"---\n{front}library_name: {library}\npipeline_tag: text-generation\ntags:\n- troupe\n- reinforcement-learning\n- multi-agent\n---\n\n"
            f"# {name}\n\nA team of {len(team['agents'])} agents trained with Troupe on `{shown['env']}`, workflow `{shown.get('workflow', '')}`, "
            f"by `{shown.get('method', '')}` for {step} steps.\n\n| agent | policy | tokens per task | limit |\n|---|---|---|---|\n{rows}\n"
            f"| test tasks, greedy | solved (95 % interval) | mean return |\n|---|---|---|\n| before training | {percent(before)} | {earned(before)} |\n"
            f"| these weights{chosen} | {percent(after)} | {earned(after)} |\n\n"
            f"The commands below are typed in this folder.\n\n")
    if team.get("turns"):
        text += ("## Ask the team\n\n`run_team.py` plays the workflow of `team.json` on any OpenAI-compatible server; "
                 f"{count[0]} of the {count[1]} prompts of the last evaluation come out of it byte for byte.\n\n"
                 "```sh\npython3 run_team.py 'a question like those it was trained on'     # --url, --model, --json\n```\n\n")
    modules = " ".join(f"{agent}=./{own['policy']}" for agent, own in team["agents"].items())
    if base:
        text += ("## vLLM: one server, an adapter per role\n\n```sh\n"
                 f"vllm serve {'./base --served-model-name base' if base == 'base' else base} --enable-lora --max-lora-rank {max(rank, 8)} --max-loras {len(policies)} "
                 f"--lora-modules {modules}\n```\n\nEach agent is the name of a model of the endpoint on port 8000.\n\n")
    else:
        serve = "".join(f"vllm serve ./{policy} --served-model-name {' '.join(players[policy])} --port {8000 + at} &\n" for at, policy in enumerate(policies))
        text += f"## vLLM: one server per policy\n\n```sh\n{serve}```\n\n"
    is_tiny = shown.get("model") == "tiny"  # whose tokenizer llama.cpp does not have
    text += "" if is_tiny else ("## llama.cpp and Ollama: one GGUF file per policy\n\n```sh\n"
             + "".join(f"policy export {policy} --gguf {policy}.gguf --dtype q8_0\n" for policy in policies)
             + "".join(f"llama-server -m {policy}.gguf --port {8081 + at} &\n" for at, policy in enumerate(policies))
             + "".join(f"ollama create {agent} -f {own['policy']}.Modelfile\n" for agent, own in team["agents"].items()) + "```\n\n")
    if team.get("turns") and not is_tiny:
        urls = " ".join(f"--url {agent}=http://localhost:{8081 + policies.index(own['policy'])}/v1" for agent, own in team["agents"].items())
        text += f"Then `python3 run_team.py … {urls}`, or with Ollama `--url http://localhost:11434/v1`.\n\n"
    loader, files = ("AutoPeftModelForCausalLM", "from peft import AutoPeftModelForCausalLM") if base else ("AutoModelForCausalLM", "from transformers import AutoModelForCausalLM")
    text += (f"## transformers{' and PEFT' if base else ''}\n\n```python\n{files}\nfrom transformers import AutoTokenizer\n\n"
             f'tokenizer, model = AutoTokenizer.from_pretrained("{policies[0]}"), {loader}.from_pretrained("{policies[0]}")\n```\n\n## The run\n\n| setting | value |\n|---|---|\n')
    return text + "".join(f"| {key} | {str(value).strip().replace('|', chr(92) + '|').replace(chr(10), ', ')} |\n" for key, value in shown.items() if str(value))


def main():
    folder, step = best_step()
    played = lines(RUN / f"eval/step-{step:06}.jsonl")
    samples = [line for line in played if line["type"] == "sample"]
    agents = {sample["agent"]: sample["policy"] for sample in samples}
    served = dict.fromkeys(line["agent"] for line in played if line["type"] == "served")
    if served:
        raise Refused(2, f"{RUN}: a server plays {' and '.join(served)}", "export the trained policies one by one: policy export")
    base, rank = export(folder, list(dict.fromkeys(agents.values())))
    turns, same = turns_of(samples, specs())
    shown = json.loads((RUN / "run.json").read_text(encoding="utf-8"))
    team = {"env": shown["env"], "agents": {agent: limits(agent, policy) for agent, policy in agents.items()}}
    if turns:
        workflow = RUN / "workflow.toml"
        declared = workflow.read_text(encoding="utf-8") if workflow.exists() else ""
        role = lambda key: (re.findall(rf'^{key} *= *"(.+?)"', declared, re.M) or [None])[0]  # noqa: E731
        last = [agent for agent in agents if re.fullmatch(rf"{re.escape(role('last') or '')}(-\d+)?", agent)]
        team.update(turns=turns, last=last or [turns[-1]["agent"]], stop=role("stop"))
        (OUT_NEW / "run_team.py").write_text(SCRIPT, encoding="utf-8")
    (OUT_NEW / "team.json").write_text(json.dumps(team, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    first = min(int(path.stem[5:]) for path in (RUN / "eval").glob("step-*.jsonl"))
    text = card(OUT.name, team, base, rank, evaluation(first), evaluation(step), step, (same, len(samples)))
    (OUT_NEW / "README.md").write_text(text, encoding="utf-8")
    if not turns:
        print(f"pipeline.sh: {OUT}: without run_team.py: the prompts of {shown['env']} are more than a question and other agents' texts", file=sys.stderr)


try:
    if OUT.exists():
        raise Refused(2, f"{OUT}: already there", "nothing is ever overwritten: remove it or choose another name")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=OUT.parent, prefix=f".{OUT.name}.") as new:
        OUT_NEW = pathlib.Path(new) / OUT.name
        OUT_NEW.mkdir()
        main()
        shutil.move(OUT_NEW, OUT)
    print(OUT)
except Refused as refused:
    code, cause, hint = refused.args
    print(f"pipeline.sh: {cause}\nhint: {hint}", file=sys.stderr)
    sys.exit(code)
except (OSError, KeyError, json.JSONDecodeError) as error:
    print(f"pipeline.sh: {RUN}: {type(error).__name__}: {error}\nhint: ./pipeline.sh list says whether the run is whole", file=sys.stderr)
    sys.exit(65)
