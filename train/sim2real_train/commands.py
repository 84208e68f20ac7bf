"""`sim2real train`, `sim2real evaluate`, `sim2real export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import tyro

from sim2real.arguments import EngineName, check_number, check_seed
from sim2real.command import Outcome
from sim2real.errors import InputError

if TYPE_CHECKING:
    from sim2real_train.config import TrainConfig
    from sim2real_train.presets import Preset

__all__ = ["EvaluateArgs", "ExportArgs", "TrainArgs", "run_evaluate", "run_export", "run_train"]

_LIMITS: Final = {
    "iterations": 1e9,
    "num_envs": 1e6,
    "num_steps": 1e5,
    "workers": 1024,
    "save_every": 1e9,
    "evaluate_every": 1e9,
    "evaluate_starts": 1e6,
    "sim_threads": 1024,
}
"""Largest whole numbers that `TrainArgs` may hold: more is a slip of the keyboard, and would not fit into memory."""
_WIDEST: Final = 65_536
_MOST_STARTS: Final = 1e6


@dataclass(frozen=True)
class TrainArgs:
    """Learn a policy by PPO in simulation.

    OUT gets checkpoint/, metrics.jsonl and tensorboard/. Ctrl-C leaves the last checkpoint whole; the same command with
    --resume goes on from it exactly.
    """

    task: tyro.conf.Positional[str]
    """Name of the task; `sim2real tasks` lists them."""
    out: Path
    """Folder of the run."""
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
    """Processes that simulate and learn together, waiting for each other's gradients; on two busy cores one is the
    fastest. Results depend on their number."""
    sim_threads: int = 2
    """Threads of each worker that step its simulation; results do not depend on them."""
    seed: int = 0
    """Seeds every draw."""
    command_delay: tuple[float, float] = (0.0, 0.02)
    """Range of the delay [s] of commands in training; widens the calibrated one, since runtime and wire add theirs."""
    recurrent: Literal["none", "gru"] = "none"
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
    save_every: int = 25
    """Iterations between checkpoints."""
    evaluate_every: int = 50
    """Iterations between measurements of the success rate."""
    evaluate_starts: int = 256
    """Episodes of the last measurement, after the last iteration; those on the way take a quarter."""
    resume: bool = False
    """Go on from the checkpoint in OUT."""


@dataclass(frozen=True)
class ExportArgs:
    """Make a policy bundle from a checkpoint: ONNX, contract, golden vectors, hashes, signature.

    The exported policy must compute what was trained, on ONNX Runtime and on the robot's engine, over sequences of raw
    measurements; otherwise nothing is written and the exit code is 1.
    """

    checkpoint: tyro.conf.Positional[Path]
    """Checkpoint folder of a run, e.g. runs/demo/train/checkpoint."""
    out: Path
    """Where the bundle goes, e.g. policy.s2r."""
    signing_key: Path | None = None
    """Secret key from `sim2real keygen`; without it, a one-time key that shows integrity but not who signed."""
    seed: int = 0
    """Seeds the golden run."""


@dataclass(frozen=True)
class EvaluateArgs:
    """Measure a policy's success rate over whole episodes from random starts, and judge it against --min-success.

    Each episode has a start and a plant of its own. The policy acts without exploration noise, measurements are noisy.
    """

    policy: tyro.conf.Positional[Path]
    """A bundle, or the checkpoint folder of a run."""
    randomization: Path | None = None
    """Ranges that the plants are drawn from, e.g. of `sim2real calib fit`, beside the task's own of what the file does
    not name."""
    nominal: bool = False
    """Judge the nominal robot: draw from no ranges."""
    latency: Path | None = None
    """Delays of commands as a bench measured them, in place of those of RANDOMIZATION: latency.json of
    `sim2real hil run`."""
    starts: int = 256
    """Number of episodes."""
    min_success: float = 0.95
    """Smallest success rate that passes."""
    seed: int = 1
    """Seeds starts, plants and noise."""


def run_train(args: TrainArgs) -> Outcome:
    """Train; the outcome is a `TrainResult`."""
    from sim2real_train.trainer import Schedule, train

    preset = _settings(args)
    _check_train(args, preset)
    schedule = Schedule(
        iterations=preset.iterations,
        save_every=args.save_every,
        evaluate_every=args.evaluate_every,
        evaluate_starts=args.evaluate_starts,
        num_threads=args.sim_threads,
    )
    result = train(_train_config(args, preset), schedule, args.out, resume=args.resume)
    verdict = result.evaluation
    return Outcome(
        passed=True,
        result=result,
        summary=(
            f"trained {result.task}: {result.iterations} iterations, {result.env_steps:,} control steps, "
            f"{result.wall_seconds:.0f} s on {result.num_workers} workers\n"
            f"success in {verdict.starts} episodes: {verdict.success_rate:.1%} ({verdict.criterion}); mean return "
            f"{verdict.mean_return:.1f}\n"
            f"checkpoint: {result.checkpoint}{_instability(result.diverged, args.out)}"
        ),
    )


def _instability(diverged: int, out: Path) -> str:
    """Say how many simulations were begun anew, and how to look at the first of them."""
    if not diverged:
        return ""
    dumps = sorted((out / "diverged").glob("*/*.npz"))
    look = f"; look at one: sim2real replay {dumps[0]}" if dumps else ""
    return f"\n{diverged} simulations became unstable and were begun anew{look}"


def _settings(args: TrainArgs) -> Preset:
    """Return the task's preset, with what was said on the command line in place of its own."""
    from sim2real_train.presets import Preset, preset_of

    given = {name: value for name in Preset.__struct_fields__ if (value := getattr(args, name)) is not None}
    return msgspec.structs.replace(preset_of(args.task), **given)


