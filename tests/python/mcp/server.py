"""A server for the tests of examples/mcp_tools.py: tools that compute, remember, are slow, say much, fail, and end the server."""

import os
import time

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("tests")
READS = ToolAnnotations(read_only_hint=True)
remembered: list[str] = []


@server.tool(annotations=READS)
def multiply(a: int, b: int) -> int:
    """The product of two integers."""
    return a * b


@server.tool()
def remember(word: str) -> str:
    """Remembers a word, and says all words remembered."""
    remembered.append(word)
    return " ".join(remembered)


@server.tool(annotations=READS)
def wait(seconds: float) -> str:
    """Waits."""
    time.sleep(seconds)
    return "done"


@server.tool(annotations=READS)
def repeat(count: int) -> str:
    """The letter x, many times."""
    return "x" * count


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("it failed")


@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(3)


server.run()
