"""`sim2real evaluate` and `sim2real export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
import tyro

from sim2real.arguments import check_number, check_seed
from sim2real.command import Outcome
from sim2real.errors import InputError

if TYPE_CHECKING:
    from sim2real_train.plants import Plants
    from sim2real_train.subject import Subject

__all__ = ["EvaluateArgs", "ExportArgs", "run_evaluate", "run_export"]

_MOST_STARTS: Final = 1e6


@dataclass(frozen=True)
class ExportArgs:
    """Make a policy bundle from a checkpoint: ONNX, contract, golden vectors, hashes, signature.

    The exported policy must compute what was trained, on ONNX Runtime and on the robot's engine, over sequences of raw
    measurements; otherwise nothing is written and the exit code is 1.
    """

    checkpoint: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """Folder of a run, of which the last checkpoint is exported, or a checkpoint folder, e.g. runs/go2/best."""
    out: Annotated[Path, tyro.conf.arg(metavar="BUNDLE")]
    """Where the bundle goes, e.g. policy.s2r."""
    signing_key: Annotated[
        Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: a one-time key)")
    ] = None
    """Secret key from `sim2real keygen`; a one-time key shows integrity but not who signed."""
    seed: int = 0
    """Seed of the golden run: recorded measurements and actions that every engine must reproduce."""
    robot: Annotated[
        str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: where it was in training)")
    ] = None
    """Where the file of the policy's robot is now, if it was trained with --robot path/to.xml; its content must be the
    same."""
    emit: Annotated[
        Literal["deploy-yaml"] | None, tyro.conf.arg(metavar="{deploy-yaml}", help_behavior_hint="(default: none)")
    ] = None
    """Also write the policy as Unitree's runtime reads it: BUNDLE with .deploy for .s2r, a folder of params/deploy.yaml
    and exported/policy.onnx. What of the contract its format cannot hold is listed."""
    motors: Annotated[tuple[str, ...], tyro.conf.arg(metavar="JOINT", help_behavior_hint="(default: none)")] = ()
    """For --emit: the joints in the order of the robot's motors, which no contract says."""


@dataclass(frozen=True)
class EvaluateArgs:
    """Measure a policy's success rate over whole episodes from random starts, and judge it against --min-success.

    Each episode has a start and a plant of its own: of a run drawn from the ranges that it trained with, as its own
    verdict is; of a bundle, which does not tell them, from the task's own. The policy acts without exploration noise,
    measurements are noisy. A teacher, trained with --privileged, acts on what its critic saw. Ends with 0 if it passes
    and with 1 if not.
    """

    policy: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="POLICY")]]
    """A bundle (policy.s2r), the folder of a run (of which the last checkpoint is judged), or a checkpoint folder."""
    randomization: Annotated[
        Path | None,
        tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: those of the run; of a bundle the task's own)"),
    ] = None
    """Ranges that the plants are drawn from, e.g. of `sim2real calib fit`; what the file does not name is drawn from
    the task's own."""
    task_ranges: bool = False
    """Draw from the task's own ranges, whatever the run trained with: the same plants for all its policies."""
    nominal: bool = False
    """Judge the nominal robot: draw from no ranges."""
    latency: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """Delays of commands as a bench measured them, in place of those of the ranges: latency.json of
    `sim2real hil run`."""
    starts: int = 256
    """Number of episodes."""
    min_success: float = 0.95
    """Smallest success rate that passes, 0 to 1."""
    seed: int = 1
    """Seed of starts, plants and noise."""
    robot: Annotated[
        str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: where it was in training)")
    ] = None
    """Where the file of the policy's robot is now, if it was trained with --robot path/to.xml; its content must be the
    same."""


