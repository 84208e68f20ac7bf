"""Delays between a policy and its robot, as data: how long, of what, how often lost; `sim2real.sim.links` obeys them.

Two things can be late, and a spec says which: a *command* (the block of targets and gains, on its way from the policy
to the actuators; never the torque that follows from it) and an *observation* (a measurement, on its way from the sensor
to the policy).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.contract import END_TO_END
from sim2real.errors import InputError
from sim2real.latency import LatencyReport, read_latency

__all__ = [
    "COMMAND_STAGES",
    "MAX_DELAY",
    "OBSERVATION_STAGES",
    "Delay",
    "DelaySpec",
    "Fixed",
    "GroupDelay",
    "Measured",
    "MeasuredStage",
    "Uniform",
    "delay_from_latency",
    "sampler",
]

MAX_DELAY: Final = 0.1
"""Longest delay [s], jitter included, that a plant can simulate."""
OBSERVATION_STAGES: Final = ("state_age",)
"""Measured stages that add up to the observation delay: sensed → read by the policy's tick."""
COMMAND_STAGES: Final = ("tick", "command_transport")
"""Measured stages that add up to the command delay: tick begun → command sent → command at the plant.

``tick`` holds observe, infer, supervise and send. ``wake`` is in neither: it shifts measurement and command together.
"""

Sampler = Callable[[np.random.Generator, tuple[int, ...]], npt.NDArray[np.float64]]


class Fixed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Always the same delay."""

    value: float
    """[s]"""

    @property
    def longest(self) -> float:
        """Longest delay that is drawn [s]."""
        return self.value

    def describe(self) -> str:
        """Return it in words."""
        return _ms(self.value)


class Uniform(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Any delay of a range, with equal probability."""

    low: float
    """[s]"""
    high: float
    """[s]"""

    def __post_init__(self) -> None:
        """Check the order of the bounds."""
        if not 0.0 <= self.low <= self.high:
            raise InputError(f"delay: expected a range with 0 <= low <= high, got {self.low} to {self.high} s")

    @property
    def longest(self) -> float:
        """Longest delay that is drawn [s]."""
        return self.high

    def describe(self) -> str:
        """Return it in words."""
        return f"{_ms(self.low)} to {_ms(self.high)}"


class MeasuredStage(msgspec.Struct, frozen=True, kw_only=True):
    """How long one stage took on a bench."""

    stage: str
    """One of `sim2real.contract.STAGES`, or `END_TO_END`."""
    buckets: tuple[tuple[int, int, int], ...]
    """(lowest value [ns], highest value [ns], count), as `sim2real.histogram.Histogram.distribution` gives them."""
    left_out: int
    """Measured values that were too long to simulate and are not in `buckets`."""


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The sum of independent draws from measured histograms; within a bucket all values are equally probable."""

    stages: tuple[MeasuredStage, ...]

    def __post_init__(self) -> None:
        """Check that there is something to draw from."""
        if not self.stages or not all(stage.buckets for stage in self.stages):
            raise InputError("delay: expected at least one measured stage, each with values, got an empty one")

    @property
    def longest(self) -> float:
        """Longest delay that is drawn [s]."""
        return sum(stage.buckets[-1][1] for stage in self.stages) * 1e-9

    def describe(self) -> str:
        """Return it in words."""
        names = " + ".join(stage.stage for stage in self.stages)
        counts = [(sum(count for _, _, count in stage.buckets), stage.left_out) for stage in self.stages]
        total, left_out = sum(kept + out for kept, out in counts), sum(out for _, out in counts)
        without = f" without the {left_out} longest" if left_out else ""
        return f"as measured in {names}, {total} values{without}, at most {_ms(self.longest)}"


Delay = Fixed | Uniform | Measured


class GroupDelay(msgspec.Struct, frozen=True, kw_only=True):
    """The delay of what travels together, e.g. on one bus: one message per control step."""

    of: tuple[str, ...] = ()
    """Joints, for commands; signals, for observations. Empty: all that no other group names."""
    delay: Delay
    """Drawn once per episode and environment."""
    redraw: bool = False
    """True: `delay` is drawn anew for each message instead."""
    jitter: float = 0.0
    """A message is later than that by up to this [s], uniformly, drawn for each message."""
    loss: float = 0.0
    """Probability that a message never arrives: the receiver keeps what it has."""
    repeat: float = 0.0
    """Probability that the sender sends its previous message again in place of a new one: a policy that overran, a
    register read before its update."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("loss", "repeat"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise InputError(f"delay.{name}: expected a probability from 0 to 1, got {getattr(self, name)}")
        if not (self.jitter >= 0.0 and 0.0 <= self.delay.longest <= MAX_DELAY - self.jitter):
            raise InputError(
                f"delay: expected 0 to {MAX_DELAY} s with jitter, got up to {self.delay.longest:.6g} s and jitter of "
                f"{self.jitter:.6g} s; leave out longer values, and call them lost (loss)"
            )

    @property
    def draws(self) -> bool:
        """Whether something is drawn for each message."""
        return self.redraw or self.jitter > 0.0 or self.loss > 0.0 or self.repeat > 0.0

    def describe(self) -> str:
        """Return it in words, e.g. ``5 ms to 20 ms, drawn per episode, 1 % lost``."""
        parts = [self.delay.describe()]
        if not isinstance(self.delay, Fixed):
            parts.append(f"drawn per {'message' if self.redraw else 'episode'}")
        if self.jitter:
            parts.append(f"each message up to {_ms(self.jitter)} later")
        parts += [f"{getattr(self, name):.3g} {name}" for name in ("loss", "repeat") if getattr(self, name)]
        return ", ".join(parts)


class DelaySpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is late."""

    commands: tuple[GroupDelay, ...] = ()
    """From the policy's tick to the physics step at which the actuators act on its targets, by group of joints."""
    observations: tuple[GroupDelay, ...] = ()
    """From the physics step that is measured to the policy's tick that uses the measurement, by group of signals."""

    def describe(self) -> tuple[str, ...]:
        """Return one line per group that says what is delayed, and by how much."""
        lines = [f"command of {_members(group, 'joints')}: {group.describe()}" for group in self.commands]
        lines += [f"observation of {_members(group, 'signals')}: {group.describe()}" for group in self.observations]
        return tuple(lines)


def delay_from_latency(
    path: Path, *, split: bool = False, redraw: bool = False, longest: float | None = None
) -> DelaySpec:
    """Return the delays that a bench has measured, for all joints and signals.

    Args:
        path: ``latency.json`` of a realtime run.
        split: False: all of ``end_to_end`` (sensed → applied) delays the command, and nothing the observation. True:
            `OBSERVATION_STAGES` delay the observation and `COMMAND_STAGES` the command; what a command waits at the
            plant for its next physics step is then in neither, because the simulated plant has that step too.
        redraw: Draw for each message instead of for each episode.
        longest: Leave out values above it [s]; None: none may be above `MAX_DELAY`.

    Raises:
        InputError: The file is not a realtime run's, lacks a stage, or holds delays that are too long to simulate.
    """
    report = read_latency(path)
    if report.conditions.mode != "realtime":
        raise InputError(
            f"{path}: latency.conditions.mode: expected 'realtime', got {report.conditions.mode!r}; in lockstep the "
            "plant waits, so nothing is late: measure with sim2real hil run BUNDLE --mode realtime"
        )

    def group(stages: tuple[str, ...]) -> GroupDelay:
        measured = tuple(
            _measured_stage(report, path, stage, MAX_DELAY if longest is None else longest) for stage in stages
        )
        if longest is None and any(stage.left_out for stage in measured):
            raise InputError(
                f"{path}: expected delays of at most {MAX_DELAY} s, got longer ones in {' + '.join(stages)}; say from "
                "where on they are left out (longest)"
            )
        return GroupDelay(delay=Measured(stages=measured), redraw=redraw)

    if split:
        return DelaySpec(commands=(group(COMMAND_STAGES),), observations=(group(OBSERVATION_STAGES),))
    return DelaySpec(commands=(group((END_TO_END,)),))


def sampler(delay: Delay) -> Sampler:
    """Return a function that draws delays [s] of any shape, with what is costly done once."""
    if isinstance(delay, Fixed):
        return lambda _, shape: np.full(shape, delay.value)
    if isinstance(delay, Uniform):
        return lambda rng, shape: rng.uniform(delay.low, delay.high, shape)
    stages = [np.array(stage.buckets, np.int64) for stage in delay.stages]
    return lambda rng, shape: sum((_draw(buckets, rng, shape) for buckets in stages), np.zeros(shape))


def _draw(buckets: npt.NDArray[np.int64], rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    low, high, counts = buckets.T
    reached = np.cumsum(counts)
    chosen = np.searchsorted(reached, rng.integers(reached[-1], size=shape), side="right")
    return (low[chosen] + rng.random(shape) * (high - low)[chosen]) * 1e-9


def _measured_stage(report: LatencyReport, path: Path, stage: str, longest: float) -> MeasuredStage:
    values = report.histogram(stage).distribution()
    kept = tuple(bucket for bucket in values if bucket[1] * 1e-9 <= longest)
    if not kept:
        raise InputError(
            f"{path}: stage {stage}: expected values up to {longest:.6g} s, got {'longer ones' if values else 'none'}; "
            "measure with: sim2real hil run BUNDLE --mode realtime"
        )
    return MeasuredStage(stage=stage, buckets=kept, left_out=sum(count for _, _, count in values[len(kept) :]))


def _members(group: GroupDelay, kind: str) -> str:
    return ", ".join(group.of) or f"all other {kind}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"
