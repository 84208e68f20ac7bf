"""The controller: collect, score, learn, publish, until the iterations are done."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from sim2real import __version__, interrupts
from sim2real.errors import InputError, Sim2RealError
from sim2real.randomization import RandomizationFile
from sim2real.robots import same_robot
from sim2real.tasks.gym_tasks import is_foreign
from sim2real_train.checkpoint import Arrays, Checkpoint, State, has_checkpoint, read_checkpoint, write_checkpoint
from sim2real_train.checks import check_run
from sim2real_train.chunks import WarmStart
from sim2real_train.config import TrainConfig
from sim2real_train.environments import verdict
from sim2real_train.evaluate import Evaluation
from sim2real_train.messages import tell
from sim2real_train.metrics import Curve, Metrics, MetricsLog, curve, scalars
from sim2real_train.moments import merge
from sim2real_train.placement import Placement
from sim2real_train.placements import Machines, check_placement, placed
from sim2real_train.plan import Choice
from sim2real_train.plants import Told, plants_of_run
from sim2real_train.provenance import note_attempt, note_placement
from sim2real_train.run_folder import BEST, CHECKPOINT, DUMPS, check_layout, claimed, clear
from sim2real_train.warm_start import warm_start
from sim2real_train.watch import WorkerLostError

__all__ = ["Schedule", "TrainResult", "TrainingStoppedError", "train"]

_NODE_SECONDS: Final = 600.0
"""How long a cluster may take to replace a node."""


class TrainingStoppedError(Sim2RealError):
    """Training ended early; the message says how to go on."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """When things happen; none of it changes what is learned."""

    iterations: int
    """Iterations in all, those before a resume included."""
    save_every: int = 25
    """Iterations between checkpoints."""
    evaluate_every: int = 50
    """Iterations between measurements of the success rate."""
    evaluate_starts: int = 256
    """Episodes of the last measurement; those on the way take a quarter."""
    machines: Machines = Machines()
    """Where its processes are."""
    wandb_project: str | None = None
    """Project of Weights & Biases that gets the metrics too."""
    restarts: int = 0
    """How often the run goes on by itself from its last checkpoint after a worker has died."""


class TrainResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `sim2real train` reports."""

    task: str
    checkpoint: Path
    weights_sha256: str
    iterations: int
    env_steps: int
    wall_seconds: float
    num_workers: int
    evaluation: Evaluation
    """Of the last policy, on plants of the training ranges."""
    plants: Told
    """Which plants that is on."""
    curve: Curve
    diverged: int
    """Simulations that became unstable and were begun anew, since the start or the last resume."""
    placement: Choice | None = None
    """How ``--placement auto`` chose where it runs, and what came of it. None: somebody else did."""


def train(
    config: TrainConfig, schedule: Schedule, out: Path, *, resume: bool = False, placement: Choice | None = None
) -> TrainResult:
    """Train a policy; `out` gets `checkpoint/`, `best/`, `run.json`, `metrics.jsonl` and `tensorboard/`.

    Args:
        config: What is trained.
        schedule: For how long, and when checkpoints are saved.
        out: Folder of the run.
        resume: Go on from the checkpoint in `out`, exactly; where there is none yet, begin.
        placement: How it was chosen where `config` runs; kept in `run.json` beside what came of it.

    Raises:
        InputError: The robot cannot have the ranges; this machine has not what the run needs; `out` holds a run
            already, or one of another configuration; another training is writing to it, or it cannot be written to.
        TrainingStoppedError: Interrupted, a worker died, or training diverged; the message says how to go on.
    """
    check_run(config)
    check_placement(config, schedule.machines)
    # What a run goes on from has all in it that it once began with.
    warm = None if resume and has_checkpoint(_checkpoint(out)) else warm_start(config)
    with claimed(out), interrupts.handled_once():
        check_layout(out)
        if not resume:
            _check_fresh(out)
        before: WorkerLostError | None = None
        for left in reversed(range(schedule.restarts + 1)):
            start = _resumed(config, schedule, out) if has_checkpoint(_checkpoint(out)) else None
            if start is None:
                clear(out)
            note_attempt(out, config, 0 if start is None else start.state.iteration, placement)
            try:
                result = _train(config, schedule, out, start or warm, placement)
            except WorkerLostError as error:
                _check_again(error, before, out)
                if not left:
                    raise TrainingStoppedError(f"{error}; {_how_to_go_on(out)}") from error
                saved = _saved_iteration(out)
                onwards = "beginning anew" if saved is None else f"going on from iteration {saved}"
                tell(f"{error}; {onwards} (restarts left: {left})")
                before, schedule = error, _patient(schedule)
            else:
                if result.placement is not None:
                    note_placement(out, result.placement)
                return result
    raise AssertionError("unreachable: the last attempt returns or raises")


