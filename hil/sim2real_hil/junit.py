"""Verdicts as JUnit XML, which every CI system shows as test results."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from typing import Final

from sim2real_hil.report_parts import Report

__all__ = ["render_junit"]

_NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(report: Report) -> bytes:
    """Return one test suite per section that judges something, one test case per verdict."""
    judged = [section for section in report.sections if section.verdicts]
    root = ElementTree.Element(
        "testsuites",
        name=_text(report.title),
        tests=str(len(report.verdicts)),
        failures=str(sum(not verdict.passed for verdict in report.verdicts)),
        errors="0",
        time=f"{sum(section.elapsed_s for section in judged):.3f}",
    )
    for section in judged:
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=_text(section.title),
            tests=str(len(section.verdicts)),
            failures=str(sum(not verdict.passed for verdict in section.verdicts)),
            errors="0",
            skipped="0",
            time=f"{section.elapsed_s:.3f}",
            timestamp=_text(report.created),
        )
        for verdict in section.verdicts:
            # A section is measured as a whole: its verdicts share its time equally, so that the sums agree.
            share = section.elapsed_s / len(section.verdicts)
            case = ElementTree.SubElement(
                suite, "testcase", classname=_text(section.title), name=_text(verdict.name), time=f"{share:.3f}"
            )
            told = f"expected {verdict.allowed}, got {verdict.measured}"
            if verdict.passed:
                ElementTree.SubElement(case, "system-out").text = _text(told)
            else:
                failure = ElementTree.SubElement(case, "failure", message=_text(told), type="verdict")
                failure.text = _text(verdict.advice)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _text(value: str) -> str:
    """Replace the characters that XML cannot hold, even escaped."""
    return _NOT_XML.sub("\ufffd", value)
