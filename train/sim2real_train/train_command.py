"""`sim2real train`: from the command line to a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from sim2real.arguments import check_number, short
from sim2real.command import Outcome
from sim2real.errors import InputError
from sim2real_train.train_args import TrainArgs

if TYPE_CHECKING:
    from sim2real_train.config import InitRef, PlacementConfig, TrainConfig
    from sim2real_train.placements import Machines
    from sim2real_train.plan import Choice
    from sim2real_train.presets import Preset
    from sim2real_train.trainer import Schedule

__all__ = ["TrainArgs", "check_said_once", "config_of", "run_train"]

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
_OF_PLACEMENT: Final = {"placement": "kind"} | {
    name: name for name in ("learners", "device", "max_staleness", "inference")
}
_FIELDS: Final = (
    {name: name for name in ("task", "robot", "engine", "randomization", "num_envs", "seed", "command_delay")}
    | {"latency": "delays", "workers": "num_workers", "algo": "algorithm.algo", "teacher": "algorithm.teacher"}
    | {"privileged": "model.privileged", "init_from": "init_from"}
    | {option: f"model.{field}" for option, field in _OF_MODEL.items()}
    | {option: f"algorithm.{field}" for option, field in _OF_ALGORITHM.items()}
    | {option: f"placement.{field}" for option, field in _OF_PLACEMENT.items()}
)
"""All options that set a field of the configuration, and which."""


def run_train(args: TrainArgs) -> Outcome:
    """Train; the outcome is a `TrainResult`, with ``--show`` a `Shown`."""
    if args.show:
        return _show(args)
    if args.out is None:
        raise InputError("--out: expected the folder of the run; only --show does without")
    config, out, choice = config_of(args), args.out, None
    # Only now, since it loads Ray, and what is wrong is to be told at once.
    from sim2real_train.trainer import train

    schedule = _schedule(args)
    if args.placement == "auto":
        config, machines, choice = _picked(args, out, config, schedule.machines)
        schedule = msgspec.structs.replace(schedule, machines=machines)
    result = train(config, schedule, out, resume=args.resume, placement=choice)
    verdict = result.evaluation
    workers = f"{result.num_workers} worker{'s' if result.num_workers > 1 else ''}"
    return Outcome(
        passed=True,
        result=result,
        summary=(
            f"trained {result.task}: {result.iterations} iterations, {result.env_steps:,} control steps, "
            f"{result.wall_seconds:.0f} s on {workers}\n"
            f"success in {verdict.starts} episodes on {result.plants.text}: {verdict.success_rate:.1%} "
            f"({verdict.criterion}); mean return {verdict.mean_return:.1f}\n"
            f"checkpoint: {result.checkpoint}{_instability(result.diverged, out)}{_beside(result.placement)}"
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


def _show(args: TrainArgs) -> Outcome:
    config = config_of(args)
    from sim2real_train.show import show

    return show(config, _schedule(args), {name: _allowed(name) for name in _LIMITS})


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


def _picked(
    args: TrainArgs, out: Path, config: TrainConfig, machines: Machines
) -> tuple[TrainConfig, Machines, Choice | None]:
    """Return the run as it is placed best; one that is resumed stays where it was, since its results depend on it."""
    from sim2real_train.auto import comparison, pick, with_placement
    from sim2real_train.checkpoint import has_checkpoint, read_checkpoint
    from sim2real_train.messages import tell

    if args.resume and has_checkpoint(out / "checkpoint"):
        before = read_checkpoint(out / "checkpoint").state.config
        config = msgspec.structs.replace(config, num_workers=before.num_workers, placement=before.placement)
        choice = _chosen_before(out)
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
            raise InputError("--algo distill: expected --teacher, the run whose policy is to be imitated")
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
    from sim2real_train.plants import file_ref

    ranges = None if args.randomization is None else read_randomization(args.randomization)
    config = TrainConfig(
        task=args.task,
        robot=_robot(args.robot),
        engine=args.engine or "mujoco",
        seed=0 if args.seed is None else args.seed,
        num_envs=preset.num_envs,
        num_workers=1 if args.workers is None else args.workers,
        command_delay=args.command_delay or (0.0, 0.02),
        delays=None if args.latency is None else delay_from_latency(args.latency, longest=MAX_DELAY),
        randomization=ranges,
        randomization_file=None if args.randomization is None else file_ref(args.randomization),
        model=preset.model,
        placement=_placement(args),
        algorithm=preset.algorithm,
        init_from=None if args.init_from is None else _init(args, args.init_from),
    )
    for name in (assignment.partition("=")[0] for assignment in args.set):
        _check_no_schedule(name)
        check_said_once(args, name, "--set")
    return override(config, args.set, "--set")


def _init(args: TrainArgs, path: Path) -> InitRef:
    """Return what a run begins with; one that is resumed has begun, and what with may be another now, or gone."""
    from sim2real_train.checkpoint import has_checkpoint, read_checkpoint
    from sim2real_train.warm_start import init_at

    if args.resume and args.out is not None and has_checkpoint(args.out / "checkpoint"):
        before = read_checkpoint(args.out / "checkpoint").state.config.init_from
        if before is not None and Path(before.checkpoint) in (path.absolute(), path.absolute() / "checkpoint"):
            return before
    return init_at(path)


def check_said_once(args: TrainArgs, name: str, by: str, *, through: str = "") -> None:
    """Check that no option says what `by` says of the field `name`, a part of it or a whole that it is part of.

    Args:
        args: The options.
        name: The field, dotted.
        by: Name of what else says it.
        through: What the options were typed after.

    Raises:
        InputError: One does; the message names both.
    """
    for option, field in _FIELDS.items():
        value = getattr(args, option)
        # What auto chooses has a check of its own, that knows what it chooses.
        said = value is not None and value is not False and value != "auto"
        if said and (f"{name}.".startswith(f"{field}.") or f"{field}.".startswith(f"{name}.")):
            raise InputError(f"{by} {name}: {through}{_said(option, value)} says it already; keep one")


def _said(option: str, value: object) -> str:
    """Return an option as it was typed, or as it could have been."""
    if option == "task":
        return f"TASK ({value})"
    words = cast("tuple[object, ...]", value) if isinstance(value, tuple) else () if value is True else (value,)
    return " ".join([_option(option), *map(str, words)])


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

    given = {field: value for option, field in _OF_PLACEMENT.items() if (value := getattr(args, option)) is not None}
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
