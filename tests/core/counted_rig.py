"""A walker in a simulation that counts its calls, and its plant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.contract import PolicyContract
from sim2real.robots.drives import DcMotor, Drive, Friction
from sim2real.sim.base import EnvIds
from sim2real.sim.delays import DelaySpec, GroupDelay, Uniform
from sim2real.sim.mujoco import MujocoSim
from sim2real.sim.plant import Plant
from sim2real.sim.scene import FLAT
from sim2real.sim.sensors import SensorSpec, SignalErrors
from tests.core.plant_rig import DT, walker_contract
from tests.core.sim_robots import walker

Array = npt.NDArray[np.float64]

MOTOR = Drive(
    motor=DcMotor(stall_effort=25.0, no_load_velocity=30.0),
    friction=Friction(coulomb=0.2, viscous=0.02, static=0.3, stribeck_velocity=0.1, load=0.05),
    backlash=0.01,
    rotor_inertia=0.002,
)
NOISY = SensorSpec(
    signals={
        "joint_pos": SignalErrors(noise=0.01, bias=0.01, step=0.001, dropout=0.1),
        "base_ang_vel": SignalErrors(noise=0.1, bias_walk=0.1),
        "base_quat": SignalErrors(noise=0.01),
        "projected_gravity": SignalErrors(noise=0.02),
    },
    imu_tilt=0.05,
    encoder_offset=0.02,
)
LATE = DelaySpec(
    commands=(
        GroupDelay(of=("left",), delay=Uniform(low=0.0, high=0.05), jitter=0.02, loss=0.1, repeat=0.1),
        GroupDelay(delay=Uniform(low=0.0, high=0.03), redraw=True),
    ),
    observations=(
        GroupDelay(of=("joint_pos", "joint_vel"), delay=Uniform(low=0.0, high=0.05), loss=0.1, repeat=0.1),
        GroupDelay(delay=Uniform(low=0.0, high=0.03), jitter=0.02),
    ),
)


class Counting(MujocoSim):
    """A simulation that remembers what it was asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls: list[str] = []

    def step(self, n: int = 1) -> None:
        self.calls.append(f"step {n}")
        super().step(n)

    def set_command(self, command: Array, env_ids: EnvIds | None = None) -> None:
        self.calls.append("command" if env_ids is None else f"command {env_ids.tolist()}")
        super().set_command(command, env_ids)

    def refresh(self, env_ids: EnvIds | None = None) -> None:
        self.calls.append("refresh" if env_ids is None else f"refresh {env_ids.tolist()}")
        super().refresh(env_ids)


class Rig:
    """A plant of walkers in random states above the ground, and its generator."""

    def __init__(
        self,
        folder: Path,
        num_envs: int,
        *,
        contract: PolicyContract | None = None,
        drive: Drive | None = None,
        seed: int = 0,
        **specs: Any,
    ) -> None:
        robot = walker(folder)
        if drive is not None:
            joints = tuple(msgspec.structs.replace(joint, drive=drive) for joint in robot.joints)
            robot = msgspec.structs.replace(robot, joints=joints)
        self.rng = np.random.default_rng(seed)
        limits = None if drive is None else [1e9, 1e9]  # as make_sim says: a real drive has limits of its own
        self.sim = Counting(robot, num_envs, scene=FLAT, dt=DT, effort_limits=limits)
        self.plant = Plant(contract or walker_contract(), self.sim, **specs)
        self.layout = self.plant.layout
        self.num_envs = num_envs
        self.begin()

    def begin(self) -> None:
        state = np.random.default_rng(5)
        sim = self.sim
        sim.reset()
        sim.qpos[:, 2] = 0.4
        sim.qpos[:, 3:7] = state.normal(size=(1, 4)) * 0.1 + [1.0, 0.0, 0.0, 0.0]
        sim.qpos[:, 3:7] /= np.linalg.norm(sim.qpos[:, 3:7], axis=1, keepdims=True)
        sim.qvel[:] = state.normal(size=(1, sim.qvel.shape[1])) * 0.3
        self.plant.reset(np.zeros((self.num_envs, 5, 2)), None, self.rng)
        sim.calls.clear()

    def step(self, command: Array) -> None:
        self.plant.step(command, self.rng)

    def sense(self) -> Array:
        out = np.zeros((self.num_envs, self.layout.size))
        self.plant.sense(out, self.rng)
        return out

    def read(self) -> Array:
        out = np.zeros((self.num_envs, self.layout.size))
        self.plant.read(out)
        return out

    def part(self, signals: Array, name: str) -> Array:
        return signals[:, self.layout.slices[name]]
