"""Environments in other languages: the contract, the lines in docs/stream-format.md, and a training step. Environments of other packages are in
test_adapters.py."""
import json
import shlex

import pytest
from conftest import ROOT, keeps_the_contract, lines, must, pipeline, refused, run, trained

GUESS = f"python3 {ROOT}/examples/guess_number.py"
EXAMPLES = f"PYTHONPATH={ROOT}/examples"


def test_lines_that_the_record_shows_are_the_lines_that_are_spoken():
    blocks = (ROOT / "docs/stream-format.md").read_text().split("```step\n")[1:]
    shown = [line for block in blocks for line in block.split("```")[0].splitlines()]
    requests, answers = ([line[2:] for line in shown if line.startswith(mark)] for mark in ("→ ", "← "))
    assert len(requests) >= 5 and len(requests) == len(answers) and len(shown) == 2 * len(answers)
    assert must(f"printf '%s\\n' {shlex.join(requests)} | {GUESS}").splitlines() == answers


def keeps_the_contract_and_trains(command, folder, first, second):
    """The contract, and one step of AT-GRPO with one policy for each agent; the samples."""
    assert len(keeps_the_contract(command, tasks=12, episodes=20).splitlines()) >= 18
    owned = f"--policy {first}=first --policy {second}=second"
    must(f"policy init first --preset tiny --seed 1; policy init second --preset tiny --seed 2; {command} tasks --count 4 --seed 7 | "
         f"rollout --env-command '{command}' {owned} --branches 3 --turns 2 --max-tokens 4 --seed 7 --quiet | "
         f"group --quiet | advantage --quiet | tee samples | update {owned} --quiet > metrics", folder)
    samples = lines((folder / "samples").read_text(), "sample")
    for policy, agent in (("first", first), ("second", second)):
        # The policy of an agent that never acted (its partner forfeited every game) is not trained.
        acted = any(sample["agent"] == agent for sample in samples)
        assert (folder / policy / "current").readlink().name == f"step-00000{int(acted)}", agent
    return samples


def test_environment_in_python_keeps_the_contract_and_trains(tmp_path):
    samples = keeps_the_contract_and_trains(GUESS, tmp_path, "scout", "guesser")
    # 4 tasks, 2 turns, 2 agents, 3 candidates: the number is not found by chance in this few.
    assert len(samples) == 4 * 2 * 2 * 3 and {sample["agent"] for sample in samples} == {"guesser", "scout"}
    assert all(sample["env"] == "guess-number" and sample["group_size"] == 3 for sample in samples)


def test_new_environment_keeps_the_contract_and_trains(tmp_path):
    must(f"envs new -q my-game --dir {tmp_path}")
    keeps_the_contract_and_trains(f"python3 {tmp_path}/my_game.py", tmp_path, "teller", "doubler")
    here = f"--dir {tmp_path}"
    for wrong, cause in ((f"my-game {here}", "is there already"), (f"'My game' {here}", "is no name of an environment"),
                         (f"sudoku {here}", "ships with Troupe"), (f"json {here}", "json.py would stand in for the module json"),
                         (f"troupe-rl {here}", "troupe_rl.py would stand in for the module troupe_rl"),
                         ("other --dir nowhere", "nowhere: no such directory")):
        assert refused(run(f"envs new {wrong}"), 2, cause).startswith("envs: ")


def test_documented_environment_keeps_the_contract(tmp_path):
    """The environment that docs/your-environment.md shows."""
    (tmp_path / "echo.py").write_text((ROOT / "docs/your-environment.md").read_text().split("```python\n")[1].split("```")[0])
    told = must(f"export {EXAMPLES}; python3 echo.py check && python3 -m troupe_rl.check --tasks 1 echo.py", tmp_path)
    assert told.count("ok     every text has an outcome") == 2 and "BROKEN" not in told
    refused(run(f"{EXAMPLES} python3 -m troupe_rl.check nothing.py"), 2, "nothing.py: no such file\nhint: ")


