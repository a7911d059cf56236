"""The flags of pipeline.sh as lines of a TOML file, and what a run is held to.

    config.py merge FLAGS ARGUMENT...         prints the command line with the lines of --config FILE, or of --resume RUN,
                                              before it, for a shell to read; what the command line has of them is left out
    config.py hold FLAGS RUN COUNT [NAME VALUE]...  holds a run to the first COUNT values, those that it was started with, in
                                              RUN/run.json; writes RUN/config.toml, a file that gives the flags after them
    config.py nearest NAME NAME...            the name that is most like the first, if one is

FLAGS describes them, a line each: name, kind, three defaults, meaning; a kind that ends with ! has no place in a file. Read
here, and not by Python's tomllib, because errors name lines, because a number must stay as it was written (1e-3 is no 0.001
in run.json), and because Python 3.9 and 3.10, which run the rest of this, have no tomllib. Left out of TOML: dates, arrays of
tables, and numbers that are not decimal.
"""

import json, os, re, shlex, sys

ABOUT = """\
# What this run is made with. pipeline.sh --resume RUN goes on with it, pipeline.sh --config RUN/config.toml --run DIR makes
# it again in DIR. Relative paths are as they were given.
"""
NUMBER = r"[+-]?(?:0|[1-9](?:_?\d)*)(?:\.\d(?:_?\d)*)?(?:[eE][+-]?\d+)?"
STRINGS = [
    (r'"""\n?((?:[^\\]|\\.)*?)"""', True), (r"'''\n?(.*?)'''", False), (r'"((?:[^"\\\n]|\\.)*)"', True), (r"'([^'\n]*)'", False),
]  # fmt: skip
KINDS = {
    "N": "a whole number", "K": "a whole number", "X": "a number", "T": "a number", "B1,B2": "two numbers in brackets",
    "NAME": "a string", "TEXT": "a string", "LIST": "a string, or strings in brackets", "YES": "true or false",
    "TABLE": "a table", "POLICIES": "a string, or a table of strings",
}  # fmt: skip
# What the command line takes the place of, besides the flag itself.
INSTEAD = {"policies": ["model", "adapter"], "env_command": ["env", "set"], "env": ["env_command"]}


def fail(message, hint, code=2):
    hint = hint.replace("./pipeline.sh", os.environ.get("TROUPE_CALLED", "./pipeline.sh"))
    print(f"pipeline.sh: {message}\nhint: {hint}", file=sys.stderr)
    sys.exit(code)


def flags_of(text):
    rows = [line.split(None, 5) for line in text.splitlines()]
    return {row[0]: (row[1], row[5] if len(row) > 5 else "") for row in rows}


def nearest(name, names):
    import difflib  # of a slip alone: it is slow to load

    shown = {known.replace("_", "-"): known for known in names}
    found = difflib.get_close_matches(name.replace("_", "-"), shown, 1)
    return found[0] if found else None


class Number(str):
    """As it was written."""


class Toml:
    """A file's lines as (line, name, value), where a value of a table is a dict."""

    def __init__(self, path, text):
        self.path, self.text, self.at = path, text, 0

    def line(self):
        return self.text.count("\n", 0, self.at) + 1

    def fail(self, message, hint="write a line as: lr = 1e-3"):
        fail(f"{self.path}:{self.line()}: {message}", hint)

    def take(self, pattern):
        found = re.compile(pattern, re.DOTALL).match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def skip(self, blank=r"[ \t\r\n]"):
        while self.take(rf"{blank}+|#[^\n]*"):
            pass

    def rest(self):
        found = re.compile(r"[^\n]*").match(self.text, self.at).group()
        return found.strip() or "the line's end"

    def key(self):
        bare = self.take(r"[A-Za-z0-9_-]+")
        if bare:
            return bare.group()
        quoted = self.string()
        return quoted if quoted is not None else self.fail(f"{self.rest()}: not a name")

    def string(self):
        for pattern, escapes in STRINGS:
            found = self.take(pattern)
            if found and escapes:
                return self.unescaped(found.group(1))
            if found:
                return found.group(1)
        if self.text.startswith(('"', "'"), self.at):
            self.fail(f"{self.rest()}: no end of this string")
        return None

    def unescaped(self, text):
        text = re.sub(r"\\[ \t]*\n\s*", "", text)
        text = re.sub(r"\\U([0-9a-fA-F]{8})", lambda code: chr(int(code.group(1), 16)), text)
        text = re.sub(r'\\.|"', lambda part: r"\"" if part.group() == '"' else part.group(), text)
        try:
            return json.loads(f'"{text}"', strict=False)
        except ValueError:
            return self.fail(f'"{text}": not a string', "a backslash is \\\\; 'single quotes' take everything as it is")

    def value(self):
        string = self.string()
        if string is not None:
            return string
        word = self.take(rf"(?:true|false|{NUMBER})(?![A-Za-z0-9_.+:-])")
        if word:
            word = word.group()
            return word == "true" if word in ("true", "false") else Number(word.replace("_", "").lstrip("+"))
        if self.take(r"\["):
            return self.several("]", self.value)
        if self.take(r"\{"):
            return dict(self.several("}", self.pair))
        return self.fail(f"{self.rest()}: not a value", "strings are quoted; true and false, numbers and brackets are not")

    def several(self, end, one):
        found = []
        self.skip()
        while not self.take(rf"\{end}"):
            found.append(one())
            self.skip()
            if not self.take(","):
                self.skip()
                if not self.take(rf"\{end}"):
                    self.fail(f"{self.rest()}: neither , nor {end}")
                break
            self.skip()
        return found

    def pair(self):
        key = self.key()
        self.skip(r"[ \t]")
        if not self.take("="):
            self.fail(f"{key}: no = after it")
        self.skip(r"[ \t]")
        return key, self.value()

    def lines(self):
        table, found, seen = None, [], {}
        self.skip()
        while self.at < len(self.text):
            line = self.line()
            if self.take(r"\[[ \t]*"):
                table = self.key()
                if not self.take(r"[ \t]*\]"):
                    self.fail(f"{self.rest()}: no ] after [{table}", "tables are [set], [flags], [stage] and [policies]")
                found.append((line, table, {}))
            else:
                name = table
                dotted = None if table else self.take(r"([A-Za-z0-9_-]+)[ \t]*\.[ \t]*")
                if dotted:
                    name = dotted.group(1)
                key, value = self.pair()
                if (name, key) in seen:
                    self.fail(f"{key}: already in line {seen[name, key]}", "leave one of them out")
                seen[name, key] = line
                found.append((line, key, value) if name is None else (line, name, {key: value}))
            if not self.take(r"[ \t]*(?:#[^\n]*)?(?:\r?\n|\Z)"):
                self.fail(f"{self.rest()}: more after the value")
            self.skip()
        return found


