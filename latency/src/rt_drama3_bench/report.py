"""A run as one HTML page: tables and pictures, self-contained, nothing fetched, no scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import Any

from rt_drama3_bench import plots
from rt_drama3_bench.metrics import TOLERATED
from rt_drama3_bench.plots import COLOURS, DARK, LIGHT, Bar
from rt_drama3_bench.result import BROKEN, OVER_TIME, Result
from rt_drama3_bench.tables import cells, number

MOST_CURVES = 40
_CHUNKS = (COLOURS[0], "#80b3ff")  # one chunk from the next
_LANES = ("text", "prefill", "frames", "codec", "send", "way", "playback")


def _variables(colours: Sequence[str], **named: str) -> str:
    """CSS variables of one colour scheme."""
    values = {f"c{number}": colour for number, colour in enumerate(colours)} | named
    return " ".join(f"--{name}: {value};" for name, value in values.items())


_STYLE = f"""
:root {{ color-scheme: light dark;
  {_variables(LIGHT, ink="#1f2328", paper="#fff", dim="#57606a", line="#d0d7de", box="#f6f8fa")} }}
@media (prefers-color-scheme: dark) {{ :root {{
  {_variables(DARK, ink="#e6edf3", paper="#0d1117", dim="#9198a1", line="#30363d", box="#161b22")}
}} }}
body {{ font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em;
       color: var(--ink); background: var(--paper); overflow-wrap: anywhere }}
.wide {{ overflow-x: auto }} table {{ border-collapse: collapse; margin: 1em 0 }}
td, th {{ padding: 0.15em 0.7em; text-align: right; border-bottom: 1px solid var(--line);
  overflow-wrap: normal }}
