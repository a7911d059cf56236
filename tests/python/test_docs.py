"""The pages of docs/ as a book: each says for whom it is, all are in docs/SUMMARY.md, and mdBook builds them with links that lead somewhere."""
import html.parser
import re
import shutil
import subprocess
import urllib.parse

import pytest
from conftest import ROOT

DOCS = ROOT / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if page.name != "SUMMARY.md"]


@pytest.mark.parametrize("page", [page.relative_to(DOCS).as_posix() for page in PAGES])
def test_page_says_at_once_what_it_is_for(page):
    """After the title comes for whom and what; pages of decisions/ begin with the decision."""
    text = (DOCS / page).read_text()
    assert re.match(r"# [^\n]+\n\n(For [\w ,'.-]+?: \S|For people \w+ |\*\*Decision\.\*\* )", text), text[:200]


def test_every_page_is_in_the_book():
    linked = re.findall(r"\]\((.*?)\)", (DOCS / "SUMMARY.md").read_text())
    assert sorted(linked) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)


class Links(html.parser.HTMLParser):
    """The targets of links, and the names that links can have."""

    def __init__(self, page):
        super().__init__()
        self.targets, self.names = [], set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.names.add(attributes.get("id"))
        self.targets += [attributes["href"]] if tag == "a" and "href" in attributes else []


def test_book_is_built_and_its_links_lead_somewhere(tmp_path):
    if shutil.which("mdbook") is None:
        pytest.skip("there is no mdbook: cargo install mdbook")
    built = subprocess.run(["mdbook", "build", ROOT, "--dest-dir", tmp_path], capture_output=True, text=True)
    assert built.returncode == 0 and "WARN" not in built.stderr, built.stderr
    pages = {page.resolve(): Links(page) for page in tmp_path.rglob("*.html") if page.name not in ("print.html", "toc.html", "404.html")}
    assert len(pages) > len(PAGES) - 1
    for page, links in pages.items():
        for target in links.targets:
            address, _, name = urllib.parse.unquote(target).partition("#")
            if ":" in address:
                continue
            found = (page.parent / address).resolve() if address else page
            source = (DOCS / page.relative_to(tmp_path.resolve()).parent / address).resolve()  # a file outside docs/
            assert found.exists() or (ROOT in source.parents and (source.exists() or source.with_suffix(".md").exists())), f"{page.name}: {target}"
            assert not name or found not in pages or name in pages[found].names, f"{page.name}: {target}"
