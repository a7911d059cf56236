"""A server of the Model Context Protocol without any package: tools in pages of two, and results of every kind."""
import json
import sys

TEXT = {"type": "text", "text": "a"}
RESULTS = {
    "two": {"content": [TEXT, {"type": "text", "text": "b"}]},
    "empty": {"content": [{"type": "text", "text": ""}]},
    "resource": {"content": [TEXT, {"type": "resource", "resource": {"uri": "file:///notes.md", "text": "The code is 7."}}]},
    "link": {"content": [{"type": "resource_link", "uri": "file:///big.csv", "name": "big.csv"}]},
    "data": {"content": [TEXT], "structuredContent": {"rows": [{"stadt": "Köln"}]}},
    "repeated": {"content": [TEXT], "structuredContent": {"result": "a"}},
    "nothing": {"content": [], "structuredContent": {"result": []}},
}
TOOLS = [{"name": name, "description": "Köln", "inputSchema": {"type": "object", "properties": {}}} for name in RESULTS]
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    method, given = asked["method"], asked.get("params") or {}
    if method == "initialize":
        result = {"protocolVersion": given["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "kinds", "version": "1"}}
    elif method == "tools/list":
        at = int(given.get("cursor") or 0)
        result = {"tools": TOOLS[at:at + 2], "nextCursor": str(min(at + 2, len(TOOLS) - 1))}  # its last cursor never advances
    else:
        result = RESULTS[given["name"]]
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
