"""``sim2real play``: watch a task's robot, driven by a policy or by nobody."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import tyro
from tqdm import tqdm

from sim2real.arguments import EngineName, check_number, check_seed, check_writable
from sim2real.clock import NS_PER_S, Ticker
from sim2real.command import Outcome
from sim2real.errors import InputError
from sim2real_hil.progress import bar

if TYPE_CHECKING:
    from sim2real.bundle import Bundle
    from sim2real.tasks import StepResult, Task, TaskEnv
    from sim2real.tasks.motion import Flags, Motion
    from sim2real_hil.driving import Driver
    from sim2real_hil.scenery import Scenery

__all__ = ["PlayArgs", "Screen", "run_play"]

_LONGEST_S: Final = 86_400.0
_MOST_ENVS: Final = 65_536
_PORTS: Final = (1024, 65_535)

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PlayArgs:
    """Watch a task's robot in simulation, driven by a policy or by zero actions.

    It is shown in MuJoCo's viewer; with --video in a file, with --web in a browser. What is shown is the first
    environment, what is told is of all. With a policy, the robot is driven by the edge's own controller, its supervisor
    included, as a real one would be.
    """

    task: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TASK")]]
    """Name of the task; `sim2real tasks` lists them."""
    policy: Annotated[
        Path | None, tyro.conf.arg(metavar="POLICY", help_behavior_hint="(default: nobody drives, all actions are 0)")
    ] = None
    """Policy that drives: a bundle; or the folder of a run, of whose last checkpoint one is made first, or a checkpoint
    folder, e.g. RUN/best."""
    robot: Annotated[
        str | None,
        tyro.conf.arg(
            metavar="ROBOT", help_behavior_hint="(default: the policy's, if that is out of a file, else the task's own)"
        ),
    ] = None
    """Another robot to do the task: a name from `sim2real robots`, a path to an MJCF, or menagerie:NAME."""
    engine: EngineName = "mujoco"
    """Which simulator moves the robot."""
    video: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: a window)")] = None
    """MP4 file to make instead of opening a window; needs no display."""
    web: Annotated[int | None, tyro.conf.arg(metavar="PORT", help_behavior_hint="(default: a window)")] = None
    """Port on which a browser of this machine sees the robot, e.g. 8080; sliders set the operator's inputs."""
    seconds: Annotated[
        float | None,
        tyro.conf.arg(
            metavar="SECONDS",
            help_behavior_hint="(default: one episode into a video; in a window or a browser until it is closed)",
        ),
    ] = None
    """Simulated time [s]."""
    seed: int = 0
    """Seed of starts, commands and measurement errors."""
    num_envs: int = 1
    """Environments that are simulated together."""
    command: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """Operator inputs to hold, e.g. forward=0.5 turn=0; the others are drawn by the task."""
    ideal: bool = False
    """Exact measurements, and nothing is late: without the sensor errors and delays that the task trains with."""
    inference: Annotated[str, tyro.conf.arg(metavar="ENGINE")] = "onnxruntime-cpu"
    """Inference engine of the policy."""
    trust: Annotated[tyro.conf.UseAppendAction[tuple[Path, ...]], tyro.conf.arg(metavar="FILE")] = ()
    """Public keys of signers; with any given, a bundle that another signed is refused."""


class Screen(Protocol):
    """Where the robot is seen."""

    @property
    def is_open(self) -> bool:
        """Whether somebody still looks."""
        ...

    def show(self, qpos: Array) -> None:
        """Show the pose `qpos`, shape (nq,)."""
        ...


