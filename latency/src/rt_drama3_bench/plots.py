"""Plots as inline SVG: plain strings, no scripts, nothing to fetch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 260
MOST_MARKS = 100  # points of a plot that are marked one by one
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 12, 40
LIGHT = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a", "#bf3989", "#0a3069")
DARK = ("#4493f8", "#ff7b72", "#3fb950", "#d29922", "#ab7df8", "#9198a1", "#f778ba", "#a5d6ff")
COLOURS = tuple(f"var(--c{number})" for number in range(len(LIGHT)))  # the page defines both sets


@dataclass(frozen=True)
class Bar:
    """A piece of a lane.

    Attributes:
        lane: which.
        start, end: on the x axis.
        colour: of it.
        title: shown when it is pointed at.
    """

    lane: str
    start: float
    end: float
    colour: str
    title: str


@dataclass(frozen=True)
class _Axes:
    """A plot's frame: where values go, in pixels."""

    x: Callable[[float], float]
    y: Callable[[float], float]
    parts: list[str]


def histogram(samples: Sequence[float], label: str, bins: int = 30) -> str:
    """Counts as bars, and the share at or below each value as a line."""
    low, high = min(samples), max(samples)
    high = high if high > low else low + 1
    counts = [0] * bins
    for sample in samples:
        counts[min(bins - 1, int((sample - low) / (high - low) * bins))] += 1
    axes = _axes((low, high), (0, max(counts)), label, "count")
    width = (high - low) / bins
    for place, count in enumerate(counts):
        if count:
            left, right = axes.x(low + place * width), axes.x(low + (place + 1) * width)
            top = axes.y(count)
            axes.parts.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(1, right - left - 1):.1f}" '
                f'height="{HEIGHT - BOTTOM - top:.1f}" fill="var(--c0)" fill-opacity="0.4">'
                f"<title>{count}</title></rect>"
            )
    ranked = sorted(samples)
    path = [(axes.x(low), axes.y(0))]
    for place, sample in enumerate(ranked):
        share = max(counts) * (place + 1) / len(ranked)
        path += [(axes.x(sample), path[-1][1]), (axes.x(sample), axes.y(share))]
    axes.parts.append(_path(path, COLOURS[1]))
    note = f"line: share at or below, up to 1; n = {len(samples)}"
    axes.parts.append(_text(WIDTH - RIGHT, TOP + 10, note, "end"))
    return _svg(axes.parts, HEIGHT)


def lines(
    named: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    x_label: str,
    y_label: str,
    level: float | None = None,
) -> str:
    """Curves, named where there are at most eight; ``level`` is a dashed line across."""
    points = [point for _, curve in named for point in curve]
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    ys += [0.0] if level is None else [0.0, level]
    axes = _axes((min(xs), max(xs)), (min(ys), max(ys)), x_label, y_label, level)
    for number, (name, curve) in enumerate(named):
        colour = COLOURS[number % len(COLOURS)]
        path = _path([(axes.x(x), axes.y(y)) for x, y in curve], colour)
        few = curve if len(curve) * len(named) <= MOST_MARKS else ()
        marks = "".join(_mark(axes.x(x), axes.y(y), colour) for x, y in few)
        axes.parts.append(f"<g><title>{escape(name)}</title>{path}{marks}</g>")
        if 1 < len(named) <= len(COLOURS):
            legend = f'style="fill: {colour}"'
            axes.parts.append(_text(LEFT + 8, TOP + 12 + 14 * number, name, "start", legend))
    return _svg(axes.parts, HEIGHT)


def dots(
    points: Sequence[tuple[float, float, str]], x_label: str, y_label: str, level: float
) -> str:
    """One named dot for each value in milliseconds; those above the level are red."""
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    axes = _axes((min(xs), max(xs)), (0, max([*ys, level])), x_label, y_label, level)
    for x, value, name in points:
        colour = COLOURS[1] if value > level else COLOURS[0]
        axes.parts.append(
            f'<circle cx="{axes.x(x):.1f}" cy="{axes.y(value):.1f}" r="4" fill="{colour}" '
            f'fill-opacity="0.6"><title>{escape(name)}: {value:.0f} ms</title></circle>'
        )
    return _svg(axes.parts, HEIGHT)


def lanes(bars: Sequence[Bar], names: Sequence[str], x_label: str) -> str:
    """Bars in rows over one time axis."""
    row = 26
    height = TOP + row * len(names) + BOTTOM
    left = 96
    low, high = min(0.0, min(b.start for b in bars)), max(b.end for b in bars)
    high = high if high > low else low + 1

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * (WIDTH - RIGHT - left)

    parts: list[str] = []
    for tick in ticks(low, high):
        parts.append(_grid(x(tick), x(tick), TOP, height - BOTTOM))
        parts.append(_text(x(tick), height - BOTTOM + 16, f"{tick:g}", "middle"))
    for number, name in enumerate(names):
        parts.append(_text(left - 8, TOP + row * number + 17, name, "end"))
    for bar in bars:
        y = TOP + row * list(names).index(bar.lane) + 4
        wide = max(1.5, x(bar.end) - x(bar.start))
        parts.append(
            f'<rect x="{x(bar.start):.1f}" y="{y}" width="{wide:.1f}" height="{row - 8}" '
            f'fill="{bar.colour}" fill-opacity="0.75"><title>{escape(bar.title)}</title></rect>'
        )
    parts.append(_text((left + WIDTH - RIGHT) / 2, height - 8, x_label, "middle"))
    return _svg(parts, height)


def ticks(low: float, high: float, about: int = 8) -> list[float]:
    """Round numbers within a range."""
    raw = (high - low) / about
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= raw)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _axes(
    xs: tuple[float, float],
    ys: tuple[float, float],
    x_label: str,
    y_label: str,
    level: float | None = None,
) -> _Axes:
    (left, right), (low, high) = (_wide(*xs), _wide(*ys))

    def x(value: float) -> float:
        return LEFT + (value - left) / (right - left) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts: list[str] = []
    for tick in ticks(left, right):
        parts.append(_grid(x(tick), x(tick), TOP, HEIGHT - BOTTOM))
        parts.append(_text(x(tick), HEIGHT - BOTTOM + 16, f"{tick:g}", "middle"))
    for tick in ticks(low, high, 5):
        parts.append(_grid(LEFT, WIDTH - RIGHT, y(tick), y(tick)))
        parts.append(_text(LEFT - 6, y(tick) + 4, f"{tick:g}", "end"))
    parts.append(_text((LEFT + WIDTH) / 2, HEIGHT - 8, x_label, "middle"))
    middle = (HEIGHT - BOTTOM + TOP) / 2
    turned = f'transform="rotate(-90 14 {middle:.0f})"'
    parts.append(_text(14, middle, y_label, "middle", turned))
    if level is not None:
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(level):.1f}" y2="{y(level):.1f}" '
            f'stroke="{COLOURS[1]}" stroke-dasharray="4 4"/>'
        )
    return _Axes(x, y, parts)


def _wide(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _grid(x1: float, x2: float, y1: float, y2: float) -> str:
    ends = f'x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="var(--line)" stroke-width="0.5"/>'


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {place} {more}>{escape(text)}</text>"


def _path(points: Sequence[tuple[float, float]], colour: str) -> str:
    way = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _mark(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>'


def _svg(parts: Sequence[str], height: float) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )
