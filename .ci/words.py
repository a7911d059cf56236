#!/usr/bin/env python3
"""words.py: American spelling, names that the workspace gave up, plain sentences, and the width of documents.

Reads the files that git tracks. Prints each fault with its place, and the rate of each construction that makes readers
stop; exits with 1 if there is a fault or a rate above its limit. Lower a limit when the prose has become better.
`words.py --test` plants a fault of each kind first, and fails if one is not found.
"""
import collections
import re
import subprocess
import sys

KINDS = ("comments of code", "comments of scripts", "Markdown", "texts of programs")
WORD = r"(?<![\w'])(?:%s)(?![\w'])"
AFTER_WHAT = ("is are was were it they he has have had come comes came follows remains stays belongs goes begins stands "
              "lies").replace(" ", "|")
START = r"(?:^|(?<=[.!?] ))"
# Most occurrences per 10,000 words of each of KINDS.
LIMITS = {
    "that of, those of": (r"(?i)" + WORD % "(?:that|those) of", 2.0, 1.6, 1.1, 2.2),
    "what is, what they": (r"(?i)" + WORD % f"what (?:{AFTER_WHAT})", 4.0, 9.0, 4.5, 13.8),
    "so many, as many": (r"(?i)" + WORD % "(?:so|as) many", 1.1, 0.6, 0.8, 5.9),
    "beside": (r"(?i)" + WORD % "beside", 0.6, 1.1, 0.5, 3.2),
    "own": (r"(?i)" + WORD % "own", 3.1, 12.5, 6.4, 17.2),
    "The same (a sentence's beginning)": (START + r"The same(?!\w)", 0.8, 0.5, 0.5, 2.2),
    "where there is": (r"(?i)" + WORD % "where (?:there|one|none|nobody|nothing)", 0.4, 1.1, 0.5, 1.1),
    "; none": (r"(?i)(?<=[;:,] )(?:none|nothing|nobody)(?!\w)", 1.8, 6.5, 1.5, 5.0),
    "Of, Those, That, As, Which, Whether, Whose (a sentence's beginning)":
        (START + r"(?:Of|Those|That|As|Which|Whether|Whose)(?!\w)", 3.9, 1.6, 1.7, 1.6),
}
# Names of types and modules that the workspace gave up for a word of the field, which follows.
TYPES = {
    "Recording Recordings": "CUDA graph", "Form": "batch shape, padding bucket", "Room": "KV cache config, workspace sizes",
    "Extent Demand Card Subject": "max batch shape, memory request, device memory, model spec",
    "Want Draw Turn": "sample request, sampled token, logits row", "Completes Share": "inference backend, decoder handle",
    "Pace": "phase timings", "Deal": "batch, closed", "Trial Ask": "task run, prompt request",
    "World Shipped Outside": "environment factory, built-in, external process",
    "Speaker Stamp About": "policy label, run metadata, task reference",
    "Account Accounts Count Tally Figures": "stats, metrics", "Speech Language": "action format, action space",
    "Said Standing Parts": "message, progress, reward components",
    "Written Began": "raw spec or state, reset response", "Held Masters": "state kind, master weights",
    "Others Terms Rotated": "reference log-probs, loss config, qk-norm + RoPE", "Intake Foreign": "reader, pass-through",
}
PRIVATE = {name: field for names, field in TYPES.items() for name in names.split()}
MODULES = set("account accounts demand elsewhere enter extent figures foreign form intake outside pace probes recording "
              "recordings room speech tally trial".split())
BRITISH = re.compile(r"(?i)(?<![a-z])(?:(?:artefact|behaviour|catalogue|centre|colour|favour|fulfils|honour|judgement|"
                     r"labelled|labelling|learnt|licence|modelled|modelling|neighbour|whilst)[a-z]*|(?:un|de|re|pre)?(?:"
                     r"author|canonical|categor|central|custom|deserial|discret|emphas|equal|factor|final|general|initial|"
                     r"item|local|maxim|memor|minim|neutral|normal|optim|organ|orthogonal|parallel|penal|quant|random|real|"
                     r"recogn|regular|serial|special|stabil|standard|summar|synchron|token|util|vector|visual)is(?:e|ed|es|"
                     r"er|ers|ing|ation|ations)(?![a-z]))")