class PlayResult(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--json`` prints."""

    task: str
    robot: str
    engine: str
    policy: str | None
    """SHA-256 of the checkpoint that the policy was made of; None: nobody drove."""
    num_envs: int
    control_steps: int
    """Of each environment."""
    seconds: float
    """Simulated time [s]."""
    real_time_factor: float
    """Simulated time over time that passed, while it was shown."""
    reward: float
    """Mean per control step."""
    reward_terms: dict[str, float]
    """Mean of each weighted term per control step."""
    episodes: int
    """That came to an end."""
    falls: int
    """Episodes that ended before their time."""
    successes: int
    """Episodes that reached the task's goal."""
    success_rate: float | None
    """Of the episodes that ended; None: none did."""
    diverged: int
    """Simulations that became unstable."""
    supervised: dict[str, int]
    """Control steps in which the supervisor did not let the policy drive, by cause."""
    video: Path | None


def run_play(args: PlayArgs) -> Outcome:
    """Play as `args` say.

    Raises:
        InputError: An argument is out of range or does not fit the task, or there is no way to show it here.
        Sim2RealError: The bundle cannot be used, or is not for this task.
    """
    _check(args)
    if args.video is None and args.web is None:
        from sim2real_hil.viewer import check_display

        check_display()
    from sim2real.tasks import TaskEnv, get_task
    from sim2real_hil.scenery import Scenery

    bundle = _read_policy(args)
    task = get_task(args.task, args.robot or _file_of(bundle))
    wishes = _wishes(args.command, task)
    counts = _Counts(_with_wishes(task, wishes), args.num_envs)
    env = TaskEnv(counts.watched, args.num_envs, seed=args.seed, noise=not args.ideal, engine=args.engine)
    driver = _make_driver(args, bundle, env)
    with _screens(args, Scenery(task.robot, task.scene), env, wishes) as screens:
        passed = _play(args, env, driver, counts, screens, wishes)
    result = _result(args, env, driver, counts, passed)
    return Outcome(passed=True, result=result, summary=_summary(result))


def _check(args: PlayArgs) -> None:
    """Check the arguments before anything is loaded."""
    check_seed(args.seed)
    if args.seconds is not None:
        check_number("--seconds", args.seconds, high=_LONGEST_S)
    if not 1 <= args.num_envs <= _MOST_ENVS:
        raise InputError(f"--num-envs: expected an integer from 1 to {_MOST_ENVS}, got {args.num_envs}")
    if args.video is not None:
        check_writable("--video", args.video)
    if args.web is not None and not _PORTS[0] <= args.web <= _PORTS[1]:
        raise InputError(f"--web: expected a port from {_PORTS[0]} to {_PORTS[1]}, got {args.web}")


def _wishes(words: Sequence[str], task: Task) -> Array:
    """Return the operator inputs that are held, NaN where the task draws them, shape (C,)."""
    from sim2real.tasks.base import unpublished

    commands = {command.name: command for command in task.contract(unpublished(task)).commands}
    wishes = np.full(len(commands), np.nan)
    for word in words:
        name, _, text = word.partition("=")
        if name not in commands:
            known = f"one of {', '.join(commands)}" if commands else "none: the task has no operator inputs"
            raise InputError(f"--command {word}: expected {known}, got {name!r}")
        try:
            value = float(text)
        except ValueError:
            raise InputError(f"--command {word}: expected NAME=NUMBER, e.g. {name}=0.5") from None
        check_number(f"--command {name}", value, low=commands[name].low, high=commands[name].high, inclusive=True)
        wishes[list(commands).index(name)] = value
    return wishes


def _with_wishes(task: Task, wishes: Array) -> Task:
    """Return the task with operator inputs drawn as ever but for those that are held."""
    commands = task.commands
    if commands is None:
        return task

    def draw(rng: np.random.Generator, num: int) -> Array:
        drawn = commands.draw(rng, num)
        return np.where(np.isnan(wishes), drawn, wishes)

    return msgspec.structs.replace(task, commands=msgspec.structs.replace(commands, draw=draw))


def _read_policy(args: PlayArgs) -> Bundle | None:
    if args.policy is None:
        return None
    from sim2real.policies import read_policy
    from sim2real.signing import load_public_key

    trusted = [load_public_key(key) for key in args.trust] or None
    bundle, name = read_policy(args.policy, trusted_keys=trusted, robot=args.robot)
    tqdm.write(f"play: the policy is {name}", file=sys.stderr)
    return bundle


def _file_of(bundle: Bundle | None) -> str | None:
    """Return the robot that a policy was trained on, if that is out of a file; None: it is the task's to say."""
    from sim2real.robots import is_file_name

    return bundle.contract.identity.robot if bundle and is_file_name(bundle.contract.identity.robot) else None


def _make_driver(args: PlayArgs, bundle: Bundle | None, env: TaskEnv) -> Driver:
    from sim2real_hil.driving import EdgeDriver, ZeroDriver

    return ZeroDriver(env) if bundle is None else EdgeDriver(bundle, env, args.inference)


def _limit(args: PlayArgs, env: TaskEnv) -> int | None:
    """Return the number of control steps; None: until nobody looks any more."""
    if args.seconds is not None:
        return max(1, round(args.seconds / env.control_period))
    return env.episode_steps if args.video is not None else None


@contextlib.contextmanager
def _screens(args: PlayArgs, scenery: Scenery, env: TaskEnv, wishes: Array) -> Generator[list[Screen]]:
    """Yield what shows the robot."""
    with contextlib.ExitStack() as stack:
        screens: list[Screen] = []
        if args.video is not None:
            from sim2real_hil.video import Video

            screens.append(stack.enter_context(Video(args.video, scenery, env.control_period)))
        if args.web is not None:
            from sim2real_hil.web import Web

            begin = np.where(np.isnan(wishes), env.observer.commands[0], wishes)
            web = Web(args.web, scenery, env.contract.commands, begin, wishes.__setitem__)
            screens.append(stack.enter_context(web))
            tqdm.write(f"play: the robot is at {web.address}; Ctrl-C ends", file=sys.stderr)
        if not screens:
            from sim2real_hil.viewer import Viewer

            screens.append(stack.enter_context(Viewer(scenery)))
        yield screens


def _play(args: PlayArgs, env: TaskEnv, driver: Driver, counts: _Counts, screens: list[Screen], wishes: Array) -> float:
    """Play until the time is over or nobody looks any more; return the time that passed [s]."""
    limit = _limit(args, env)
    # A film is made as fast as it can be; who watches sees the robot's own pace.
    pace = None if args.web is None and args.video is not None else Ticker(round(env.control_period * NS_PER_S))
    began = time.monotonic()
    with bar(limit, "play", "step") as progress, _ended_by_ctrl_c(args):
        while (limit is None or counts.steps < limit) and all(screen.is_open for screen in screens):
            if pace is not None:
                pace.wait()
            for screen in screens:
                screen.show(env.plant.sim.qpos[0])
            held = ~np.isnan(wishes)
            env.observer.commands[:, held] = wishes[held]
            result = env.step(driver.act())
            counts.add(result, env.control_period)
            if len(result.done_ids):
                driver.begin(result.done_ids)
            progress.update()
    return time.monotonic() - began


@contextlib.contextmanager
def _ended_by_ctrl_c(args: PlayArgs) -> Generator[None]:
    """Let Ctrl-C end what has no end of its own; half a film is none."""
    try:
        yield
    except KeyboardInterrupt:
        if args.video is not None:
            raise


class _Counts:
    """What comes of the episodes.

    Args:
        task: The task; `watched` is to be played in its place.
        num_envs: Number of environments N.

    Attributes:
        steps: Control steps so far, of each environment.
    """

    def __init__(self, task: Task, num_envs: int) -> None:
        self._goal = task.goal
        self._holds = np.zeros(num_envs, np.bool_)
        self._age = np.zeros(num_envs, np.int64)
        self._held = np.zeros(num_envs, np.int64)
        self._judged = np.zeros(num_envs, np.int64)
        self._terms = np.zeros(len(task.rewards))
        self.steps = self.episodes = self.falls = self.successes = 0
        look = {"(nothing ends here)": self._look}
        self.watched = msgspec.structs.replace(task, terminations={**task.terminations, **look})

    def _look(self, motion: Motion) -> Flags:
        """See whether the goal holds, as a termination that ends nothing: before ended episodes start anew."""
        self._holds = self._goal.holds(motion)
        return np.zeros_like(self._holds)

    def add(self, result: StepResult, control_period: float) -> None:
        """Take one control step into account."""
        self.steps += 1
        self._terms += result.reward_terms.mean(axis=1)
        # As in `sim2real.tasks.goal`: the state after step k is the one at time (k + 1) · control_period.
        due = self._age >= round(self._goal.after / control_period) - 1
        self._judged += due
        self._held += due & self._holds
        self._age += 1
        done = result.done_ids
        reached = self._held[done] >= self._goal.share * np.maximum(self._judged[done], 1)
        self.episodes += len(done)
        self.falls += int(result.terminated[done].sum())
        self.successes += int((reached & ~result.terminated[done]).sum())
        for counter in (self._age, self._held, self._judged):
            counter[done] = 0

    def reward_terms(self, names: Sequence[str]) -> dict[str, float]:
        """Return the mean of each weighted term of the reward per control step."""
        return dict(zip(names, (self._terms / max(self.steps, 1)).tolist(), strict=True))


def _result(args: PlayArgs, env: TaskEnv, driver: Driver, counts: _Counts, passed: float) -> PlayResult:
    terms = counts.reward_terms(env.reward_names)
    return PlayResult(
        task=env.task.name,
        robot=env.task.robot.name,
        engine=args.engine,
        policy=driver.policy,
        num_envs=env.num_envs,
        control_steps=counts.steps,
        seconds=counts.steps * env.control_period,
        real_time_factor=counts.steps * env.control_period / max(passed, 1e-9),
        reward=sum(terms.values()),
        reward_terms=terms,
        episodes=counts.episodes,
        falls=counts.falls,
        successes=counts.successes,
        success_rate=counts.successes / counts.episodes if counts.episodes else None,
        diverged=env.diverged,
        supervised=driver.findings(),
        video=args.video,
    )


def _summary(result: PlayResult) -> str:
    """The result for people."""
    who = "zero actions" if result.policy is None else f"policy {result.policy[:12]}"
    lines = [
        f"{result.task}, robot {result.robot}, engine {result.engine}, {who}: {result.control_steps} control steps of "
        f"{result.num_envs} environment(s), {result.seconds:.6g} s at {result.real_time_factor:.3g} x real time",
        f"reward per control step {result.reward:.4g}: "
        + ", ".join(f"{name} {value:.4g}" for name, value in result.reward_terms.items()),
        f"episodes that ended {result.episodes}: {result.successes} reached the goal, {result.falls} ended early",
    ]
    if result.diverged:
        lines.append(f"simulations that became unstable: {result.diverged}")
    lines += [
        f"the supervisor stepped in, {cause}: {steps} control steps" for cause, steps in result.supervised.items()
    ]
    if result.video is not None:
        lines.append(f"video: {result.video}")
    return "\n".join(lines)
