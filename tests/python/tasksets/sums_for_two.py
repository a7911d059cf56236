"""A taskset with a custom environment: a solver, and a judge who sends it back at most once. Both are paid in `finalize`."""

import verifiers.v1 as vf
from sums_for_one import SumsTaskset

__all__ = ["Relay", "SumsForTwo"]


class RelayConfig(vf.EnvConfig):
    solver: vf.AgentConfig = vf.AgentConfig()
    judge: vf.AgentConfig = vf.AgentConfig()


class SumsForTwo(SumsTaskset):
    pass


class Relay(vf.Env[RelayConfig]):
    async def run(self, task, agents):
        async with agents.solver.interaction(task) as solver:
            said = await solver.turn()
            asked = vf.Task(vf.TaskData(prompt=f"{task.data.prompt} = {said.last_reply}? Say yes or no."))
            judged = await agents.judge.run(asked)
            if judged.last_reply == "no":
                said = await solver.turn("Look again.")
        right = (said.last_reply == task.data.answer) if judged.last_reply == "no" else judged.last_reply == "yes"
        judged.record_reward("use", float(right))
