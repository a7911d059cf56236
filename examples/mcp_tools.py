"""The tools of an MCP server, for an agent that answers questions: a turn is a call or the answer.

    python3 examples/mcp_tools.py 'python3 my_server.py' questions.jsonl tasks --count 8
    ./pipeline.sh --env-command "python3 examples/mcp_tools.py 'python3 my_server.py' questions.jsonl" --model smollm2 --run runs/mcp

Needs `pip install mcp==2.3.0`. The server is a command that speaks MCP over stdin and stdout. This program opens no network
connection; `unshare -rn COMMAND` also removes the server's network. A line of the questions is {"question": TEXT, "answer": TEXT};
"calls", a list of {"name", "arguments"}, has the calls that lead to the answer, for `demo`. A question's digest decides its split.

The agent calls a tool in the format of Qwen's and Hermes' templates, <tool_call>{"name": NAME, "arguments": {…}}</tool_call>, or
with this JSON alone. It sees the result as a message with the role `tool` (`--as-user`: `user`). The system message lists the
tools; with `--template` the observation has a field `tools` instead, for chat templates that render tools, and `rollout` reads the
calls. Any other text is the answer. The right answer, as text or as a number, earns 1; a successful call that was not made before
earns a local reward of 0.1.

Limits: `--seconds` per call, `--letters` per result, `--calls` per episode. A call that fails, is too slow or ends the server
returns an error as its result, and the episode continues.

A state is the question and the conversation. A call may change its server, so each candidate gets a new server on which the
episode's earlier calls are repeated (half a second for a server in Python), unless a session with exactly these calls exists. Calls
of read-only tools (`readOnlyHint`; all tools with `--read-only`) are not repeated.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import shlex
import threading
from pathlib import Path

import adapter
from troupe_rl import Environment, Probe, Start, Step, digest, is_test, tool_calls

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("server", help="the command of an MCP server")
parser.add_argument("questions", help="a file of questions, one JSON object a line")
parser.add_argument("--seconds", type=float, default=10.0, help="a call may take")
parser.add_argument("--letters", type=int, default=2000, help="of a result that the agent sees")
parser.add_argument("--calls", type=int, default=8, help="of an episode at most")
parser.add_argument("--read-only", action="store_true", help="no tool changes anything, so one session serves all")
parser.add_argument("--template", action="store_true", help="the chat template writes the tools")
parser.add_argument("--as-user", action="store_true", help="results are messages of the user")
MOST_SESSIONS = 16
START_SECONDS = 60  # a package runner downloads the server, and a slow machine imports its modules
LONGEST = 4000  # letters of what the agent said that are kept


def as_json(value):
    """JSON as a model reads it: letters of all languages as they are."""
    return json.dumps(value, ensure_ascii=False)


async def listed(session):
    """All tools of a server, which lists them in pages."""
    tools, cursor, known = [], None, set()
    while cursor not in known:
        known.add(cursor)
        page = await session.list_tools(params=mcp.types.PaginatedRequestParams(cursor=cursor) if cursor else None)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools


def text_of(result):
    """What a call returned, as text: texts, texts of resources, addresses of links, and data that no text repeats."""
    parts = []
    for part in result["content"]:
        resource = part.get("resource") or {}
        text = part.get("text", resource.get("text", part.get("uri", resource.get("uri"))))
        parts.append(f"({part['type']})" if text is None else str(text))
    data = result.get("structuredContent")
    if data is not None:
        values = [parsed(part) for part in parts]
        repeated = [data == value or data == {"result": value} for value in [*values, *parts, values, parts]]
        if not values or not any(repeated):
            parts.append(as_json(data))
    return "\n".join(parts)


def parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


class Session:
    """A running server, in a task of the loop: what enters a context of the client has to leave it."""

    def __init__(self):
        self.calls = asyncio.Queue()
        self.ready = asyncio.get_running_loop().create_future()
        self.task = asyncio.ensure_future(self.run())

    async def run(self):
        command, *arguments = shlex.split(options.server)
        try:
            parameters = mcp.StdioServerParameters(command=command, args=arguments)
            async with mcp.stdio_client(parameters, errlog=open(os.devnull, "w")) as (read, write):
                async with mcp.ClientSession(read, write) as session:
                    await session.initialize()
                    self.ready.set_result([tool.model_dump(by_alias=True) for tool in await listed(session)])
                    while (call := await self.calls.get()) is not None:
                        name, given, answer = call
                        try:
                            answer.set_result(await session.call_tool(name, given))
                        except Exception as error:  # what a server says no to, and how it ended
                            answer.set_exception(error)
        except Exception as error:
            if not self.ready.done():
                self.ready.set_exception(error)

    async def call(self, name, given):
        """(The result as text, whether the session can go on)."""
        answer = asyncio.get_running_loop().create_future()
        await self.calls.put((name, given, answer))
        done, _ = await asyncio.wait({answer, self.task}, timeout=options.seconds, return_when=asyncio.FIRST_COMPLETED)
        if answer not in done:
            cause = "the server ended" if self.task in done else f"no answer within {options.seconds:g} s"
            await self.close()
            return json.dumps({"error": cause}), False
        if answer.exception() is not None:
            await self.close()
            return as_json({"error": str(answer.exception())[: options.letters]}), False
        result = answer.result().model_dump(by_alias=True, mode="json")
        text = text_of(result)
        cut = f"{text[: options.letters]}… ({len(text)} letters)" if len(text) > options.letters else text
        return as_json({"error": cut}) if result.get("isError") else cut, True

    async def close(self):
        await self.calls.put(None)
        if not (await asyncio.wait({self.task}, timeout=0.5))[0]:
            self.task.cancel()
            await asyncio.wait({self.task}, timeout=5)


class Server:
    """Sessions by the calls that they have made."""

    def __init__(self):
        self.loop, self.sessions = asyncio.new_event_loop(), {}
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        first, tools = self.wait(self.start())
        self.sessions[()] = first
        self.changing = {tool["name"] for tool in tools if not (options.read_only or (tool.get("annotations") or {}).get("readOnlyHint"))}
        self.tools = [
            {"type": "function", "function": {"name": tool["name"], "description": tool.get("description") or "", "parameters": tool["inputSchema"]}}
            for tool in tools
        ]

    def wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    async def start(self):
        session = Session()
        try:
            return session, await asyncio.wait_for(session.ready, START_SECONDS)
        except asyncio.TimeoutError:
            session.task.cancel()
            raise TimeoutError(f"no answer to `initialize` within {START_SECONDS} s") from None

    def key(self, calls):
        """The calls that have changed a session: of tools that may change something."""
        return tuple(call for call in calls if json.loads(call)[0] in self.changing)

    async def at(self, made):
        """A session that has made these calls, and no others that change something."""
        session = self.sessions.pop(self.key(made), None)
        if session is None or session.task.done():
            session, _ = await self.start()
            for call in self.key(made):
                if not (await session.call(*json.loads(call)))[1]:
                    session, _ = await self.start()
        return session

    async def result(self, made, call):
        name, given = json.loads(call)
        if not any(tool["function"]["name"] == name for tool in self.tools):
            return as_json({"error": f"there is no function {name[:100]}"})
        session = await self.at(made)
        text, goes_on = await session.call(name, given)
        if goes_on:
            key = self.key((*made, call))
            if key in self.sessions:
                await session.close()
            else:
                self.sessions[key] = session
        while len(self.sessions) > MOST_SESSIONS:
            await self.sessions.pop(next(iter(self.sessions))).close()
        return text

    def close(self):
        async def all_of_them():
            await asyncio.gather(*(session.close() for session in self.sessions.values()))

        self.wait(all_of_them())


def called(text):
    """The call that a text makes, as canonical JSON of its name and arguments; None where it is an answer."""
    found = "<tool_call>" in text
    try:
        call = tool_calls(text)[0] if found else json.loads(text)
        name, given = call["name"], call.get("arguments", {})
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return "" if found else None
    return json.dumps([name, given], sort_keys=True) if isinstance(name, str) and isinstance(given, dict) else ""


def same(said, answer):
    said, answer = said.strip().rstrip("."), answer.strip()
    try:
        return float(said.replace(",", "")) == float(answer.replace(",", ""))
    except ValueError:
        return said.casefold() == answer.casefold()


def written(call):
    return f"<tool_call>{as_json(call)}</tool_call>"


class McpTools(Environment):
    name, parser = "mcp-tools", parser

    def setup(self):
        global options, mcp
        options = self.options
        mcp = adapter.package("mcp", "mcp==2.3.0")
        try:
            lines = [json.loads(line) for line in Path(options.questions).read_text(encoding="utf-8").split("\n") if line.strip()]
            self.questions = {line["question"]: {"question": line["question"], "answer": str(line["answer"]), "calls": line.get("calls", [])} for line in lines}
        except (OSError, ValueError, KeyError, TypeError) as error:
            adapter.fail(f"{options.questions}: {type(error).__name__}: {error}", 'each line is {"question": TEXT, "answer": TEXT}', 2)
        if options.command == "tasks":
            return
        try:
            self.server = Server()
        except Exception as error:
            adapter.fail(f"{options.server}: {type(error).__name__}: {error}", "a command that speaks MCP over stdin and stdout", 69)

    def tasks(self, split, seed):
        wanted = [spec for question, spec in self.questions.items() if is_test(question) == (split == "test")]
        if not wanted:
            adapter.fail(f"{options.questions} has no question of the split {split}", "it needs more questions", 65)
        draws = random.Random(seed if split == "train" else 0)
        for spec in itertools.chain.from_iterable(draws.sample(wanted, len(wanted)) for _ in itertools.count()):
            yield digest(spec["question"])[:16], spec

    def see(self, state):
        system = (
            "Answer the question. You may call functions first:\n"
            + "\n".join(as_json(tool["function"]) for tool in self.server.tools)
            + '\nA call is <tool_call>{"name": NAME, "arguments": {…}}</tool_call> alone. At last say the answer alone.'
        )
        if options.template:
            return state, {"agent": {"messages": state["said"], "tools": self.server.tools}}
        return state, {"agent": [{"role": "system", "content": system}, *state["said"]]}

    def reset(self, spec):
        state = {"answer": spec["answer"], "calls": spec["calls"], "made": [], "said": [{"role": "user", "content": spec["question"]}], "over": None}
        return Start(*self.see(state), ["agent"], turns=options.calls + 1)

    def step(self, state, agent, text, calls=()):
        if agent != "agent" or state["over"] is not None:
            raise ValueError("the episode is over, or there is no such agent")
        call = called(written(calls[0]) if calls else text)
        if call is None:
            right = same(text, state["answer"])
            return Step(dict(state, over=right), {}, float(right), components={"call": 0.0}, terminated=True, success=right)
        if call == "":
            result, new = as_json({"error": "no JSON with a name and arguments"}), False
        elif len(state["made"]) >= options.calls:
            result, new = as_json({"error": f"{options.calls} calls were made, and no more are allowed"}), False
        else:
            with adapter.quiet():
                result = self.server.wait(self.server.result(tuple(state["made"]), call))
            new = call not in state["made"] and not result.startswith('{"error": ')
            state = dict(state, made=[*state["made"], call])
        shown = {"role": "user", "content": f"<tool_response>{result}</tool_response>"} if options.as_user else {"role": "tool", "content": result}
        said = [*state["said"], {"role": "assistant", "content": text.strip()[:LONGEST] or "(nothing)"}, shown]
        return Step(*self.see(dict(state, said=said)), local=0.1 * new, components={"call": float(new)})

    def probe(self, state, agent):
        if state["over"] is not None:
            return Probe([], solved=state["over"])
        some = [written({"name": tool["function"]["name"], "arguments": {}}) for tool in self.server.tools[:3]]
        return Probe([state["answer"], "I do not know", "<tool_call>[</tool_call>", written({"name": "no such tool", "arguments": {}}), *some])

    def demonstrate(self, state, agent):
        """The calls of the question one after another, then the answer."""
        made = len(state["made"])
        best = written(state["calls"][made]) if made < len(state["calls"]) else state["answer"]
        return Probe([best], best)

    def main(self, arguments=None):
        super().main(arguments)
        if hasattr(self, "server"):
            self.server.close()


if __name__ == "__main__":
    adapter.fix_hashes()
    McpTools().main()
