"""The bench with real processes: what it proves, and how it ends when something is killed, wrong or in the way."""

from __future__ import annotations

import json
import os
import select
import signal
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from sim2real.bundle import Bundle, read_bundle
from sim2real.contract import StageBudget
from sim2real.errors import InputError, WireError
from sim2real.latency import read_latency
from sim2real.wire_messages import make_hello
from sim2real.wire_plant import PlantSocket
from sim2real_edge.process import fifo_priority
from sim2real_hil.commands import HilRunArgs, PlantArgs, run_hil, run_plant
from sim2real_hil.trajectory import compare, read_trajectory
from tests.edge import policies
from tests.hil.conftest import Process

Start = Callable[..., Process]

ENDS_WITHIN = 6.0
"""Time [s] within which a promised second has surely passed on a busy machine."""
SOME_TICKS = r"[1-9]\d*/\d+ \["


def test_lockstep_equals_in_process_over_ipc_and_tcp(bundle: Bundle, tmp_path: Path) -> None:
    outcome = run_hil(HilRunArgs(bundle=bundle.path, ticks=300, seed=4, out=tmp_path))
    assert outcome.passed, outcome.summary
    assert [run["transport"] for run in outcome.result["lockstep"]] == ["ipc", "tcp"]
    reference = read_trajectory(tmp_path / "trajectory-in-process.npz")
    assert len(reference) == 300
    assert reference.qvel.std() > 0.1, "a plant that rests proves nothing"
    for transport in ("ipc", "tcp"):
        assert compare(read_trajectory(tmp_path / f"trajectory-{transport}.npz"), reference) == ""
    _assert_files_are_told(outcome.result, tmp_path)
    assert f"also in {tmp_path}: report.json, junit.xml, trajectory-ipc.npz" in outcome.summary


def _assert_files_are_told(result: dict[str, Any], out: Path, told_as: str | None = None) -> None:
    """All that was written, and nothing else, in the folder as it was given."""
    told = {str(path) for path in (*result["report"].values(), *result["recorded"])}
    assert told == {str(Path(told_as or out) / path.name) for path in out.iterdir()}


def test_lockstep_carries_recurrent_state_and_history(tmp_path: Path) -> None:
    path = policies.gru(policies.recurrent_contract()).write(tmp_path / "policy.s2r").path
    outcome = run_hil(HilRunArgs(bundle=path, ticks=200, transport="ipc", out=tmp_path / "out"))
    assert outcome.passed, outcome.summary


@pytest.mark.parametrize("scheduling", ["fifo_if_permitted", "ordinary"])
def test_realtime_measures_every_stage_and_judges_it(
    command: Start, bundle: Bundle, tmp_path: Path, scheduling: str
) -> None:
    path = _with_impossible_budget(bundle, tmp_path / "hasty.s2r")
    run = command(
        "hil",
        "run",
        str(path),
        "--mode",
        "realtime",
        "--seconds",
        "2",
        "--out",
        "out",
        "--scheduling",
        scheduling,
        "--json",
    )
    code, stdout, _ = run.end(60)
    result = json.loads(stdout)
    assert code == 1
    verdicts = {verdict["name"]: verdict["passed"] for verdict in result["verdicts"]}
    assert verdicts["infer max"] is False
    latency = read_latency(tmp_path / "out" / "latency.json")
    fifo = scheduling == "fifo_if_permitted" and fifo_priority() is not None
    assert ("SCHED_FIFO" if fifo else "ordinary processes") in latency.conditions.load
    counts = {part.stage: part.count for part in latency.stages}
    # 2 s of 100 Hz; on a busy machine some ticks are lost.
    assert all(40 < counts[stage] <= 202 for stage in ("wake", "infer", "tick", "command_transport", "end_to_end"))
    assert latency.max_action_age_ns is not None
    junit = ElementTree.parse(tmp_path / "out" / "junit.xml").getroot()
    failed = [case.get("name") for case in junit.iter("testcase") if case.find("failure") is not None]
    assert failed == [name for name, passed in verdicts.items() if not passed]
    # Told as it was given, from where the command ran.
    _assert_files_are_told(result, tmp_path / "out", "out")
    # Shorter than an episode: whether it succeeds is not known.
    assert result["counts"]["success"] is None


def _with_impossible_budget(bundle: Bundle, path: Path) -> Path:
    contract = bundle.contract
    hasty = StageBudget(stage="infer", p50_ns=1, p99_ns=1, p999_ns=1, max_ns=1)
    latency = msgspec.structs.replace(contract.latency, stages=(hasty,))
    return policies.mlp(msgspec.structs.replace(contract, latency=latency)).write(path).path


@pytest.mark.parametrize("mode", ["lockstep", "realtime"])
def test_a_killed_edge_ends_the_bench(command: Start, bundle: Bundle, tmp_path: Path, mode: str) -> None:
    run = _long_run(command, bundle, mode)
    os.kill(run.edge(), signal.SIGKILL)
    code, _, told = run.end(ENDS_WITHIN)
    assert code == 2
    assert told.startswith("error: ")
    assert "edge" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("mode", ["lockstep", "realtime"])
