"""The table of targets, and what is refused by it. Under 1 s."""

from __future__ import annotations

import json

import pytest

from sim2real.cli import main
from sim2real.errors import EngineError
from sim2real.members import PRECISIONS
from sim2real_edge.targets import TARGETS, check_precision, check_tensorrt, target_named, target_of


def test_every_target_says_of_every_precision_whether_it_takes_it_and_if_not_why() -> None:
    for target in TARGETS.values():
        assert set(target.precisions) | set(target.refused) == set(PRECISIONS)
        assert not set(target.precisions) & set(target.refused)
        for precision in target.precisions:
            check_precision(target, precision)
        for precision, reason in target.refused.items():
            with pytest.raises(EngineError, match=f"{precision} is refused: {reason}; allowed: float32"):
                check_precision(target, precision)


def test_a_target_is_found_by_its_name_and_by_its_compute_capability() -> None:
    assert {target.sm for target in TARGETS.values()} == {"11.0", "8.7", "8.9", "9.0", "12.0"}
    for name, target in TARGETS.items():
        assert target_named(name) is target
        assert target_of(target.sm, "any") is target


def test_a_gpu_that_is_in_no_table_is_refused_with_those_that_are() -> None:
    with pytest.raises(
        EngineError, match=r"Tesla V100: expected a GPU of .* 11\.0 \(thor\), .* got 7\.0; use --engine"
    ):
        target_of("7.0", "Tesla V100")
    with pytest.raises(EngineError, match=r"target 'xavier': unknown; allowed: thor, orin"):
        target_named("xavier")


@pytest.mark.parametrize("version", ["10.13.0.35", "10.13.3.9", "10.16.2.10", "11.4.1.5"])
@pytest.mark.parametrize("l4t", [None, "R39 2.0"])
def test_supported_releases_are_taken(version: str, l4t: str | None) -> None:
    check_tensorrt(version, l4t)


def test_what_is_too_old_or_too_new_is_refused() -> None:
    for version in ("8.6.1", "10.3.0.30", "10.12.0", "12.0.0.1", "1.7.1.116"):
        with pytest.raises(EngineError, match=f"expected version 10.13 to 11, got {version}"):
            check_tensorrt(version, None)


@pytest.mark.parametrize("version", ["11.0.0.114", "11.4.0.106"])
def test_the_first_releases_of_11_run_on_a_desktop_and_on_no_jetson(version: str) -> None:
    check_tensorrt(version, None)
    with pytest.raises(EngineError, match=rf"{version} supports no JetPack: expected 10\.13, 10\.16, or 11\.4\.1"):
        check_tensorrt(version, "R38 4.0")


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edge", "targets"]) == 0
    told = capsys.readouterr().out
    for target in TARGETS.values():
        assert f"{target.name}: {target.title}, SM {target.sm}" in told
    assert "refuses   fp8: its tensor cores know no FP8" in told
    assert main(["edge", "targets", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["targets"]
    assert [each["name"] for each in listed] == list(TARGETS)
