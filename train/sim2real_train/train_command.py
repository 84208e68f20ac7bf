"""`sim2real train`: from the command line to a configuration."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import tyro

from sim2real.arguments import EngineName, check_number
from sim2real.command import Outcome
from sim2real.errors import InputError

if TYPE_CHECKING:
    from sim2real_train.auto import Choice
    from sim2real_train.config import PlacementConfig, TrainConfig
    from sim2real_train.placements import Machines
    from sim2real_train.presets import Preset
    from sim2real_train.trainer import TrainResult

__all__ = ["TrainArgs", "run_train"]

_LIMITS: Final = {
    "iterations": 1e9,
    "save_every": 1e9,
    "evaluate_every": 1e9,
    "evaluate_starts": 1e6,
    "sim_threads": 1024,
}
"""Largest whole numbers that may be asked for: more is a slip of the keyboard, and would not fit into memory."""
_MOST_RESTARTS: Final = 1e6
_MOST_WORKERS: Final = 1024
_OF_MODEL: Final = {name: name for name in ("recurrent", "hidden", "initial_std")}
_OF_ALGORITHM: Final = {
    "num_steps": "num_steps",
    "learning_rate": "learning_rate",
    "desired_kl": "desired_kl",
    "entropy": "entropy_coefficient",
    "discount": "discount",
}
"""Options for the settings that are changed most often, and the fields that they set."""


@dataclass(frozen=True)
class TrainArgs:
    """Learn a policy in simulation.

    OUT gets checkpoint/ (the last), best/ (the one that succeeded most often), run.json (configuration, versions, git),
    metrics.jsonl and tensorboard/. Ctrl-C leaves the last checkpoint whole; the same command with --resume goes on from
    it exactly.
    """

    task: tyro.conf.Positional[str]
    """Name of the task; `sim2real tasks` lists them."""
    out: Path
    """Folder of the run."""
    algo: Literal["ppo", "sac", "distill"] | None = None
    """How is learned; without this, as suits the task. ppo: from many environments, with each step used a few times.
    sac: from few, with each step used many times. distill: the policy imitates --teacher on what it can measure
    itself."""
    teacher: Path | None = None
    """Checkpoint folder of the policy to imitate, which may be --privileged."""
    privileged: bool = False
    """The policy reads all that the critic sees: a teacher for --algo distill, which no robot can be driven by."""
    robot: str | None = None
    """Another model of the task's robot: a path to an MJCF, menagerie:NAME, or a name from `sim2real robots`. Its
    physics is simulated; gains, ratings and default pose are the task's."""
    engine: EngineName = "mujoco"
    """Which simulator: mujoco on the CPU, mujoco_warp on an NVIDIA GPU, newton for a comparison."""
    randomization: Path | None = None
    """Ranges that each episode's physics is drawn from, e.g. of `sim2real calib fit`, beside the task's own of what the
    file does not name."""
    latency: Path | None = None
    """Delays of commands as a bench measured them, in place of --command-delay: latency.json of `sim2real hil run`."""
    iterations: int | None = None
    """Iterations in all, those before a resume included; each collects num-envs × num-steps control steps. Without
    this and the other settings of learning, those that suit the task."""
    num_envs: int | None = None
    """Environments of all workers together."""
    num_steps: int | None = None
    """Control steps per environment and iteration."""
    workers: int = 1
    """Processes that simulate (and, colocated, learn together, waiting for each other's gradients); on two busy cores
    one is the fastest. Results depend on their number."""
    placement: Literal["colocated", "overlapped", "disaggregated", "auto"] | None = None
    """Where collecting and learning run. colocated (the default): each worker simulates and learns. overlapped: the
    next batch is collected while this one is learned, by weights one update old. disaggregated: workers stream to
    learners, by weights at most --max-staleness updates old, and may die and be replaced. auto: measures the stages,
    predicts a step of each placement that fits, takes the best in place of --workers and --sim-threads, and prints
    predicted beside measured."""
    learners: int | None = None
    """Processes that learn, where workers only simulate."""
    max_staleness: int | None = None
    """Updates that the weights may miss with which a disaggregated worker collects."""
    inference: Literal["sim", "server"] | None = None
    """Where the policy of disaggregated workers acts: in each of them, or in one server for all."""
    max_workers: int = 0
    """Disaggregated workers that there may be when the cluster grows; 0: no more than --workers."""
    address: str | None = None
    """Ray cluster to run on, HOST:PORT or auto; without it, one of our own on this machine."""
    sim_threads: int = 2
    """Threads of each worker that step its simulation; results do not depend on them."""
    seed: int = 0
    """Seeds every draw."""
    command_delay: tuple[float, float] = (0.0, 0.02)
    """Range of the delay [s] of commands in training; widens the calibrated one, since runtime and wire add theirs."""
    recurrent: Literal["none", "gru", "lstm"] | None = None
    """Whether the policy has a memory."""
    hidden: tuple[int, ...] | None = None
    """Widths of the hidden layers of actor and critic."""
    initial_std: float | None = None
    """Standard deviation of the exploration noise at the start, in units of the action."""
    learning_rate: float | None = None
    """Of the first iteration; later ones follow the policy's change."""
    desired_kl: float | None = None
    """Change of the policy per iteration (KL divergence) that the learning rate is steered to."""
    entropy: float | None = None
    """Weight of the policy's entropy."""
    discount: float | None = None
    """How much a reward counts one control step later."""
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Any field of the configuration, e.g. --set algorithm.clip=0.1 model.activation=tanh; --show lists them all."""
    show: bool = False
    """Print the configuration that the other options make, what each field means, and train nothing."""
    save_every: int = 25
    """Iterations between checkpoints."""
    evaluate_every: int = 50
    """Iterations between measurements of the success rate."""
    evaluate_starts: int = 256
    """Episodes of the last measurement, after the last iteration; those on the way take a quarter."""
    wandb: str | None = None
    """Project of Weights & Biases that gets the metrics too, if its package is installed; WANDB_MODE=offline keeps them
    in OUT."""
    restarts: int = 3
    """How often the run goes on by itself from its last checkpoint after a worker has died."""
    resume: bool = False
    """Go on from the checkpoint in OUT; begin where there is none yet, so that a job may always be given this."""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--show --json`` prints."""

    config: Any
    fields: list[Any]


