"""Adapters to environments of other packages (examples/from_*.py, wrap.py, mcp_tools.py), against the packages: the contract, a
training step, and rewards that were worked out by hand."""
import json
import shlex

import pytest
from conftest import ROOT, interpreter, keeps_the_contract, lines, must, plays, run, trains

EXAMPLES = ROOT / "examples"


def adapter(package, arguments):
    return f"{interpreter(package)} -W ignore {EXAMPLES}/from_{package}.py {arguments}"


def test_reasoning_gym_scores_answers(tmp_path):
    for family, agents in (("chain_sum", 1), ("prime_factorization", 2)):
        table = keeps_the_contract(adapter("reasoning_gym", f"{family} --agents {agents}"))
        assert "ok     the oracle solves every task" in table
    command = adapter("reasoning_gym", "spell_backward")
    assert all(sample["env"] == "reasoning-gym-spell_backward" for sample in trains(command, tmp_path))
    # The right answer, plain and marked, and none.
    answer = lines(must(f"{command} demo --count 1 --share 1"))[0]["completion"]
    for text, earned in ((answer, 1), (f"It is <answer> {answer} </answer>.", 1), ("", 0)):
        last = plays(command, text)[1]
        assert (last["rewards"]["team"], last["success"]) == (earned, earned == 1), text
    code, _, said = run(adapter("reasoning_gym", "no_such_family"))
    assert code == 2 and said.startswith("from_reasoning_gym.py: no_such_family") and "\nhint: " in said


def test_textarena_games_take_turns(tmp_path):
    # Two who take turns, the second of whom begins; one against random moves; one alone.
    for game in ("TicTacToe-v0 --turns 1", "KuhnPoker-v0", "TicTacToe-v0 --turns 1 --play player_1", "GuessTheNumber-v0 --turns 1"):
        keeps_the_contract(adapter("textarena", game))
    # A new policy's text is no move, so player_0 forfeits at once or is asked again.
    samples = trains(adapter("textarena", "TicTacToe-v0 --turns 2"), tmp_path)
    assert all(sample["agent"] == "player_0" and sample["group_size"] == 3 for sample in samples)
    # player_0 takes a row while player_1 takes another; a text that is no move is said to the same player again.
    answers = plays(adapter("textarena", "TicTacToe-v0"), "[0]", "[3]", "nonsense", "[1]", "[4]", "[2]")
    assert [answers[at]["rewards"]["local"] for at in (1, 3, 4, 6)] == [0.1, 0, 0.1, 1]
    assert answers[3]["observations"].get("player_1") is None
    assert answers[6]["terminated"] is True and answers[6]["success"] is True and answers[6]["rewards"]["team"] == 1
    # The winner is not the team's player, so only its local reward counts.
    last = plays(adapter("textarena", "TicTacToe-v0 --team player_1"), "[0]", "[3]", "[1]", "[4]", "[2]")[5]
    assert (last["rewards"], last["success"]) == ({"team": 0, "local": 1}, False)
    # `demo` prints legal moves, to the end of each game.
    shown = lines(must(adapter("textarena", "TicTacToe-v0") + " demo --count 3"))
    moves = [line["completion"] for line in shown if "completion" in line]
    assert 15 <= len(moves) <= 27 and all(len(text) == 3 and text[0] + text[2] == "[]" for text in moves)
    code, _, said = run(adapter("textarena", "TicTacToe-v0 --play player_7 tasks"))
    assert code == 2 and "has no player_7\nhint: its players are player_0, player_1" in said


def test_verifiers_environments_call_their_agents(tmp_path):
    def command(arguments):
        return f"env PYTHONPATH={ROOT}/tests/python/tasksets {adapter('verifiers', arguments)}"

    keeps_the_contract(command("sums_for_one"))
    keeps_the_contract(command("sums_for_two"))
    trains(command("sums_for_one"), tmp_path)
    # The second task is 1 + 0. Half a point for the sum, half for any number: the taskset's rewards, with their weights.
    for text, earned in (("1", 1), ("2", 0.5), ("one", 0)):
        last = plays(command("sums_for_one"), text)[1]
        assert (last["rewards"]["team"], last["terminated"]) == (earned, True)
    # The environment asks the solver, then the judge, then the solver again; order and rewards are the environment's.
    answers = plays(command("sums_for_two"), "3", "no", "1")
    acting = [[agent for agent, seen in answer["observations"].items() if seen] for answer in answers[:3]]
    assert acting == [["solver"], ["judge"], ["solver"]]
    assert answers[2]["observations"]["solver"][3] == {"role": "user", "content": "Look again."}
    assert (answers[3]["rewards"], answers[3]["success"]) == ({"team": 1, "local": 1}, True)
    # An environment of verifiers for two; the simulated user ends the conversation.
    last = plays(command("sums_for_one --env user-sim"), "What is it?", "1", "###DONE###")[3]
    assert (last["rewards"], last["terminated"]) == ({"team": 1, "local": 0}, True)