def _train(
    config: TrainConfig, schedule: Schedule, out: Path, start: Checkpoint | WarmStart | None, placement: Choice | None
) -> TrainResult:
    """Make one attempt; a worker that dies ends it with `WorkerLostError`."""
    try:
        interrupts.arm()
        with placed(config, schedule.machines, dumps=out / DUMPS) as workers, interrupts.then_held_back():
            run = _Run(config, schedule, out, workers, start)
            try:
                run.iterate()
                return run.result(placement)
            except WorkerLostError as error:
                error.iteration = min(len(run.metrics) + 1, schedule.iterations)
                raise
    except KeyboardInterrupt:
        raise TrainingStoppedError(f"interrupted; {_how_to_go_on(out)}") from None


def _check_again(error: WorkerLostError, before: WorkerLostError | None, out: Path) -> None:
    """Check that another attempt is worth it.

    Raises:
        TrainingStoppedError: The same worker was lost in the same iteration as in the attempt before: it met the same
            states, and would meet them again.
    """
    if before is None or error.worker is None or (error.worker, error.iteration) != (before.worker, before.iteration):
        return
    where = "before the first iteration" if error.iteration is None else f"in iteration {error.iteration}"
    raise TrainingStoppedError(
        f"{error}; {error.worker} was lost {where} twice, and would be again: look at what its environment does there, "
        f"or give fewer --num-envs if memory is short; {_how_to_go_on(out)}"
    ) from error


def _patient(schedule: Schedule) -> Schedule:
    """Let an attempt wait for the node in place of the one that the attempt before has lost."""
    machines = msgspec.structs.replace(schedule.machines, patience=_NODE_SECONDS)
    return msgspec.structs.replace(schedule, machines=machines)


