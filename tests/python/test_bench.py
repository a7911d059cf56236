"""Scripts of bench/ and tests/gpu_visit.sh: self-checks, the cells they list, the rows that a visit measures, and the table they fill."""
import os
import re
import shutil

import pytest
from conftest import ROOT, must, run


def test_paper_cells_are_trained_to_their_budget_once():
    """By their self-checks: numbers worked out by hand, and tiny cells trained."""
    must("python3 bench/paper/check.py")


@pytest.mark.parametrize("script", ["main_table", "grouping", "roles", "controls", "real_model", "magrpo", "hunt", "credit", "studies"])
def test_paper_script_lists_its_cells(script):
    printed = must(f"python3 bench/paper/{script}.py list --root /nonexistent/runs")
    assert len(printed.splitlines()) >= 3 and "done: none" in printed


def test_ci_runs_every_script_or_names_its_caller():
    there = {f"bench/{folder}/{name}" for folder in ("speed", "paper") for name in os.listdir(ROOT / "bench" / folder)
             if name not in ("README.md", "__pycache__")}
    assert len(there) > 40
    text = (ROOT / ".ci/bench").read_text()
    named = set(re.findall(r"^(?:run |cell |environment |    ').*?(bench/(?:speed|paper)/[^ ':\n]+)", text, re.M))
    assert there == named


@pytest.fixture
def visit(tmp_path):
    """A repository with the script and no measurements."""
    for name in ("tests/gpu_visit.sh", "bench/speed/gpu.tsv"):
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    must("sed -i 1q bench/speed/gpu.tsv; mkdir update; echo first >update/code; git init -q; git add -A; "
         "git -c user.name=a -c user.email=a@b commit -qm one", tmp_path)
    return tmp_path


def test_visit_measures_new_rows_then_changed_then_old_ones(visit):
    head = must("git rev-parse --short=12 HEAD", visit).strip()

    def plan():
        return [line.split()[0] for line in must("tests/gpu_visit.sh plan", visit).splitlines()]

    def merge(rows):
        (visit / "figures").write_text(rows)
        return run("tests/gpu_visit.sh merge figures", visit)

    new = plan()
    assert new[:3] == ["facts", "roofline", "tests"]
    # All were measured but one; the second one most recently.
    rows = "".join(f"2026-11-{28 if place == 3 else 27}\t{head}\tcard\t580\t{name}\tok\t\t\t\t9\n"
                   for place, name in enumerate(new) if name != "decode-long:1.7B")
    assert f"{len(new) - 1} new" in merge(rows)[1] and "0 new" in merge(rows)[1], "merged twice"
    measured = plan()
    assert (measured[2], measured[-1]) == ("decode-long:1.7B", new[3])
    # One that could not run there was never measured.
    assert "1 new" in merge(f"2026-11-28\t{head}\tcard\t580\t{measured[2]}\tNOT RUN\t\t\t\t0\n")[1]
    assert plan() == measured
    # Rows with changed code come before others of the same day, and after rows that were never measured.
    (visit / "update/code").write_text("second")
    changed = plan()
    assert changed[2:4] == ["decode-long:1.7B", "tests"] and changed.index("train:1.7B") < changed.index("kernels:1.7B")
    before = (visit / "bench/speed/gpu.tsv").read_text()
    assert merge("2026-11-28\tok\n")[0] == 65
    assert before == (visit / "bench/speed/gpu.tsv").read_text(), "nothing is appended by half"


def test_benchmarks_have_the_newest_figures(tmp_path):
    must("python3 bench/speed/gpu_table.py --check")
    # A newer figure changes them.
    document = tmp_path / "document"
    shutil.copy(ROOT / "docs/benchmarks.md", document)

    def table(commit, flags):
        row = f"2026-11-30\t{commit}\tcard\t580\tdecode:1.7B/1.7B: prefill, context 1536\t123456\ttokens/s\t61 %\t0\t9\n"
        (tmp_path / "figures").write_text((ROOT / "bench/speed/gpu.tsv").read_text() + row)
        return run(f"python3 bench/speed/gpu_table.py {flags} {document} {tmp_path}/figures")

    assert table("0123456", "--check")[0] == 0, "a build that was measured beside another"
    code, printed, said = table("0123456789ab", "--check")
    assert code == 1 and "hint: bench/speed/gpu_table.py" in printed + said
    assert table("0123456789ab", "")[0] == 0
    assert "| prefill, tokens/s | 123,456 | 61 % | 0123456789ab |" in document.read_text()
