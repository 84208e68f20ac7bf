"""What a task is, on one page; and the registry of the tasks that ship with the toolkit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real import __version__, plugins
from sim2real.contract import Identity, PolicyContract
from sim2real.errors import InputError
from sim2real.randomization import ParameterRange
from sim2real.robots import Robot, get_robot, same_robot
from sim2real.sim.delays import DelaySpec
from sim2real.sim.scene import EMPTY, Scene
from sim2real.sim.sensors import SensorSpec
from sim2real.tasks.mirror import Mirror
from sim2real.tasks.motion import Array, Flags, Motion

__all__ = [
    "FETCHED",
    "Array",
    "Commands",
    "Curriculum",
    "Event",
    "Fetched",
    "Flags",
    "Goal",
    "Motion",
    "Reward",
    "Task",
    "get_task",
    "task_identity",
    "task_names",
    "unpublished",
]

_BUILT_IN: Final = {
    "pendulum-swingup": "sim2real.tasks.pendulum_swingup:TASK",
    "acrobot-swingup": "sim2real.tasks.double_pendulum_swingup:ACROBOT",
    "pendubot-swingup": "sim2real.tasks.double_pendulum_swingup:PENDUBOT",
    "so101-reach": "sim2real.tasks.so101_reach:TASK",
    "go2-velocity-flat": "sim2real.tasks.go2_velocity:FLAT_TASK",
    "go2-velocity-rough": "sim2real.tasks.go2_velocity:ROUGH_TASK",
    "g1-velocity-flat": "sim2real.tasks.g1_menagerie:TASK",
}


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen and named: the rules that all parts of a task share."""


class Fetched(_Part, frozen=True):
    """What is known of a task before its robot is there."""

    robot: str
    summary: str
    """As of the task."""
    rebuild: str
    """``module:function`` that makes the task for a robot, whether or not its own is there."""


FETCHED: Final = {
    "g1-velocity-flat": Fetched(
        robot="menagerie:unitree_g1",
        summary="Walk on two legs at the velocity that is asked for (±1 m/s, ±0.5 m/s, ±1 rad/s), and take pushes.",
        rebuild="sim2real.tasks.g1_velocity:flat",
    )
}
"""Tasks whose robot may have to be downloaded when they are first used."""


class Reward(_Part, frozen=True):
    """One term of the reward: weight × term, per control step. Each is logged under its name."""

    weight: float
    """Reward per control step where the term is 1."""
    term: Callable[[Motion], Array]
    """Pure function of the motion, shape (N,)."""


class Commands(_Part, frozen=True):
    """What the operator asks for, drawn anew now and then."""

    draw: Callable[[np.random.Generator, int], Array]
    """Draws commands of the contract, in its order: shape (num, C)."""
    period: tuple[float, float]
    """Shortest and longest time [s] until the next draw."""


class Event(_Part, frozen=True):
    """Something that happens to the robot from outside, e.g. a push."""

    name: str
    apply: Callable[[np.random.Generator, Array, Array], None]
    """Changes qpos, shape (n, nq), and qvel, shape (n, nv), of the environments that it meets, in place."""
    period: tuple[float, float]
    """Shortest and longest time [s] between two in one environment."""


class Curriculum(_Part, frozen=True):
    """Levels of difficulty: an environment moves up where its episode went well, and down where it did not."""

    levels: int
    """Number of levels; all start at 0. Who passes the last one starts anew at a random one."""
    change: Callable[[Motion], npt.NDArray[np.int64]]
    """At the end of episodes: +1, 0 or −1 for each environment of the motion, shape (n,)."""
    origin: Callable[[np.random.Generator, npt.NDArray[np.int64]], Array]
    """Where episodes of these levels start: x and y in the world [m], shape (n, 2)."""


class Goal(_Part, frozen=True):
    """When an episode is a success: it did not end early, and `holds` held for `share` of the time after `after`."""

    text: str
    """One sentence for people."""
    holds: Callable[[Motion], Flags]
    """Whether the robot is at the goal in this control step, shape (N,); of the present state alone."""
    after: float
    """Time [s] from which on it is judged."""
    share: float
    """Least share of the control steps from then on, 0 to 1."""


