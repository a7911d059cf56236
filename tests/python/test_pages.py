"""Pages of `report` in headless Chromium: every kind of them is whole, on a desktop and on a phone, light and dark, and what a reader can switch
works."""
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time

import pytest
from conftest import ROOT, must, run
from made_runs import made_run

AUDIT = (ROOT / "tests/python/audit.js").read_text()
VIEWS = ((1280, "light"), (1280, "dark"), (390, "dark"))


class Browser:
    """Chromium over its debugging pipe: opens a page in a window of some size and runs a script in it. It reads commands from its descriptor 3 and
    writes answers to 4."""

    def __init__(self, program):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            ["sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1', "sh", program, "--headless", "--no-sandbox", "--disable-gpu",
             "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        # Everything that was said without being asked: errors, requests.
        self.calls, self.session, self.events, self.read = itertools.count(1), {}, [], b""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        number = next(self.calls)
        self.process.stdin.write(json.dumps({"id": number, "method": method, "params": parameters} | self.session).encode() + b"\0")
        while True:
            while b"\0" not in self.read:
                part = os.read(self.process.stdout.fileno(), 1 << 20)
                assert part, "the browser ended"
                self.read += part
            text, self.read = self.read.split(b"\0", 1)
            message = json.loads(text)
            if message.get("id") == number:
                assert "error" not in message, (method, message)
                return message["result"]
            self.events.append(message)

    def open(self, page, view):
        """Opens a page and waits until its charts are drawn."""
        self.events.clear()
        width, scheme = view
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=f"file://{page}")
        end = time.monotonic() + 60
        while not self.run("document.documentElement?.dataset.drawn || ''"):
            assert time.monotonic() < end, f"{page}: never drawn"
            time.sleep(0.02)
        # Charts are drawn once their place has a size, and episodes are listed once the page stands.
        self.run("new Promise(done => requestAnimationFrame(() => setTimeout(() => requestAnimationFrame(() => done('')), 50)))")

    def run(self, expression):
        """The value of an expression in the page, awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, (expression, answer)
        return answer["result"].get("value")

    def complaints(self):
        """Errors of the page's scripts, messages on its console, and requests beyond its file."""
        for event in self.events:
            if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
                yield json.dumps(event)
            elif event["method"] == "Network.requestWillBeSent" and not event["params"]["request"]["url"].startswith(("file:", "data:", "blob:")):
                yield f"a request to {event['params']['request']['url']}"


@pytest.fixture(scope="module")
def browser():
    names = [os.environ["CHROMIUM"]] if "CHROMIUM" in os.environ else ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"]
    program = next((name for name in names if shutil.which(name) and run(f"{name} --version")[0] == 0), None)
    if not program:
        pytest.skip("there is no Chromium, so no page was opened: apt-get install chromium-headless-shell, or CHROMIUM=PROGRAM")
    browser = Browser(program)
    yield browser
    browser.process.kill()
    browser.process.wait()


def page(folder, name, *runs):
    must(f"report {' '.join(map(str, runs))} --html {folder}/{name}.html --quiet")
    return folder / f"{name}.html"


LONG = "a run with a name that goes on and on/until-it-is-wider-than-a-phone-is-and-has-no-blanks-in-it"


def pages(folder):
    """A page of every kind, by name."""
    days = [made_run(folder, f"day-{seed}", settings={"seed": str(seed)}) for seed in (1, 2, 3)]
    other = made_run(folder, LONG, steps=8, settings={"flags of advantage": "--estimator rloo --credit return --baseline none", "lr": "3e-4"})
    one = made_run(folder, "one")
    yield page(folder, "many", *(made_run(folder, f"rate-{lr}", steps=2, settings={"lr": f"{lr}e-4", "seed": str(lr % 2)}) for lr in range(1, 17)))
    yield page(folder, "several", *days, f"'{other}'")
    yield page(folder, "seeds", *days)
    yield page(folder, "one", one)
    # A CPU's log-probabilities do not differ at all; no task is solved, every answer is cut, and a step takes an hour.
    yield page(folder, "stuck", made_run(folder, "stuck", learns=False, cut=1.0, seconds=3600.0, settings={
        "policies": "adapter-per-role", "model": "smollm2", "adapter": "rank=16,alpha=32"}, defaults={"model": "tiny", "policies": "shared", "branches": "8"}))
    yield page(folder, "minutes", made_run(folder, "minutes", seconds=1000.0, joint=True, steps=2))
    yield page(folder, "begun", made_run(folder, "begun", steps=0))
    yield page(folder, "stream", one / "steps/000003/samples.jsonl")
    yield page(folder, "long", made_run(folder, "long", steps=300))


def test_pages_of_every_kind_are_whole_in_a_browser(browser, tmp_path):
    faults = []
    for made in pages(tmp_path):
        for view in VIEWS:
            browser.open(made, view)
            faults += [(made.stem, view, fault) for fault in [*browser.complaints(), *browser.run(AUDIT)]]
    assert faults == []


