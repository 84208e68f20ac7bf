"""A report as one HTML file that opens offline: no script, no font, no image, no address of anything outside it."""

from __future__ import annotations

from html import escape
from typing import Final

from sim2real_hil.report_parts import Figure, Report, Section, Table, Verdict

__all__ = ["render_html"]

_STYLE: Final = """
:root {
  color-scheme: light dark;
  --paper: #fbfbfa; --card: #ffffff; --ink: #1d2433; --muted: #667085; --line: #e3e6eb;
  --series-1: #2f6fde; --series-2: #d9822b; --series-3: #8a94a6; --good: #15803d; --bad: #c9302c;
  --good-paper: #e7f5ec; --bad-paper: #fdeceb;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12151c; --card: #1a1f29; --ink: #e6e9ef; --muted: #98a2b3; --line: #2e3543;
    --series-1: #7aa7ff; --series-2: #f0a95b; --series-3: #8b95a7; --good: #5ecb8a; --bad: #ff8079;
    --good-paper: #16301f; --bad-paper: #3a1c1b;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: .4rem 1rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 1.2rem; margin: 0 0 .35rem; letter-spacing: -.005em; }
h3 { font-size: .95rem; margin: 1.4rem 0 .4rem; font-weight: 600; }
p { margin: 0 0 .8rem; max-width: 46rem; }
.quiet { color: var(--muted); font-size: .9rem; }
.badge { display: inline-block; padding: .1rem .6rem; border-radius: 1rem; font-size: .78rem; font-weight: 650;
  letter-spacing: .03em; white-space: nowrap; }
.pass { background: var(--good-paper); color: var(--good); }
.fail { background: var(--bad-paper); color: var(--bad); }
header .badge { font-size: 1rem; padding: .2rem .9rem; }
nav { margin: 1rem 0 1.6rem; display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; font-size: .9rem; }
a { color: var(--series-1); text-decoration: none; }
a:hover, a:focus-visible { text-decoration: underline; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .7rem; padding: 1.3rem 1.4rem;
  margin: 0 0 1.2rem; scroll-margin-top: 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--muted); }
th, td { padding: .34rem .9rem .34rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
figure { margin: 1.2rem 0 0; }
figure svg { display: block; width: 100%; height: auto; }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
figcaption { color: var(--muted); font-size: .86rem; margin-top: .3rem; max-width: 46rem; }
@media print { body { background: none; } section { break-inside: avoid; } nav { display: none; } }
"""


def render_html(report: Report) -> str:
    """Return the page. All text is escaped; figures are inline SVG in the page's colours, light or dark."""
    verdicts = report.verdicts
    good = sum(verdict.passed for verdict in verdicts)
    links = "".join(f'<a href="#{_anchor(i)}">{escape(section.title)}</a>' for i, section in enumerate(report.sections))
    # Figures bring ids of their own (clip paths): a prefix keeps those of one figure apart from another's.
    sections = "".join(_section(section, _anchor(i)) for i, section in enumerate(report.sections))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(report.title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<header>
<h1>{escape(report.title)}</h1>
{_badge(report.passed)}
<span class="quiet">{good} of {len(verdicts)} verdicts pass · {escape(report.created)} · {report.elapsed_s:.0f} s</span>
</header>
<nav>{links}</nav>
{_verdict_section(report)}
{sections}
</main>
</body>
</html>
"""


def _verdict_section(report: Report) -> str:
    if not report.verdicts:
        return ""
    rows = "".join(
        f"<tr><td>{_badge(verdict.passed)}</td>"
        f'<td><a href="#{_anchor(i)}">{escape(section.title)}</a></td>{_judged(verdict)}</tr>\n'
        for i, section in enumerate(report.sections)
        for verdict in section.verdicts
    )
    head = "".join(f"<th>{name}</th>" for name in ("", "stage", "verdict", "measured", "must be"))
    return (
        f'<section id="verdicts"><h2>Verdicts</h2><div class="scroll"><table>\n'
        f"<thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table></div></section>"
    )


def _judged(verdict: Verdict) -> str:
    advice = "" if verdict.passed or not verdict.advice else f'<br><span class="quiet">{escape(verdict.advice)}</span>'
    return (
        f"<td>{escape(verdict.name)}{advice}</td><td>{escape(verdict.measured)}</td><td>{escape(verdict.allowed)}</td>"
    )


def _section(section: Section, anchor: str) -> str:
    tables = "".join(_table(table) for table in section.tables)
    figures = "".join(_figure(figure, f"{anchor}-f{i}-") for i, figure in enumerate(section.figures))
    badge = _badge(all(verdict.passed for verdict in section.verdicts)) if section.verdicts else ""
    return (
        f'<section id="{anchor}">\n<h2>{escape(section.title)} {badge}</h2>\n<p>{escape(section.text)}</p>\n'
        f"{tables}{figures}</section>\n"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in table.rows)
    return (
        f'<h3>{escape(table.title)}</h3><div class="scroll"><table>\n'
        f"<thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table></div>\n"
    )


def _figure(figure: Figure, prefix: str) -> str:
    svg = figure.svg.replace('id="', f'id="{prefix}').replace("url(#", f"url(#{prefix}")
    svg = svg.replace('href="#', f'href="#{prefix}')
    return f"<h3>{escape(figure.title)}</h3><figure>{svg}\n<figcaption>{escape(figure.caption)}</figcaption></figure>\n"


def _badge(passed: bool) -> str:
    return '<span class="badge pass">PASS</span>' if passed else '<span class="badge fail">FAIL</span>'


def _anchor(index: int) -> str:
    return f"s{index}"
