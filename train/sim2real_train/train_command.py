"""`sim2real train`: from the command line to a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec
import tyro

from sim2real.arguments import EngineName, check_number, short
from sim2real.command import Outcome
from sim2real.errors import InputError

if TYPE_CHECKING:
    from sim2real_train.config import PlacementConfig, TrainConfig
    from sim2real_train.placements import Machines
    from sim2real_train.plan import Choice
    from sim2real_train.presets import Preset
    from sim2real_train.trainer import Schedule

__all__ = ["TrainArgs", "config_of", "run_train"]

_LIMITS: Final = {
    "iterations": (1, 1e9),
    "save_every": (1, 1e9),
    "evaluate_every": (1, 1e9),
    "evaluate_starts": (1, 1e6),
    "restarts": (0, 1e6),
    "sim_threads": (1, 1024),
    "max_workers": (0, 1024),
}
"""Least and largest whole numbers of options that are no settings: more is a slip of the keyboard."""
_CHOSEN_BY_AUTO: Final = ("workers", "sim_threads", "learners", "device", "max_staleness", "inference")
_OF_MODEL: Final = {name: name for name in ("recurrent", "hidden", "initial_std")}
_OF_ALGORITHM: Final = {
    "num_steps": "num_steps",
    "learning_rate": "learning_rate",
    "desired_kl": "desired_kl",
    "entropy": "entropy_coefficient",
    "discount": "discount",
}
"""Options for the settings that are changed most often, and the fields that they set."""

_OF_PRESET: Final = "(default: that of the task's preset; --show tells it)"
Whole: TypeAlias = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint=_OF_PRESET)]
Number: TypeAlias = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint=_OF_PRESET)]


@dataclass(frozen=True)
class TrainArgs:
    """Learn a policy in simulation.

    OUT gets checkpoint/ (the last), best/ (the one that succeeded most often), run.json (configuration, versions, git),
    metrics.jsonl and tensorboard/. Ctrl-C leaves the last checkpoint whole; the same command with --resume goes on from
    it exactly.
    """

    task: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TASK")]]
    """Name of the task; `sim2real tasks` lists them."""
    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")]
    """Folder of the run."""
    algo: Annotated[
        Literal["ppo", "sac", "distill"] | None,
        tyro.conf.arg(metavar="{ppo,sac,distill}", help_behavior_hint="(default: what suits the task)"),
    ] = None
    """Algorithm. ppo: proximal policy optimisation, many environments, each step used a few times. sac: soft
    actor-critic, fewer environments, each step used many times. distill: the policy imitates --teacher, on what a
    robot measures."""
    teacher: Annotated[Path | None, tyro.conf.arg(metavar="CHECKPOINT", help_behavior_hint="(default: none)")] = None
    """For --algo distill: checkpoint folder of the policy to imitate, which may be a --privileged one."""
    privileged: bool = False
    """The policy reads all that the critic sees. No robot can measure that: it is a teacher for --algo distill."""
    robot: Annotated[str | None, tyro.conf.arg(metavar="ROBOT", help_behavior_hint="(default: the task's own)")] = None
    """Another model of the task's robot: the path of an MJCF, menagerie:NAME, or a name from `sim2real robots`. Its
    physics is simulated; gains, ratings and default pose are the task's."""
    engine: EngineName = "mujoco"
    """Simulator: mujoco on the CPU, mujoco_warp on an NVIDIA GPU, newton for a comparison."""
    randomization: Annotated[
        Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: the task's own ranges alone)")
    ] = None
    """Ranges that each episode's physics is drawn from, e.g. of `sim2real calib fit`; what the file does not name is
    drawn from the task's own."""
    latency: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """Delays of commands as a bench measured them, in place of --command-delay: latency.json of `sim2real hil run`."""
    iterations: Whole = None
    """Iterations in all, those before a resume included; each collects num-envs × num-steps control steps."""
    num_envs: Whole = None
    """Environments of all workers together."""
    num_steps: Whole = None
    """Control steps per environment and iteration."""
    workers: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(default: 1)")] = None
    """Processes that simulate; colocated ones learn too, together. On two busy cores one is the fastest. Results depend
    on their number."""
    placement: Annotated[
        Literal["colocated", "overlapped", "disaggregated", "auto"] | None,
        tyro.conf.arg(metavar="{colocated,overlapped,disaggregated,auto}", help_behavior_hint="(default: colocated)"),
    ] = None
    """Where collecting and learning run. colocated: each worker simulates and learns. overlapped: the next batch is
    collected while this one is learned, by weights one update old. disaggregated: workers stream to learners, by
    weights at most --max-staleness updates old, and may die and be replaced. auto: measures the stages, predicts the
    time of an iteration for each placement that fits, takes the fastest (with its number of workers, learners and
    threads), and tells in the end what it took."""
    learners: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(default: 1)")] = None
    """Processes that learn, where workers only simulate (overlapped, disaggregated)."""
    device: Annotated[
        Literal["cpu", "cuda"] | None, tyro.conf.arg(metavar="{cpu,cuda}", help_behavior_hint="(default: cpu)")
    ] = None
    """Where learners learn. cuda: each takes one NVIDIA GPU, which pays for networks with a memory and for many
    environments; what acts in the simulation stays on the CPU. A run is resumed on the device that it began on."""
    max_staleness: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(default: 1)")] = None
    """Updates that the weights may have missed with which a disaggregated worker collects."""
    inference: Annotated[
        Literal["sim", "server"] | None, tyro.conf.arg(metavar="{sim,server}", help_behavior_hint="(default: sim)")
    ] = None
    """Where the policy of disaggregated workers acts. sim: in each of them. server: in one process for all, for
    policies that are too large for their machines; small ones are several times slower so."""
    max_workers: int = 0
    """Disaggregated workers that there may be when the cluster grows; 0: no more than --workers."""
    address: Annotated[
        str | None, tyro.conf.arg(metavar="HOST:PORT", help_behavior_hint="(default: a Ray of its own on this machine)")
    ] = None
    """Ray cluster to run on; or auto, as Ray finds it."""
    sim_threads: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(default: 2)")] = None
    """Threads of each worker that step its simulation; results do not depend on them."""
    seed: int = 0
    """Seed of every draw."""
    command_delay: Annotated[tuple[float, float], tyro.conf.arg(metavar="LOW HIGH")] = (0.0, 0.02)
    """Range of the delay [s] of commands in training; widens the calibrated one, since runtime and wire add theirs."""
    recurrent: Annotated[
        Literal["none", "gru", "lstm"] | None,
        tyro.conf.arg(metavar="{none,gru,lstm}", help_behavior_hint=_OF_PRESET),
    ] = None
    """Memory of the policy."""
    hidden: Annotated[tuple[int, ...] | None, tyro.conf.arg(metavar="INT...", help_behavior_hint=_OF_PRESET)] = None
    """Widths of the hidden layers of actor and critic, e.g. --hidden 128 128."""
    initial_std: Number = None
    """Standard deviation of the exploration noise at the start, in units of the action."""
    learning_rate: Number = None
    """Step size of the optimiser in the first iteration; ppo then follows --desired-kl, the others keep it."""
    desired_kl: Number = None
    """For ppo: change of the policy per iteration (KL divergence) that the learning rate is steered to."""
    entropy: Number = None
    """For ppo: weight of the policy's entropy, which keeps it exploring."""
    discount: Number = None
    """Worth of a reward one control step later, as a share of the same reward now (γ); not for distill."""
    set: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """Any setting, e.g. --set algorithm.clip=0.1 model.activation=tanh; --show lists them all."""
    show: bool = False
    """Train nothing; print all settings that the other options make, what each means and may be, and the ranges that
    physics is drawn from."""
    save_every: int = 25
    """Iterations between checkpoints."""
    evaluate_every: int = 50
    """Iterations between measurements of the success rate."""
    evaluate_starts: int = 256
    """Episodes of the measurement after the last iteration; those on the way take a quarter."""
    wandb: Annotated[str | None, tyro.conf.arg(metavar="PROJECT", help_behavior_hint="(default: none)")] = None
    """Project of Weights & Biases that gets the metrics too, if its package is installed; WANDB_MODE=offline keeps them
    in OUT."""
    restarts: int = 3
    """How often the run goes on by itself from its last checkpoint after a worker has died."""
    hang_limit: Annotated[
        float | None,
        tyro.conf.arg(
            metavar="SECONDS",
            help_behavior_hint="(default: 20 times the longest so far, at least 60 to collect and 600 to learn)",
        ),
    ] = None
    """How long a worker may take to collect or to learn before it counts as dead: it hangs, or its environment does.
    Measurements and checkpoints have more time."""
    resume: bool = False
    """Go on from the checkpoint in OUT; begin where there is none yet, so that a job may always be given this."""


