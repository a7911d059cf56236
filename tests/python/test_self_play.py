"""Self-play: opponents from a policy's past, the same after a kill, in resident stages, and for one policy or several; exploitability in the
record and on the page; ratings of versions."""
import json
import math
import os

from conftest import ROOT, differences, lines, must, refused, run, trained

KUHN, ELO, TIC_TAC_TOE = (f"python3 {ROOT}/examples/{name}.py" for name in ("kuhn_poker", "elo", "tic_tac_toe"))
KUHN += " --chips"


def test_elo_counts_a_draw_as_half_a_win_for_both(tmp_path):
    """30 wins, 10 draws and 60 losses are 35 points of 100: 400 log10(35/65), with the error of their log-odds."""
    games = []
    for number, result in enumerate([1] * 60 + [0] * 10 + [-1] * 30):
        games += [{"type": "sample", "episode": number, "branch": 0, "agent": agent, "policy_version": version} for agent, version in (("x", "0:a"), ("o", "8:b"))]
        games.append({"type": "episode", "episode": number, "returns": {"x": result, "o": -result}})
    (tmp_path / "games").write_text("".join(json.dumps(line) + "\n" for line in [*games, {"type": "end", "ok": True}]))
    first, second = lines(must(f"{ELO} --json games", tmp_path))
    assert (first["version"], first["elo"]) == ("0:a", 0) and [second[key] for key in ("won", "drawn", "lost")] == [30, 10, 60]
    assert math.isclose(second["elo"], 400 * math.log10(35 / 65), abs_tol=1e-6)
    assert math.isclose(second["error"], 400 / math.log(10) / math.sqrt(100 * 0.35 * 0.65), abs_tol=1e-6)


def play(at, more):
    trained(at, f"--env-command '{KUHN}' --opponents past:3 --tasks 4 --branches 3 --flags 'rollout=--sampling parallel' --flags 'group=--by agent' "
            f"--flags 'advantage=--credit episode-own' --eval-every 0 --warmup 120 --seed 7 {more}")


def step(at, number, kind):
    return lines((at / f"steps/{number:06}/samples.jsonl").read_text(), kind)


def test_opponents_of_the_past_are_the_same_after_a_kill_and_in_resident_stages(tmp_path):
    calm, resumed, resident = (tmp_path / name for name in ("calm", "resumed", "resident"))
    play(calm, "--steps 5")
    ages = set()
    for number in range(1, 6):
        samples, served = step(calm, number, "sample"), step(calm, number, "served")
        assert {sample["policy_version"].split(":")[0] for sample in samples} == {str(number - 1)}
        ages |= {number - 1 - int(line["policy_version"].split(":")[0]) for line in served}
        assert all(line.get("advantage") is None and line.get("group") is None for line in served)
        # Each player learns in half of the tasks.
        learners = {(sample["episode"], sample["agent"]) for sample in samples}
        assert (len(learners), sum(agent == "first" for _, agent in learners)) == (4, 2)
    versions = sorted(name for name in os.listdir(calm / "policies/shared") if name.startswith("step-"))
    assert ages == {0, 1, 2} and versions == [f"step-00000{number}" for number in (2, 3, 4, 5)]
    # Two versions play both ways, and are rated.
    for first, second in ((2, 5), (5, 2)):
        owners = " ".join(f"--policy {role}={calm}/policies/shared/step-{number:06}" for role, number in (("first", first), ("second", second)))
        must(f"{KUHN} tasks --split test --count 30 | rollout --env-command '{KUHN}' {owners} --branches 1 --quiet > {first}-{second}", tmp_path)
    old, new = lines(must(f"{ELO} --json 2-5 5-2", tmp_path))
    assert [sum(row[key] for key in ("won", "drawn", "lost")) for row in (old, new)] == [60, 60]
    assert old["version"].startswith("2:") and old["elo"] == 0 and old["error"] is None and new["error"] > 20
    points = [row["won"] + 0.5 * row["drawn"] for row in (old, new)]
    assert math.isclose(new["elo"], 400 * math.log10(points[1] / points[0]), abs_tol=1e-6)
    # Stopped after two steps; then killed when the last version was published and its step not committed.
    play(resumed, "--steps 2")
    play(resumed, "--steps 5")
    (resumed / "steps/000005/done").unlink()
    play(resumed, "--steps 5")
    play(resident, "--steps 5 --resident")
    assert differences(calm, resumed) == differences(calm, resident) == []


