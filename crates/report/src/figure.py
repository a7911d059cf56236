"""Draws a chart of `report` for a paper: the chart as JSON on stdin, pdf, svg or png as argument, the figure on stdout.

Colors are from Okabe and Ito and can be told apart with any color vision; dashes tell roles apart, in print too. There is no
title, because a paper has captions.
"""

import json
import sys
import textwrap

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot, ticker  # noqa: E402

PALETTE = ["#0068a8", "#c8500a", "#00805c", "#a1467f", "#9a6a00", "#3f6fd1", "#6b7480"]
DASHES = ["-", (0, (6, 3)), (0, (2, 3)), (0, (8, 3, 2, 3)), (0, (1, 4))]
# The characters of a line of the legend.
LINE = 76
STYLE = {
    "font.size": 9, "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True,
    "grid.color": "#e4e4e4", "grid.linewidth": 0.5, "axes.linewidth": 0.8,
    # Publishers ask for TrueType, and the texts of an SVG stay texts.
    "pdf.fonttype": 42, "svg.fonttype": "none",
    # Without it the names in an SVG are random.
    "svg.hashsalt": "report",
}


def color(series):
    """The color of a series: one of the palette by number; after seven the same ones, half as strong."""
    if series["color"] == "idle":
        return "#c9ced5"
    number = 1 if series["color"] == "bad" else series["color"]
    strong = matplotlib.colors.to_rgb(PALETTE[number % 7])
    return strong if number % 14 < 7 else tuple((1 + part) / 2 for part in strong)


def label(series):
    """The name of a series, in lines that are as wide as the figure."""
    return textwrap.fill(series["name"], LINE)


def column(points, name):
    return [point[name] for point in points]


def draw_curves(axes, chart):
    for series in chart["series"]:
        points = sorted(series["points"], key=lambda point: point["x"])
        banded = [point for point in points if point["low"] is not None]
        if len(banded) > 1 and not series["thin"]:
            axes.fill_between(column(banded, "x"), column(banded, "low"), column(banded, "high"), color=color(series),
                              alpha=0.15, linewidth=0)
        has_dots = len(points) == 1 or len(points) <= 30 and not series["thin"]
        axes.plot(column(points, "x"), column(points, "y"), color=color(series), label=label(series),
                  linestyle=DASHES[series["dash"] % len(DASHES)], linewidth=0.8 if series["thin"] else 1.4,
                  marker="o" if has_dots else None, markersize=3)


def draw_bars(axes, chart):
    xs = sorted({point["x"] for series in chart["series"] for point in series["points"]})
    width = 0.8 * min((after - before for before, after in zip(xs, xs[1:])), default=1)
    tops = dict.fromkeys(xs, 0.0)
    for series in chart["series"]:
        for point in series["points"]:
            axes.bar(point["x"], point["y"], width, tops[point["x"]], color=color(series), linewidth=0)
            tops[point["x"]] += point["y"]
        axes.bar(xs[0], 0, color=color(series), label=label(series))


def label_axes(axes, chart):
    if chart["log"]:
        axes.set_yscale("log")
    low, high = axes.dataLim.ymin, axes.dataLim.ymax
    if chart["kind"] == "bars" or not chart["log"] and (0 < low < 0.6 * high or high == 0):
        axes.set_ylim(bottom=0)
    axes.set_ylabel("success" if chart["name"].startswith("success") else chart["title"])
    axes.set_xlabel("tokens generated in training" if chart["x"] == "tokens" else chart["x"])
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    if chart["x"] == "tokens":
        axes.xaxis.set_major_formatter(ticker.EngFormatter())
    if chart["unit"] == "share":
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    elif chart["unit"] == "seconds":
        axes.yaxis.set_major_formatter(lambda value, _: f"{value / 60:g} min" if high >= 120 else f"{value:g} s")
    elif not chart["log"] and high >= 1e4:
        axes.yaxis.set_major_formatter(ticker.EngFormatter())


def main():
    chart, kind = json.load(sys.stdin), sys.argv[1]
    pyplot.rcParams.update(STYLE)
    # A column of text is 3.3 to 5.5 inches wide in most conference styles.
    figure, axes = pyplot.subplots(figsize=(5, 3), layout="constrained")
    (draw_bars if chart["kind"] == "bars" else draw_curves)(axes, chart)
    label_axes(axes, chart)
    if len(chart["series"]) > 1:
        longest = max(len(series["name"]) for series in chart["series"])
        figure.legend(loc="outside lower center", ncols=max(1, min(len(chart["series"]), 80 // (longest + 8))))
    dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    figure.savefig(sys.stdout.buffer, format=kind, dpi=200, metadata=dates.get(kind))


main()
