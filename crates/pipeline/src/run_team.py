#!/usr/bin/env python3
"""Plays this team on any OpenAI-compatible endpoint: team.json says who speaks when, and what each is shown.

    python3 run_team.py "What is 27 plus 15?" --url http://localhost:8000/v1
    python3 run_team.py --url solver=http://localhost:8081/v1 --url checker=http://localhost:8082/v1 < questions.txt

Each role asks for the model of its own name, unless --model ROLE=NAME names another. Prints every turn, then the last word; --json
prints a line of JSON per question. Needs only the standard library; a key comes from OPENAI_API_KEY.
"""
import argparse, collections, json, os, pathlib, re, sys, urllib.error, urllib.request  # noqa: E401

URL = "http://localhost:8000/v1"
TEAM = json.loads((pathlib.Path(__file__).resolve().parent / "team.json").read_text(encoding="utf-8"))


def pairs(values, default):
    """The value of each agent: its own of AGENT=VALUE, else the value without a name, else the default."""
    named = dict(value.split("=", 1) for value in values if re.match(r"[\w.-]+=", value))
    if unknown := named.keys() - TEAM["agents"].keys():
        sys.exit(f"run_team.py: no role {' or '.join(sorted(unknown))}; the roles are {', '.join(TEAM['agents'])}")
    common = [value for value in values if not re.match(r"[\w.-]+=", value)]
    return {agent: named.get(agent, common[-1] if common else default(agent)) for agent in TEAM["agents"]}


def say(messages, url, model, own):
    """An agent's text, by greedy decoding within the limits of the team's training."""
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": own["max_tokens"]}
    body.update({key: own[key] for key in ("stop", "chat_template_kwargs") if own.get(key)})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'none')}"}
    request = urllib.request.Request(f"{url.rstrip('/')}/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)["choices"][0]["message"]["content"] or ""
    except urllib.error.HTTPError as error:
        cause = f"{error}: {error.read(300).decode(errors='replace')}"
    except (OSError, ValueError, LookupError) as error:
        cause = f"{type(error).__name__}: {error}"
    sys.exit(f"run_team.py: {url}: model {model}: {cause}\nhint: README.md says how to serve the team; --url and --model name the server's")


def play(question, urls, models, show):
    """All turns as (agent, text), and the last word: of several agents the most frequent text."""
    said, turns = collections.defaultdict(list), []

    def fill(match):
        name, before = re.fullmatch(r"(.*?)(\.before)?", match[1]).groups()
        return question if name == "question" else said[name][-2 if before else -1].strip()

    for step in TEAM["turns"]:
        agent = step["agent"]
        prompt = [{**message, "content": re.sub(r"\{\{(.+?)\}\}", fill, message["content"])} for message in step["prompt"]]
        text = say(prompt, urls[agent], models[agent], TEAM["agents"][agent])
        said[agent].append(text)
        turns.append((agent, text))
        show(agent, text)
        if agent == TEAM.get("stop") and re.search(r"\bright\W*$", text.lower()):
            break
    last = [said[agent][-1].strip() for agent in TEAM["last"] if said[agent]]
    return turns, collections.Counter(last).most_common(1)[0][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", nargs="?", help="default: one question per line of standard input")
    parser.add_argument("--url", action="append", default=[], metavar="[ROLE=]URL", help=f"default: OPENAI_BASE_URL, else {URL}")
    parser.add_argument("--model", action="append", default=[], metavar="[ROLE=]NAME")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    urls = pairs(options.url, lambda _: os.environ.get("OPENAI_BASE_URL", URL))
    models = pairs(options.model, lambda agent: agent)
    for question in [options.question] if options.question else filter(None, map(str.strip, sys.stdin)):
        turns, last = play(question, urls, models, lambda agent, text: options.json or print(f"{agent}: {text.strip()}", flush=True))
        print(json.dumps({"question": question, "turns": turns, "answer": last}) if options.json else f"\n{last}", flush=True)


if __name__ == "__main__":
    main()
