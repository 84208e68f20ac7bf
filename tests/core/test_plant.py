"""The plant: what it measures, when commands act and measurements arrive, and that it resumes exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from sim2real.errors import InputError
from sim2real.layout import EFFORT, KD, KP, POSITION, VELOCITY
from sim2real.robots.drives import Drive
from sim2real.sim.delays import DelaySpec, Fixed, GroupDelay, Uniform
from sim2real.sim.drives import DriveModel
from sim2real.sim.engines import make_sim
from sim2real.sim.sensors import SensorSpec, SignalErrors
from tests.core.counted_rig import LATE, MOTOR, NOISY, Rig
from tests.core.plant_rig import DECIMATION, DT, commands, walker_contract
from tests.core.sim_robots import walker


def test_the_base_is_measured_in_its_own_axes(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 3)
    for command in commands(rig.rng, 5, 3):
        rig.step(command)
    sim = rig.sim
    sim.qpos[1, 3:7] *= 1.001  # a quaternion that somebody wrote need not be of unit length
    seen = rig.read()
    to_world = Rotation.from_quat(sim.qpos[:, 3:7], scalar_first=True)
    assert np.allclose(rig.part(seen, "base_quat"), to_world.as_quat(scalar_first=True) * np.sign(sim.qpos[:, 3:4]))
    assert np.allclose(np.linalg.norm(rig.part(seen, "base_quat"), axis=1), 1.0, atol=1e-15)
    assert np.array_equal(rig.part(seen, "base_ang_vel"), sim.qvel[:, 3:6])
    assert np.allclose(rig.part(seen, "base_lin_vel"), to_world.inv().apply(sim.qvel[:, :3]), atol=1e-14)
    assert np.allclose(rig.part(seen, "projected_gravity"), to_world.inv().apply([0.0, 0.0, -1.0]), atol=1e-14)
    assert np.array_equal(rig.part(seen, "base_lin_acc"), sim.sensor("base_lin_acc"))
    assert np.array_equal(rig.part(seen, "joint_effort"), sim.joint_effort)


@pytest.mark.parametrize("drive", [None, MOTOR])
def test_outputs_agree_with_the_state_that_an_episode_begins_in(tmp_path: Path, drive: Drive | None) -> None:
    """Where policies observe them: a robot that falls from rest feels no force."""
    rig = Rig(tmp_path, 2, drive=drive)
    for command in commands(rig.rng, 5, 2):
        rig.step(command)
    rows = np.array([1])
    rig.sim.reset(rows)
    rig.sim.qpos[1, 2] = 5.0
    rig.sim.calls.clear()
    rig.plant.reset(np.zeros((2, 5, 2)), rows)
    assert rig.sim.calls == ["command [1]", "refresh [1]"]
    assert np.allclose(rig.part(rig.read(), "base_lin_acc")[1], 0.0, atol=1e-9)
    assert not rig.part(rig.read(), "joint_effort")[1].any()


def test_nothing_is_computed_for_policies_that_observe_the_state_alone(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 2, contract=walker_contract(signals=("joint_pos", "base_ang_vel", "projected_gravity")))
    rig.plant.reset(np.zeros((2, 5, 2)), np.array([1]))
    assert rig.sim.calls == ["command [1]"]


def test_some_environments_are_read_alone(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 4, contract=walker_contract(joints=("right", "left")))
    rig.sim.qpos[:] += rig.rng.normal(size=rig.sim.qpos.shape)
    everything, out = rig.read(), np.full((4, rig.layout.size), -1.0)
    rows = np.array([3, 1])
    rig.plant.read(out, rows)
    assert np.array_equal(out[rows], everything[rows])
    assert (out[[0, 2]] == -1.0).all()
    assert np.array_equal(rig.part(everything, "joint_pos"), rig.sim.joint_pos[:, ::-1])


def test_without_delays_a_control_step_is_one_command_and_one_step(tmp_path: Path) -> None:
    """And equals, bit for bit, what the bare simulation does under the command."""
    rig, bare = Rig(tmp_path, 3), Rig(tmp_path, 3).sim
    for command in commands(rig.rng, 10, 3):
        rig.step(command)
        bare.set_command(command)
        bare.step(DECIMATION)
        assert np.array_equal(rig.sense(), rig.read())
    assert rig.sim.calls == ["command", f"step {DECIMATION}"] * 10
    assert np.array_equal(rig.sim.qpos, bare.qpos)
    assert np.array_equal(rig.sim.qvel, bare.qvel)


def test_a_control_step_is_broken_only_where_something_happens(tmp_path: Path) -> None:
    spec = DelaySpec(commands=(GroupDelay(delay=Fixed(value=0.0)),))
    rig = Rig(tmp_path, 3, delays=spec)
    rig.plant.set_delay(np.array([0.0, 3 * DT, 3 * DT]))
    rig.step(commands(rig.rng, 1, 3)[0])
    assert rig.sim.calls == ["command [0]", "step 3", "command [1, 2]", "step 1"]
    rig.plant.set_delay(np.zeros(3))
    rig.sim.calls.clear()
    for command in commands(rig.rng, 2, 3):
        rig.step(command)
    assert rig.sim.calls == ["command", f"step {DECIMATION}"] * 2


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 2**32 - 1))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_commands_act_exactly_as_many_steps_later_by_group(tmp_path: Path, left: int, right: int, seed: int) -> None:
    """Against a simulation that is given, physics step by physics step, what was sent that many steps ago."""
    spec = DelaySpec(
        commands=(
            GroupDelay(of=("right",), delay=Fixed(value=right * DT)),
            GroupDelay(of=("left",), delay=Fixed(value=left * DT)),
        )
    )
    rig, bare = Rig(tmp_path, 2, delays=spec), Rig(tmp_path, 2).sim
    sent = commands(np.random.default_rng(seed), 12, 2)
    for command in sent:
        rig.step(command)
    for step in range(len(sent) * DECIMATION):
        now = np.zeros((2, 5, 2))
        for joint, delay in enumerate((left, right)):
            if step >= delay:
                now[:, :, joint] = sent[(step - delay) // DECIMATION][:, :, joint]
        bare.set_command(now)
        bare.step()
    assert np.array_equal(rig.sim.qpos, bare.qpos)
    assert np.array_equal(rig.sim.qvel, bare.qvel)


@given(st.lists(st.integers(0, 20), min_size=3, max_size=3), st.integers(0, 2**32 - 1))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_measurements_arrive_exactly_as_many_steps_later(tmp_path: Path, delays: list[int], seed: int) -> None:
    """Against what an undelayed plant measures at each physics step; two groups and a signal without delay."""
    joints, base, extra = delays
    spec = DelaySpec(
        observations=(
            GroupDelay(of=("joint_pos", "joint_vel"), delay=Fixed(value=joints * DT)),
            GroupDelay(of=("base_quat", "base_lin_acc"), delay=Fixed(value=base * DT)),
        )
    )
    by_signal = {"joint_pos": joints, "joint_vel": joints, "base_quat": base, "base_lin_acc": base}
    # Command delays may break the same periods elsewhere.
    late = GroupDelay(delay=Fixed(value=extra * DT))
    rig = Rig(tmp_path, 2, delays=msgspec.structs.replace(spec, commands=(late,)))
    exact = Rig(tmp_path, 2, delays=DelaySpec(commands=(late,)))
    past = [exact.read()]
    assert np.array_equal(rig.sense(), past[0])
    for command in commands(np.random.default_rng(seed), 10, 2):
        rig.step(command)
        exact.plant._commands.send(command, exact.plant._now, None)  # pyright: ignore[reportPrivateUsage] every physics step is looked at
        for _ in range(DECIMATION):
            exact.plant._run(1)  # pyright: ignore[reportPrivateUsage]
            past.append(exact.read())
        seen = rig.sense()
        for name in rig.layout.names:
            when = max(len(past) - 1 - by_signal.get(name, 0), 0)
            assert np.array_equal(rig.part(seen, name), rig.part(past[when], name)), name


def test_a_push_between_step_and_sense_is_felt_at_once_where_nothing_is_late(tmp_path: Path) -> None:
    spec = DelaySpec(observations=(GroupDelay(delay=Uniform(low=0.0, high=0.05)),))
    rig = Rig(tmp_path, 2, delays=spec)
    rig.plant.randomize("observation_delay", np.array([0.0, 2 * DT]))
    rig.begin()
    rig.sense()
    rig.step(np.zeros((2, 5, 2)))
    before = rig.read()
    rig.sim.qvel[:, 3:6] += 1.0
    seen, now = rig.sense(), rig.read()
    assert np.array_equal(seen[0], now[0])
    assert not np.array_equal(seen[0], before[0])
    assert not np.isclose(rig.part(seen, "base_ang_vel")[1], rig.part(now, "base_ang_vel")[1], atol=0.5).any()


@pytest.mark.parametrize("drive", [None, MOTOR])
@given(st.integers(0, 2**32 - 1), st.integers(0, 12))
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_snapshot_in_mid_flight_resumes_exactly(tmp_path: Path, drive: Drive | None, seed: int, before: int) -> None:
    """With every delay, every error and real drives on; also that equal seeds give equal plants."""
    made: dict[str, Any] = {"drive": drive, "sensors": NOISY, "delays": LATE, "seed": seed}
    one, two, other = (Rig(tmp_path, 3, **made) for _ in range(3))
    sent = commands(np.random.default_rng(seed), before + 8, 3)
    for rig in (one, two):
        rig.plant.randomize("command_delay", np.array([0.01]), np.array([1]))
        rig.plant.randomize("observation_delay", np.array([0.03]), np.array([2]))
        rig.plant.randomize("sensor.noise/joint_pos", np.array([0.2]), np.array([0]))
        rig.begin()
    for command in sent[:before]:
        for rig in (one, two):
            rig.step(command)
        assert np.array_equal(one.sense(), two.sense())
    other.plant.restore(one.plant.snapshot())
    other.rng.bit_generator.state = one.rng.bit_generator.state
    for step, command in enumerate(sent[before:]):
        one.step(command)
        other.step(command)
        assert np.array_equal(one.sense(), other.sense())
        if step == 3:
            for rig in (one, other):
                rows = np.array([2])
                rig.sim.reset(rows)
                rig.plant.reset(command, rows, rig.rng)
    assert np.array_equal(one.sim.qpos, other.sim.qpos)
    assert np.array_equal(one.sim.qvel, other.sim.qvel)


@pytest.mark.parametrize("drive", [None, MOTOR])
def test_a_world_that_is_not_finite_leaves_the_others_alone(tmp_path: Path, drive: Drive | None) -> None:
    made: dict[str, Any] = {"drive": drive, "sensors": NOISY, "delays": LATE}
    healthy, sick = Rig(tmp_path, 4, **made), Rig(tmp_path, 4, **made)
    others = np.array([0, 1, 3])
    for step, command in enumerate(commands(np.random.default_rng(1), 12, 4)):
        if step == 3:
            sick.sim.qpos[2] = np.nan
            sick.sim.qvel[2] = np.inf
        broken = command.copy()
        broken[2] = np.nan if step > 5 else command[2]
        healthy.step(command)
        sick.step(broken)
        assert np.array_equal(healthy.sense()[others], sick.sense()[others])
    assert np.array_equal(healthy.sim.qpos[others], sick.sim.qpos[others])
    # The world comes back with its next episode.
    rows = np.array([2])
    for rig in (healthy, sick):
        rig.sim.reset(rows)
        rig.plant.reset(np.zeros((4, 5, 2)), rows, rig.rng)
        out = np.zeros((4, rig.layout.size))
        rig.plant.sense(out, rig.rng, rows)
        assert np.isfinite(out[2]).all()
        assert not out[others].any()


def test_an_encoder_that_is_off_moves_what_it_controls(tmp_path: Path) -> None:
    """The joint goes where its encoder reads the target: as under a target that is off the other way."""
    rig = Rig(tmp_path, 3, sensors=SensorSpec(signals={}, encoder_offset=0.1))
    off = rig.sense()[:, rig.layout.slices["joint_pos"]] - rig.read()[:, rig.layout.slices["joint_pos"]]
    bare = Rig(tmp_path, 3).sim
    for command in commands(np.random.default_rng(3), 6, 3):
        kept = command.copy()
        rig.step(command)
        assert np.array_equal(command, kept), "commands are the caller's"
        command[:, POSITION] -= off
        bare.set_command(command)
        bare.step(DECIMATION)
    assert np.abs(off).min() > 0.0
    assert np.allclose(rig.sim.qpos, bare.qpos, rtol=0.0, atol=1e-12)  # off is known to a rounding


def test_real_drives_act_at_every_physics_step(tmp_path: Path) -> None:
    """Against the loop written out."""
    rig, bare = Rig(tmp_path, 2, drive=MOTOR), Rig(tmp_path, 2, drive=MOTOR).sim
    drives = DriveModel(rig.sim.robot.joints, [20.0, 20.0], 2, DT)
    effort = np.zeros((2, 5, 2))
    for command in commands(np.random.default_rng(2), 10, 2):
        command[:, EFFORT] *= 40.0
        rig.step(command)
        for _ in range(DECIMATION):
            drives.effort(command, bare.joint_pos, bare.joint_vel, effort[:, EFFORT])
            bare.set_command(effort)
            bare.step()
    assert np.array_equal(rig.sim.qpos, bare.qpos)
    seen = rig.read()
    position, velocity = bare.joint_pos.copy(), bare.joint_vel.copy()
    drives.read_encoders(position, velocity)
    assert np.array_equal(rig.part(seen, "joint_pos"), position)
    assert np.array_equal(rig.part(seen, "joint_vel"), velocity)
    assert np.array_equal(rig.part(seen, "joint_effort"), drives.motor_effort)
    assert not np.array_equal(position, bare.joint_pos)


def test_an_engine_cuts_the_effort_of_ideal_drives_alone(tmp_path: Path) -> None:
    """Friction and impacts come behind a real drive's limit, and are what they are."""
    robot, command = walker(tmp_path), np.zeros((1, 5, 2))
    command[:, EFFORT] = 100.0
    joints = (msgspec.structs.replace(robot.joints[0], drive=MOTOR), robot.joints[1])
    for each, effort in ((robot, 20.0), (msgspec.structs.replace(robot, joints=joints), 100.0)):
        sim = make_sim(walker_contract(), 1, robot=each)
        sim.set_command(command)
        sim.step()
        assert sim.joint_effort.tolist() == [[effort, effort]]