def run_train(args: TrainArgs) -> Outcome:
    """Train; the outcome is a `TrainResult`, with ``--show`` a `Shown`."""
    config = config_of(args)
    # Only now, since it loads Ray, and what is wrong is to be told at once.
    from sim2real_train.trainer import train

    schedule = _schedule(args)
    if args.show:
        from sim2real_train.show import show

        return show(config, schedule, {name: _allowed(name) for name in _LIMITS})
    choice = None
    if args.placement == "auto":
        config, machines, choice = _picked(args, config, schedule.machines)
        schedule = msgspec.structs.replace(schedule, machines=machines)
    result = train(config, schedule, args.out, resume=args.resume, placement=choice)
    verdict = result.evaluation
    workers = f"{result.num_workers} worker{'s' if result.num_workers > 1 else ''}"
    return Outcome(
        passed=True,
        result=result,
        summary=(
            f"trained {result.task}: {result.iterations} iterations, {result.env_steps:,} control steps, "
            f"{result.wall_seconds:.0f} s on {workers}\n"
            f"success in {verdict.starts} episodes: {verdict.success_rate:.1%} ({verdict.criterion}); mean return "
            f"{verdict.mean_return:.1f}\n"
            f"checkpoint: {result.checkpoint}{_instability(result.diverged, args.out)}{_beside(result.placement)}"
        ),
    )


