"""wrap.py [FILE…]: wraps the prose of Markdown files at 110 columns, the width of code; all tracked ones without FILE.

Tables, code, headings and HTML stay unchanged, and lines never break inside inline code or link text.
`.ci/words.py` checks the width.
"""
import pathlib
import re
import subprocess
import sys
import textwrap

WIDTH = 110
GLUE = "\x01"  # replaces a blank where a line must not end


def wrapped(text, first, rest):
    for pattern in (r"`[^`]*`", r"\[[^\]\[]{1,60}\]\(", r"\d %", r"Create `"):
        text = re.sub(pattern, lambda found: found[0].replace(" ", GLUE), text)
    lines = textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest,
                          break_long_words=False, break_on_hyphens=False)
    return [line.replace(GLUE, " ") for line in lines]


def document(text):
    lines, paragraph, indents, fenced = [], [], ("", ""), False

    def flush():
        if paragraph:
            lines.extend(wrapped(" ".join(paragraph), *indents))
        paragraph.clear()

    head, body = (re.match(r"(?s)(---\n.*?\n---\n)?(.*)", text)).groups()
    for line in body.split("\n"):
        item = re.match(r"(\s*(?:[-*]|\d+\.)) +(.*)", line)
        if line.lstrip().startswith("```"):
            flush()
            fenced = not fenced
            lines.append(line)
        elif fenced or not line.strip() or line.startswith(("#", "|", "    ", "<!--", "![")):
            flush()
            indents = ("", "")
            lines.append(line)
        elif item:
            flush()
            indents = (f"{item[1]} ", " " * (len(item[1]) + 1))
            paragraph.append(item[2].strip())
        elif not paragraph and line.startswith("  "):
            lines.append(line)
        else:
            paragraph.append(line.strip())
    flush()
    return (head or "") + "\n".join(lines)


tracked = ["git", "ls-files", "*.md"]
for name in sys.argv[1:] or subprocess.run(tracked, capture_output=True, text=True, check=True).stdout.split():
    path = pathlib.Path(name)
    before = path.read_text()
    after = document(before)
    if after != before:
        path.write_text(after)
        print(name)
