from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.errors import InputError
from sim2real_hil.html import render_html
from sim2real_hil.junit import render_junit
from sim2real_hil.plots import Bar, Curve, Ridge, bars, curves, ridges
from sim2real_hil.report import Figure, Report, Section, Table, Verdict, verdict_table, write_report

HOSTILE = "<script>alert('x')</script> & \"quoted\" \x00\x1b ]]> \ufffe"
_VOID = {"meta", "br", "link", "img", "hr", "input"}


class _Page(HTMLParser):
    """Checks nesting, and gathers what a test wants to look at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name.endswith(("href", "src", "action", "data")):
                self.references.append(value or "")
            self.references += [match.strip("'\" ") for match in re.findall(r"url\(([^)]*)\)", value or "")]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def figures() -> tuple[Figure, ...]:
    x = np.linspace(0.0, 10.0, 5000)
    edges = np.geomspace(1e3, 1e8, 60)
    ridge = Ridge(
        label="tick <1>",
        edges_ns=edges,
        counts=np.arange(59.0),
        percentiles_ns={"p50": 2e5, "p99": 3e6},
        budgets_ns={"p50": 1e6, "p99": 2e6},
    )
    empty = Ridge(label="none", edges_ns=edges, counts=np.zeros(59), percentiles_ns={}, budgets_ns={})
    wave = Curve(label="a & b", x=x, y=np.sin(x), low=np.sin(x) - 0.1, high=np.sin(x) + 0.1)
    gap = Curve(label="gap", x=x, y=np.where(x < 5, np.nan, x))
    drawn = (
        bars(
            [Bar(label="<b>", value=3.0, text="3 <i>", interval=(2.0, 4.0))],
            x_label="x",
            limit=5.0,
            limit_label="≤ 5",
            alt=HOSTILE,
        ),
        curves({"y [<m>]": [wave, gap]}, x_label="t", alt="a", bands={"y [<m>]": (0.0, 1.0)}, spans=[(1.0, 2.0)]),
        ridges([ridge, empty], alt="r"),
    )
    return tuple(Figure(title="drawn", caption=HOSTILE, svg=svg) for svg in drawn)


def report() -> Report:
    good = Verdict(name="fine", passed=True, measured="1 ms", allowed="≤ 2 ms")
    bad = Verdict(name=HOSTILE, passed=False, measured="3 ms", allowed="≤ 2 ms", advice="do <that>")
    table = Table(title=HOSTILE, columns=("a", HOSTILE), rows=((HOSTILE, "1"), ("2", "3")))
    return Report(
        title=HOSTILE,
        created="2026-01-02T03:04:05Z",
        elapsed_s=12.5,
        sections=(
            Section(
                title="First", text=HOSTILE, tables=(table,), figures=figures(), verdicts=(good, bad), elapsed_s=2.0
            ),
            Section(
                title="Second", text="", verdicts=(good,), elapsed_s=1.0, data={"nan": float("nan"), "x": np.arange(3)}
            ),
            Section(title="Third", text="judges nothing", elapsed_s=5.0),
        ),
    )


def test_the_page_is_one_file_that_refers_to_nothing_outside_itself() -> None:
    text = render_html(report())
    page = _Page(text)
    assert page.references
    assert [each for each in page.references if not each.startswith("#")] == []
    assert "//" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    assert not page.tags & {"script", "link", "iframe", "img", "object", "embed", "base"}
    assert "@import" not in text


def test_every_id_is_unique_and_every_reference_leads_somewhere() -> None:
    page = _Page(render_html(report()))
    assert len(set(page.ids)) == len(page.ids)
    assert {each.removeprefix("#") for each in page.references} <= set(page.ids)


def test_all_text_is_escaped() -> None:
    text = render_html(report())
    assert "<script" not in text
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; &quot;quoted&quot;" in text
    assert "do <that>" in _Page(text).words


def test_drawings_have_the_pages_colours_and_no_random_parts() -> None:
    first, again = figures(), figures()
    assert [each.svg for each in first] == [each.svg for each in again]
    for figure in first:
        assert "#0101" not in figure.svg
        assert "var(--series-1)" in figure.svg
        assert 'role="img"' in figure.svg


def test_drawing_neither_uses_pyplot_nor_leaves_settings_behind() -> None:
    code = (
        "import sys, matplotlib, numpy as np; before = list(dict.items(matplotlib.rcParams));"
        "from sim2real_hil.plots import *; x = np.arange(3.0);"
        "curves({'y': [Curve(label='a', x=x, y=x)]}, x_label='x', alt='a');"
        "assert 'matplotlib.pyplot' not in sys.modules; assert list(dict.items(matplotlib.rcParams)) == before"
    )
    subprocess.run([sys.executable, "-I", "-c", code], check=True, timeout=60)


def test_junit_counts_every_verdict_once() -> None:
    root = ElementTree.fromstring(render_junit(report()))
    assert root.tag == "testsuites"
    suites = list(root)
    assert [suite.get("name") for suite in suites] == ["First", "Second"]
    assert root.attrib["tests"] == "3"
    assert root.attrib["failures"] == "1"
    for suite in suites:
        cases = suite.findall("testcase")
        assert int(suite.attrib["tests"]) == len(cases)
        assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure"))
        assert float(suite.attrib["time"]) == pytest.approx(sum(float(case.attrib["time"]) for case in cases))
        assert all(case.get("classname") and case.get("name") for case in cases)
    assert float(root.attrib["time"]) == pytest.approx(3.0)
    (failure,) = root.iter("failure")
    assert failure.get("message") == "expected ≤ 2 ms, got 3 ms"
    assert failure.text == "do <that>"


@given(st.text())
def test_any_text_gives_valid_files(text: str) -> None:
    verdict = Verdict(name=text, passed=False, measured=text, allowed=text, advice=text)
    made = Report(
        title=text, created=text, elapsed_s=0.0, sections=(Section(title=text, text=text, verdicts=(verdict,)),)
    )
    ElementTree.fromstring(render_junit(made))
    _Page(render_html(made))


def test_the_files_hold_the_same_verdicts(tmp_path: Path) -> None:
    made = report()
    page, data, junit = write_report(made, tmp_path / "new" / "folder")
    read = json.loads(data.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert read["passed"] is made.passed is False
    assert [verdict["passed"] for verdict in read["verdicts"]] == [True, False, True]
    assert read["sections"][1]["data"] == {"nan": None, "x": [0, 1, 2]}
    assert page.read_text().count('class="badge fail"') == 3, "the whole, the verdict, its section"
    assert junit.name == "junit.xml"
    assert sorted(path.name for path in page.parent.iterdir()) == ["junit.xml", "report.html", "report.json"]


def test_a_report_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_report(report(), tmp_path / "file")


def test_the_terminal_shows_each_verdict_on_one_line() -> None:
    rows = verdict_table(report().verdicts).splitlines()
    assert [row[:4] for row in rows if row[:4].strip()] == ["pass", "FAIL", "pass"]