def config_of(args: TrainArgs) -> TrainConfig:
    """Return the configuration that a command line makes.

    Raises:
        InputError: There is no such task, or what the options say is not allowed or contradicts itself.
    """
    _check(args)
    # Only now, since it loads PyTorch.
    from sim2real_train.config import check_config

    config = _train_config(args, _settings(args))
    check_config(config)
    _check_placement(args, config)
    return config


def _schedule(args: TrainArgs) -> Schedule:
    from sim2real_train.placements import Machines
    from sim2real_train.trainer import Schedule

    threads = 2 if args.sim_threads is None else args.sim_threads
    return Schedule(
        iterations=_preset(args).iterations if args.iterations is None else args.iterations,
        save_every=args.save_every,
        evaluate_every=args.evaluate_every,
        evaluate_starts=args.evaluate_starts,
        machines=Machines(
            num_threads=threads, address=args.address, max_workers=args.max_workers, hang_limit=args.hang_limit
        ),
        wandb_project=args.wandb,
        restarts=args.restarts,
    )


def _beside(choice: Choice | None) -> str:
    """Say what was predicted of the placement and what came of it."""
    if choice is None:
        return ""
    from sim2real_train.auto import beside

    return f"\n{beside(choice)}"


def _picked(args: TrainArgs, config: TrainConfig, machines: Machines) -> tuple[TrainConfig, Machines, Choice | None]:
    """Return the run as it is placed best; one that is resumed stays where it was, since its results depend on it."""
    from sim2real_train.auto import comparison, pick, with_placement
    from sim2real_train.checkpoint import has_checkpoint, read_checkpoint
    from sim2real_train.messages import tell

    if args.resume and has_checkpoint(args.out / "checkpoint"):
        before = read_checkpoint(args.out / "checkpoint").state.config
        config = msgspec.structs.replace(config, num_workers=before.num_workers, placement=before.placement)
        choice = _chosen_before(args.out)
        threads = machines.num_threads if choice is None else choice.chosen.threads
        return config, msgspec.structs.replace(machines, num_threads=threads), choice
    choice = pick(config, address=args.address)
    tell(comparison(choice))
    threads = choice.chosen.threads
    return with_placement(config, choice.chosen), msgspec.structs.replace(machines, num_threads=threads), choice


