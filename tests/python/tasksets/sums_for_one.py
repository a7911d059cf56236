"""A test taskset for verifiers: sums of two numbers, with half a point for any number."""

import verifiers.v1 as vf

__all__ = ["SumsTaskset"]


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace) -> float:
        return 0.5 * float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)
    async def number(self, trace) -> float:
        return float(trace.last_reply.isdigit() and trace.last_reply.isascii())


class SumsTaskset(vf.Taskset[SumTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        number = 0
        while True:
            first, second = number % 10, number // 10
            yield SumTask(SumData(prompt=f"{first} + {second}", system_prompt="Say the sum.", answer=str(first + second)), self.config.task)
            number += 1