def test_a_plant_in_real_time_is_driven_by_physics_steps(tmp_path: Path) -> None:
    rig, bare = Rig(tmp_path, 2, delays=LATE), Rig(tmp_path, 2).sim
    for command in commands(np.random.default_rng(2), 5, 2):
        rig.plant.drive(command, 3)
        bare.set_command(command)
        bare.step(3)
    assert np.array_equal(rig.sim.qpos, bare.qpos)


def test_parameters_go_where_they_belong(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 2, drive=MOTOR, sensors=NOISY, delays=LATE)
    rows, plant = np.array([1]), rig.plant
    before = {name: values.copy() for name, values in plant.snapshot().items()}
    for name, value in (
        ("command_delay", 0.07),
        ("observation_delay", 0.05),
        ("drive.friction.coulomb/left", 0.1),
        ("sensor.noise/joint_pos", 0.3),
        ("sensor.imu_tilt", 0.2),
        ("payload", 6.0),
        ("geom_friction/left_foot[0]", 0.3),
    ):
        plant.randomize(name, np.array([value]), rows)
        after = {key: values.copy() for key, values in plant.snapshot().items()}
        changed = [key for key, values in after.items() if key in before and not np.array_equal(values, before[key])]
        fresh = [key for key in after if key not in before]
        assert changed or fresh, name
        for key in changed:
            assert np.array_equal(after[key][0], before[key][0]), f"{name} changed {key} of another environment"
        before = after


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("comand_delay", r"comand_delay.*; did you mean command_delay\?"),
        ("payloadd", r"payload"),
        ("observation_delay", "expected a plant whose DelaySpec has observations"),
        ("sensor.noise/joint_pos", "expected a plant with a SensorSpec"),
        ("drive.friction.coulom/left", "unknown parameter; did you mean 'friction.coulomb'"),
        ("drive.friction.coulomb/left", "the joint's drive"),
    ],
)
def test_a_parameter_that_matches_nothing_is_refused(tmp_path: Path, name: str, message: str) -> None:
    rig = Rig(tmp_path, 1)
    with pytest.raises(InputError, match=message):
        rig.plant.randomize(name, np.array([0.01]))


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ({"delays": DelaySpec(commands=(GroupDelay(of=("lef",), delay=Fixed(value=0.0)),))}, "did you mean left"),
        ({"delays": DelaySpec(observations=(GroupDelay(of=("joint_po",), delay=Fixed(value=0.0)),))}, "joint_pos"),
        ({"sensors": SensorSpec(signals={"base_quats": SignalErrors(noise=0.1)})}, "did you mean base_quat"),
    ],
)
def test_a_spec_of_another_robot_is_refused(tmp_path: Path, specs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Rig(tmp_path, 1, **specs)


def test_what_is_drawn_needs_a_generator(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 1, sensors=NOISY, delays=LATE)
    with pytest.raises(ValueError, match="command delays are drawn at random, got None"):
        rig.plant.step(np.zeros((1, 5, 2)))
    with pytest.raises(ValueError, match="observation delays are drawn at random, got None"):
        rig.plant.sense(np.zeros((1, rig.layout.size)))
    with pytest.raises(ValueError, match="the IMU's tilt is drawn at random, got None"):
        rig.plant.reset(np.zeros((1, 5, 2)))


def test_velocity_and_gains_arrive_with_their_command(tmp_path: Path) -> None:
    """A block is delayed as a whole: gains never come before the target that they belong to."""
    rig = Rig(tmp_path, 1, delays=DelaySpec(commands=(GroupDelay(delay=Fixed(value=2 * DT)),)))
    command = np.zeros((1, 5, 2))
    command[:, VELOCITY], command[:, KP], command[:, KD] = 1.0, 5.0, 2.0
    rig.step(command)
    assert rig.sim.calls == ["step 2", "command", "step 2"]
