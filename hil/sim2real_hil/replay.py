"""``sim2real replay``: run the file that a diverged simulation left behind once more."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import tyro

from sim2real.arguments import check_writable
from sim2real.command import Outcome
from sim2real_hil.progress import bar

if TYPE_CHECKING:
    from sim2real.tasks import Task
    from sim2real.tasks.dump import Dump, DumpFacts
    from sim2real.tasks.replay import Replay

__all__ = ["ReplayArgs", "run_replay"]


@dataclass(frozen=True)
class ReplayArgs:
    """Run a simulation that became unstable again: same physics, same commands, from its oldest recorded state.

    The exit code is 0 if it becomes unstable again in the same control step, 1 if it does not. On the mujoco engine all
    states should come out bit for bit.
    """

    dump: tyro.conf.Positional[Path]
    """File diverged-<n>.npz of a training run."""
    robot: str | None = None
    """The robot, where it is none that the toolkit knows by name: a path to its MJCF, or menagerie:NAME."""
    video: Path | None = None
    """MP4 file to make of it."""


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--json`` prints. Control steps are counted within the file, from 0."""

    task: str
    robot: str
    engine: str
    seed: int
    env: int
    episode_step: int
    """Control step of the episode, from 0, in which the run diverged."""
    parameters: dict[str, float]
    """The randomization that it had."""
    versions: dict[str, str]
    """Of the software that wrote the file."""
    steps: int
    from_start: bool
    """The file goes back to where the episode began."""
    diverged_in: int | None
    """Control step in which the replay diverged; the run did in the last one."""
    exact_steps: int
    """Control steps, from the first on, after which the state was the recorded one bit for bit."""
    resumed: tuple[int, ...]
    """Control steps before which the state was taken from the file."""
    largest_velocity: list[float]
    """Largest absolute generalised velocity after each control step [m/s, rad/s]."""
    not_finite_command: int | None
    """First control step whose command was not a number."""
    video: Path | None


def run_replay(args: ReplayArgs) -> Outcome:
    """Replay as `args` say.

    Raises:
        InputError: The file is no dump, is truncated, or does not fit its task any more.
    """
    if args.video is not None:
        check_writable("--video", args.video)
    from sim2real.tasks import get_task
    from sim2real.tasks.dump import read_dump
    from sim2real.tasks.replay import replay

    dump = read_dump(args.dump)
    task = get_task(dump.facts.task, args.robot or dump.facts.robot)
    done = replay(dump, task)
    if args.video is not None:
        _film(args.video, task, dump, done)
    result = _result(args, dump.facts, done)
    return Outcome(passed=done.diverged_in == done.steps - 1, result=result, summary=_summary(result))


def _film(path: Path, task: Task, dump: Dump, done: Replay) -> None:
    from sim2real_hil.scenery import Scenery
    from sim2real_hil.video import Video

    period = dump.facts.contract.timing.control_period_ns * 1e-9
    scenery = Scenery(task.robot, task.scene)
    with bar(len(done.qpos), "replay", "step") as progress, Video(path, scenery, period) as video:
        for qpos in done.qpos:
            video.show(qpos)
            progress.update()


def _result(args: ReplayArgs, facts: DumpFacts, done: Replay) -> ReplayResult:
    return ReplayResult(
        task=facts.task,
        robot=facts.robot,
        engine=facts.engine,
        seed=facts.seed,
        env=facts.env,
        episode_step=facts.step,
        parameters=facts.parameters,
        versions=facts.versions,
        steps=done.steps,
        from_start=done.from_start,
        diverged_in=done.diverged_in,
        exact_steps=done.exact_steps,
        resumed=done.resumed,
        largest_velocity=done.largest_velocity,
        not_finite_command=done.not_finite_command,
        video=args.video,
    )


def _summary(result: ReplayResult) -> str:
    """The result for people."""
    last = result.steps - 1
    where = {None: "does not become unstable again", last: "becomes unstable in the same control step"}
    again = where.get(result.diverged_in, f"becomes unstable in control step {result.diverged_in} instead of {last}")
    since = "since the episode began" if result.from_start else "the last ones of the episode"
    lines = [
        f"{result.task}, robot {result.robot}, engine {result.engine}: environment {result.env} of the run with seed "
        f"{result.seed}, control step {result.episode_step} of its episode",
        f"{result.steps} control steps, {since}: {again}",
        f"{result.exact_steps} of {result.steps} states bit for bit as recorded",
        "largest velocity after each of the last steps [m/s, rad/s]: "
        + ", ".join(f"{value:.4g}" for value in result.largest_velocity[-5:]),
    ]
    if result.not_finite_command is not None:
        lines.append(f"the command of control step {result.not_finite_command} is not a number: look at the policy")
    if result.parameters:
        drawn = ", ".join(f"{name} {value:.6g}" for name, value in result.parameters.items())
        lines.append(f"randomization: {drawn}")
    if result.video is not None:
        lines.append(f"video: {result.video}")
    return "\n".join(lines)