def test_openenv_environment_pays_for_letters(tmp_path):
    """The environment that `openenv init` writes pays a tenth for each letter of a message, up to 1."""
    must(f"{interpreter('openenv')} -m openenv.cli init echo_demo > init.log 2>&1", tmp_path)

    def command(flags):
        source = "echo_demo.server.echo_demo_environment:EchoDemoEnvironment"
        return f"env PYTHONPATH={tmp_path} {adapter('openenv', f'{source} --turns 2 {flags}')}"

    keeps_the_contract(command(""))
    keeps_the_contract(command("--replay"))
    for text, earned in (("four", 0.4), ("more than ten letters", 1), ("", 0)):
        assert plays(command(""), text)[1]["rewards"] == {"team": earned, "local": earned}
    assert len(trains(command(""), tmp_path)) == 2 * 2 * 3
    # A session that is kept can be tried once from each state: in whole episodes, and not in a tree.
    assert len(trains(command("--live"), tmp_path, "--sampling parallel --threads 1")) == 2 * 3 * 2
    live = command("--live")
    code, _, said = run(f"{live} tasks --count 1 | rollout --env-command '{live}' --policy {tmp_path}/policy --branches 2 "
                        "--max-tokens 4 --quiet --threads 1")
    assert code == 1 and "--live takes --sampling parallel --threads 1" in said


def test_player_of_the_users_own_demonstrates(tmp_path):
    """The first legal cell, by which X wins with 2, 4 and 6."""
    (tmp_path / "first_cell.py").write_text(
        "def play(agent, observation, info):\n    mask = observation['action_mask']\n    return min(cell for cell in range(9) if mask[cell])\n")

    def demo(player):
        python = interpreter("pettingzoo.classic.tictactoe_v3")
        return run(f"{python} -W ignore {EXAMPLES}/wrap.py pettingzoo.classic.tictactoe_v3 --player {player} demo --count 1", PYTHONPATH=str(tmp_path))

    code, printed, said = demo("first_cell:play")
    assert code == 0, said
    assert [line["completion"] for line in lines(printed) if "completion" in line] == list("0123456")
    for player in ("no_such_module:play", "first_cell:no_such", "first_cell", ":"):
        code, _, said = demo(player)
        assert code == 2 and f"--player {player}: " in said and "Traceback" not in said, player


# Two that take turns, with the documented settings long enough to win; one where all act at once; one of Gymnasium.
@pytest.mark.parametrize("game, agents", [
    ("pettingzoo.classic.connect_four_v3 --team player_0 --turns 2", 2),
    ("pettingzoo.classic.tictactoe_v3 --team player_1", 2),
    ("pettingzoo.classic.rps_v2 --parallel --team player_0 --turns 2", 2),
    ("gymnasium:FrozenLake-v1 --range 0 1 --turns 3", 1),
])
def test_wrapper_trains_on_games_of_others(game, agents, tmp_path):
    command = f"{interpreter('pettingzoo.classic.rps_v2')} -W ignore {EXAMPLES}/wrap.py {game}"
    keeps_the_contract(command, 2, 5)
    shown = lines(must(f"{command} demo --count 3"), "sample")
    assert len(shown) >= 3 * agents
    for sample in shown:
        prompt = sample["prompt"][0]["content"]
        assert sample["completion"] in prompt.split("\nactions: ")[1].split(" ") and prompt.startswith(sample["agent"])
    assert len({sample["agent"] for sample in trains(command, tmp_path)}) == agents


def test_pettingzoo_example_trains_one_policy_per_agent(tmp_path):
    command = f"{interpreter('pettingzoo.classic.tictactoe_v3')} -W ignore {EXAMPLES}/pettingzoo_tictactoe.py"
    keeps_the_contract(command, 12, 10)
    agents = ("player_1", "player_2")
    must("".join(f"policy init {agent} --preset tiny --seed {seed}; " for seed, agent in enumerate(agents)) +
         f"{command} tasks --count 4 | rollout --env-command '{command}' {' '.join(f'--policy {agent}={agent}' for agent in agents)} "
         "--branches 4 --max-tokens 4 --quiet | group --quiet | advantage --quiet | tee samples | "
         f"update {' '.join(f'--policy {agent}={agent}' for agent in agents)} --quiet > metrics", tmp_path)
    samples = lines((tmp_path / "samples").read_text(), "sample")
    for agent in agents:
        # The policy of an agent that never acted (its partner forfeited every game) is not trained.
        acted = any(sample["agent"] == agent for sample in samples)
        assert (tmp_path / agent / "current").readlink().name == f"step-{acted:06}", agent
    first = samples[0]
    assert first["agent"] == "player_1" and first["prompt"][0]["content"].endswith("You are X. Say the number of a free cell.")


