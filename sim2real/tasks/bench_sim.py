"""``sim2real bench sim``: what a task's environments cost beside the bare physics of the same simulations."""

from __future__ import annotations

import gc
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
import numpy.typing as npt
import tyro

from sim2real.action import ActionMapper
from sim2real.arguments import check_number, check_seed
from sim2real.command import Outcome
from sim2real.errors import InputError
from sim2real.extras import require
from sim2real.sim.engines import EngineName
from sim2real.tasks.base import Task, get_task
from sim2real.tasks.env import TaskEnv
from sim2real.tasks.profile import Profile, profiled_task

__all__ = ["BenchSimArgs", "SizeResult", "alternate", "measure", "random_actions", "run_bench_sim"]

_MOST_ENVS: Final = 1_000_000
_MOST_THREADS: Final = 1024
_LONGEST_S: Final = 3600.0
_BLOCK: Final = 4
"""Control steps that are timed together: in a single one of few environments, no episode may begin."""
_WARM_UP: Final = 2
"""Blocks that do not count."""
_FEWEST: Final = 5
"""Blocks that are timed at least, however long they take."""
_ACTIONS: Final = 8
"""Different random actions, drawn before the clock runs."""
_STATM: Final = Path("/proc/self/statm")


@dataclass(frozen=True)
class BenchSimArgs:
    """Time whole control steps of a task's environments beside the bare physics of the same simulations.

    A control step is everything that training needs of it: action, commands, measurement, observation, reward, ends and
    new beginnings of episodes, under random actions. Both alternate in blocks of four, so that states, and whatever
    else this machine does, meet both; figures are of the median block.
    """

    task: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TASK")]]
    """Name of the task; `sim2real tasks` lists them."""
    num_envs: Annotated[tuple[int, ...], tyro.conf.arg(metavar="INT...")] = (256, 1024, 4096)
    """Numbers of environments to measure with, e.g. --num-envs 256 1024."""
    threads: int = 2
    """Threads that step the simulation."""
    seconds: float = 3.0
    """Time [s] to measure each number of environments."""
    engine: EngineName = "mujoco"
    """Which simulator."""
    robot: Annotated[str | None, tyro.conf.arg(metavar="ROBOT", help_behavior_hint="(default: the task's own)")] = None
    """Another robot to do the task: a name from `sim2real robots`, a path to an MJCF, or menagerie:NAME."""
    profile: bool = False
    """Show where the time of a control step goes, in a run of its own that is a little slower."""
    seed: int = 0
    """Seed of starts and actions."""