# Bytes of a run: a problem's statement, the name of a random stream.
KEPT = {("crates/problems/src/code/list.rs", "neighbours"), ("crates/problems/src/code/generate.rs", "behaviour")}
DECLARED = re.compile(r"\s*(?:pub(?:\([^)]*\))? )?(mod|struct|enum|trait|type|union) (\w+)")
DATA = (".jsonl", ".safetensors", ".lock", "LICENSE-APACHE", "LICENSE-MIT", ".ci/words.py")
TOKEN = re.compile(r"""//[^\n]*|'\\?"'|r\#"(?:.*?)"\#|"(?:[^"\\]|\\.)*"|.""", re.S)
WIDTH = 110


def faults(path, text):
    """Names and spellings of one file."""
    names = path.endswith(".rs")
    if names and path.rsplit("/", 1)[-1][:-3] in MODULES:
        yield f"{path}: the name of the file"
    for number, line in enumerate(text.split("\n"), 1):
        kind, name = DECLARED.match(line).groups() if names and DECLARED.match(line) else ("", "")
        if kind == "mod" and name in MODULES:
            yield f"{path}:{number}: module {name}"
        if kind not in ("", "mod") and name in PRIVATE:
            yield f"{path}:{number}: type {name}; the field says {PRIVATE[name]}"
        for word in BRITISH.findall(line):
            if (path, word) not in KEPT:
                yield f"{path}:{number}: {word} is British spelling"


def paragraphs(lines):
    """(line, text) of each paragraph, list item and table cell of numbered lines without comment marks. None ends one."""
    number, found, fenced = 0, [], False
    for at, line in [*lines, (0, None)]:
        line = line.strip() if line else ""
        fence = line.startswith("```")
        fenced ^= fence
        mark = re.match(r"[-*] |#{1,3} ", line)
        if found and (not line or fence or fenced or mark or line[0] == "|"):
            yield number, " ".join(found)
            found = []
        if not line or fence or fenced:
            continue
        if line[0] == "|":
            yield from ((at, cell.strip()) for cell in line.split("|") if re.search(r"\w", cell))
            continue
        number = number if found else at
        found.append(line[mark.end() if mark else 0:].lstrip("*_>"))


def comments(text, mark):
    """The lines of comments and of Python's docstrings, without marks. None stands for code."""
    quoted = False
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.lstrip()
        if mark == "#" and (quoted or bare.startswith('"""')):
            quoted ^= line.count('"""') % 2
            yield number, line.replace('"""', "")
        elif bare.startswith(mark) and not bare.startswith("#!/"):
            yield number, bare.lstrip("/!#")
        else:
            code, _, comment = line.partition(f" {mark} ")
            yield from ((number, None), (number, comment if code.count('"') % 2 == 0 else None), (number, None))


def printed(text):
    """The sentences that a program of Rust prints: its string literals of four words and more, outside of tests."""
    text = text.split("#[cfg(test)]")[0]
    for token in TOKEN.finditer(text):
        if token[0][0] == '"' and len(token[0].split()) >= 4 and token[0][1] not in "{[<":
            yield text.count("\n", 0, token.start()) + 1, re.sub(r"\\n|\\?\n\s*", " ", token[0][1:-1])


def prose(path, text):
    """(kind, line, paragraph) of one file."""
    end = path.rsplit(".", 1)[-1]
    if end in ("rs", "cu", "cuh", "cpp", "c", "h", "js"):
        yield from ((0, *found) for found in paragraphs(comments(text, "//")))
    elif end in ("py", "sh", "toml", "yml"):
        yield from ((1, *found) for found in paragraphs(comments(text, "#")))
    elif end == "md":
        yield from ((2, *found) for found in paragraphs(enumerate(text.split("\n"), 1)))
    if end == "rs" and "/src/" in path and "tests" not in path:
        yield from ((3, *found) for found in printed(text))