def test_a_killed_bench_leaves_no_edge_behind(command: Start, bundle: Bundle, mode: str) -> None:
    run = _long_run(command, bundle, mode)
    # Readable once the process has ended, whether or not somebody has asked for its exit code yet.
    edge = os.pidfd_open(run.edge())
    run.popen.kill()
    ended, _, _ = select.select([edge], [], [], ENDS_WITHIN)
    os.close(edge)
    assert ended


@pytest.mark.parametrize(
    ("mode", "number"),
    [("lockstep", signal.SIGINT), ("realtime", signal.SIGINT), ("realtime", signal.SIGTERM)],
)
def test_ctrl_c_ends_both(command: Start, bundle: Bundle, tmp_path: Path, mode: str, number: signal.Signals) -> None:
    run = _long_run(command, bundle, mode)
    edge = run.edge()
    run.popen.send_signal(number)
    code, _, told = run.end(ENDS_WITHIN)
    assert code == 2
    assert told.startswith("interrupted: ")
    assert not psutil.pid_exists(edge)
    assert not (tmp_path / "out").exists()


def _long_run(command: Start, bundle: Bundle, mode: str) -> Process:
    length = ("--ticks", "200000") if mode == "lockstep" else ("--seconds", "300")
    run = command("hil", "run", str(bundle.path), "--mode", mode, *length, "--transport", "ipc", "--out", "out")
    run.until(SOME_TICKS)
    return run


def test_a_busy_endpoint_is_told(command: Start, bundle: Bundle, tmp_path: Path) -> None:
    hello = make_hello(bundle.contract, mode="lockstep")
    with PlantSocket("tcp://127.0.0.1:*", hello=hello) as taken:
        code, _, told = command("hil", "run", str(bundle.path), "--endpoint", taken.endpoint, "--out", "out").end(30)
    assert code == 2
    assert "already in use" in told
    assert not (tmp_path / "out").exists()


def test_a_plant_refuses_another_contract_and_goes_on_waiting_for_its_own(
    command: Start, bundle: Bundle, tmp_path: Path
) -> None:
    other = _with_impossible_budget(bundle, tmp_path / "other.s2r")
    assert read_bundle(other).contract_hash != bundle.contract_hash
    plant = command("hil", "plant", str(bundle.path), "--bind", "tcp://127.0.0.1:*", "--json")
    endpoint = plant.until(r" at (tcp://\S+)")

    code, _, told = command("edge", "run", str(other), "--connect", endpoint).end(30)
    assert code == 2
    assert "contract_sha256" in told

    edge = command("edge", "run", str(bundle.path), "--connect", endpoint, "--seconds", "0.5", "--json")
    assert edge.end(30)[0] in (0, 1), "1: a busy machine made it damp"
    code, stdout, _ = plant.end(ENDS_WITHIN)
    assert code == 0
    assert json.loads(stdout)["ticks"] > 20


def test_arguments_are_checked_before_anything_starts(bundle: Bundle, tmp_path: Path) -> None:
    good = HilRunArgs(bundle=bundle.path, out=tmp_path / "out")
    realtime = replace(good, mode="realtime")
    for args, name, value in (
        (good, "ticks", 0),
        (good, "ticks", 10**12),
        (good, "timeout", -1.0),
        (good, "timeout", 1e300),
        (good, "seed", -1),
        (realtime, "seconds", float("nan")),
        (realtime, "seconds", 1e300),
        (realtime, "seconds", 1e-9),
    ):
        with pytest.raises(InputError, match=rf"--{name}: expected an? (number|integer) "):
            run_hil(replace(args, **{name: value}))
    with pytest.raises(InputError, match="--engine: expected one of onnxruntime-cpu"):
        run_hil(replace(good, engine="foo"))
    with pytest.raises(WireError, match="endpoint 'foo': expected ipc or tcp"):
        run_hil(replace(good, endpoint="foo"))
    with pytest.raises(InputError, match="--seconds: has no meaning in lockstep"):
        run_hil(replace(good, seconds=3.0))
    with pytest.raises(InputError, match="--ticks: has no meaning in realtime"):
        run_hil(replace(good, mode="realtime", ticks=3))
    plant = PlantArgs(bundle=bundle.path, bind="tcp://127.0.0.1:*")
    for name, value in (("wait", 0.0), ("wait", 1e300), ("timeout", 1e300), ("seconds", 1e-9), ("seed", -1)):
        with pytest.raises(InputError, match=f"--{name}: expected"):
            run_plant(replace(plant, **{name: value}))
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"--out .*: cannot be written"):
        run_hil(replace(good, out=tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"


def test_an_error_stands_alone_where_no_terminal_shows_the_progress(command: Start, bundle: Bundle) -> None:
    run = _long_run(command, bundle, "lockstep")
    os.kill(run.edge(), signal.SIGKILL)
    code, _, _ = run.end(ENDS_WITHIN)
    assert code == 2
    assert run.told.count("\n") == 1, run.told