class PartResult(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a control step."""

    name: str
    microseconds: float
    """Time per control step of all environments [µs]."""
    share: float
    """Of the control step."""


class SizeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The figures for one number of environments."""

    num_envs: int
    steps_per_second: float
    """Control steps per second, of all environments together."""
    bare_steps_per_second: float
    """The same for the physics alone: as many physics steps under as many new commands, and nothing else."""
    share_of_bare: float
    """The first over the second."""
    restarts_per_step: float
    """Episodes that began anew per control step, of all environments together."""
    memory_per_env: float
    """Resident memory that the environments took, over their number [bytes]."""
    blocks: int
    """Blocks of control steps that were timed."""
    parts: tuple[PartResult, ...]
    """Where the time goes, largest first; empty unless asked for."""


class BenchSimResult(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--json`` prints."""

    task: str
    robot: str
    engine: str
    threads: int
    cpus: int
    """That this process may use."""
    decimation: int
    """Physics steps per control step."""
    control_period: float
    """[s]"""
    sizes: tuple[SizeResult, ...]


def run_bench_sim(args: BenchSimArgs) -> Outcome:
    """Measure as `args` say.

    Raises:
        InputError: An argument is out of range, or there is no such task.
    """
    _check(args)
    task = get_task(args.task, args.robot)
    progress = require("tqdm", "sim").tqdm(args.num_envs, desc="bench sim", unit="size", leave=False)
    sizes = tuple(measure(task, num_envs, args) for num_envs in progress)
    env = _make_env(task, 1, args)
    result = BenchSimResult(
        task=task.name,
        robot=task.robot.name,
        engine=args.engine,
        threads=args.threads,
        cpus=len(os.sched_getaffinity(0)),
        decimation=env.plant.decimation,
        control_period=env.control_period,
        sizes=sizes,
    )
    return Outcome(passed=True, result=result, summary=_summary(result))


def _check(args: BenchSimArgs) -> None:
    check_seed(args.seed)
    check_number("--seconds", args.seconds, high=_LONGEST_S)
    if not args.num_envs or not all(1 <= num_envs <= _MOST_ENVS for num_envs in args.num_envs):
        raise InputError(f"--num-envs: expected integers from 1 to {_MOST_ENVS}, got {list(args.num_envs)}")
    if not 0 <= args.threads <= _MOST_THREADS:
        raise InputError(f"--threads: expected 0 (one per CPU) to {_MOST_THREADS}, got {args.threads}")


def measure(task: Task, num_envs: int, args: BenchSimArgs) -> SizeResult:
    """Return the figures of `num_envs` environments."""
    env = _make_env(task, num_envs, args)
    whole, bare, restarts = alternate(env, args.seconds, args.seed)
    step, physics = statistics.median(whole), statistics.median(bare)
    return SizeResult(
        num_envs=num_envs,
        steps_per_second=num_envs / (step * 1e-9),
        bare_steps_per_second=num_envs / (physics * 1e-9),
        share_of_bare=physics / step,
        restarts_per_step=restarts,
        memory_per_env=_memory_per_env(num_envs, args),
        blocks=len(whole),
        parts=_profile(task, num_envs, args) if args.profile else (),
    )


def _make_env(task: Task, num_envs: int, args: BenchSimArgs) -> TaskEnv:
    return TaskEnv(task, num_envs, seed=args.seed, engine=args.engine, num_threads=args.threads, stagger=True)


def random_actions(env: TaskEnv, seed: int) -> npt.NDArray[np.float32]:
    """Return some actions within ± 1 for all environments, shape (8, N, A)."""
    shape = (_ACTIONS, env.num_envs, env.action_size)
    return np.random.default_rng(seed).uniform(-1.0, 1.0, shape).astype(np.float32)


def alternate(env: TaskEnv, seconds: float, seed: int) -> tuple[list[float], list[float], float]:
    """Alternate blocks of whole and of bare control steps for about `seconds`.

    Bare ones leave no trace: where robots went on falling in them, too many episodes would end in the whole ones.

    Returns:
        Time of a whole control step and of a bare one in each block [ns], and episodes that began per whole one.
    """
    actions = random_actions(env, seed)
    physics = _Physics(env, actions)
    whole: list[float] = []
    bare: list[float] = []
    restarts = blocks = 0
    end = time.monotonic()
    while blocks < _WARM_UP + _FEWEST or time.monotonic() < end:
        if blocks == _WARM_UP:
            end = time.monotonic() + seconds
        block = range(blocks * _BLOCK, (blocks + 1) * _BLOCK)
        began, count = time.perf_counter_ns(), 0
        for number in block:
            count += len(env.step(actions[number % _ACTIONS]).done_ids)
        ended = time.perf_counter_ns()
        state = env.plant.sim.snapshot()
        spent = sum(physics.step(number) for number in block)
        env.plant.sim.restore(state)
        if blocks >= _WARM_UP:
            whole.append((ended - began) / _BLOCK)
            bare.append(spent / _BLOCK)
            restarts += count
        blocks += 1
    return whole, bare, restarts / (len(whole) * _BLOCK)


class _Physics:
    """The physics of an environment's control steps and nothing else, under random commands.

    The commands change as those of a policy do, since the solver has less to do where they do not.
    """

    def __init__(self, env: TaskEnv, actions: npt.NDArray[np.float32]) -> None:
        # Loads MuJoCo, which the simulation has loaded.
        from sim2real.sim.mujoco import MujocoSim

        sim = env.plant.sim
        order = [env.contract.joint_names.index(name) for name in sim.joint_names]
        mapper = ActionMapper(env.contract, env.num_envs)
        self._commands = [mapper.apply(action)[..., order] for action in actions]
        self._sim = sim
        self._decimation = env.plant.decimation
        self._batch = sim.batch if isinstance(sim, MujocoSim) else None

    def step(self, number: int) -> int:
        """Advance by one control period; return the time [ns] that it took, without that of the command."""
        self._sim.set_command(self._commands[number % _ACTIONS])
        began = time.perf_counter_ns()
        if self._batch is not None:
            self._batch.step(nstep=self._decimation)
        else:
            self._sim.step(self._decimation)
        return time.perf_counter_ns() - began


def _profile(task: Task, num_envs: int, args: BenchSimArgs) -> tuple[PartResult, ...]:
    """Return where the time of a control step goes."""
    profile = Profile()
    env = _make_env(profiled_task(task, profile), num_envs, args)
    actions = random_actions(env, args.seed)
    for action in actions:
        env.step(action)
    profile.attach(env)
    began, steps = time.perf_counter_ns(), 0
    while steps < _FEWEST * _BLOCK or time.perf_counter_ns() - began < args.seconds * 1e9:
        env.step(actions[steps % _ACTIONS])
        steps += 1
    total = time.perf_counter_ns() - began
    return tuple(
        PartResult(name=name, microseconds=spent / steps * 1e-3, share=spent / total)
        for name, spent in profile.parts(total).items()
    )


def _memory_per_env(num_envs: int, args: BenchSimArgs) -> float:
    """Return the resident memory that one environment takes [bytes], as a process of its own finds it.

    In this one, new environments take the place of those that were measured before.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_grown_per_env, num_envs, args).result()


def _grown_per_env(num_envs: int, args: BenchSimArgs) -> float:
    task = get_task(args.task, args.robot)
    # What any number of environments needs, the libraries first of all, is there before the first look.
    small = _make_env(task, 1, args)
    small.step(random_actions(small, args.seed)[0])
    before = _resident_bytes()
    env = _make_env(task, num_envs, args)
    env.step(random_actions(env, args.seed)[0])
    return (_resident_bytes() - before) / num_envs


def _resident_bytes() -> int:
    gc.collect()
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _summary(result: BenchSimResult) -> str:
    """The result for people."""
    lines = [
        f"{result.task}, robot {result.robot}, engine {result.engine}, {result.threads} thread(s) on {result.cpus} "
        f"CPU(s); {result.decimation} physics steps per control step of {result.control_period * 1e3:.4g} ms",
        f"{'envs':>8}  {'control steps/s':>15}  {'bare physics/s':>15}  {'share':>6}  {'restarts/step':>13}  "
        f"{'memory/env':>10}",
    ]
    lines += [
        f"{size.num_envs:>8,}  {size.steps_per_second:>15,.0f}  {size.bare_steps_per_second:>15,.0f}  "
        f"{size.share_of_bare:>6.1%}  {size.restarts_per_step:>13.3g}  {size.memory_per_env / 1024:>7.1f} kB"
        for size in result.sizes
    ]
    for size in result.sizes:
        if size.parts:
            width = max(len(part.name) for part in size.parts)
            lines.append(f"where the time of a control step of {size.num_envs:,} environments goes:")
            lines += [
                f"  {part.name:<{width}}  {part.microseconds:>10,.1f} µs  {part.share:>6.1%}" for part in size.parts
            ]
    return "\n".join(lines)
