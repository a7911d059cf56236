"""The gradient of examples/at_grpo.py against `group | advantage | update`, to 1e-6."""
import pytest
from conftest import ROOT, interpreter, must, run


@pytest.mark.parametrize("agents", [[], ["planner"]])
def test_gradient_agrees_with_the_programs(tmp_path, agents):
    python = interpreter("transformers.models")
    interpreter("torch")
    owner = "".join(f"{agent}=" for agent in agents)
    must("policy init policy --preset tiny --seed 3; envs demo plan-path --count 240 | policy encode --policy policy | "
         "update --policy policy --objective nll --minibatches 30 --optimizer muon --lr 0.03 --lr-other 4e-3 --quiet; "
         "envs tasks plan-path --count 2 --seed 7 | rollout --policy policy --branches 4 --turns 2 > rollout.jsonl; "
         f"group < rollout.jsonl | advantage | update --policy {owner}policy --optimizer sgd --lr 1 --lr-warmup 0 --minibatches 1 --max-grad-norm 0 > metrics.jsonl", tmp_path)
    chosen = "".join(f" --agent {agent}" for agent in agents)
    command = f"{python} {ROOT}/examples/at_grpo.py rollout.jsonl policy/step-000001 --step policy/current{chosen}"
    assert "largest difference" in must(command, tmp_path)
    # The check can fail: with another rate the weights are not where gradient descent would have put them.
    assert run(f"{command} --lr 1.01", tmp_path)[0] == 1