def run_train(args: TrainArgs) -> Outcome:
    """Train; the outcome is a `TrainResult`."""
    from sim2real_train.config import check_config
    from sim2real_train.placements import Machines
    from sim2real_train.trainer import Schedule, train

    _check_numbers(args)
    preset = _settings(args)
    config = _train_config(args, preset)
    check_config(config)
    if args.show:
        return _show(config)
    machines = Machines(num_threads=args.sim_threads, address=args.address, max_workers=args.max_workers)
    choice = None
    if args.placement == "auto":
        config, machines, choice = _picked(args, config, machines)
    schedule = Schedule(
        iterations=preset.iterations,
        save_every=args.save_every,
        evaluate_every=args.evaluate_every,
        evaluate_starts=args.evaluate_starts,
        machines=machines,
        wandb_project=args.wandb,
        restarts=args.restarts,
    )
    result = train(config, schedule, args.out, resume=args.resume)
    verdict = result.evaluation
    return Outcome(
        passed=True,
        result=result,
        summary=(
            f"trained {result.task}: {result.iterations} iterations, {result.env_steps:,} control steps, "
            f"{result.wall_seconds:.0f} s on {result.num_workers} workers\n"
            f"success in {verdict.starts} episodes: {verdict.success_rate:.1%} ({verdict.criterion}); mean return "
            f"{verdict.mean_return:.1f}\n"
            f"checkpoint: {result.checkpoint}{_instability(result.diverged, args.out)}" + _beside(choice, result)
        ),
    )


def _beside(choice: Choice | None, result: TrainResult) -> str:
    """Say what was predicted of the placement and what came of it."""
    if choice is None:
        return ""
    from sim2real_train.auto import comparison, step_seconds

    return f"\n{comparison(choice, step_seconds(result))}"


def _picked(args: TrainArgs, config: TrainConfig, machines: Machines) -> tuple[TrainConfig, Machines, Choice | None]:
    """Return the run as it is placed best; one that is resumed stays where it was, since its results depend on it."""
    from sim2real_train.auto import comparison, pick, with_placement
    from sim2real_train.checkpoint import has_checkpoint, read_checkpoint

    if args.resume and has_checkpoint(args.out / "checkpoint"):
        before = read_checkpoint(args.out / "checkpoint").state.config
        config = msgspec.structs.replace(config, num_workers=before.num_workers, placement=before.placement)
        return config, machines, None
    choice = pick(config, address=args.address)
    sys.stderr.write(comparison(choice) + "\n")
    chosen = choice.chosen.candidate
    return with_placement(config, chosen), msgspec.structs.replace(machines, num_threads=chosen.threads), choice


