"""The shape of an environment's answers, as `rollout` reads them. Each function raises `Refused` with the cause."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Iterable, List, Mapping, Sequence

INFO_BYTES = 4096
"""The longest `info`, in bytes of JSON."""


class Refused(Exception):
    """An answer that ends the episode in `rollout`."""


def shown(value: Any, limit: int = 300) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else f"{text[:limit]}…"


def require(holds: bool, cause: str) -> None:
    if not holds:
        raise Refused(cause)


def require_number(field: str, value: Any) -> None:
    require(not isinstance(value, bool), f"{field} is {value}, and not a number: float({value}) is one")
    finite = isinstance(value, (int, float)) and math.isfinite(value)
    require(finite, f"{field} is {shown(repr(value), 60)}, and not a number")


def require_flag(field: str, value: Any) -> None:
    require(isinstance(value, bool), f"`{field}` is {shown(repr(value), 60)}, and not True or False: bool(...) is")


def require_names(field: str, value: Any) -> None:
    named = isinstance(value, list) and all(isinstance(name, str) for name in value)
    require(named, f"`{field}` is {shown(repr(value), 60)}, and not a list of names")


def require_agents(field: str, names: Iterable[str], agents: Sequence[str]) -> None:
    for name in names:
        require(name in agents, f"`{field}` names {name}, who is no agent; the agents are: {', '.join(agents)}")


def is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(field), str) for field in ("role", "content"))


def observations(seen: Any) -> None:
    """Null, messages, or messages with tools, by agent."""
    require(isinstance(seen, dict), f"`observations` is {shown(repr(seen), 60)}, and not an observation by agent")
    for agent, sight in seen.items():
        messages = sight.get("messages") if isinstance(sight, dict) else sight
        fits = messages is None and not isinstance(sight, dict) or isinstance(messages, list) and all(map(is_message, messages))
        require(fits, f"the observation of {agent} is {shown(repr(sight), 60)}: it is a text, None, or messages, each with `role` and `content`")
        if isinstance(sight, dict) and sight.get("tools") is not None:
            tools(sight["tools"])


def tools(offered: Any) -> None:
    require(isinstance(offered, list) and bool(offered), f"`tools` is {shown(repr(offered), 60)}, and not a list of tools")
    for tool in offered:
        function = tool.get("function", tool) if isinstance(tool, dict) else {}
        name = function.get("name") if isinstance(function, dict) else None
        require(isinstance(name, str) and bool(name), f"`tools` has {shown(repr(tool), 60)}, which has no `function` with a `name`")


def stages(order: Any, agents: List[str]) -> List[List[str]]:
    """The agents of each stage, each agent once."""
    if order in ("sequential", "parallel"):
        found = [[agent] for agent in agents] if order == "sequential" else [agents]
    else:
        fits = isinstance(order, list) and all(isinstance(stage, list) for stage in order)
        require(fits, f"`order` is {shown(repr(order), 60)}: not sequential, parallel or stages of agents")
        for stage in order:
            require_names("order", stage)
        found = order
    require(bool(found) and all(found), "every stage of `order` has at least one agent")
    everyone = [agent for stage in found for agent in stage]
    for number, agent in enumerate(everyone):
        require(bool(agent), "an agent has no name")
        require(agent not in everyone[:number], f"the agent '{agent}' is there twice")
    require(everyone == agents, f"`agents` are {', '.join(agents)}, but `order` has {', '.join(everyone)}")
    return found


def started(answer: Mapping[str, Any]) -> None:
    """The answer to a task."""
    require_names("agents", answer["agents"])
    stages(answer["order"], answer["agents"])
    turns = answer["turns"]
    require(isinstance(turns, int) and not isinstance(turns, bool) and turns >= 0, f"`turns` is {shown(repr(turns), 60)}, and not a whole number")
    require(turns > 0, "`turns` is 0: an episode has one turn at least")
    limits = answer.get("reward_range", [0, 1])
    require(isinstance(limits, list) and len(limits) == 2, f"`reward_range` is {shown(repr(limits), 60)}: not least and greatest")
    for limit in limits:
        require_number("a limit of `reward_range`", limit)
    require(limits[0] <= limits[1], f"`reward_range` is {limits}: not least and greatest")
    observations(answer["observations"])
    acts(answer, answer["agents"])


def acts(answer: Mapping[str, Any], agents: Sequence[str]) -> None:
    if answer.get("turn") is not None:
        require_names("turn", answer["turn"])
        require_agents("turn", answer["turn"], agents)


def stepped(answer: Mapping[str, Any], agents: Sequence[str], acted: Iterable[str]) -> None:
    """The answer to an action, or to a joint action, of the agents `acted`."""
    require_number("`rewards.team`", answer["rewards"]["team"])
    local = answer["rewards"]["local"]
    if isinstance(local, dict):
        require_agents("rewards.local", local, agents)
        for agent in acted:
            require(agent in local, f"`rewards.local` has nothing for the agent {agent}")
        for agent, value in local.items():
            require_number(f"`rewards.local` of {agent}", value)
    else:
        require_number("`rewards.local`", local)
    components = answer["reward_components"]
    require(isinstance(components, dict), f"`components` is {shown(repr(components), 60)}, and not a number by name")
    for name, value in components.items():
        require_number(f"the component {name}", value)
    require_flag("terminated", answer["terminated"])
    require_flag("success", answer["success"])
    if "info" in answer:
        info(answer["info"])
    observations(answer["observations"])
    acts(answer, agents)


def info(told: Any) -> None:
    require(isinstance(told, dict), f"`info` is {shown(repr(told), 60)}, and not an object: name the values, {{\"note\": ...}}")
    length = len(json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass"))
    require(length <= INFO_BYTES, f"`info` has {length} bytes as JSON, and at most {INFO_BYTES} are kept")


def probed(answer: Dict[str, Any]) -> None:
    """The answer to a `probe`."""
    require_names("actions", answer["probes"])
    best = answer["oracle"]
    require(best is None or isinstance(best, str), f"`best` is {shown(repr(best), 60)}, and not a text")
    require_flag("solved", answer["solved"])