class Task(_Part, frozen=True):
    """One thing to learn on one robot."""

    name: str
    """Name on the command line."""
    robot: Robot
    summary: str
    """One sentence for `sim2real tasks`."""
    contract: Callable[[Identity], PolicyContract]
    """Returns the contract of a policy for this task."""
    rewards: Mapping[str, Reward]
    terminations: Mapping[str, Callable[[Motion], Flags]]
    """True ends, after which no value follows; the time limit is not one of them."""
    start: Callable[[np.random.Generator, int], tuple[Array, Array]]
    """Draws start states: qpos, shape (num, nq), and qvel, shape (num, nv). A floating base starts relative to the
    place and the ground where the episode begins."""
    goal: Goal
    episode_length: float
    """Time [s] after which an episode is cut off; not a failure: the value is bootstrapped."""
    training_episode_length: float
    """The same in training; shorter where most is to be learned soon after the start."""
    training_start: Callable[[np.random.Generator, int], tuple[Array, Array]] | None = None
    """Draws those of training, where a policy that is judged from elsewhere is to learn from states that it seldom
    reaches at first; None: as `start`."""
    scene: Scene = EMPTY
    commands: Commands | None = None
    """None: the contract has no operator inputs."""
    events: tuple[Event, ...] = ()
    """What happens to the robot from outside."""
    training_events: tuple[Event, ...] | None = None
    """The same in training, where a policy is to learn from more of it than it is judged by; None: as `events`."""
    curriculum: Curriculum | None = None
    critic: Mapping[str, Callable[[Motion], Array]] = {}
    """What a critic sees in training beside the policy's observation: name to a function to shape (N, k), about 1 in
    magnitude. A robot does not have it."""
    sensors: SensorSpec | None = None
    """Errors of the measurements in training; None: they are exact."""
    delays: DelaySpec | None = None
    """Delays of commands and measurements in training; None: there are none."""
    ranges: tuple[ParameterRange, ...] = ()
    """From what training draws the robot's physics where no calibration says better."""
    mirror: Mirror | None = None
    """What is each other's image if left and right change places; None: the task is not the same then."""
    rebuild: Callable[[Robot], Task] | None = None
    """Makes the same task for another robot; None: it is for this one alone."""


def task_identity(task: Task, *, checkpoint_sha256: str, config_sha256: str) -> Identity:
    """Return the identity of a policy trained to these weights under this configuration."""
    return Identity(
        task=task.name,
        robot=task.robot.name,
        toolkit_version=__version__,
        checkpoint_sha256=checkpoint_sha256,
        config_sha256=config_sha256,
    )


def unpublished(task: Task) -> Identity:
    """Return the identity of a policy that has no checkpoint yet, for use while training."""
    return task_identity(task, checkpoint_sha256="0" * 64, config_sha256="0" * 64)


def task_names() -> tuple[str, ...]:
    """Return the names that `get_task` accepts: built in, then of installed packages (`sim2real.plugins`)."""
    return plugins.names("task", _BUILT_IN)


def get_task(name: str, robot: str | None = None, *, where: str | None = None) -> Task:
    """Return the task called `name`.

    Args:
        name: One of `task_names`.
        robot: Another robot to do it with: a name, a path to an MJCF or ``menagerie:NAME``; None: the task's own.
        where: Where the file of that robot is now; None: where its name says.

    Raises:
        InputError: There is no such task, what a package gives is not one, or the robot cannot do it, or is not where
            or what it was.
    """
    if name.startswith(("gym:", "envpool:")):
        raise InputError(f"task {name!r}: environments of others are for sim2real train alone; expected one of ours")
    fetched = FETCHED.get(name)
    if fetched is not None and not {robot, where} <= {None, fetched.robot}:
        own, rebuild = fetched.robot, plugins.load("task", {name: fetched.rebuild}, name)
    else:
        task = plugins.load("task", _BUILT_IN, name)
        if not isinstance(task, Task):
            raise InputError(f"task {name!r}: expected a sim2real.tasks.Task, got {type(task).__name__}")
        own, rebuild = task.robot.name, task.rebuild
        if {robot, where} <= {None, own}:
            return task
    if rebuild is None:
        raise InputError(f"task {name}: is for robot {own} alone; leave out --robot")
    named = robot or own
    found = get_robot(where or named)
    if where is not None and not same_robot(found.name, named):
        raise InputError(
            f"--robot: expected the robot that the policy drives, {named!r}, got {found.name!r}; give the file that it "
            "was trained with, or leave --robot out"
        )
    return rebuild(found)
