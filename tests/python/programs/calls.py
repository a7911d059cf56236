"""Sends calls that are refused, tells the statuses in one that is not."""
import json
import os
import sys

import stand_in
from stand_in import ask, post

task = json.load(sys.stdin)
good = {"model": "solver", "messages": [{"role": "user", "content": "x"}]}
image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
statuses = {"path": post("/embeddings", good)[0]}
statuses["json"] = post("/chat/completions", "{")[0]
statuses["n"] = post("/chat/completions", {**good, "n": 2})[0]
statuses["model"] = post("/chat/completions", {**good, "model": "gpt"})[0]
statuses["image"] = post("/chat/completions", {**good, "messages": image})[0]
statuses["large"] = post("/chat/completions", {**good, "user": "x" * (5 << 20)})[0]
statuses["models"] = post("/models", good)[0]
own = stand_in.URL
stand_in.URL = own._replace(path="/" + "0" * 32 + "/v1")
statuses["secret"] = post("/chat/completions", good)[0]
stand_in.URL = own
order = ["path", "secret", "json", "n", "model", "image", "large", "models"]
print(json.dumps({"reward": float(ask("solver", json.dumps({key: statuses[key] for key in order})) == "13")}))
