"""`sim2real import`: a policy that others trained becomes a bundle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sim2real.arguments import check_number, check_seed
from sim2real.command import Outcome

__all__ = ["ImportArgs", "run_import"]

_Assigned = tyro.conf.UseAppendAction[tuple[str, ...]]


@dataclass(frozen=True)
class ImportArgs:
    """Make a policy bundle of a policy that others trained; what its file does not say is asked for, never assumed.

    Reads checkpoints of rsl_rl, skrl and rl_games, zips of Stable-Baselines3 (PPO, SAC), and ONNX files: with the
    metadata of mjlab or holosoma, with Unitree's deploy.yaml, or bare. Nothing in them is run. The bundle must compute
    what its source does, over sequences of raw measurements; otherwise nothing is written and the exit code is 1.
    """

    source: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="SOURCE")]]
    """The policy: model_1500.pt, agent.pt, model.zip, policy.onnx."""
    out: Annotated[Path, tyro.conf.arg(metavar="BUNDLE")]
    """Where the bundle goes, e.g. policy.s2r."""
    deploy: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """Unitree's deploy.yaml of an ONNX file."""
    task: Annotated[str | None, tyro.conf.arg(metavar="TASK", help_behavior_hint="(default: none)")] = None
    """One of our tasks (`sim2real tasks`), whose contract says what the source does not."""
    contract: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """A contract in YAML or JSON, or the parts of one that the source leaves open."""
    activation: Annotated[
        Literal["elu", "tanh", "relu", "silu"] | None, tyro.conf.arg(help_behavior_hint="(default: as the source says)")
    ] = None
    """What follows each hidden layer of a checkpoint."""
    output_activation: Annotated[
        Literal["none", "tanh"] | None, tyro.conf.arg(help_behavior_hint="(default: as the source says)")
    ] = None
    """What follows the last layer of a checkpoint."""
    normalizer: Annotated[
        str | None, tyro.conf.arg(metavar="none|FILE", help_behavior_hint="(default: as the source says)")
    ] = None
    """Whether observations were normalised outside of the file: none, or an npz with mean, var, epsilon and clip_obs
    (VecNormalize of Stable-Baselines3); checkpoint: the one in a checkpoint of skrl 1."""
    joint_names: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: none)")] = ()
    """For --deploy: the joints in the order of the policy, which Unitree's file does not name."""
    joint_kp: Annotated[_Assigned, tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """Stiffness [N·m/rad] of joints; a name may be a pattern: '*_hip_joint=20'."""
    joint_kd: Annotated[_Assigned, tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """Damping [N·m·s/rad] of joints."""
    joint_default: Annotated[_Assigned, tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """Default position [rad] of joints."""
    joint_velocity_limit: Annotated[_Assigned, tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """Largest velocity [rad/s] of joints."""
    joint_effort_limit: Annotated[_Assigned, tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """Largest effort [N·m] of joints."""
    joint_position_limits: Annotated[_Assigned, tyro.conf.arg(metavar="NAME=LOW:HIGH")] = ()
    """Allowed positions [rad] of joints; none: it turns without end."""
    action_scale: Annotated[
        str | None, tyro.conf.arg(metavar="VALUE[,…]", help_behavior_hint="(default: as the source says)")
    ] = None
    """Target per action [rad], one for all or one each."""
    action_offset: Annotated[
        Literal["default", "zero"] | None, tyro.conf.arg(help_behavior_hint="(default: as the source says)")
    ] = None
    """Target where the action is 0: each joint's default position, or zero."""
    action_clip: Annotated[
        str | None, tyro.conf.arg(metavar="LOW:HIGH|none", help_behavior_hint="(default: as the source says)")
    ] = None
    """Bounds on the raw action."""
    term_offset: Annotated[_Assigned, tyro.conf.arg(metavar="NAME=default|zero")] = ()
    """What is subtracted from an observation term: each joint's default position, or nothing."""
    command_initial: Annotated[_Assigned, tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """Value of operator inputs before the first message."""
    step_dt: Annotated[
        float | None, tyro.conf.arg(metavar="SECONDS", help_behavior_hint="(default: as the source says)")
    ] = None
    """Control period."""
    decimation: Annotated[
        int | None, tyro.conf.arg(metavar="STEPS", help_behavior_hint="(default: as the source says)")
    ] = None
    """Physics steps per control period in training."""
    task_name: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: of --task)")] = None
    """What the policy does, for people."""
    robot_name: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: of --task)")] = None
    """The robot that it drives."""
    signing_key: Annotated[
        Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: a one-time key)")
    ] = None
    """Secret key from `sim2real keygen`; a one-time key shows integrity but not who signed."""
    seed: int = 0
    """Seed of the golden run: recorded measurements and actions that every engine must reproduce."""


def run_import(args: ImportArgs) -> Outcome:
    """Import; the outcome is an `ImportResult`."""
    check_seed(args.seed)
    if args.step_dt is not None:
        check_number("--step-dt", args.step_dt, high=10.0)
    # What is wrong by itself is told before the libraries are loaded.
    from sim2real.signing import load_signing_key
    from sim2real_train.importing import import_policy

    key = None if args.signing_key is None else load_signing_key(args.signing_key)
    result = import_policy(args, signing_key=key)
    lines = [
        f"policy: {result.source}, {result.told_by}; {result.observation_size} observations, "
        f"{result.action_size} actions"
    ]
    lines += [f"note: {note}" for note in result.notes]
    lines.append("parity with the source's own network:")
    lines += [
        f"{'ok  ' if each.passed else 'FAIL'} {each.engine}, measurements: {each.measurements}: "
        f"{each.steps} steps, largest error {each.error:.1e} of {each.where} (allowed {each.tolerance:.0e})"
        for each in result.parity
    ]
    lines.append(
        f"wrote {args.out}: contract {result.contract_sha256[:12]}…"
        if result.passed
        else "wrote nothing: the imported policy does not compute what its source does"
    )
    return Outcome(passed=result.passed, result=result, summary="\n".join(lines))
