"""A joint that nothing drives: on the robot its command is zero effort, but where the fallback says otherwise. 2 s."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from sim2real.bundle import Bundle
from sim2real.contract import Fallback
from sim2real.layout import EFFORT, KD, KP, POSITION, SignalLayout
from sim2real.tasks import get_task
from sim2real.tasks.base import unpublished
from sim2real.wire import Status
from sim2real_edge.controller import Controller
from sim2real_edge.engine import load_engine
from sim2real_edge.golden import require_golden
from tests.edge import policies

FALLBACK = Fallback(hold_kp=(3.0, 4.0), hold_kd=(0.3, 0.4), damp_kd=(0.5, 0.6))


@pytest.fixture(scope="module", params=[("acrobot-swingup", 1), ("pendubot-swingup", 0)], ids=["acrobot", "pendubot"])
def swing_up(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, int]:
    """A bundle whose policy asks for far more than there is, and which of its two joints is driven."""
    name, driven = request.param
    task = get_task(name)
    contract = task.contract(unpublished(task))
    safety = msgspec.structs.replace(contract.safety, fallback=FALLBACK)
    contract = msgspec.structs.replace(contract, safety=safety)
    bundle = policies.mlp(contract, gain=1.5).write(tmp_path_factory.mktemp("swing_up") / "policy.s2r")
    return bundle, driven


@pytest.fixture
def controller(swing_up: tuple[Bundle, int]) -> Controller:
    engine = load_engine("onnxruntime-cpu", swing_up[0])
    require_golden(engine, swing_up[0])
    controller = Controller(swing_up[0], engine)
    controller.start()
    return controller


def test_while_the_policy_drives_it_gets_nothing(swing_up: tuple[Bundle, int], controller: Controller) -> None:
    bundle, driven = swing_up
    efforts: list[float] = []
    for signals in bundle.golden.signals:
        controller.measurement[:] = signals
        command = controller.tick(0, 0)
        assert controller.level is Status.RUN
        assert not command[:, 1 - driven].any()
        assert not np.delete(command[:, driven], EFFORT).any()
        efforts.append(float(command[EFFORT, driven]))
    # The other one is driven up to its limit and not beyond.
    assert max(np.abs(efforts)) == 6.0


@pytest.mark.parametrize("level", [Status.HOLD, Status.DAMP, Status.STOP])
def test_when_it_does_not_the_fallback_counts(
    swing_up: tuple[Bundle, int], controller: Controller, level: Status
) -> None:
    """It is a motor on the real machine, which may hold or damp the joint that the policy leaves alone."""
    contract, start = swing_up[0].contract, SignalLayout(swing_up[0].contract).slices["joint_pos"].start
    controller.measurement[start : start + 2] = [0.25, -0.5]
    missed = {
        Status.HOLD: contract.safety.deadline_ladder.hold_after,
        Status.DAMP: contract.safety.deadline_ladder.damp_after,
        Status.STOP: contract.safety.deadline_ladder.stop_after,
    }[level]
    command = controller.tick(0, missed)
    assert controller.level is level
    expected = np.zeros((5, 2))
    if level is Status.HOLD:
        expected[POSITION], expected[KP], expected[KD] = [0.25, -0.5], FALLBACK.hold_kp, FALLBACK.hold_kd
    elif level is Status.DAMP:
        expected[KD] = FALLBACK.damp_kd
    np.testing.assert_array_equal(command, expected)


def test_its_measurements_are_watched_all_the_same(swing_up: tuple[Bundle, int], controller: Controller) -> None:
    bundle, driven = swing_up
    passive = 1 - driven
    velocity = SignalLayout(bundle.contract).slices["joint_vel"].start + passive
    controller.measurement[velocity] = 2.0 * bundle.contract.joints[passive].velocity_limit
    controller.tick(0, 0)
    assert controller.level is Status[bundle.contract.safety.on_velocity_limit.upper()]