PROGRAM = """import os, sys, time
from troupe_rl import Environment, Start, Step
class E(Environment):
    name = 'e'
    def setup(self):
        SETUP
    def tasks(self, split, seed):
        while True:
            seed += 2
            yield (str(seed + (split == 'test')),) * 2
    def reset(self, spec):
        return Start(spec, {'p': 'x'}, ['p'], turns=1)
    def step(self, state, agent, text):
        STEP
        return Step(state, {}, terminated=True)
E().main()
"""
HANGS, FORKS = "time.sleep(1e6)", "os.fork() or (os.setsid(), time.sleep(1e6))"
ENDLESS = ("while True: [os.write(f, b'z' * 65536) for f in range(3, 9) if os.path.exists(f'/proc/self/fd/{f}') and "
           "os.readlink(f'/proc/self/fd/{f}').startswith('pipe') and __import__('fcntl').fcntl(f, 3) & 3]")


@pytest.mark.parametrize(("setup", "step", "code", "told"), [
    ("pass", HANGS, 1, "no line within 1 s"), ("pass", f"os.closerange(0, 64); {HANGS}", 1, "no line within 1 s"),
    ("pass", ENDLESS, 1, "a line is longer than 16 MiB"), (HANGS, "pass", 1, "no line within 1 s"), ("pass", FORKS, 0, "ok"),
    (f"{FORKS}; {HANGS}", "pass", 1, "no line within 1 s")])
def test_check_ends_whatever_the_environment_does(tmp_path, setup, step, code, told):
    """`--timeout` ends every question, and nothing that the environment started is left."""
    (tmp_path / "e.py").write_text(PROGRAM.replace("SETUP", setup).replace("STEP", step))
    found, printed, said = run(f"{EXAMPLES} timeout -k 1 60 python3 {tmp_path}/e.py check --tasks 1 --timeout 1")
    assert found == code and told in printed + said, printed + said
    assert run(f"pgrep -f '^python3 {tmp_path}/e.py'")[1] == ""


HAGGLE = """from troupe_rl import Environment, Start, Step
class Haggle(Environment):
    name = 'haggle'
    def tasks(self, split, seed):
        while True:
            seed += 2
            yield str(seed + (split == 'test')), seed
    def reset(self, spec):
        return Start(spec, {'buyer': 'bid', 'seller': 'ask'}, ['buyer', 'seller'], turns=1)
    def step(self, state, agent, text):
        return Step(state, {'buyer': 'bid', 'seller': 'ask'}, local={'buyer': 0.25, PAID: 0.75})
Haggle().main()
"""


def test_value_that_json_cannot_hold_is_an_error_of_its_request(tmp_path):
    (tmp_path / "e.py").write_text(PROGRAM.replace("SETUP", "pass").replace("STEP", "return Step(state, {}, components={'x': {1}})"))
    start = {"request": 1, "task": {"type": "task", "env": "e", "task": "e/train/1", "split": "train", "spec": "1"}}
    asked = [start, {"request": 2, "state": "1", "agent": "p", "action": "x"}, start | {"request": 3}]
    (tmp_path / "asked").write_text("".join(json.dumps(line) + "\n" for line in asked))
    told = [json.loads(line) for line in must("python3 e.py < asked", tmp_path, PYTHONPATH=str(ROOT / "examples")).splitlines()]
    assert told[1] == {"request": 2, "error": "TypeError: Object of type set is not JSON serializable"}
    assert [line["request"] for line in told] == [1, 2, 3] and told[2]["agents"] == ["p"]


def test_pay_by_agent_is_checked(tmp_path):
    """A name that is no agent's is refused, and pay that no sample gets is told once."""
    (tmp_path / "typo.py").write_text(HAGGLE.replace("PAID", "agent: 0.5, 'seler'"))
    (tmp_path / "both.py").write_text(HAGGLE.replace("PAID", "'seller'"))
    must("policy init p --preset tiny --seed 1", tmp_path)

    def play(name, more, tasks=2):
        return run(f"export {EXAMPLES}; python3 {name}.py tasks --count {tasks} | rollout --env-command 'python3 {name}.py' --policy p --branches 2 "
                   f"--max-tokens 2 {more}", tmp_path)

    cause = "`rewards.local` names seler, who is no agent; the agents are: buyer, seller"
    refused(play("typo", "--quiet"), 1, cause)
    unpaid = "rollout: warning: pay in `rewards.local` for agents that do not act counts in parallel sampling only"
    for more, times in (("", 1), ("--sampling parallel", 0)):
        assert refused(play("both", more), 0).count(unpaid) == times
    told = run(f"export {EXAMPLES}; python3 typo.py tasks --count 1 | envs check --quiet --env-command 'python3 typo.py'", tmp_path)[1]
    assert "BROKEN" in told and cause in told
    # A file without a shebang, in the place of a command.
    refused(run(f"{EXAMPLES} python3 both.py tasks | rollout --quiet --env-command both.py --policy p", tmp_path), 2,
            "hint: did you mean 'python3 both.py'?")