def test_mcp_tools_answer_and_are_limited(tmp_path):
    """Results of a server that the adapter starts, and the limits of calls that fail, are slow or say much."""
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"question": f"What is {a} times 7?", "answer": str(a * 7), "calls":
                                             [{"name": "multiply", "arguments": {"a": a, "b": 7}}]}) + "\n" for a in range(12, 40)))
    python = interpreter("mcp")

    def command(flags, server=f"{ROOT}/tests/python/mcp/server.py"):
        return f"{python} -W ignore {EXAMPLES}/mcp_tools.py '{python} {server}' {questions} {flags}"

    def call(name, **arguments):
        return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"

    def result(answer):
        last = answer["observations"]["agent"][-1]
        assert last["role"] == "tool"
        return last["content"]

    # The first task's answer is found by its call.
    demonstrated = [line["completion"] for line in lines(must(command("demo --count 1"))) if "completion" in line]
    answers = plays(command(""), *demonstrated)
    assert len(demonstrated) == 2 and result(answers[1]) == demonstrated[1]
    assert answers[1]["rewards"] == {"team": 0, "local": 0.1}
    assert (answers[2]["rewards"]["team"], answers[2]["success"]) == (1, True)
    # A server remembers the calls of one episode; a call that was made before pays nothing.
    answers = plays(command("--seconds 4 --letters 30 --calls 11"), call("remember", word="a"), call("remember", word="b"),
                    call("multiply", a=2, b=3), call("remember", word="b"), call("wait", seconds=60), call("repeat", count=99),
                    call("fail"), call("die"), call("no_such"), "<tool_call>[</tool_call>", call("remember", word="c"), "5")
    results = [result(answer) for answer in answers[1:12]]
    assert results[:4] == ["a", "a b", "6", "a b b"]
    assert results[4] == '{"error": "no answer within 4 s"}'
    assert results[5] == "x" * 30 + "… (99 letters)"
    assert all(text.startswith('{"error": "') for text in results[6:10]), results
    assert results[10] == "c", "a new server, and the calls that led to its end"
    assert [answer["rewards"]["local"] for answer in answers[1:12]] == [0.1, 0.1, 0.1, 0, 0, 0.1, 0, 0, 0, 0, 0.1]
    assert (answers[12]["terminated"], answers[12]["success"]) == (True, False)
    assert "1 calls were made" in result(plays(command("--calls 1"), call("remember", word="a"), call("remember", word="b"))[2])
    # Tools come in pages, and results in kinds; letters of all languages stay, in every locale.
    kinds = {"two": "a\nb", "empty": "", "resource": "a\nThe code is 7.", "link": "file:///big.csv", "data": 'a\n{"rows": [{"stadt": "Köln"}]}',
             "repeated": "a", "nothing": '{"result": []}'}
    answers = plays(f"LC_ALL=C PYTHONUTF8=0 {command('', f'{ROOT}/tests/python/mcp/kinds.py')}", *map(call, kinds))
    listed = answers[0]["observations"]["agent"][0]["content"]
    assert all(f'"name": "{name}", "description": "Köln"' in listed for name in kinds), listed
    assert dict(zip(kinds, map(result, answers[1:]))) == kinds
    # For templates that write tools themselves.
    seen = plays(command("--template"))[0]["observations"]["agent"]
    function = seen["tools"][0]["function"]
    assert (function["name"], function["parameters"]["required"], seen["messages"][0]["role"]) == ("multiply", ["a", "b"], "user")
    trains(command("--as-user --read-only --calls 1"), tmp_path)
    code, _, said = run(command("", "nothing.py"))
    assert code == 69 and "hint: a command that speaks MCP" in said


def test_module_for_environments_is_typed(tmp_path):
    code, told, said = run(f"{interpreter('mypy')} -m mypy --strict --cache-dir {tmp_path} troupe_rl", EXAMPLES)
    assert code == 0, told + said


def test_transformers_and_update_agree_on_log_probs(tmp_path):
    """Random weights earn nothing: the branch is the reward, so that there is something to learn from."""
    python = shlex.quote(interpreter("transformers.models"))
    interpreter("torch")
    rewarded = "jq -c 'if .type == \"sample\" then .reward = .branch else . end' | group --quiet | advantage --quiet"
    program = f"{python} {EXAMPLES}/rollout_transformers.py"
    metrics = must(f"policy init policy --preset tiny --seed 1 >log; envs tasks plan-path --count 1 | {program} policy/current 'envs step plan-path' "
                   f"2>said | {rewarded} | update --policy policy --quiet", tmp_path)
    metrics = lines(metrics, "metrics")[0]
    assert (metrics["samples"], metrics["groups"]) == (64, 8) and metrics["sampling/logp_difference_max"] < 1e-4
    code, _, said = run(f"{program} --help")
    assert code == 0 and said == ""
    interpreter("peft")
    # An adapter plays as update computes it, its factors not zero.
    metrics = must("policy init adapter --from policy --adapter rank=2,alpha=4 --seed 1 >log && for step in 1 2; do "
                   f"envs tasks plan-path --count 1 --seed $step | {program} adapter/current 'envs step plan-path' --branches 4 --max-tokens 5 2>said | "
                   f"{rewarded} | update --policy adapter --quiet --lr 0.01 --max-logprob-gap 1e-3; done", tmp_path)
    metrics = lines(metrics, "metrics")[-1]
    assert metrics["samples"] == 32 and metrics["sampling/logp_difference_max"] < 1e-4