FIRST = "document.querySelector('.plot text')"
SECOND = "document.querySelectorAll('.plot text')[1]"


@pytest.mark.parametrize(("harm", "fault"), [
    (f"{FIRST}.setAttribute('x', -20)", "is cut"), (f"{SECOND}.setAttribute('y', {FIRST}.getAttribute('y'))", "overlap"),
    (f"{FIRST}.textContent = {SECOND}.textContent", "repeated labels"),
    ("document.querySelector('.plot path').setAttribute('d', 'MNaN 3')", "no number"),
    ("document.querySelector('.card').style.width = '20px'", "is cut by .card"), ("document.body.style.minWidth = '1600px'", "1600 wide"),
    ("document.querySelector('nav').style.width = '100px'", "NAV is cut")])
def test_audit_finds_planted_faults(browser, tmp_path, harm, fault):
    """Or it proves nothing."""
    browser.open(page(tmp_path, "one", made_run(tmp_path, "one")), VIEWS[0])
    browser.run(f"{harm}; ''")
    assert fault in json.dumps(browser.run(AUDIT), ensure_ascii=False)


def test_complaints_of_a_page_are_heard(browser, tmp_path):
    browser.open(page(tmp_path, "one", made_run(tmp_path, "one")), VIEWS[0])
    browser.run("setTimeout(() => nothing.here); fetch('http://localhost:9/').catch(() => 0); new Promise(done => setTimeout(() => done(''), 300))")
    complaints = "\n".join(browser.complaints())
    assert "nothing is not defined" in complaints and "a request to http://localhost:9/" in complaints


def test_page_switches_axes_curves_and_settings(browser, tmp_path):
    browser.open(page(tmp_path, "one", made_run(tmp_path, "one", defaults={"lr": "5e-4", "branches": "8"})), VIEWS[0])

    def press(text):
        browser.run(f"[...document.querySelectorAll('button')].filter(one => one.textContent.startsWith({json.dumps(text)})).forEach(one => one.click()); ''")

    labels = "[...document.querySelectorAll('[data-chart=agreement] .plot text')].map(text => text.textContent).join(' ')"
    assert "10⁻⁵" in browser.run(labels), "logarithmic at first"
    press("log")
    linear = browser.run(labels)
    assert "·10⁻" in linear or "10⁻⁵" not in linear
    curves = "document.querySelectorAll('[data-chart=entropy] .plot path').length"
    before = browser.run(curves)
    browser.run("const choice = document.querySelector('.smoothing select'); choice.value = 5; choice.dispatchEvent(new Event('change')); ''")
    assert (before, browser.run(curves)) == (2, 4), "each curve with its mean of five steps"
    press("Only the 2 that differ")
    rows = "[...document.querySelectorAll('.settings > *')].filter(row => row.offsetWidth).map(row => row.textContent.trim()).join('; ')"
    assert browser.run(rows) == "branches2 default 8; lr1e-3 default 5e-4" and browser.run(AUDIT) == list(browser.complaints()) == []
    # The first stop of the keyboard leads to the episodes, whose list is one stop.
    assert browser.run("document.querySelector('a, button, input, select').getAttribute('href')") == "#episodes"
    assert browser.run("[...document.querySelectorAll('.rows [role=option]')].filter(row => row.tabIndex === 0).length") == 1
    down = ("document.querySelector('.rows [tabindex=\"0\"]').focus(); "
            "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown', bubbles: true})); "
            "document.activeElement.getAttribute('aria-selected') + ' ' + location.hash.startsWith('#episode=')")
    assert browser.run(down) == "true true"


def test_page_exports_the_data_that_report_writes(browser, tmp_path):
    browser.open(page(tmp_path, "one", made_run(tmp_path, "one")), VIEWS[1])

    def numbers(text):
        def number(cell):
            try:
                return f"{float(cell):.5e}"
            except ValueError:
                return cell
        return [list(map(number, line.split(","))) for line in text.splitlines()]

    for chart, of in (("success", "DATA.success[0]"), ("flat-groups", "RUNS[0].groups[1]")):
        run(f"report one --figure {chart}.svg --quiet", tmp_path)  # the data is written without matplotlib, too
        assert numbers(browser.run(f"table({of}, opened({of}.series))")) == numbers((tmp_path / f"{chart}.csv").read_text()), chart
    svg = browser.run("standalone(DATA.success[0], opened(DATA.success[0].series), false)")
    assert svg.startswith("<svg ") and "var(" not in svg and "color-mix" not in svg
    assert all(text in svg for text in ("100 %", ">held out<", ">in training<", ">step<", "#0068a8"))
    # A click makes the file.
    browser.run("const link = document.querySelector('.tools a[download]'); link.addEventListener('click', event => event.preventDefault()); "
                "link.click(); ''")
    assert browser.run("link.href").startswith("blob:")
