"""Plots of a run, as PNG files. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tandem.bench.samples import Sample
from tandem.bench.summary import Row, gaps
from tandem.bench.variants import Load, Variant

_WIDTH, _HEIGHT = 8.0, 4.8


class NoPlots(Exception):
    """matplotlib is missing."""


def draw(folder: Path, stem: str, rows: Sequence[Row], samples: Sequence[Sample]) -> list[Path]:
    """Write what there is data for to FOLDER/STEM-….png. Raises NoPlots; OSError if a file can't be written."""
    try:
        import matplotlib
    except ImportError:
        raise NoPlots("plots need matplotlib: pip install -e '.[bench]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    kinds: dict[str, Callable[[Any, Sequence[Row], Sequence[Sample]], bool]] = {
        "speedup": _speed_up,
        "acceptance": _acceptance,
        "latency": _latency,
        "throughput": _throughput,
    }
    written = []
    for name, plot in kinds.items():
        figure = pyplot.figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        try:
            if plot(figure, rows, samples):
                path = folder / f"{stem}-{name}.png"
                figure.savefig(path, dpi=120)
                written.append(path)
        finally:
            pyplot.close(figure)
    return written


def _first_load(rows: Sequence[Row]) -> list[Row]:
    """The rows of the first load, which is where the least waits for anything else."""
    return [row for row in rows if row.load == rows[0].load]


def _label(row: Row, rows: Sequence[Row]) -> str:
    several = len({other.variant.temperature for other in rows}) > 1
    return row.variant.name + (f", T {row.variant.temperature:g}" if several else "")


def _colours(rows: Sequence[Row]) -> dict[Variant, Any]:
    """One colour a variant, the same in every plot; plain decoding is black."""
    from matplotlib import colormaps

    others = [variant for variant in dict.fromkeys(row.variant for row in rows) if not variant.is_plain]
    strong = colormaps["tab10"] if len(others) <= 10 else colormaps["tab20"]
    return {variant: strong(number % strong.N) for number, variant in enumerate(others)}


def _speed_up(figure: Any, rows: Sequence[Row], samples: Sequence[Sample]) -> bool:
    """By γ, a line for each way of drafting; ways without a γ of their own as level lines. Without a sweep: bars."""
    shown = [row for row in _first_load(rows) if not row.variant.is_plain and not math.isnan(row.speed_up.value)]
    if not shown:
        return False
    axes = figure.subplots()
    colours = _colours(rows)
    fixed = [row for row in shown if row.variant.draft_tokens is not None]
    if len({row.variant.draft_tokens for row in fixed}) > 1:
        lines: dict[Any, list[Row]] = {}
        for row in fixed:
            lines.setdefault(replace(row.variant, draft_tokens=None), []).append(row)
        for variant, points in lines.items():
            points.sort(key=lambda row: row.variant.draft_tokens or 0)
            label = _label(replace(points[0], variant=variant), shown)
            places = [row.variant.draft_tokens for row in points]
            style = {"marker": "o", "capsize": 3, "label": label, "color": colours[points[0].variant]}
            axes.errorbar(places, _values(points), yerr=_errors(points), **style)
        for row in (row for row in shown if row.variant.draft_tokens is None):
            adaptive = "" if row.variant.drafter is None else ", γ adaptive"
            label, colour = _label(row, shown) + adaptive, colours[row.variant]
            axes.axhline(row.speed_up.value, linestyle="--", color=colour, label=label)
        axes.axhline(1.0, color="black", linewidth=0.8, label="plain decoding")
        axes.set_xticks(sorted({row.variant.draft_tokens or 0 for row in fixed}))
        axes.set_xlabel("γ, draft tokens a round")
        axes.set_ylabel("speed-up")
        axes.legend(fontsize="small")
        axes.set_ylim(bottom=0)
    else:
        names = [_label(row, shown) for row in shown]
        places = list(range(len(shown)))
        axes.barh(places, _values(shown), xerr=_errors(shown), capsize=3)
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.set_yticks(places, names)
        axes.invert_yaxis()
        axes.set_xlabel("speed-up")
    axes.set_title(f"Speed-up over plain decoding, {shown[0].load.name} (bars: 95% interval over prompts)")
    return True