def wide(path, text):
    """Lines of a document that are wider than code, outside of tables and code."""
    fenced = False
    for number, line in enumerate(text.split("\n") if path.endswith(".md") else (), 1):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and len(line) > WIDTH and line[0] not in "| #![`":
            yield f"{path}:{number} has {len(line)} characters; hint: python3 tests/wrap.py {path}"


def judge(files):
    """The faults of {path: text}, and the rate of each construction."""
    wrong, rows, words, places = [], [], collections.Counter(), collections.defaultdict(list)
    for path, text in files.items():
        wrong += wide(path, text)
        if not path.endswith(DATA) and (not path.startswith("tests/golden/") or path.endswith((".py", ".md"))):
            wrong += faults(path, text)
        for kind, line, paragraph in prose(path, text):
            words[kind] += len(paragraph.split())
            plain = " ".join("`".join(paragraph.split("`")[::2]).split())
            for name, (pattern, *_) in LIMITS.items():
                places[name, kind] += [f"  {path}:{line}: {paragraph[:90]}"] * len(re.findall(pattern, plain))
    for name, (_, *limits) in LIMITS.items():
        rates = [len(places[name, kind]) * 1e4 / max(words[kind], 1) for kind in range(4)]
        rows.append(f"{name}: " + ", ".join(f"{rate:.2f}" for rate in rates) + " per 10,000 words")
        for kind, (rate, limit) in enumerate(zip(rates, limits)):
            if rate > limit:
                wrong += [f'"{name}" is {rate:.2f} in 10,000 words of {KINDS[kind]}, more than {limit}:', *places[name, kind]]
    return wrong, rows, words


def test():
    """Each planted fault is found, and good words are not."""
    for line, fault in (("pub(crate) struct Trial {", "type Trial"), ("    enum Draw<'a> {", "type Draw"), ("mod pace;", "module pace"),
                        ("/// The Optimiser's state.", "Optimiser"), ("let x = unsynchronised;", "unsynchronised"),
                        ("// neighbouring cells", "neighbouring")):
        assert any(fault in found for found in faults("a/src/b.rs", line)), line
    assert list(faults("engine/pace.rs", "")) == ["engine/pace.rs: the name of the file"]
    fine = "struct TaskRun; // optimizer, a realistic promise, otherwise precise, organism, finalist, optimistic"
    assert not list(faults("a.rs", fine)) and not list(faults("a.py", "class Trial: pass"))
    for sentence, name in (("It is that of others.", 0), ("Take what they say.", 1), ("There are so many.", 2), ("Beside it.", 3),
                           ("Its own.", 4), ("Good. The same holds.", 5), ("It goes where there is room.", 6), ("One; none.", 7),
                           ("Good. Whether it is, is open.", 8)):
        for path, text in (("a/src/b.rs", f"// {sentence}"), ("a.sh", f"# {sentence}"), ("a.md", f"- {sentence}"),
                           ("a/src/c.rs", f'let x = "Here it is. {sentence}";')):
            assert f'"{list(LIMITS)[name]}"' in "\n".join(judge({path: text})[0]), (path, sentence)
    assert list(wide("a.md", "x " * 56)) and not list(wide("a.md", "```\n" + "x " * 56))


if sys.argv[1:] == ["--test"]:
    test()
listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True).stdout.split("\0")
texts = {}
for tracked in filter(None, listed):
    try:
        texts[tracked] = open(tracked, encoding="utf-8").read()
    except (OSError, UnicodeDecodeError):
        pass  # a link, a binary file, or one that is deleted and not committed yet
found_faults, rates_found, counted = judge(texts)
assert len(texts) > 200 and counted[0] > 50_000 and counted[2] > 20_000 and counted[3] > 10_000, (len(texts), counted)
print("\n".join(rates_found + found_faults))
sys.exit(bool(found_faults))