def test_loop_of_function_calls_keeps_the_contract_and_trains(tmp_path):
    program = f"python3 {ROOT}/examples/tool_loop.py"
    for command in (program, f"{program} --small"):
        assert len(keeps_the_contract(command, tasks=12, episodes=20).splitlines()) >= 18
    # A conversation of calls and results, which only templates with the role `tool` can show.
    roles = must(f"{program} demo --count 1 --share 1 | jq -c 'select(.turn == 2).prompt | map(.role)'")
    assert json.loads(roles) == ["system", "user", "assistant", "tool", "assistant", "tool"]
    command = f"{program} --as-user"
    must(f"policy init p --preset tiny --seed 1; {command} tasks --count 3 | rollout --env-command '{command}' --policy p --branches 3 --turns 3 "
         "--max-tokens 6 --seed 7 --quiet | group --quiet | advantage --quiet | tee samples | update --policy p --quiet > metrics", tmp_path)
    # Nothing that a random policy says is a call: it is told so, and goes on.
    told = '<tool_response>{"error": "neither a call nor a number"}</tool_response>'
    assert any((sample["turn"], sample["branch"], len(sample["prompt"]), sample["prompt"][-1]["content"]) == (2, 0, 6, told)
               for sample in lines((tmp_path / "samples").read_text(), "sample"))


def test_whole_loop_runs_on_an_external_environment(tmp_path):
    """Tasks, agents, turn limit, warm-up on demonstrations, evaluation, training; the same command again has nothing left to do."""
    at, flags = tmp_path / "run", f"--env-command '{GUESS}' --warmup 10 --steps 1 --tasks 3 --branches 2 --eval-every 1"
    printed = trained(at, flags)
    assert "warm-up: 10 batches of demonstrations" in printed and "step 1: success on 300 test tasks" in printed
    stream = (at / "steps/000001/samples.jsonl").read_text()
    # The program's turn limit is 6; pipeline.sh's default of 4 is for built-in environments.
    turns = [episode["turns"] for episode in lines(stream, "episode")]
    assert len(turns) == 3 and max(turns) in (5, 6) and {sample["agent"] for sample in lines(stream, "sample")} == {"scout", "guesser"}
    assert sum("/test/" in episode["task"] for episode in lines((at / "eval/step-000000.jsonl").read_text(), "episode")) == 300
    assert "success in training" not in trained(at, flags)
    refused(pipeline(at, f"--env-command '{GUESS} '"), 2)


def test_demonstrations_are_asked_for_with_a_warm_up_only(tmp_path):
    """A program without demonstrations can be trained without a warm-up; with one it fails."""
    (tmp_path / "program").write_text(f'[ "$1" != demo ] || exit 3\nexec {GUESS} "$@"\n')
    flags = f"--env-command 'sh {tmp_path}/program' --steps 1 --tasks 2 --branches 2 --turns 1 --eval-every 0"
    trained(tmp_path / "without", f"{flags} --policies per-role")
    for role in ("scout", "guesser"):
        assert (tmp_path / "without/policies" / role / "current").readlink().name == "step-000001"
    refused(pipeline(tmp_path / "with", f"{flags} --warmup 2"), 3, "demo failed with exit code 3")


def test_token_limit_has_room_for_the_demonstrations(tmp_path):
    """The default limit lets an answer be as long as the warm-up teaches: nine characters and the stop token."""
    longer = r"""sed 's/"completion": *"[^"]*"/"completion":"offer 123"/'"""
    (tmp_path / "program").write_text(f'[ "$1" = demo ] || exec {GUESS} "$@"\n{GUESS} "$@" | {longer}\n')
    trained(tmp_path / "run", f"--env-command 'sh {tmp_path}/program' --warmup 1 --flags 'demo=--count 1' --steps 0 --eval-every 0")
    assert json.loads((tmp_path / "run/run.json").read_text())["max_tokens"] == "10"


MESSAGES = "{% for m in messages %}<|user|>{{ m.role }} {{ m.content }}<|end|>{% endfor %}<|assistant|>"