def test_role_meets_the_past_of_its_own_policy(tmp_path):
    at = tmp_path / "run"
    play(at, f"--steps 3 --policies per-role --stage 'reward=python3 {ROOT}/examples/kuhn_poker.py measure'")
    for kind in ("sample", "served"):
        assert {(line["agent"], line["policy"]) for line in step(at, 3, kind)} == {("first", "first"), ("second", "second")}
    # What the stage measured is in the stream and on the page.
    measured, = step(at, 3, "measure")
    assert 0 <= measured["exploitability"] <= 2
    rows = [row for row in must(f"report {at} --csv - --quiet").splitlines() if "measure/exploitability" in row]
    assert len(rows) == 3 and str(measured["exploitability"]) in rows[2] and "measure-exploitability" in (at / "report.html").read_text()


def test_unplayable_games_are_refused(tmp_path):
    must(f"policy init a --preset tiny --seed 3 --quiet; {KUHN} tasks --count 2 > tasks; cp -rL a/step-000000 plain", tmp_path)

    def rollout(policy, flags):
        return run(f"rollout --policy {policy} --env-command '{KUHN}' --quiet {flags} < tasks", tmp_path)

    # Version 0 is its own past.
    code, played, told = rollout("a", "--opponents past:4 --branches 2")
    assert code == 0 and all(line["policy_version"].startswith("0:") for line in lines(played, "served")), told
    refused(rollout("a/step-000000/.", "--opponents past:4 --joint aligned"), 2, "one candidate")
    refused(rollout("plain", "--opponents past:2"), 2, "no published versions")
    refused(rollout("a", "--opponents past"), 2, "past:K")
    # Versions that were removed.
    must("cp -r step-000000 step-000003; sed -i 's/\"0:/\"3:/; s/\"step\": *0/\"step\": 3/' step-000003/version.json; ln -sfn step-000003 current; "
         "rm -r step-000000", tmp_path / "a")
    refused(rollout("a", "--opponents past:2"), 65, "version 2 is not there", "update --keep 3")
    assert refused(run(f"{ELO} tasks", tmp_path), 1).startswith("elo.py: ")


def test_exploitability_in_tic_tac_toe_is_exact():
    """A policy that plays every legal move alike, and one that always takes the first free cell. By exact fractions the best response
    wins 191/192 a game from the first as x and 874/945 as o."""
    def exploited(cells):
        answers = (f'select(.type == "task") | {{type: "sample", task, agent: "x", turn: 0, completion_logprobs: [-3]}} + '
                   f"([.spec.board | explode | to_entries[] | select(.value == 46).key] | {cells} | "
                   '{completion_ids: [.], completion: ([" a", " b", " c"][. % 3] + (. / 3 | floor | tostring))})')
        found = json.loads(must(f"{TIC_TAC_TOE} positions | jq -c '{answers}' | {TIC_TAC_TOE} exploitability"))
        return [found[name] for name in ("as_x", "as_o", "exploitability")]

    as_x, as_o = 191 / 192, 874 / 945
    assert all(abs(got - expected) < 1e-12 for got, expected in zip(exploited(".[]"), (as_x, as_o, (as_x + as_o) / 2)))
    # d0 and beyond are no cells: an illegal answer loses.
    assert exploited("first") == exploited("9 + first") == [1, 1, 1]
