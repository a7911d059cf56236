"""Tokens per CPU-second of `rollout --serve` and of llama.cpp's server, one thread each, with 1, 8 and 32 clients.

    python3 bench/speed/serve.py target/release/rollout POLICY --gguf FILE

POLICY is a policy directory, such as `policy init smollm2 --preset smollm2` makes; FILE is a GGUF file of the same model. llama.cpp
comes from the package xllamacpp and is left out without --gguf. A client asks for 64 tokens, sampled at temperature 1, and asks
again; a row is 32 calls. Time is the server process's, from /proc.
"""
import argparse
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time

CALLS, TOKENS = 32, 64
LLAMA = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_parallel, params.n_ctx, params.port = sys.argv[1], 32, 32 * 512, 0
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.n_gpu_layers = 0
server = xllamacpp.Server(params)
print(server.listening_address, "serves", file=sys.stderr, flush=True)
time.sleep(100000)
"""


def processor_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start(command):
    """A server that has said its address on stderr."""
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    for line in server.stderr:
        found = re.search(r"http://([\d.]+:\d+)\S* serves", line)
        if found:
            threading.Thread(target=server.stderr.read, daemon=True).start()
            return server, found[1]
    sys.exit(f"{command[0]} did not start")


def measure(address, pid, clients):
    """Tokens, processor seconds and seconds of all calls."""
    left, tokens, lock = list(range(CALLS)), [], threading.Lock()

    def ask():
        connection = http.client.HTTPConnection(address, timeout=600)
        while True:
            with lock:
                if not left:
                    return
                number = left.pop()
            body = {"model": "model", "messages": [{"role": "user", "content": f"Tell a long story about the number {number}."}],
                    "max_tokens": TOKENS, "temperature": 1, "seed": number, "top_k": 0, "top_p": 1, "min_p": 0}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
            with lock:
                tokens.append(answer["usage"]["completion_tokens"])
    before, began = processor_seconds(pid), time.time()
    threads = [threading.Thread(target=ask) for _ in range(clients)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return sum(tokens), processor_seconds(pid) - before, time.time() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rollout")
    parser.add_argument("policy")
    parser.add_argument("--gguf")
    options = parser.parse_args()
    servers = [("rollout --serve", [options.rollout, "--serve", "0", "--policy", f"model={options.policy}", "--threads", "1"])]
    if options.gguf:
        servers.append(("llama.cpp's server", [sys.executable, "-c", LLAMA, options.gguf]))
    print("| server | clients | tokens | CPU-s | tokens per CPU-s | seconds |\n|---|---|---|---|---|---|")
    for name, command in servers:
        server, address = start(command)
        try:
            measure(address, server.pid, 8)  # warms caches
            for clients in (1, 8, 32):
                tokens, cpu, seconds = measure(address, server.pid, clients)
                print(f"| {name} | {clients} | {tokens} | {cpu:.1f} | {tokens / cpu:.0f} | {seconds:.1f} |", flush=True)
        finally:
            server.kill()


main()