def _values(rows: Sequence[Row]) -> list[float]:
    return [row.speed_up.value for row in rows]


def _errors(rows: Sequence[Row]) -> list[list[float]]:
    """Distances below and above, 0 where there is no interval."""
    ratios = [row.speed_up for row in rows]
    below = [0.0 if math.isnan(ratio.low) else max(0.0, ratio.value - ratio.low) for ratio in ratios]
    return [below, [0.0 if math.isnan(ratio.high) else max(0.0, ratio.high - ratio.value) for ratio in ratios]]


def _acceptance(figure: Any, rows: Sequence[Row], samples: Sequence[Sample]) -> bool:
    shown = [row for row in _first_load(rows) if row.acceptance.rounds and row.acceptance.by_position]
    if not shown:
        return False
    axes = figure.subplots()
    colours = _colours(rows)
    for row in shown:
        found = row.acceptance.by_position
        label, colour = _label(row, shown), colours[row.variant]
        axes.plot(range(1, len(found) + 1), found, marker=".", label=label, color=colour)
    axes.set_ylim(0, 1)
    axes.set_xlabel("place in the draft")
    axes.set_ylabel("share of drafts accepted up to there")
    axes.set_title(f"Acceptance by position, {shown[0].load.name}")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize="small")
    return True


def _latency(figure: Any, rows: Sequence[Row], samples: Sequence[Sample]) -> bool:
    """The share of requests (of gaps) that took no longer, for each way under the first load."""
    shown = _first_load(rows)
    panels: list[tuple[str, Callable[[Sample], list[float]]]] = [
        ("TTFT, s", lambda sample: list(sample.reply.arrivals[:1]) if sample.reply else []),
        ("gap between chunks, ms", lambda sample: [1e3 * gap for gap in gaps(sample)]),
        ("whole request, s", lambda sample: [sample.reply.seconds] if sample.reply else []),
    ]
    colours = _colours(rows)
    all_axes = figure.subplots(1, len(panels), sharey=True)
    some = False
    for axes, (title, values_of) in zip(all_axes, panels, strict=True):
        for row in shown:
            own = [s for s in samples if (s.variant, s.load) == (row.variant, row.load)]
            values = sorted(value for sample in own for value in values_of(sample))
            if values:
                some = True
                axes.ecdf(values, label=_label(row, shown), color=colours.get(row.variant, "black"))
        axes.set_xlabel(title)
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
    all_axes[0].set_ylabel("share no longer than this")
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small")
    figure.suptitle(f"Latency, {shown[0].load.name}")
    return some


def _throughput(figure: Any, rows: Sequence[Row], samples: Sequence[Sample]) -> bool:
    """By concurrency and by rate, a panel each, where there is more than one."""
    panels = []
    for by_rate in (False, True):
        loads = list(dict.fromkeys(row.load for row in rows if (row.load.rate is not None) == by_rate))
        if len(loads) > 1:
            panels.append((by_rate, loads))
    if not panels:
        return False
    colours = _colours(rows)
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (by_rate, loads) in zip(all_axes, panels, strict=True):
        for variant in dict.fromkeys(row.variant for row in rows):
            own = [row for row in rows if row.variant == variant and row.load in loads]
            own.sort(key=lambda row: _place(row.load))
            places = [_place(row.load) for row in own]
            if own:
                values = [row.tokens_per_second for row in own]
                colour = colours.get(variant, "black")
                axes.plot(places, values, marker="o", label=_label(own[0], rows), color=colour)
        axes.set_xscale("log", base=2)
        axes.set_xticks([_place(load) for load in loads], [f"{_place(load):g}" for load in loads])
        axes.set_xlabel("requests a second" if by_rate else "requests at a time")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    all_axes[0].set_ylabel("tokens/s, all requests together")
    all_axes[0].legend(fontsize="small")
    figure.suptitle("Throughput by load")
    return True


def _place(load: Load) -> float:
    return load.rate if load.rate is not None else float(load.concurrency)