def _train_config(args: TrainArgs, preset: Preset) -> TrainConfig:
    from sim2real.randomization import read_randomization
    from sim2real.sim.delays import MAX_DELAY, delay_from_latency
    from sim2real_train.config import TrainConfig
    from sim2real_train.models import ModelConfig
    from sim2real_train.ppo import PpoConfig

    ranges = None if args.randomization is None else read_randomization(args.randomization)
    return TrainConfig(
        task=args.task,
        robot=args.robot,
        engine=args.engine,
        seed=args.seed,
        num_envs=preset.num_envs,
        num_workers=args.workers,
        command_delay=args.command_delay,
        delays=None if args.latency is None else delay_from_latency(args.latency, longest=MAX_DELAY),
        randomization=ranges,
        model=ModelConfig(hidden=preset.hidden, recurrent=args.recurrent, initial_std=preset.initial_std),
        algorithm=PpoConfig(
            num_steps=preset.num_steps,
            learning_rate=preset.learning_rate,
            desired_kl=preset.desired_kl,
            entropy_coefficient=preset.entropy,
            discount=preset.discount,
        ),
    )


def _check_train(args: TrainArgs, preset: Preset) -> None:
    from sim2real.sim.delays import MAX_DELAY

    for name, highest in _LIMITS.items():
        value = getattr(preset if hasattr(preset, name) else args, name)
        check_number(f"--{name.replace('_', '-')}", value, low=1, high=highest, inclusive=True)
    check_seed(args.seed)
    if preset.num_envs % args.workers:
        raise InputError(f"--num-envs: expected a multiple of --workers ({args.workers}), got {preset.num_envs}")
    if not 0.0 <= args.command_delay[0] <= args.command_delay[1] <= MAX_DELAY:
        raise InputError(f"--command-delay: expected 0 <= low <= high <= {MAX_DELAY} s, got {args.command_delay}")
    if not 0.0 < preset.discount < 1.0:
        raise InputError(f"--discount: expected a number between 0 and 1, got {preset.discount}")
    check_number("--learning-rate", preset.learning_rate, high=1)
    check_number("--desired-kl", preset.desired_kl, high=1)
    check_number("--initial-std", preset.initial_std, high=100)
    check_number("--entropy", preset.entropy, high=1, inclusive=True)
    if not preset.hidden:
        raise InputError("--hidden: expected one width or more, got none")
    for width in preset.hidden:
        check_number("--hidden", width, low=1, high=_WIDEST, inclusive=True)