@pytest.mark.parametrize("flags", ["", "--joint aligned --expand all", "--sampling parallel"])
def test_conversations_with_tools_grow_by_tokens(tmp_path, flags):
    """Tools reach the template; the tokens of a prompt are the last prompt's, the completion's, and the rest."""
    program = f"python3 {ROOT}/examples/tool_loop.py"
    must("policy init p --preset tiny --seed 1", tmp_path)
    tools = "{% if tools %}<|system|>{% for tool in tools %}{{ tool.function.name }} {% endfor %}{% endif %}"
    (tmp_path / "p/current/chat_template.jinja").write_text(tools + MESSAGES)
    must(f"{program} tasks --count 2 | rollout --env-command '{program}' --policy p --branches 2 --turns 3 --max-tokens 6 --seed 7 {flags} --quiet | "
         "group --quiet | advantage --quiet | tee samples | update --policy p --quiet", tmp_path)
    samples = {sample["id"]: sample for sample in lines((tmp_path / "samples").read_text(), "sample")}
    assert all(sample["tools"][0]["function"]["name"] == "add" for sample in samples.values())
    later = [sample for sample in samples.values() if sample["parent"] in samples]
    for sample in later:
        known = samples[sample["parent"]]["prompt_ids"] + samples[sample["parent"]]["completion_ids"]
        assert sample["prompt_ids"][:len(known)] == known, sample["id"]
    assert len(later) >= 4 and [message["role"] for message in later[-1]["prompt"][:4]] == ["system", "user", "assistant", "tool"]


# An agent with several conversations, without tools: the prompt of each turn, made from earlier actions.
TALK = """
import json, sys
for line in sys.stdin:
    q = json.loads(line)
    said = q.get("state", [])
    if "task" not in q:
        said = said + [q["action"]]
    user, own = (lambda text: {"role": "user", "content": text}), (lambda text: {"role": "assistant", "content": text})
    turn = len(said)
    first = [user("a 0"), own(said[0])] if said else [user("a 0")]
    seen = [
        lambda: first,
        lambda: first + [user("b 1")],
        lambda: first + [user("c 2")],                          # from the first action, and not the last
        lambda: first + [user("b 1"), own(said[1]), user("d 3")],  # from the one before the last
        lambda: [user("a 0"), own("another text"), user("e 4")],   # what it never said
        lambda: [user("f 5")],
    ][min(turn, 5)]()
    answer = {"request": q["request"], "state": said, "observations": {"a": seen}}
    if "task" in q:
        answer |= {"agents": ["a"], "order": "sequential", "turns": 6}
    else:
        info = {"generation": q["generation"], "large": 123456789012345678901234567890}
        answer |= {"rewards": {"team": 0, "local": 0}, "terminated": turn == 6, "success": False, "info": info}
    print(json.dumps(answer), flush=True)
"""


@pytest.mark.parametrize("flags", ["--branches 3", "--branches 2 --sampling parallel", "--branches 2 --joint aligned"])
def test_prompt_goes_on_from_any_earlier_action(tmp_path, flags):
    parallel, joint = "parallel" in flags, "joint" in flags
    (tmp_path / "talk.py").write_text(TALK)
    (tmp_path / "tasks").write_text('{"type":"task","v":1,"env":"talk","task":"talk/1","split":"train","spec":{}}\n'
                                    '{"type":"end","v":1,"stage":"mine","ok":true}\n')
    must("policy init p --preset tiny --seed 1", tmp_path)
    (tmp_path / "p/current/chat_template.jinja").write_text(MESSAGES)
    printed = must(f"rollout --env-command 'python3 talk.py' --policy p --max-tokens 4 {flags} --quiet < tasks", tmp_path)
    samples = lines(printed, "sample")
    for sample in samples:
        prompt, turn = sample["prompt_ids"], sample["turn"]
        before = [other["prompt_ids"] + other["completion_ids"] for other in samples if other["turn"] == {1: 0, 2: 0, 3: 1}.get(turn, -1)
                  and (other["branch"] == sample["branch"] if parallel else other["selected"])]
        assert all(prompt[:len(known)] == known for known in before[:1]), sample["id"]
        if not joint:
            assert sample["info"]["generation"] == {"finish_reason": sample["finish_reason"], "prompt_tokens": len(prompt),
                                                    "completion_tokens": len(sample["completion_ids"])}
    assert joint or '"large":123456789012345678901234567890}' in printed
    counts, times = lines(printed)[-1]["counts"], 2 if parallel else 1
    assert (counts["prompts_continued"], counts["prompts_rendered_anew"]) == (3 * times, times)
