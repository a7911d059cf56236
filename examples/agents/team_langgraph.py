"""The team of team_sums.py as a LangGraph graph: the checker sees two solvers who answer at once."""
import json
import re
import sys
from operator import add
from typing import Annotated, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph


class Work(TypedDict):
    question: str
    said: Annotated[list, add]
    answer: str


def solver(way):
    def node(work):
        said = ChatOpenAI(model="solver").invoke([("system", way), ("user", f"What is {work['question']}?")])
        return {"said": [said.content]}

    return node


def checker(work):
    said = " and ".join(sorted(work["said"]))
    last = ChatOpenAI(model="checker").invoke([("system", "Say the right number alone."), ("user", f"What is {work['question']}? Colleagues say: {said}")])
    return {"answer": (re.findall(r"\d+", last.content) or [""])[-1]}


graph = StateGraph(Work)
for name, way in (("plain", "Answer with the number alone."), ("counting", "Count up, then say the number alone.")):
    graph.add_node(name, solver(way)).add_edge(START, name).add_edge(name, "checker")
graph.add_node("checker", checker).add_edge("checker", END)
done = graph.compile().invoke({"question": json.load(sys.stdin)["question"], "said": []})
print(json.dumps({"answer": done["answer"]}))