def run_export(args: ExportArgs) -> Outcome:
    """Export; the outcome is an `ExportResult`."""
    check_seed(args.seed)
    if args.motors and args.emit is None:
        raise InputError("--motors: are for --emit deploy-yaml; add it, or leave them out")
    # What is wrong by itself is told before the libraries are loaded.
    from sim2real.signing import load_signing_key
    from sim2real_train.deploy_yaml import LOST
    from sim2real_train.export import export

    key = None if args.signing_key is None else load_signing_key(args.signing_key)
    motors = None if args.emit is None else args.motors
    result = export(args.checkpoint, args.out, signing_key=key, seed=args.seed, robot=args.robot, motors=motors)
    lines = [
        f"{'ok  ' if each.passed else 'FAIL'} {each.engine}, measurements: {each.measurements}: "
        f"{each.steps} steps, largest error {each.error:.1e} of {each.where} (allowed {each.tolerance:.0e})"
        for each in result.parity
    ]
    lines += result.findings.lines()
    if result.passed:
        lines.append(f"wrote {args.out}: contract {result.contract_sha256[:12]}…, ONNX opset {result.opset}")
        if result.deploy_folder is not None:
            lines.append(
                f"wrote {result.deploy_folder}: deploy.yaml has no place for contract.{', contract.'.join(LOST)}"
            )
    else:
        lines.append("wrote nothing: the exported policy does not compute what was trained")
    head = [f"policy: {result.checkpoint}, of iteration {result.iteration}", "parity with the trained network:"]
    return Outcome(passed=result.passed, result=result, summary="\n".join([*head, *lines]))


def run_evaluate(args: EvaluateArgs) -> Outcome:
    """Evaluate; the outcome is an `Evaluation`."""
    _check(args)
    # What is wrong by itself is told before the libraries are loaded.
    import torch

    from sim2real.sim.delays import MAX_DELAY, delay_from_latency
    from sim2real_train.environments import task_of_run
    from sim2real_train.evaluate import evaluate
    from sim2real_train.subject import load_subject

    # The network is small: on a second thread it waits more than it computes, four times as long on a busy machine.
    torch.set_num_threads(1)
    subject = load_subject(args.policy, args.robot)
    plants = _plants(args, subject)
    task = subject.task if plants.source != "run" or subject.run is None else task_of_run(subject.run)
    if args.latency is not None:
        task = msgspec.structs.replace(task, delays=delay_from_latency(args.latency, longest=MAX_DELAY))
        plants = plants.as_late_as_measured()
    result = evaluate(
        subject.policy,
        task,
        starts=args.starts,
        seed=args.seed,
        randomization=plants.ranges,
        privileged=subject.privileged,
    )
    passed = result.success_rate >= args.min_success
    low, high = result.success_interval
    judged = plants.told()
    told = {"passed": passed, "min_success": args.min_success, "plants": judged, "seed": args.seed, "task": task.name}
    told |= {"policy": subject.name, "privileged": subject.privileged}
    return Outcome(
        passed=passed,
        result=msgspec.structs.asdict(result) | told,
        summary=(
            f"{'pass' if passed else 'FAIL'}: {result.successes} of {result.starts} starts succeed: "
            f"{result.success_rate:.1%} (95 % interval {low:.1%} to {high:.1%}; asked for {args.min_success:.0%}); "
            f"mean return {result.mean_return:.1f}\n"
            f"policy: {subject.name}; judged on {judged.text}\n"
            f"success: {result.criterion}\n"
            f"ended early: {result.ended_early:.1%}; reward per step: {_terms(result.terms)}\n"
            f"time to the goal: median {_seconds(result.median_time)}, 95th percentile {_seconds(result.p95_time)}"
            + ("\na teacher: it read what the critic sees, which no robot measures" if subject.privileged else "")
        ),
    )


def _check(args: EvaluateArgs) -> None:
    check_number("--starts", args.starts, low=1, high=_MOST_STARTS, inclusive=True)
    check_seed(args.seed)
    if not 0.0 <= args.min_success <= 1.0:
        raise InputError(f"--min-success: expected a number from 0 to 1, got {args.min_success}")
    chosen = {"nominal": args.nominal, "task-ranges": args.task_ranges, "randomization": args.randomization is not None}
    if len(given := [f"--{option}" for option, is_given in chosen.items() if is_given]) > 1:
        raise InputError(f"{' and '.join(given)}: each says which plants are judged; keep one")


def _plants(args: EvaluateArgs, subject: Subject) -> Plants:
    """Return the plants that are asked for; without a word those of the run's own verdict."""
    from sim2real_train.plants import nominal_plants, plants_of_file, plants_of_run, plants_of_task

    if args.nominal:
        return nominal_plants()
    if args.randomization is not None:
        return plants_of_file(args.randomization, subject.task)
    if args.task_ranges or subject.run is None:
        return plants_of_task(subject.task)
    return plants_of_run(subject.run)


def _terms(terms: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in terms.items()) or "not told apart"


def _seconds(value: float | None) -> str:
    return "never reached" if value is None else f"{value:.2f} s"
