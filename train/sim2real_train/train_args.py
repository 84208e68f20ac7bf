"""What `sim2real train` may be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import tyro

from sim2real.arguments import EngineName

__all__ = ["TrainArgs"]

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
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(required, but for --show)")] = None
    """Folder of the run."""
    algo: Annotated[
        Literal["ppo", "sac", "distill"] | None,
        tyro.conf.arg(metavar="{ppo,sac,distill}", help_behavior_hint="(default: what suits the task)"),
    ] = None
    """Algorithm. ppo: proximal policy optimisation, many environments, each step used a few times. sac: soft
    actor-critic, fewer environments, each step used many times. distill: the policy imitates --teacher, on what a
    robot measures."""
    teacher: Annotated[Path | None, tyro.conf.arg(metavar="RUN", help_behavior_hint="(default: none)")] = None
    """For --algo distill: run whose last checkpoint is imitated, which may be a --privileged one; or a checkpoint
    folder, e.g. RUN/best."""
    init_from: Annotated[Path | None, tyro.conf.arg(metavar="RUN", help_behavior_hint="(default: none)")] = None
    """Begin with the weights and normalisers of a run's last checkpoint, or of a checkpoint folder, e.g. RUN/best; with
    a new optimiser, at iteration 0. Algorithm, networks, and what goes into the policy and comes out must be of the
    same kinds; a critic that is another begins anew."""
    privileged: bool = False
    """The policy reads all that the critic sees. No robot can measure that: it is a teacher for --algo distill."""
    robot: Annotated[str | None, tyro.conf.arg(metavar="ROBOT", help_behavior_hint="(default: the task's own)")] = None
    """Another model of the task's robot: the path of an MJCF, menagerie:NAME, or a name from `sim2real robots`. Its
    physics is simulated; gains, ratings and default pose are the task's."""
    engine: Annotated[
        EngineName | None,
        tyro.conf.arg(metavar="{mujoco,mujoco_warp,newton}", help_behavior_hint="(default: mujoco)"),
    ] = None
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
    """Where learners learn. cuda: each takes one NVIDIA GPU; what acts in the simulation stays on the CPU. A run is
    resumed on the device that it began on."""
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
    seed: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(default: 0)")] = None
    """Seed of every draw."""
    command_delay: Annotated[
        tuple[float, float] | None, tyro.conf.arg(metavar="LOW HIGH", help_behavior_hint="(default: 0.0 0.02)")
    ] = None
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
