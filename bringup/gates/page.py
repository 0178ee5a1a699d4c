"""The gates as one HTML page that needs nothing else: a table, and plots as SVG."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from bringup.gates.definition import Definition
from bringup.gates.measure import better_high

STYLE = """body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:.6em 0 1.4em}td,th{border:1px solid #ccc;padding:.25em .7em;text-align:left}
td.n{text-align:right;font-variant-numeric:tabular-nums}.ok{color:#0a6b2d}.no{color:#a4161a;font-weight:600}
svg{background:#fafafa;border:1px solid #ddd;margin:.3em 1em .6em 0}svg text{font:11px system-ui,sans-serif;fill:#444}
.small{color:#666;font-size:13px}"""
_WIDTH, _HEIGHT, _LEFT, _FOOT = 440, 180, 52, 26


def page(title: str, definition: Definition, state: Mapping[str, Any], approved: Mapping[str, Any]) -> str:
    """The whole page. `state` is the gate's kept state, `approved` the approved scorecard or empty."""
    cycles: Mapping[str, Mapping[str, Any]] = state.get("cycles") or {}
    last = cycles[max(cycles, key=int)] if cycles else {}
    release = escaped(str(state.get("release"))[:12])
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{escaped(title)}</title><style>{STYLE}</style>",
             f"<h1>{escaped(title)}</h1><p class=small>release {release} · "
             f"{len(cycles)} cycle(s) · tolerance {definition.tolerance:g} %"
             + (f" against {escaped(str(approved.get('release')))} approved by {escaped(str(approved.get('by')))}"
                if approved else " · nothing was approved yet") + "</p>", _overview(definition, cycles)]
    for line in definition.lines:
        entry = last.get(line.name)
        parts.append(f"<h2>{escaped(line.name)}</h2><p class=small>owner {escaped(line.owner)} · "
                     f"<code>{escaped(line.command)}</code>"
                     f"<br>rollback: {escaped(line.rollback)}</p>")
        if entry is None:
            parts.append("<p>not run</p>")
            continue
        before = (approved.get("lines") or {}).get(line.name) or {}
        parts.append(f"<p>{escaped(str(entry.get('told')))}, {float(entry.get('seconds') or 0):.1f} s</p>")
        parts.append(_measures(entry.get("measures") or {}, {k: str(b) for k, b in line.bounds.items()}, before))
        parts += _plots(entry)
    if len(cycles) > 1:
        parts.append(_over_cycles(definition, cycles))
    return "\n".join(parts) + "</html>\n"


def _overview(definition: Definition, cycles: Mapping[str, Mapping[str, Any]]) -> str:
    head = "".join(f"<th>cycle {escaped(number)}" for number in sorted(cycles, key=int))
    rows = ""
    for line in definition.lines:
        cells = ""
        for number in sorted(cycles, key=int):
            entry = cycles[number].get(line.name)
            word, kind = ("not run", "") if entry is None else ("pass", "ok") if entry.get("passed") else ("FAIL", "no")
            cells += f"<td class={kind or 'small'}>{word}"
        rows += f"<tr><td>{escaped(line.name)}<td>{escaped(line.owner)}{cells}"
    return f"<table><tr><th>gate<th>owner{head}{rows}</table>"


def _measures(measures: Mapping[str, Any], bounds: Mapping[str, str], before: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escaped(name)}<td class=n>{_number(value)}<td>{escaped(bounds.get(name, ''))}"
        f"<td class=n>{_number(before.get(name)) if name in before else ''}"
        f"<td class=small>{'more is better' if better_high(name) else ''}"
        for name, value in measures.items() if value is not None or name in bounds)
    return f"<table><tr><th>measure<th>now<th>pass line<th>approved<th>{rows}</table>"


def _number(value: Any) -> str:
    return "not measured" if value is None else f"{float(value):.4g}"


def _plots(entry: Mapping[str, Any]) -> list[str]:
    series = entry.get("series") or {}
    out = []
    for name, words in (("first_token", "seconds to the first token"), ("whole", "seconds of whole answers")):
        values = series.get(name) or []
        if len(values) > 1:
            out.append(distribution(words, [float(value) for value in values]))
    if series.get("pairs"):
        rows = "".join("<tr>" + "".join(f"<td>{escaped(str(cell))}" for cell in row) for row in series["pairs"])
        out.append(f"<table><tr><th>pair<th>by the table<th>did<th>where{rows}</table>")
    recovered = {name.partition("_")[2]: float(value) for name, value in (entry.get("measures") or {}).items()
                 if name.startswith("recovery_") and value is not None}
    if recovered:
        out.append(bars("seconds until it serves again", recovered))
    return out


def distribution(words: str, values: Sequence[float]) -> str:
    """Share of answers (upwards) that came within so many seconds (to the right), as a curve with p50 and p95."""
    return curves(words, {"": values})


_LINES = (("#1c5d99", ""), ("#b3541e", ' stroke-dasharray="7 4"'))
"""Colour and pattern of each curve: the pattern tells them apart too."""


def curves(words: str, sides: Mapping[str, Sequence[float]]) -> str:
    """The same for one or two sides over one axis, each named in the plot."""
    most = max((max(values) for values in sides.values() if values), default=1.0) or 1.0
    width, height = _WIDTH - _LEFT - 12, _HEIGHT - _FOOT - 22
    body = ""
    for number, (name, values) in enumerate(sides.items()):
        colour, pattern = _LINES[number % len(_LINES)]
        ordered = sorted(values)
        points = " ".join(f"{_LEFT + width * value / most:.1f},{22 + height * (1 - (rank + 1) / len(ordered)):.1f}"
                          for rank, value in enumerate(ordered))
        for percent in (50, 95) if ordered else ():
            value = ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
            x = _LEFT + width * value / most
            body += (f'<line x1="{x:.1f}" y1="22" x2="{x:.1f}" y2="{22 + height}" stroke="#bbb" '
                     'stroke-dasharray="3 3"/>')
            if len(sides) == 1:
                body += f'<text x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">p{percent} {value:.3g}</text>'
        body += f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{pattern}/>'
        if name:
            y = _HEIGHT - _FOOT - 8 - 15 * (len(sides) - 1 - number)
            body += (f'<line x1="{_WIDTH - 225}" y1="{y - 4}" x2="{_WIDTH - 200}" y2="{y - 4}" stroke="{colour}" '
                     f'stroke-width="2"{pattern}/><text x="{_WIDTH - 195}" y="{y}">{escaped(_short(name))}</text>')
    if len(sides) > 1:
        body += f'<text x="{_WIDTH - 12}" y="{_HEIGHT - 8}" text-anchor="end">{most:.3g} s</text>'
    return _svg(words, f'{body}<text x="4" y="30">100 %</text><text x="14" y="{22 + height}">0 %</text>')


def _short(name: str) -> str:
    return name if len(name) <= 32 else name[:31] + "…"


def pairs_of_bars(words: str, values: Mapping[str, tuple[float | None, float | None]], names: tuple[str, str]) -> str:
    """Two bars for each name, of 100: the first side above the second; a side that was not measured has none."""
    step = (_HEIGHT - 56) / max(1, len(values))
    body = "".join(f'<rect x="{6 + 220 * side}" y="{_HEIGHT - 16}" width="10" height="10" fill="{_LINES[side][0]}"/>'
                   f'<text x="{20 + 220 * side}" y="{_HEIGHT - 7}">{escaped(_short(name))}</text>'
                   for side, name in enumerate(names))
    for number, (name, pair) in enumerate(values.items()):
        y = 24 + number * step
        body += f'<text x="6" y="{y + step / 2 + 2:.1f}">{escaped(name.replace("_", " "))}</text>'
        for side, value in enumerate(pair):
            if value is None:
                continue
            wide, top = (_WIDTH - 180) * value / 100, y + side * step * 0.42
            body += (f'<rect x="120" y="{top:.1f}" width="{wide:.1f}" height="{step * 0.36:.1f}" '
                     f'fill="{_LINES[side][0]}"/>'
                     f'<text x="{125 + wide:.1f}" y="{top + step * 0.34:.1f}">{value:.3g}</text>')
    return _svg(words, body)


def bars(words: str, values: Mapping[str, float]) -> str:
    """A bar for each name."""
    most = max(values.values()) or 1.0
    step = (_HEIGHT - 30) / max(1, len(values))
    body = ""
    for number, (name, value) in enumerate(values.items()):
        y = 26 + number * step
        wide = (_WIDTH - 150) * value / most
        body += (f'<text x="6" y="{y + step / 2 + 2:.1f}">{escaped(name)}</text><rect x="80" y="{y:.1f}" '
                 f'width="{wide:.1f}" height="{step * 0.65:.1f}" fill="#1c5d99"/>'
                 f'<text x="{86 + wide:.1f}" y="{y + step / 2 + 2:.1f}">{value:.3g}</text>')
    return _svg(words, body)


def _over_cycles(definition: Definition, cycles: Mapping[str, Mapping[str, Any]]) -> str:
    out = ["<h2>over the cycles</h2>"]
    for line in definition.lines:
        for measure in line.bounds:
            values = {f"cycle {number}": float(value) for number in sorted(cycles, key=int)
                      if (value := (cycles[number].get(line.name) or {}).get("measures", {}).get(measure)) is not None}
            if len(values) > 1:
                out.append(bars(f"{line.name}: {measure}", values))
    return "".join(out)


def _svg(words: str, body: str) -> str:
    return (f'<svg role="img" aria-label="{escaped(words)}" width="{_WIDTH}" height="{_HEIGHT}" '
            f'viewBox="0 0 {_WIDTH} {_HEIGHT}"><text x="6" y="14">{escaped(words)}</text>{body}</svg>')


def escaped(text: str) -> str:
    """Text as HTML."""
    return html.escape(text, quote=True)