def _instability(diverged: int, out: Path) -> str:
    """Say how many simulations were begun anew, and how to look at the first of them."""
    if not diverged:
        return ""
    dumps = sorted((out / "diverged").glob("*/*.npz"))
    look = f"; look at one: sim2real replay {dumps[0]}" if dumps else ""
    return f"\n{diverged} simulations became unstable and were begun anew{look}"


def _settings(args: TrainArgs) -> Preset:
    """Return the task's preset, with what was said on the command line in place of its own."""
    preset = _preset(args)
    return msgspec.structs.replace(
        preset,
        iterations=preset.iterations if args.iterations is None else args.iterations,
        num_envs=preset.num_envs if args.num_envs is None else args.num_envs,
        model=msgspec.structs.replace(_changed(preset.model, args, _OF_MODEL), privileged=args.privileged),
        algorithm=_changed(preset.algorithm, args, _OF_ALGORITHM),
    )


def _preset(args: TrainArgs) -> Preset:
    from sim2real_train.presets import preset_of, student_preset
    from sim2real_train.teacher import teacher_at

    if args.algo == "distill":
        if args.teacher is None:
            raise InputError("--algo distill: expected --teacher, the checkpoint folder of the policy to imitate")
        return student_preset(args.task, teacher_at(args.teacher))
    if args.teacher is not None:
        raise InputError("--teacher: means nothing without --algo distill")
    return preset_of(args.task, args.algo)


def _changed(config: Any, args: TrainArgs, fields: dict[str, str]) -> Any:
    """Return a part of the configuration with what options say in place of its own."""
    given = {option: value for option in fields if (value := getattr(args, option)) is not None}
    for option in given:
        if fields[option] not in config.__struct_fields__:
            raise InputError(f"--{option.replace('_', '-')}: this algorithm has no such setting; leave it out")
    return msgspec.structs.replace(config, **{fields[option]: value for option, value in given.items()})


def _train_config(args: TrainArgs, preset: Preset) -> TrainConfig:
    from sim2real.randomization import read_randomization
    from sim2real.sim.delays import MAX_DELAY, delay_from_latency
    from sim2real_train.config import TrainConfig
    from sim2real_train.overrides import override

    ranges = None if args.randomization is None else read_randomization(args.randomization)
    config = TrainConfig(
        task=args.task,
        robot=_robot(args.robot),
        engine=args.engine,
        seed=args.seed,
        num_envs=preset.num_envs,
        num_workers=args.workers,
        command_delay=args.command_delay,
        delays=None if args.latency is None else delay_from_latency(args.latency, longest=MAX_DELAY),
        randomization=ranges,
        model=preset.model,
        placement=_placement(args),
        algorithm=preset.algorithm,
    )
    return override(config, args.set, "--set")


def _robot(name: str | None) -> str | None:
    """Return a robot's name so that workers, which run in folders of their own, and later commands find its file."""
    return str(Path(name).absolute()) if name is not None and name.endswith(".xml") else name


def _placement(args: TrainArgs) -> PlacementConfig:
    from sim2real_train.config import PlacementConfig

    options = {"kind": "placement", "learners": "learners", "max_staleness": "max_staleness", "inference": "inference"}
    given = {field: value for field, option in options.items() if (value := getattr(args, option)) is not None}
    if args.placement == "auto":
        # Chosen later, in place of where measuring itself runs.
        given["kind"] = "colocated"
    return PlacementConfig(**given)


def _check_numbers(args: TrainArgs) -> None:
    """Check options that stand for themselves."""
    for name in ("iterations", "save_every", "evaluate_every", "evaluate_starts", "sim_threads"):
        if getattr(args, name) is not None:
            _check_limit(name, getattr(args, name))
    check_number("--max-workers", args.max_workers, low=0, high=_MOST_WORKERS, inclusive=True)
    check_number("--restarts", args.restarts, low=0, high=_MOST_RESTARTS, inclusive=True)


def _check_limit(name: str, value: float) -> None:
    check_number(f"--{name.replace('_', '-')}", value, low=1, high=_LIMITS[name], inclusive=True)


def _show(config: TrainConfig) -> Outcome:
    """Tell of every field its value and its meaning."""
    from sim2real_train.overrides import describe

    rows = describe(config)
    width = max(len(row.name) for row in rows)
    lines = [
        f"{row.name:<{width}}  {msgspec.json.encode(row.value).decode()}\n{'':<{width}}    {row.meaning}"
        for row in rows
        if not isinstance(row.value, dict)
    ]
    shown = Shown(config=config, fields=[msgspec.to_builtins(row) for row in rows])
    return Outcome(passed=True, result=shown, summary="\n".join(lines))