td:first-child, th:first-child {{ text-align: left }}
svg {{ max-width: 100%; height: auto }}
svg text {{ font: 11px system-ui, sans-serif; fill: var(--dim) }}
.miss {{ color: var(--c1); font-weight: bold }} .ok {{ color: var(--c2) }}
.unsure {{ color: var(--c3) }}
.noisy {{ background: var(--box); border-left: 4px solid var(--c3); padding: 0.5em 1em }}
pre {{ background: var(--box); padding: 1em; overflow-x: auto }}
"""


def page(result: Result) -> str:
    """The whole document."""
    where = result.environment
    version = where.get("rt_drama3")
    product = [f"rt-drama3 {version}"] if version else []
    parts = [
        f"<h1>{escape(result.scenario)}</h1>",
        f"<p>measured: <strong>{escape(result.target)}</strong></p>" if result.target else "",
        f"<p>{escape('; '.join([result.machine, *product, str(where.get('time'))]))}</p>",
    ]
    if result.noise is not None and result.noise.noisy:
        reasons = escape("; ".join(result.noise.reasons))
        parts.append(f'<p class="noisy">This machine was noisy: {reasons}.</p>')
    parts += [f"<p>{escape(note)}</p>" for note in result.notes]
    parts += [_verdicts(result), _pictures(result), _series(result), _facts(result)]
    title = escape(": ".join(part for part in (result.scenario, result.target, "latency") if part))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title>"
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _pictures(result: Result) -> str:
    parts = [*_over_level(result), *_over_time(result)]
    spoken = [u for u in result.utterances if u["pieces"]]
    shown = next((u for u in spoken if u["pieces"][0]["stamps"]), spoken[0] if spoken else None)
    if shown is not None:
        parts += ["<h2>One utterance, from text to ear</h2>", timeline(shown)]
        made, heard = (max(p[when] for p in shown["pieces"]) for when in ("at_ms", "heard_ms"))
        if heard > 2 * made:
            parts += ["<p>The same, until the last chunk came:</p>", timeline(shown, made)]
    firsts = _first_audio(result)
    if firsts is not None:
        name, samples = firsts
        parts += [f"<h2>{escape(name)}</h2>", plots.histogram(samples, "ms")]
    curves = [
        (u["label"] or f"utterance {n}", [(p["at_ms"], p["lead_ms"]) for p in u["pieces"][1:]])
        for n, u in enumerate(spoken)
        if len(u["pieces"]) > 2
    ][:MOST_CURVES]
    if curves:
        axes = ("ms since the request was due", "ms buffered")
        parts += ["<h2>Audio buffered by the listener</h2>", plots.lines(curves, *axes, level=0.0)]
    if len(spoken) > 1:
        start = min(u["due_s"] for u in spoken)
        points = [(u["due_s"] - start, u["underrun_worst_ms"], str(u["label"])) for u in spoken]
        words = ("s since the beginning", "worst underrun, ms")
        parts += ["<h2>Continuity of every stream</h2>", plots.dots(points, *words, TOLERATED)]
    return "".join(parts)


def _over_level(result: Result) -> list[str]:
    """What ``load`` found, level by level."""
    levels = result.facts.get("levels") or []
    if not levels:
        return []
    pattern = str(result.facts.get("pattern", ""))
    axis = f"load ({pattern}), {result.facts.get('unit', 'level')}"
    named = (("first_p95_ms", "first audio, p95"), ("worst_ms", "worst underrun"))
    times = _curves({title: [(one["load"], one[key]) for one in levels] for key, title in named})
    kinds = ("failed", "stuttered", "waited")
    shares = _curves({k: [(one["load"], one[k] / one["asked"]) for one in levels] for k in kinds})
    return [
        "<h2>First audio and underruns over the level</h2>",
        plots.lines(times, axis, "ms", level=TOLERATED),
        "<h2>What went wrong, over the level</h2>",
        plots.lines(shares, axis, "share of the utterances", level=BROKEN),
    ]


def _over_time(result: Result) -> list[str]:
    """What ``soak`` watched, figure by figure."""
    parts: list[str] = []
    for name, curve in (result.facts.get(OVER_TIME) or {}).items():
        title = f"<h2>{escape(name)}</h2>"
        parts += [title, plots.lines([(name, curve)], "s since the beginning", name)]
    return parts


def _curves(named: dict[str, list[Any]]) -> list[tuple[str, list[tuple[float, float]]]]:
    """Curves without the points that have no value."""
    known = {name: [(x, y) for x, y in curve if y is not None] for name, curve in named.items()}
    return [(name, curve) for name, curve in known.items() if curve]


def timeline(utterance: dict[str, Any], until: float | None = None) -> str:
    """Prefill, frames, groups, sends and playback of one utterance; cut off at ``until`` ms."""
    bars = [Bar("text", 0.0, 0.0, COLOURS[5], "the text is sent")]
    before = 0.0
    for place, chunk in enumerate(utterance["pieces"]):
        stamps, at = chunk["stamps"] or {}, chunk["at_ms"]
        what = f"chunk {place}: {chunk['audio_ms']:.0f} ms of audio"
        # The server counts from when it accepted the request, somewhat after this clock began.
        if {"prefilled", "sampled", "decoded"} <= stamps.keys():
            drawn = stamps["sampled"]
            if place == 0:
                span = f"prompt read, {stamps['prefilled']:.1f} ms"
                bars.append(Bar("prefill", 0.0, stamps["prefilled"], COLOURS[4], span))
                before = stamps["prefilled"]
            bars.append(Bar("frames", before, drawn, _CHUNKS[place % 2], what))
            decoded = stamps["decoded"]
            bars.append(Bar("codec", drawn, decoded, COLOURS[2], f"{what}, decoded"))
            sent = stamps.get("sent", decoded)
            bars.append(Bar("send", decoded, sent, COLOURS[3], f"{what}, sent"))
            bars.append(Bar("way", min(sent, at), at, COLOURS[5], f"{what}, on its way"))
            before = drawn
        heard = chunk["heard_ms"]
        title = f"{what}, heard from {heard:.1f} ms, lead {chunk['lead_ms']:.1f} ms"
        bars.append(Bar("playback", heard, heard + chunk["audio_ms"], _CHUNKS[place % 2], title))
    if until is not None:
        bars = [replace(b, end=min(b.end, until)) for b in bars if b.start <= until]
    used = [name for name in _LANES if any(bar.lane == name for bar in bars)]
    return plots.lanes(bars, used, "ms since the request was due")


def _first_audio(result: Result) -> tuple[str, list[float]] | None:
    for wanted in ("first audible", "first pcm", "first audio"):
        for series in result.series:
            if wanted in series.name.lower():
                return series.title, series.samples
    return None


def _verdicts(result: Result) -> str:
    if not result.verdicts:
        return ""
    rows: list[Sequence[str]] = []
    for verdict in result.verdicts:
        word = "unsure" if verdict.unsure else "ok" if verdict.met else "miss"
        limit = f"{'&ge;' if verdict.at_least else '&le;'} {verdict.limit:g}"
        why = escape(verdict.unsure or verdict.detail)
        mark = f'<span class="{word}">{word}</span>'
        rows.append((escape(verdict.name), number(verdict.value), limit, mark, why))
    return "<h2>Judged</h2>" + _table(("", "value", "limit", "", ""), rows)


def _series(result: Result) -> str:
    if not result.series:
        return ""
    rows = [[*map(escape, cells(series))] for series in result.ranked]
    heads = ("", "n", "p50", "95 %", "p95", "95 %", "p99", "max")
    return "<h2>All samples, none left out</h2>" + _table(heads, rows)


def _facts(result: Result) -> str:
    facts = {
        "arguments": result.arguments,
        "preparation, s": result.preparation,
        "facts": {name: fact for name, fact in result.facts.items() if name != OVER_TIME},
        "environment": result.environment,
    }
    return f"<h2>More</h2><pre>{escape(json.dumps(facts, indent=1, default=str))}</pre>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{one}</th>" for one in heads)
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'