def words(kind, flag, value):
    """The command line of a line, or nothing if the value is not of this kind."""
    text, number = isinstance(value, str) and not isinstance(value, Number), isinstance(value, Number)
    if kind in "NK" and number and re.fullmatch(r"\d+", value) or kind in "XT" and number or kind in ("NAME", "TEXT") and text:
        return [flag, value]
    if kind == "YES" and isinstance(value, bool):
        return [f"{flag}={'yes' if value else 'no'}"]
    if kind == "B1,B2" and isinstance(value, list) and len(value) == 2 and all(isinstance(one, Number) for one in value):
        return [flag, ",".join(value)]
    if kind == "LIST" and (text or isinstance(value, list) and all(type(one) is str for one in value)):
        return [word for one in ([value] if text else value) for word in (flag, one)]
    if kind == "POLICIES" and text:
        return [flag, value]
    if kind in ("TABLE", "POLICIES") and isinstance(value, dict):
        plain = (str, Number, bool) if flag == "--set" else (str,)
        if all(type(one) in plain for one in value.values()):
            one = lambda value: str(value).lower() if isinstance(value, bool) else value
            return [word for key, inner in value.items() for word in (flag, f"{key}={one(inner)}")]
    return None


def read(path, flags, given):
    """The command line that a file stands for, without what the command line gave: names, or names with a key."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
    except FileNotFoundError:
        fail(f"--config {path}: no such file", "a run's own is RUN/config.toml")
    except OSError as error:
        fail(f"--config {path}: {error.strerror}", "a configuration is a file", 74)
    found = []
    for line, written, value in Toml(path, text).lines():
        name = written.replace("-", "_")
        kind = flags.get(name, ("!", ""))[0]
        if kind.endswith("!"):
            if name in flags:
                fail(f"{path}:{line}: {written} has no place in a file", f"give it on the command line: --{name.replace('_', '-')}")
            near = nearest(name, [name for name in flags if not flags[name][0].endswith("!")])
            fail(f"{path}:{line}: there is no {written}", f"did you mean {near}?" if near else "./pipeline.sh --help lists all")
        if kind == "TABLE" and isinstance(value, dict):
            value = {key: one for key, one in value.items() if (name, key) not in given}
        elif name in given:
            continue
        flag = "--" + name.replace("_", "-")
        more = words(kind, flag, value)
        if more is None:
            shown = text.splitlines()[line - 1].strip()
            fail(f"{path}:{line}: {shown}: not {KINDS[kind]}", f"./pipeline.sh --help says what {flag} is")
        if name not in given:
            found += more
    return found


def merge(flags, arguments):
    given, rest, path, resume, place = set(), [], None, None, None
    at = 0
    while at < len(arguments):
        flag, equals, value = arguments[at].partition("=")
        name, used = flag[2:].replace("-", "_"), 1
        kind = flags.get(name, ("YES", ""))[0].rstrip("!")
        if not equals and kind != "YES" and at + 1 < len(arguments):
            value, used = arguments[at + 1], 2
        if flag in ("--config", "--resume") and (equals or used == 2):
            if path is not None or resume is not None:
                fail("--config and --resume can be given once, and not together", "--resume RUN reads RUN/config.toml")
            path, resume = (value, None) if name == "config" else (f"{value}/config.toml", value)
        else:
            rest += arguments[at : at + used]
            given.add((name, value.partition("=")[0]) if kind == "TABLE" else name)
            given.update(INSTEAD.get(name, []))
        at += used
    if path is None:
        fail("--config and --resume need a value", "--config FILE, --resume RUN")
    if resume is not None:
        if "run" in given:
            fail("--resume names the run, so --run has no effect", "leave one of them out")
        if not os.path.exists(path):
            known = os.path.exists(f"{resume}/run.json")
            hint = f"repeat the command that began it, with --run {resume}" if known else "a run directory is what ./pipeline.sh --run DIR makes"
            fail(f"--resume {resume}: there is no {path}", hint)
        rest += ["--run", resume]
    print(shlex.join([*read(path, flags, given), *rest]))


def shown(kind, values):
    """The value of a line."""
    string = lambda text: json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")
    number = lambda text: text if re.fullmatch(NUMBER, text) else repr(float(text))
    if kind == "B1,B2":
        return f"[{', '.join(map(number, values[-1].split(',')))}]"
    if kind == "LIST":
        return f"[{', '.join(map(string, values))}]"
    if kind == "YES":
        return "true" if values[-1] == "yes" else "false"
    return number(values[-1]) if kind in "NKXT" else string(values[-1])


def replace(path, text):
    try:
        with open(f"{path}.tmp", "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(f"{path}.tmp", path)
    except OSError as error:
        fail(f"{path}: {error.strerror}", "the run goes on only where it can say what it was made with", 74)


def write(flags, path, pairs):
    values = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    tables = [name for name in values if flags[name][0] in ("TABLE", "POLICIES") and "=" in values[name][0]]
    text = ABOUT
    for name in [name for name in flags if name in values and name not in tables]:
        kind, meaning = flags[name]
        try:
            line = f"{name.replace('_', '-')} = {shown(kind, values[name])}"
        except ValueError:  # `update` says what is wrong with it
            line = f"# {name.replace('_', '-')} = {values[name][-1]}"
        text += f"{line:<40}# {meaning}\n" if meaning else line + "\n"
    for name in tables:
        text += f"\n[{name.replace('_', '-')}]\n"
        for key, value in [one.split("=", 1) for one in values[name]]:
            text += f"{key if re.fullmatch('[A-Za-z0-9_-]+', key) else shown('TEXT', [key])} = {shown('TEXT', [value])}\n"
    replace(path, text)


def same(old, new):
    """Whether two values are one: 1e-3 is 0.001."""
    try:
        return old == new or float(old) == float(new)
    except (TypeError, ValueError):
        return False


def said(name, value):
    """What of a command line is this value of run.json; a missing one is the program's own."""
    if name == "build":
        return f"the build {value}"
    if name.startswith("input "):
        return f"the weights {value} of {name[6:]}"
    if name.startswith("flags of "):
        flag, values = "--flags", [f"{name[9:]}={value}"]
    elif name == "stages":
        flag, values = "--stage", value.rstrip(";").split(";") if value else []
    else:
        flag = "--set" if name == "settings" else f"--{name.replace('_', '-')}"
        values = (value or "").split() if name in ("settings", "train", "policies") else [value]
    if value is None or not any(values):
        return f"no {flag}"
    return " ".join(f"{flag} {shlex.quote(one)}" for one in values)


