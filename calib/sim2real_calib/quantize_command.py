"""`sim2real quantize`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import tyro

from sim2real.acceptance import Paired, Trial
from sim2real.arguments import check_number, check_seed, check_writable
from sim2real.command import Outcome
from sim2real.errors import InputError
from sim2real_calib.calibration_set import Coverage
from sim2real_calib.closed_loop import RULE_OF_THREE
from sim2real_calib.quantize import Precision
from sim2real_calib.sensitivity import LOST

__all__ = ["QuantizeArgs", "run_quantize"]

_MOST: Final = 1e6
MOST_LOSS: Final = 0.2
"""A policy that loses more is another one."""
_NAMED: Final = 5
"""Numbers of the observation that are named where something is said of some."""


@dataclass(frozen=True)
class QuantizeArgs:
    """Put a policy's matrix products into few bits, and prove in closed loop that it costs no more than is allowed.

    Ranges come from observations of the policy at work, pushed, disturbed and on drawn plants. The float32 policy and
    the quantized one then run the same episodes. One that costs more than --max-loss is refused, and the next is tried:
    with its worst products left in float32, then float16. Ends with 0 if one was accepted, with 1 if none was.
    """

    bundle: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="BUNDLE")]]
    """The bundle, with a float32 policy."""
    precision: Annotated[Precision, tyro.conf.arg(metavar="PRECISION")]
    """int8, fp8, float16 or bfloat16."""
    out: Annotated[Path, tyro.conf.arg(metavar="BUNDLE")]
    """Where the bundle goes that holds both policies; may be the same."""
    calibration: Annotated[
        Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: the bundle's, else recorded)")
    ] = None
    """Observations to calibrate with: calibration.npz of another bundle of this policy, or your own, as
    `sim2real_calib.calibration_set.encode_set` writes it."""
    method: Annotated[str, tyro.conf.arg(metavar="METHOD")] = "percentile"
    """How ranges are chosen: percentile, minmax, mse or entropy."""
    envs: Annotated[int, tyro.conf.arg(metavar="N")] = 16
    """Environments to record in."""
    steps: Annotated[int, tyro.conf.arg(metavar="N")] = 500
    """Control steps to record in each."""
    episodes: Annotated[int, tyro.conf.arg(metavar="N")] = 512
    """Whole episodes of each policy."""
    max_loss: Annotated[float, tyro.conf.arg(metavar="SHARE")] = 0.02
    """Largest loss that is accepted: of successful episodes, of episodes without a fall, of the mean return."""
    acceptance: bool = True
    """Judge in closed loop; a policy that nobody judged is marked so, and the edge runs it only with --unproven."""
    randomization: Annotated[
        Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: the task's own ranges)")
    ] = None
    """Ranges that plants are drawn from, e.g. of `sim2real calib fit`."""
    robot: Annotated[
        str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: where it was in training)")
    ] = None
    """Where the file of the policy's robot is now, if it was trained with --robot path/to.xml."""
    check: bool = False
    """Let TensorRT's own parser and builder read the result, on the CPU; needs the 'trt-check' extra."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of what is recorded, and of the episodes."""
    signing_key: Annotated[
        Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: a one-time key)")
    ] = None
    """Secret key from `sim2real keygen`; a one-time key shows integrity but not who signed."""
    trust: tyro.conf.UseAppendAction[tuple[Path, ...]] = ()
    """Public keys of signers; with any given, a bundle that another signed is refused."""


def run_quantize(args: QuantizeArgs) -> Outcome:
    """Quantize, judge and write; the outcome holds the `Acceptance`.

    Raises:
        InputError: An argument is out of range, the set or the policy cannot be used, or nothing can be written.
        BundleError: The bundle does not pass its checks.
    """
    from sim2real_calib.amax import METHODS

    for name, value in (("--envs", args.envs), ("--steps", args.steps), ("--episodes", args.episodes)):
        check_number(name, value, low=2, high=_MOST, inclusive=True)
    check_number("--max-loss", args.max_loss, high=MOST_LOSS)
    if args.acceptance and args.episodes * args.max_loss < RULE_OF_THREE:
        raise InputError(
            f"--episodes: {args.episodes} cannot show that a loss is below --max-loss {args.max_loss:g}; give at least "
            f"{math.ceil(RULE_OF_THREE / args.max_loss)}"
        )
    check_seed(args.seed)
    if not args.out.is_dir():  # of a bundle that is a folder; what else is one is refused when it is written
        check_writable("--out", args.out)
    if args.method not in METHODS:
        raise InputError(f"--method: expected one of {', '.join(METHODS)}, got {args.method!r}")
    from sim2real_calib.quantizer import quantize

    done = quantize(args)
    chosen = done.chosen
    lines = [_told(trial) for trial in done.acceptance.trials[done.first :]]
    lines += _told_coverage(done.coverage)
    lines += [f"TensorRT: {line}" for line in done.checked]
    if chosen is None:
        lines.append(f"wrote nothing: no policy of fewer bits was accepted; {args.bundle} stays as it is")
    else:
        lines.append(f"wrote {args.out}: float32 and {chosen}, {done.onnx_bytes} bytes in place of {done.float_bytes}")
    result = {
        "chosen": chosen,
        "bundle": None if chosen is None else args.out,
        "acceptance": done.acceptance,
        "coverage": done.coverage,
        "checked": done.checked,
        "onnx_bytes": done.onnx_bytes,
        "float32_bytes": done.float_bytes,
    }
    return Outcome(passed=chosen is not None, result=result, summary="\n".join(lines))


def _told(trial: Trial) -> str:
    kept = [layer.product for layer in trial.layers if layer.kept]
    mixed = f" but for {', '.join(kept)}" if kept else ""
    change = f"change by {trial.output_error:.2%}" if trial.output_error < LOST else "are no numbers"
    head = f"{trial.precision}{mixed}: {trial.verdict}: {trial.reason}; actions {change}"
    if trial.success is None or trial.falls is None or trial.returns is None or trial.jerk is None:
        return head
    rows = {"success": trial.success, "falls": trial.falls, "return": trial.returns, "jerk": trial.jerk, **trial.terms}
    lines = [f"  {name:<14}{_figures(paired)}" for name, paired in rows.items()]
    return "\n".join([head, f"  {'':<14}{'float32':>10}{'quantized':>12}   change (95 % interval)", *lines])


def _figures(paired: Paired) -> str:
    change = paired.change
    return (
        f"{paired.float32.mean:>10.4g}{paired.quantized.mean:>12.4g}   {change.mean:+.3g} "
        f"({change.low:+.3g} to {change.high:+.3g})"
    )


def _told_coverage(coverage: tuple[Coverage, ...]) -> list[str]:
    lines: list[str] = []
    if constant := [each.name for each in coverage if each.constant]:
        lines.append(f"calibration: {len(constant)} inputs never move: {_named(constant)}")
    clipped = sorted((each for each in coverage if each.clipped > 0.0), key=lambda each: -each.clipped)
    if clipped:
        told = [f"{each.name} {each.clipped:.2%}" for each in clipped]
        lines.append(f"calibration: beyond what the policy clips to: {_named(told)}")
    return lines


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
