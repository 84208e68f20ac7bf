"""Go2 on flat ground with `mujoco_warp`: physics steps per second of all environments together, on one device.

    python benchmarks/device_warp.py                      # 4,096 and 16,384 worlds on the first GPU
    python benchmarks/device_warp.py --device cpu --worlds 64

The robot stands and sways under position targets that change at every control step of four physics steps, so feet are
on the ground all the time. For each number of worlds there are three rates: with commands written and state read on the
device alone (*on the device*), with state brought to the host after each control step as `TaskEnv` does (*with the
host*), and the same on the device without fixed order of sums (*not repeatable*). Compiling and capturing come before
the clock starts. A GPU is waited for before the clock stops.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import numpy.typing as npt
import warp as wp

from sim2real.errors import Sim2RealError
from sim2real.layout import KD, KP, POSITION
from sim2real.robots import get_robot
from sim2real.sim.mujoco_warp import MujocoWarpSim
from sim2real.sim.scene import FLAT

DECIMATION = 4
WARM_UP = 25


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="Warp device (cuda:0)")
    parser.add_argument("--worlds", type=int, nargs="+", default=[4096, 16384], help="numbers of worlds (4096 16384)")
    parser.add_argument("--steps", type=int, default=250, help="control steps measured (250)")
    arguments = parser.parse_args()
    for worlds in arguments.worlds:
        for title, host, deterministic in (
            ("on the device", False, True),
            ("with the host", True, True),
            ("not repeatable", False, False),
        ):
            began = time.perf_counter()
            sim = standing(worlds, arguments.device, host=host, deterministic=deterministic)
            ready = time.perf_counter() - began
            seconds = measure(sim, arguments.steps)
            rate = worlds * DECIMATION * arguments.steps / seconds
            print(
                f"{worlds:6d} worlds, {title:14s}: {rate / 1e6:8.3f} million physics steps/s, "
                f"{1e3 * seconds / arguments.steps:7.3f} ms a control step; {ready:5.1f} s to make; "
                f"lowest base {base_height(sim):.3f} m",
                flush=True,
            )


def standing(worlds: int, device: str, *, host: bool, deterministic: bool) -> MujocoWarpSim:
    """Return Go2s that stand, warmed up."""
    robot = get_robot("go2")
    # Standing takes 4 contacts of 3 rows, and limits none: room for twice that and a trunk on the ground.
    sim = MujocoWarpSim(
        robot, worlds, scene=FLAT, device=device, nconmax=16, njmax=64, host=host, deterministic=deterministic
    )
    sim.qpos[:, 2] = robot.base_height
    sim.qpos[:, 7:] = pose(sim)
    measure(sim, WARM_UP)
    return sim


def pose(sim: MujocoWarpSim) -> npt.NDArray[np.float64]:
    """Return the default joint positions, shape (J,)."""
    return np.array([joint.default_position for joint in sim.robot.joints])


def measure(sim: MujocoWarpSim, steps: int) -> float:
    """Return the seconds that some control steps take."""
    commands = [command(sim, phase) for phase in np.linspace(0.0, 2.0 * np.pi, 25, endpoint=False)]
    on_device = [wp.array(each, dtype=wp.float32, device=sim.device) for each in commands]
    wp.synchronize_device(sim.device)
    began = time.perf_counter()
    for step in range(steps):
        if sim.host:
            sim.set_command(commands[step % len(commands)])
        else:
            sim.hold_command(on_device[step % len(commands)])
        sim.step(DECIMATION)
    wp.synchronize_device(sim.device)
    return time.perf_counter() - began


def command(sim: MujocoWarpSim, phase: float) -> npt.NDArray[np.float64]:
    """Return targets that sway, shape (N, 5, J), shifted from world to world."""
    block = np.zeros((sim.num_envs, 5, len(sim.robot.joints)))
    shift = np.linspace(0.0, 2.0 * np.pi, sim.num_envs, endpoint=False)[:, None]
    block[:, POSITION] = pose(sim) + 0.1 * np.sin(phase + shift)
    block[:, KP] = [joint.kp for joint in sim.robot.joints]
    block[:, KD] = [joint.kd for joint in sim.robot.joints]
    return block


def base_height(sim: MujocoWarpSim) -> float:
    """Return the lowest base of all worlds [m], which shows that they still stand."""
    sim.refresh()
    return float(sim.qpos[:, 2].min())


if __name__ == "__main__":
    try:
        main()
    except Sim2RealError as error:
        sys.exit(f"error: {error}")