def hold(run, values):
    """Values bind once there are policies made with them: a mistake in the first command is mended by the second. What differs is
    said as flags, all of it at once."""
    if not (os.path.exists(f"{run}/policies/done") and os.path.exists(f"{run}/run.json")):
        replace(f"{run}/run.json", json.dumps(values, indent=2, ensure_ascii=False) + "\n")
        return
    with open(f"{run}/run.json", encoding="utf-8", errors="surrogateescape") as file:
        before = json.load(file)
    names = [name for name in {**before, **values} if not same(before.get(name), values.get(name))]
    if names:
        old, new = (" ".join(said(name, side.get(name)) for name in names) for side in (before, values))
        fail(f"{run} was started with {old}, not with {new}",
             f"./pipeline.sh --resume {shlex.quote(run)} goes on as it was started (--steps may grow); or choose another --run")


task, arguments = sys.argv[1], sys.argv[2:]
if task == "nearest":
    print(nearest(arguments[0], arguments[1:]) or "")
elif task == "hold":
    flags, run, count = flags_of(arguments[0]), arguments[1], int(arguments[2])
    pairs = list(zip(arguments[3::2], arguments[4::2]))
    hold(run, dict(pairs[:count]))
    write(flags, f"{run}/config.toml", pairs[count:])
else:
    merge(flags_of(arguments[0]), arguments[1:])
