"""What a training run is made from: plain data, kept in every checkpoint, equal or refused on resume."""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from sim2real.arguments import EngineName
from sim2real.errors import InputError
from sim2real.randomization import COMMAND_DELAY, ParameterRange, RandomizationFile, no_ranges, without_delays
from sim2real.sim.delays import MAX_DELAY, DelaySpec
from sim2real.tasks import Task
from sim2real.tasks.ranges import with_own_ranges
from sim2real_train.device import DeviceName
from sim2real_train.distill import DistillConfig
from sim2real_train.limits import Finite, check_limits
from sim2real_train.models import ModelConfig
from sim2real_train.ppo import PpoConfig
from sim2real_train.sac import SacConfig

__all__ = [
    "AlgorithmConfig",
    "FileRef",
    "InitRef",
    "PlacementConfig",
    "TrainConfig",
    "check_config",
    "config_sha256",
    "training_ranges",
]

AlgorithmConfig: TypeAlias = PpoConfig | SacConfig | DistillConfig
Workers: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1024)]
Delay: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0, le=MAX_DELAY)]
_MEANT_FOR: Final = {
    "learners": ("overlapped", "disaggregated"),
    "max_staleness": ("disaggregated",),
    "inference": ("disaggregated",),
}
"""Which placements a field of `PlacementConfig` says something about."""


class PlacementConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where collecting and learning run."""

    kind: Literal["colocated", "overlapped", "disaggregated"] = "colocated"
    """colocated: each worker simulates and learns; overlapped: the next batch is collected while this one is learned;
    disaggregated: simulator workers stream to learners."""
    learners: Workers = 1
    """Replicas of the learner, where workers only simulate."""
    max_staleness: Annotated[int, msgspec.Meta(ge=0, le=64)] = 1
    """Updates that the weights may miss which collect for a disaggregated learner."""
    inference: Literal["sim", "server"] = "sim"
    """Where the policy of disaggregated workers acts: in each of them, or in one server for all."""
    device: DeviceName = "cpu"
    """Where learners learn; cuda: each replica takes one NVIDIA GPU. Environments stay where their engine is, and what
    acts in them on the CPU."""


class FileRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which file something was read from."""

    name: str
    """Without its folder."""
    sha256: str


class InitRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which policy a run begins with; `sim2real_train.warm_start.init_at` makes one."""

    checkpoint: str
    """Absolute path of its checkpoint folder, as it was when the run began."""
    weights_sha256: str
    """Of its weights, which are read once, when the run begins."""


# What has a default is left out where it has it: configurations from before there was such a field stay what they were.
class TrainConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything that the learned weights depend on, but the number of iterations."""

    task: str
    """Name of the task."""
    robot: str | None
    """Another robot to do it with: a name, a path to an MJCF or ``menagerie:NAME``; None: the task's own."""
    engine: EngineName
    """Which simulator."""
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    """Seeds every draw."""
    num_envs: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    """Environments of all workers together."""
    num_workers: Workers
    """Processes that each own a share of the environments and a replica of the learner."""
    command_delay: tuple[Delay, Delay]
    """Range of the delay [s] of commands in training; widens the one of `randomization`."""
    delays: DelaySpec | None
    """Delays that a bench measured, in place of `command_delay` and of the task's; None: those."""
    randomization: RandomizationFile | None
    """Ranges of the physics of each episode; None: the robot's nominal parameters."""
    model: ModelConfig
    placement: PlacementConfig
    """Where it runs."""
    algorithm: AlgorithmConfig
    """How is learned."""
    init_from: InitRef | None = None
    """Whose weights and normalisers it begins with; None: it begins from nothing."""
    randomization_file: FileRef | None = None
    """Where `randomization` was read from; the ranges themselves are in the configuration."""
    rewards: dict[str, Finite] = {}
    """Weights of terms of the task's reward, in place of the task's own."""
    terminations: dict[str, bool] = {}
    """Terminations of the task by name; false: it ends no episode in training."""

    @property
    def num_states(self) -> int:
        """Number of processes whose state a checkpoint holds: workers, and learners where they are apart."""
        return self.num_workers + (0 if self.placement.kind == "colocated" else self.placement.learners)


def check_config(config: TrainConfig) -> None:
    """Check every number by itself and against the others, wherever they come from.

    Raises:
        InputError: One is not within what its field allows, or they contradict each other.
    """
    check_limits(config)
    if config.num_envs % config.num_workers:
        raise InputError(f"num_envs: expected a multiple of num_workers ({config.num_workers}), got {config.num_envs}")
    low, high = config.command_delay
    if not low <= high:
        raise InputError(f"command_delay: expected low <= high [s], got {config.command_delay}")
    where, plain = config.placement, PlacementConfig()
    for field, kinds in _MEANT_FOR.items():
        if where.kind not in kinds and getattr(where, field) != getattr(plain, field):
            raise InputError(f"placement.{field}: means nothing with placement.kind={where.kind}; leave it out")
    config.algorithm.check(config.model)


def config_sha256(config: TrainConfig) -> str:
    """Return the hex digest of the configuration's JSON."""
    return hashlib.sha256(msgspec.json.encode(config)).hexdigest()


def training_ranges(config: TrainConfig, task: Task) -> RandomizationFile:
    """Return the ranges that training draws from: calibrated ones, else the task's; commands delayed as configured.

    A calibration knows the robot's own delay. The runtime, the wire and the machine add theirs.
    """
    ranges = with_own_ranges(config.randomization, task) or no_ranges(task.robot.name)
    if config.delays is not None:
        return without_delays(ranges)
    low, high = config.command_delay
    for parameter in ranges.parameters:
        if parameter.name == COMMAND_DELAY:
            low, high = min(low, parameter.low), max(high, parameter.high)
    delay = ParameterRange(
        name=COMMAND_DELAY,
        unit="s",
        nominal=low,
        low=low,
        high=high,
        operation="set",
        distribution="uniform",
        identified=False,
        how="Configured for training: what the runtime and the wire may add.",
        delays="command",
    )
    kept = tuple(parameter for parameter in ranges.parameters if parameter.name != COMMAND_DELAY)
    return msgspec.structs.replace(ranges, parameters=(*kept, delay))