def _chosen_before(out: Path) -> Choice | None:
    """Return how the placement of a run was chosen. None: nobody knows, and the run tells of a record that is lost."""
    from sim2real_train.provenance import read_record

    try:
        return read_record(out).placement
    except InputError:
        return None


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
            raise InputError(f"{_option(option)}: this algorithm has no such setting; leave it out")
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
        num_workers=1 if args.workers is None else args.workers,
        command_delay=args.command_delay,
        delays=None if args.latency is None else delay_from_latency(args.latency, longest=MAX_DELAY),
        randomization=ranges,
        model=preset.model,
        placement=_placement(args),
        algorithm=preset.algorithm,
    )
    for assignment in args.set:
        _check_no_schedule(assignment.partition("=")[0])
    return override(config, args.set, "--set")


def _check_no_schedule(name: str) -> None:
    _, dot, field = name.partition("schedule.")
    if dot and field in _LIMITS:
        raise InputError(f"--set: {name} is no setting of what is learned; give {_option(field)}")


def _robot(name: str | None) -> str | None:
    """Return a robot's name so that workers, which run in folders of their own, and later commands find its file."""
    from sim2real.robots import get_robot, is_file_name

    return get_robot(name).name if name is not None and is_file_name(name) else name


def _placement(args: TrainArgs) -> PlacementConfig:
    from sim2real_train.config import PlacementConfig

    options = {"kind": "placement"} | {name: name for name in ("learners", "device", "max_staleness", "inference")}
    given = {field: value for field, option in options.items() if (value := getattr(args, option)) is not None}
    if args.placement == "auto":
        # Chosen later, in place of where measuring itself runs.
        given["kind"] = "colocated"
    return PlacementConfig(**given)


def _check(args: TrainArgs) -> None:
    """Check what options say by themselves."""
    from sim2real.tasks import get_task, task_names
    from sim2real.tasks.gym_tasks import is_foreign

    for name, (low, high) in _LIMITS.items():
        if getattr(args, name) is not None:
            check_number(_option(name), getattr(args, name), low=low, high=high, inclusive=True)
    if args.hang_limit is not None:
        check_number("--hang-limit", args.hang_limit, low=1.0, high=1e6, inclusive=True)
    if not is_foreign(args.task) and args.task not in task_names():
        # Says which there are; a known one may have to fetch its robot.
        get_task(args.task)
    if args.placement == "auto":
        for name in _CHOSEN_BY_AUTO:
            if getattr(args, name) is not None:
                raise InputError(
                    f"{_option(name)}: --placement auto chooses where all runs; leave it out, or name a placement"
                )


def _check_placement(args: TrainArgs, config: TrainConfig) -> None:
    """Check what options say about where it runs, once it is known where."""
    from sim2real_train.config import PlacementConfig

    auto = args.placement == "auto"
    if auto and (config.num_workers, config.placement) != (1, PlacementConfig()):
        raise InputError("--set: --placement auto chooses num_workers and placement; leave them out")
    kind = "auto" if auto else config.placement.kind
    if args.max_workers and kind != "disaggregated":
        raise InputError(f"--max-workers: means nothing with --placement {kind}; leave it out")
    if 0 < args.max_workers < config.num_workers:
        raise InputError(
            f"--max-workers: expected 0 or at least --workers ({config.num_workers}), got {args.max_workers}"
        )


def _allowed(name: str) -> str:
    low, high = _LIMITS[name]
    return f"an integer >= {low} and <= {short(high)}"


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"
