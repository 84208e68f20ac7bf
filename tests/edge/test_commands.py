"""The commands as processes: driven, interrupted, and left alone by a plant that is killed. About 20 s."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from mcap.reader import make_reader

from sim2real.bundle import Bundle, write_bundle
from sim2real.clock import NS_PER_S, Ticker, now_ns
from sim2real.curve import CurveKeys, write_keys
from sim2real.errors import BundleError, EngineError, InputError
from sim2real.latency import read_latency
from sim2real.signing import generate_signing_key, load_signing_key
from sim2real.wire import Status
from sim2real_edge.commands import EdgeBenchArgs, EdgeRunArgs, VerifyArgs, run_bench, run_edge, run_verify
from tests.edge import policies
from tests.edge.plants import Plant, at_rest, plant_thread
from tests.edge.policies import MS

ROOT = Path(__file__).parents[2]
CLI = [sys.executable, "-I", "-m", "sim2real.cli"]


@contextmanager
def edge_process(*words: object) -> Generator[subprocess.Popen[str]]:
    """``sim2real edge run`` in a process of its own; killed at the end if it still runs."""
    command = [*CLI, "edge", "run", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def standing(bundle: Bundle, ticks: int = 3000) -> Callable[[Plant], None]:
    still = at_rest(bundle)
    return lambda plant: plant.serve_realtime(lambda _: still, ticks)


@pytest.fixture
def ipc(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/plant"


def test_a_run_is_recorded_timed_and_leaves_the_processor_idle(patient: Bundle, ipc: str, tmp_path: Path) -> None:
    record, latency = tmp_path / "run.mcap", tmp_path / "latency.json"
    words = ("--seconds", 2, "--record", record, "--latency", latency, "--load", "tests", "--json")
    with (
        plant_thread(patient, ipc, "realtime", standing(patient)),
        edge_process(patient.path, "--connect", ipc, *words) as edge,
    ):
        stdout, stderr = edge.communicate(timeout=60)
    assert (edge.returncode, stderr) == (0, "")
    result = json.loads(stdout)
    run: dict[str, Any] = result["run"]
    assert (run["ending"], run["level"], run["dropped"]) == ("done", "run", {})
    assert result["golden"]["steps"] == policies.STEPS
    # Case 15: between ticks there is nothing to do. The ticker's spinning alone is 1 %.
    assert run["cpu_ns"] / run["duration_ns"] < 0.3
    assert read_latency(latency).conditions.load == "tests"
    with record.open("rb") as stream:
        messages = [json.loads(message.data) for _, _, message in make_reader(stream).iter_messages()]
    assert len(messages) == run["ticks"] == result["recording"]["rows"]
    times = [message["time_ns"] for message in messages]
    assert times == sorted(times)
    assert all(message["sensed_ns"] <= message["time_ns"] + 10 * MS for message in messages)
    assert messages[0]["signals"]["joint_pos"] == [0.0]
    assert {message["level"] for message in messages} == {Status.RUN}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_damps_says_goodbye_and_finishes_the_recording(
    patient: Bundle, ipc: str, tmp_path: Path, number: signal.Signals
) -> None:
    record = tmp_path / "run.mcap"
    sent_ns = bye_ns = 0

    def serve(plant: Plant) -> None:
        nonlocal sent_ns, bye_ns
        ticker = Ticker(10 * MS)
        while plant.heard.bye is None:
            ticker.wait()
            plant.send(at_rest(patient), scheduled_ns=ticker.scheduled_ns)
            plant.receive(5 * MS)
            if not sent_ns and len(plant.heard.commands) > 30:
                sent_ns = now_ns()
                edge.send_signal(number)
        bye_ns = now_ns()

    with (
        edge_process(patient.path, "--connect", ipc, "--record", record) as edge,
        plant_thread(patient, ipc, "realtime", serve) as plant,
    ):
        stdout, stderr = edge.communicate(timeout=60)
    assert (edge.returncode, stderr) == (0, "")
    assert f"ended: asked to end by {number.name}" in stdout
    assert plant.heard.bye == f"asked to end by {number.name}"
    assert plant.heard.status[-1] is Status.DAMP
    assert bye_ns - sent_ns < NS_PER_S
    with record.open("rb") as stream:
        summary = make_reader(stream).get_summary()
    assert summary is not None
    assert summary.statistics is not None
    assert summary.statistics.message_count > 30


def test_a_plant_that_is_killed_ends_the_run_with_one_clear_line(patient: Bundle, ipc: str, tmp_path: Path) -> None:
    # Cases 18 and 19.
    record, latency = tmp_path / "run.mcap", tmp_path / "latency.json"
    script = [sys.executable, "-c", "from tests.edge.plants import main; main()", str(patient.path), ipc]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True, cwd=ROOT) as plant:
        assert plant.stdout is not None
        assert plant.stdout.readline() == '"bound"\n'
        words = ("--record", record, "--latency", latency, "--peer-timeout", 1.5)
        with edge_process(patient.path, "--connect", ipc, *words) as edge:
            assert plant.stdout.readline() == '"driven"\n'
            plant.kill()
            killed = time.monotonic()
            _, stderr = edge.communicate(timeout=60)
            took = time.monotonic() - killed
    assert edge.returncode == 2
    assert stderr.count("\n") == 1
    assert "no state from the plant for 1.5 s after" in stderr
    assert "--peer-timeout" in stderr
    assert took < 1.5 + 2.0
    with record.open("rb") as stream:
        levels = [json.loads(message.data)["level"] for _, _, message in make_reader(stream).iter_messages()]
    assert levels[:20] == [Status.RUN] * 20
    assert levels[-20:] == [Status.DAMP] * 20
    assert read_latency(latency).ticks >= len(levels)


def test_an_edge_that_is_killed_leaves_a_recording_that_can_be_read(patient: Bundle, ipc: str, tmp_path: Path) -> None:
    record = tmp_path / "run.mcap"

    def serve(plant: Plant) -> None:
        while edge.poll() is None:
            plant.send(at_rest(patient))
            plant.receive(10 * MS)
            if len(plant.heard.commands) == 50:
                edge.kill()

    with (
        edge_process(patient.path, "--connect", ipc, "--record", record) as edge,
        plant_thread(patient, ipc, "realtime", serve),
    ):
        assert edge.wait(60) == -signal.SIGKILL
    deadline = time.monotonic() + 20
    count = None
    while count is None and time.monotonic() < deadline:
        with record.open("rb") as stream:
            if stream.seek(0, os.SEEK_END) > 8 and stream.seek(-8, os.SEEK_END) and stream.read() == b"\x89MCAP0\r\n":
                stream.seek(0)
                count = len(list(make_reader(stream).iter_messages()))
    assert count is not None
    # The row of the last command may not have been written yet, and the one before not announced.
    assert count >= 48


def test_lockstep_with_keys_over_tcp_is_answered_state_by_state(pendulum: Bundle, tmp_path: Path) -> None:
    write_keys(tmp_path)
    signals = np.tile(at_rest(pendulum), (50, 1))
    with plant_thread(
        pendulum,
        "tcp://127.0.0.1:*",
        "lockstep",
        lambda plant: plant.serve_lockstep(signals),
        CurveKeys.load(tmp_path, "plant"),
    ) as plant:
        words = ("--connect", plant.socket.endpoint, "--mode", "lockstep", "--keys", tmp_path, "--json")
        with edge_process(pendulum.path, *words) as edge:
            stdout, stderr = edge.communicate(timeout=60)
    assert (edge.returncode, stderr) == (0, "")
    assert (json.loads(stdout)["run"]["ending"], json.loads(stdout)["run"]["ticks"]) == ("bye", 50)
    assert plant.heard.answered == list(range(50))


def test_a_supervisor_that_had_to_damp_is_exit_code_one(patient: Bundle, ipc: str) -> None:
    def serve(plant: Plant) -> None:
        state = at_rest(patient)
        for tick in range(60):
            state[1] = 0.0 if tick < 30 else 1e4
            plant.send(state)
            plant.receive(10 * MS)
        plant.socket.bye("fell")

    with (
        plant_thread(patient, ipc, "realtime", serve) as plant,
        edge_process(patient.path, "--connect", ipc) as edge,
    ):
        stdout, _ = edge.communicate(timeout=60)
    assert edge.returncode == 1
    assert "damp joint_vel of" in stdout
    assert "is 1e+04 rad/s" in stdout
    assert plant.heard.status[-1] is Status.DAMP


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--connect", "ipc:///tmp/sim2real-no-such-plant", "--connect-timeout", "0.3"), "no answer from a plant"),
        (("--connect", "nowhere"), "endpoint 'nowhere'"),
        (("--connect", "ipc:///tmp/x", "--engine", "abacus"), "engine 'abacus': unknown; allowed: onnxruntime-cpu"),
        (("--connect", "ipc:///tmp/x", "--cpu", "4096"), "--cpu 4096: expected one of"),
        (
            ("--connect", "ipc:///tmp/x", "--record", "/dev/full"),
            "--record /dev/full: expected the path of a plain file, got a device",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_two(pendulum: Bundle, words: tuple[str, ...], told: str) -> None:
    with edge_process(pendulum.path, *words) as edge:
        stdout, stderr = edge.communicate(timeout=60)
    assert (edge.returncode, stdout) == (2, "")
    assert stderr.count("\n") == 1
    assert told in stderr


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 0.0, 1e300])
@pytest.mark.parametrize("option", ["seconds", "connect_timeout", "peer_timeout"])
def test_a_number_that_is_none_is_refused_before_the_bundle_is_read(value: float, option: str, tmp_path: Path) -> None:
    numbers: dict[str, Any] = {option: value}
    told = f"^--{option.replace('_', '-')}: expected a number > 0 and at most 1e6, got "
    with pytest.raises(InputError, match=told):
        run_edge(EdgeRunArgs(bundle=tmp_path / "absent", connect="ipc:///tmp/x", **numbers))
    with pytest.raises(InputError, match=r"^--seconds: expected a number > 0 and at most 1e6, got "):
        run_bench(EdgeBenchArgs(bundle=tmp_path / "absent", seconds=value))


@pytest.mark.parametrize("option", ["latency", "record"])
def test_a_place_that_takes_no_file_is_refused_before_the_bundle_is_read(option: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "file" / "new", Path("/proc/sim2real/new")):
        places: dict[str, Any] = {option: place}
        with pytest.raises(InputError, match=f"^--{option} {re.escape(str(place))}: "):
            run_edge(EdgeRunArgs(bundle=tmp_path / "absent", connect="ipc:///tmp/x", **places))
        with pytest.raises(InputError, match=f"^--latency {re.escape(str(place))}: "):
            run_bench(EdgeBenchArgs(bundle=tmp_path / "absent", latency=place))


def test_a_bundle_that_fails_its_golden_run_drives_nothing(pendulum: Bundle, ipc: str, tmp_path: Path) -> None:
    golden = replace(pendulum.golden, actions=pendulum.golden.actions + np.float32(1e-3))
    bad = write_bundle(
        tmp_path / "bad.s2r", contract=pendulum.contract, models=pendulum.models, golden=golden, created_by="tests"
    )
    with edge_process(bad.path, "--connect", ipc) as edge:
        _, stderr = edge.communicate(timeout=60)
    assert edge.returncode == 2
    assert "does not reproduce the golden run" in stderr
    outcome = run_verify(VerifyArgs(bundle=bad.path))
    assert not outcome.passed
    assert "FAIL: an error > 1e-05 at step 0 of 240" in outcome.summary


def test_verify_names_hashes_signature_and_every_engine(pendulum: Bundle, tmp_path: Path) -> None:
    public = generate_signing_key(tmp_path / "key")
    signed = write_bundle(
        tmp_path / "signed.s2r",
        contract=pendulum.contract,
        models=pendulum.models,
        golden=pendulum.golden,
        created_by="tests",
        signing_key=load_signing_key(tmp_path / "key"),
    )
    outcome = run_verify(VerifyArgs(bundle=signed.path, trust=(tmp_path / "key.pub",)))
    assert outcome.passed
    assert f"signed by {public}, a key that is trusted" in outcome.summary
    assert re.search(r"^onnxruntime-cpu +float32 ", outcome.summary, re.MULTILINE)
    assert "pass: 240 steps, 3 episodes" in outcome.summary
    (report,) = msgspec.to_builtins(outcome.result)["golden"][:1]
    assert report["engine"] == "onnxruntime-cpu"
    with pytest.raises(BundleError, match="sign"):
        run_verify(VerifyArgs(bundle=pendulum.path, trust=(tmp_path / "key.pub",)))


def test_verify_refuses_what_was_altered(pendulum: Bundle, tmp_path: Path) -> None:
    data = bytearray(pendulum.path.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "altered.s2r").write_bytes(data)
    with pytest.raises(BundleError):
        run_verify(VerifyArgs(bundle=tmp_path / "altered.s2r"))


def test_bench_times_every_stage_and_judges_those_with_a_budget(quadruped: Bundle, tmp_path: Path) -> None:
    latency = tmp_path / "latency.json"
    outcome = run_bench(EdgeBenchArgs(bundle=quadruped.path, seconds=1.0, latency=latency, load="tests"))
    report = read_latency(latency)
    # A busy machine may lose the last deadlines along with some others.
    assert 50 <= report.ticks <= 50 + report.misses
    assert report.conditions.endpoint == "loopback"
    for stage in ("wake", "observe", "infer", "supervise", "tick"):
        assert report.ticks - report.misses <= report.histogram(stage).count <= report.ticks
    parts = sum(report.histogram(stage).percentile(50) for stage in ("observe", "infer", "supervise"))
    assert report.histogram("tick").percentile(50) > parts * 0.8
    judged = {verdict["stage"] for verdict in msgspec.to_builtins(outcome.result)["verdicts"]}
    assert judged == {"wake", "infer", "tick", "loop"}
    assert outcome.summary.count("us]") == 1


def test_bench_fails_a_budget_that_no_machine_keeps(pendulum: Bundle, tmp_path: Path) -> None:
    latency = pendulum.contract.latency
    tight = tuple(msgspec.structs.replace(stage, p50_ns=1) for stage in latency.stages)
    contract = msgspec.structs.replace(pendulum.contract, latency=msgspec.structs.replace(latency, stages=tight))
    bundle = policies.mlp(contract).write(tmp_path / "tight.s2r")
    outcome = run_bench(EdgeBenchArgs(bundle=bundle.path, seconds=0.2))
    assert not outcome.passed
    assert "infer p50" in outcome.summary
    assert "above the budget" in outcome.summary


def test_nothing_is_left_in_the_home_folder(pendulum: Bundle, tmp_path: Path) -> None:
    # The engine's library would write down an identifier of the device and what ran, to send both to its maker.
    home = {name: str(tmp_path) for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    command = [*CLI, "verify", str(pendulum.path)]
    subprocess.run(command, env={**os.environ, **home}, check=True, capture_output=True, timeout=60)
    assert list(tmp_path.iterdir()) == []


def test_bench_needs_an_engine_and_a_period(pendulum: Bundle) -> None:
    with pytest.raises(EngineError, match="unknown"):
        run_bench(EdgeBenchArgs(bundle=pendulum.path, engine="abacus"))
