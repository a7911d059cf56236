"""A program that talks to an OpenAI endpoint without an SDK. Its first argument says what it does with its task."""
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.parse

URL = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])


def post(path, body, headers=None):
    connection = http.client.HTTPConnection(URL.netloc)
    text = body if isinstance(body, (bytes, str)) else json.dumps(body)
    connection.request("POST", URL.path + path, text, {"Content-Type": "application/json", **(headers or {})})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def ask(role, text, **more):
    status, said = post("/chat/completions", {"model": role, "messages": [{"role": "user", "content": text}], **more})
    assert status == 200, said
    return json.loads(said)["choices"][0]["message"]["content"]


def at_once(calls):
    said = [None] * len(calls)

    def one(at):
        # Not only the order differs from start to start, but also the distance.
        time.sleep(int.from_bytes(os.urandom(1), "big") / 64000)
        said[at] = ask(*calls[at])

    threads = [threading.Thread(target=one, args=(at,)) for at in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


def main(what, task):
    question = task["question"]
    if what == "at-once":
        said = at_once([("solver", f"{question} one"), ("solver", f"{question} two"), ("checker", question)])
        return {"reward": len(set(ask("checker", " ".join(said)))) / 100}
    said = ask("solver", question)
    if what == "random":
        question += os.urandom(4).hex()
    elif what == "crash":
        sys.exit("the text cannot be parsed")
    elif what == "silent":
        return None
    elif what == "null":
        return {"answer": None}
    elif what == "keys":
        return {"reward": 0.0, "components": {"keys": sum(name.endswith("API_KEY") for name in os.environ)}}
    elif what == "hangs":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        print("half a line", end="", flush=True)
        os.close(1)
        time.sleep(1000)
    elif what == "leaves":
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
    elif what == "prints":
        for _ in range(1 << 10):
            sys.stdout.write("x" * (1 << 20) + "\n")
    elif what == "answer":
        return {"answer": said}
    elif what == "local":
        return {"reward": 0.5, "rewards": {"solver": 0.25}, "success": True}
    last = ask("checker", f"{question} {said}")
    return {"reward": (len(last) % 7) / 10}


if __name__ == "__main__":
    result = main(sys.argv[1], json.load(sys.stdin))
    if result is not None:
        print(json.dumps(result))