class _Run:
    """One attempt at a run, from its start or from a checkpoint."""

    def __init__(
        self,
        config: TrainConfig,
        schedule: Schedule,
        out: Path,
        workers: Placement,
        start: Checkpoint | WarmStart | None,
    ) -> None:
        self.config = config
        self.schedule = schedule
        self.out = out
        self.workers = workers
        self.metrics: list[Metrics] = []
        self.began = time.monotonic()
        self.saved: State | None = None
        if isinstance(start, WarmStart):
            workers.begin_with(start)
            if start.critic_differs:
                tell(f"--init-from: the policy begins as it was there, the critic anew: {start.critic_differs}")
        elif start is not None:
            workers.load(start)
            self.metrics = list(start.state.metrics)
            self.began -= start.state.wall_seconds
            self.saved = start.state

    def iterate(self) -> None:
        """Learn until the schedule's iterations are done; save on the way and at the end."""
        steps = self.config.num_envs * self.config.algorithm.num_steps
        total = self.schedule.iterations
        with MetricsLog(
            self.out,
            tuple(self.metrics),
            total=total,
            env_steps=steps,
            wandb_project=self.schedule.wandb_project,
            config=self.config,
        ) as log:
            while len(self.metrics) < total:
                self.metrics.append(self._iteration(len(self.metrics) + 1))
                _check_metrics(self.config.task, self.metrics[-1])
                log.add(self.metrics[-1])
                if len(self.metrics) % self.schedule.save_every == 0 or len(self.metrics) == total:
                    self.saved = self._save(_checkpoint(self.out))
                if self._is_best():
                    self._save(self.out / BEST)

    def _iteration(self, number: int) -> Metrics:
        """Collect, score, learn, publish."""
        collected = self.workers.collect()
        advantages = merge(self.workers.score())
        learning = _mean(self.workers.learn(advantages))
        self.workers.publish(merge(each.observations for each in collected))
        due = number % self.schedule.evaluate_every == 0
        returns = [value for each in collected for value in each.episode_returns]
        return Metrics(
            iteration=number,
            env_steps=number * self.config.num_envs * self.config.algorithm.num_steps,
            wall_seconds=time.monotonic() - self.began,
            mean_reward=float(np.mean([each.mean_reward for each in collected])),
            mean_return=float(np.mean(returns)) if returns else None,
            learning=learning,
            stages=self.workers.stages(),
            terms=_mean([each.terms for each in collected]),
            success=self._evaluate(max(self.schedule.evaluate_starts // 4, 1)).success_rate if due else None,
        )

    def _evaluate(self, starts: int) -> Evaluation:
        return verdict(self.config, self.workers.evaluate(starts, self.config.seed))

    def _is_best(self) -> bool:
        """Whether no policy before was measured to succeed as often as this one."""
        success = self.metrics[-1].success
        before = [each.success for each in self.metrics[:-1] if each.success is not None]
        return success is not None and success > max(before, default=-1.0)

    def _save(self, folder: Path) -> State:
        states = self.workers.states()
        arrays = self.workers.learner() | {f"worker-{rank}": state.arrays for rank, state in enumerate(states)}
        state = State(
            schema_version=2,
            toolkit_version=__version__,
            config=self.config,
            iteration=len(self.metrics),
            wall_seconds=time.monotonic() - self.began,
            metrics=tuple(self.metrics),
            generators=tuple(state.generator for state in states),
            members={},
        )
        _check_weights(self.config.task, arrays, len(self.metrics))
        return write_checkpoint(folder, state, arrays)

    def result(self, placement: Choice | None) -> TrainResult:
        """Judge the last policy and sum the run up."""
        assert self.saved is not None
        if placement is not None:
            placement = msgspec.structs.replace(placement, measured_step_seconds=_step_seconds(self.metrics))
        return TrainResult(
            task=self.config.task,
            checkpoint=_checkpoint(self.out),
            weights_sha256=self.saved.members["weights"].sha256,
            iterations=self.saved.iteration,
            env_steps=self.metrics[-1].env_steps,
            wall_seconds=time.monotonic() - self.began,
            num_workers=self.config.num_workers,
            evaluation=self._evaluate(self.schedule.evaluate_starts),
            plants=plants_of_run(self.config).told(),
            curve=curve(tuple(self.metrics)),
            diverged=round(self.metrics[-1].terms.get("diverged", 0.0) * self.config.num_workers),
            placement=placement,
        )


def _step_seconds(metrics: list[Metrics]) -> float:
    """Return the median time [s] of an iteration without measurements and checkpoints."""
    stages = [each.stages for each in metrics]
    spared = ("evaluate_seconds", "save_seconds")
    return float(np.median([each["wall_seconds"] - sum(each.get(name, 0.0) for name in spared) for each in stages]))


def _mean(figures: list[dict[str, float]]) -> dict[str, float]:
    """Return the means over all workers."""
    return {name: float(np.mean([each[name] for each in figures])) for name in figures[0]}


def _check_metrics(task: str, metrics: Metrics) -> None:
    for name, value in scalars(metrics).items():
        if value is not None and not math.isfinite(value):
            raise _diverged(task, metrics.iteration, f"{name} is {value}")


def _check_weights(task: str, arrays: dict[str, Arrays], iteration: int) -> None:
    for role in ("weights", "learner"):
        for name, array in arrays[role].items():
            if not np.isfinite(array).all():
                raise _diverged(task, iteration, f"{name} is not finite")


def _diverged(task: str, iteration: int, what: str) -> TrainingStoppedError:
    # Rewards and observations of our tasks are of the size that the presets are for; those of others may be any.
    advice = "train anew with a lower --learning-rate and another --out"
    if is_foreign(task):
        advice = f"look for huge rewards or observations of {task}, and train anew with another --out"
    return TrainingStoppedError(
        f"training diverged: in iteration {iteration} {what}, and nothing was saved of it; {advice}"
    )


def _checkpoint(out: Path) -> Path:
    return out / CHECKPOINT


def _check_fresh(out: Path) -> None:
    if has_checkpoint(_checkpoint(out)):
        raise InputError(f"{out}: holds a run already; go on with it by --resume, or choose another --out")


def _resumed(config: TrainConfig, schedule: Schedule, out: Path) -> Checkpoint:
    checkpoint = read_checkpoint(_checkpoint(out))
    differing = _differences(checkpoint.state.config, config)
    if differing:
        raise InputError(
            f"{out}: was trained with other settings: {'; '.join(differing)}; give the same ones again, or choose "
            "another --out"
        )
    if checkpoint.state.iteration > schedule.iterations:
        raise InputError(
            f"{out}: is at iteration {checkpoint.state.iteration} already; ask for at least as many --iterations"
        )
    if checkpoint.state.iteration == schedule.iterations:
        tell(f"{out}: all {schedule.iterations} iterations were done already; its policy is evaluated once more")
    return checkpoint


def _differences(was: msgspec.Struct, now: msgspec.Struct, path: str = "") -> list[str]:
    """Return a phrase for each field in which two configurations of the same type differ."""
    phrases: list[str] = []
    for name in was.__struct_fields__:
        old, new = getattr(was, name), getattr(now, name)
        if name == "randomization_file":
            # Where the ranges were read from changes nothing that they are.
            continue
        if name == "robot" and None not in (old, new) and same_robot(old, new):
            # Nor does where its file is, whose content is in the name.
            continue
        if isinstance(old, RandomizationFile) or isinstance(new, RandomizationFile):
            phrases += [f"{path}{name} is not the same file"] if old != new else []
        elif isinstance(old, msgspec.Struct) and type(old) is type(new):
            phrases += _differences(old, new, f"{path}{name}.")
        elif old != new:
            phrases.append(f"{path}{name} was {old!r}, now {new!r}")
    return phrases


def _saved_iteration(out: Path) -> int | None:
    """Return the iteration of the last checkpoint; None: there is none."""
    return read_checkpoint(_checkpoint(out)).state.iteration if has_checkpoint(_checkpoint(out)) else None


def _how_to_go_on(out: Path) -> str:
    iteration = _saved_iteration(out)
    if iteration is None:
        return "no checkpoint was saved yet: train anew"
    return f"the checkpoint of iteration {iteration} is whole: the same command with --resume goes on from it"