def run_export(args: ExportArgs) -> Outcome:
    """Export; the outcome is an `ExportResult`."""
    from sim2real.signing import load_signing_key
    from sim2real_train.export import export

    check_seed(args.seed)
    key = None if args.signing_key is None else load_signing_key(args.signing_key)
    result = export(args.checkpoint, args.out, signing_key=key, seed=args.seed)
    lines = [
        f"{'ok  ' if each.passed else 'FAIL'} {each.engine}, measurements: {each.measurements}: "
        f"{each.steps} steps, largest error {each.error:.1e} (allowed {each.tolerance:.0e})"
        for each in result.parity
    ]
    if result.passed:
        lines.append(f"wrote {args.out}: contract {result.contract_sha256[:12]}…, ONNX opset {result.opset}")
    else:
        lines.append("wrote nothing: the exported policy does not compute what was trained")
    return Outcome(passed=result.passed, result=result, summary="\n".join(["parity with the trained network:", *lines]))


def run_evaluate(args: EvaluateArgs) -> Outcome:
    """Evaluate; the outcome is an `Evaluation`."""
    import torch

    from sim2real.randomization import read_randomization, without_delays
    from sim2real.sim.delays import MAX_DELAY, delay_from_latency
    from sim2real.tasks.ranges import with_own_ranges
    from sim2real_train.evaluate import evaluate
    from sim2real_train.subject import load_subject

    check_number("--starts", args.starts, low=1, high=_MOST_STARTS, inclusive=True)
    check_seed(args.seed)
    if not 0.0 <= args.min_success <= 1.0:
        raise InputError(f"--min-success: expected a number from 0 to 1, got {args.min_success}")
    # The network is small: on a second thread it waits more than it computes, four times as long on a busy machine.
    torch.set_num_threads(1)
    if args.nominal and args.randomization is not None:
        raise InputError("--nominal: draws from no ranges; leave out --randomization")
    policy, task = load_subject(args.policy)
    given = None if args.randomization is None else read_randomization(args.randomization)
    ranges = None if args.nominal else with_own_ranges(given, task)
    plants = "the nominal plant" if ranges is None else f"plants drawn from {len(ranges.parameters)} ranges"
    if args.latency is not None:
        task = msgspec.structs.replace(task, delays=delay_from_latency(args.latency, longest=MAX_DELAY))
        ranges = None if ranges is None else without_delays(ranges)
        plants += ", commands as late as measured"
    result = evaluate(policy, task, starts=args.starts, seed=args.seed, randomization=ranges)
    passed = result.success_rate >= args.min_success
    low, high = result.success_interval
    told = {"passed": passed, "min_success": args.min_success, "plants": plants, "seed": args.seed, "task": task.name}
    return Outcome(
        passed=passed,
        result=msgspec.structs.asdict(result) | told,
        summary=(
            f"{'pass' if passed else 'FAIL'}: {result.successes} of {result.starts} starts on {plants} succeed: "
            f"{result.success_rate:.1%} (95 % interval {low:.1%} to {high:.1%}; asked for {args.min_success:.0%}); "
            f"mean return {result.mean_return:.1f}\n"
            f"success: {result.criterion}\n"
            f"ended early: {result.ended_early:.1%}; reward per step: {_terms(result.terms)}\n"
            f"time to the goal: median {_seconds(result.median_time)}, 95th percentile {_seconds(result.p95_time)}"
        ),
    )


def _terms(terms: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in terms.items()) or "not told apart"


def _seconds(value: float | None) -> str:
    return "never reached" if value is None else f"{value:.2f} s"
