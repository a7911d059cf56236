"""Two agents add: a solver answers, and a checker has the last word. Nothing here knows that they are trained."""
import json
import re
import sys

from openai import OpenAI

client = OpenAI()


def ask(model, system, text):
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    return client.chat.completions.create(model=model, messages=messages).choices[0].message.content


question = json.load(sys.stdin)["question"]
said = ask("solver", "Answer with the number alone.", f"What is {question}?")
last = ask("checker", "Say the right number alone.", f"What is {question}? A colleague says: {said}")
print(json.dumps({"answer": (re.findall(r"\d+", last) or [""])[-1]}))
