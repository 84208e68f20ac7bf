"""What `sim2real train --show` prints: every setting, what it means and may be, and what physics is drawn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from sim2real.command import Outcome
from sim2real.randomization import ParameterRange
from sim2real.tasks import get_task
from sim2real.tasks.gym_tasks import is_foreign
from sim2real_train.config import TrainConfig, training_ranges
from sim2real_train.limits import allowed_within
from sim2real_train.overrides import Field, describe
from sim2real_train.terms import check_terms
from sim2real_train.trainer import Schedule

__all__ = ["SCHEDULE", "Range", "Shown", "show"]

SCHEDULE: Final = ("iterations", "save_every", "evaluate_every", "evaluate_starts", "restarts")
"""Fields of `Schedule` that are shown, as ``schedule.<field>``; the options that set them have the same names."""
_SHOWN_OTHERWISE: Final = ("randomization", "randomization_file", "rewards", "terminations")
_RELATIVE: Final = {"set": "", "scale": " times the model's", "add": " added to the model's"}


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity that each episode draws anew."""

    name: str
    low: float
    high: float
    unit: str
    """``1``: it has none."""
    operation: str
    """``set``; or ``scale`` or ``add``, relative to what the robot's model holds."""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--show --json`` prints."""

    config: TrainConfig
    fields: list[Field]
    ranges: list[Range]
    """Of the physics in training; empty for environments of others."""


def show(config: TrainConfig, schedule: Schedule, allowed: Mapping[str, str]) -> Outcome:
    """Tell of every setting its value, its meaning and what it may be, and what training draws physics from.

    Args:
        config: The run.
        schedule: When things happen in it.
        allowed: What the fields of the schedule may be, in words.

    Raises:
        InputError: There is no such task, or its robot cannot be had.
    """
    settings = [row for row in describe(config) if row.name.partition(".")[0] not in _SHOWN_OTHERWISE]
    settings += [] if is_foreign(config.task) else _terms(config)
    times = [
        msgspec.structs.replace(row, name=f"schedule.{row.name}", allowed=allowed[row.name])
        for row in describe(schedule)
        if row.name in SCHEDULE
    ]
    ranges = [] if is_foreign(config.task) else _ranges(config)
    lines = [
        "settings, each for --set NAME=VALUE:",
        *_rows(settings),
        "schedule, each by an option of its own (schedule.save_every by --save-every), none by --set:",
        *_rows(times),
        *_drawn(config, ranges),
    ]
    shown = Shown(config=config, fields=[*settings, *times], ranges=ranges)
    return Outcome(passed=True, result=shown, summary="\n".join(lines))


def _terms(config: TrainConfig) -> list[Field]:
    """Return the weights of all terms of the task's reward, and which of its terminations end episodes in training."""
    task = get_task(config.task, config.robot)
    check_terms(config, task)
    weights = {name: config.rewards.get(name, reward.weight) for name, reward in task.rewards.items()}
    meanings = {
        name: f"Weight of this term of the reward; the task's own: {_json(task.rewards[name].weight)}."
        for name in weights
    }
    ends = {name: config.terminations.get(name, True) for name in task.terminations}
    return [
        *_by_name(config, "rewards", weights, meanings),
        *_by_name(config, "terminations", ends, dict.fromkeys(ends, "Whether this ends episodes in training.")),
    ]


def _by_name(config: TrainConfig, field: str, values: Mapping[str, Any], meanings: Mapping[str, str]) -> list[Field]:
    allowed = allowed_within(config, field)
    return [
        Field(name=f"{field}.{name}", value=value, meaning=meanings[name], allowed=allowed)
        for name, value in values.items()
    ]


def _ranges(config: TrainConfig) -> list[Range]:
    parameters: tuple[ParameterRange, ...] = training_ranges(config, get_task(config.task, config.robot)).parameters
    return [
        Range(name=each.name, low=each.low, high=each.high, unit=each.unit, operation=each.operation)
        for each in parameters
    ]


def _rows(fields: Sequence[Field]) -> list[str]:
    width = max(len(row.name) for row in fields)
    return [
        f"  {row.name:<{width}}  {_json(row.value)}{f'  ({row.allowed})' if row.allowed else ''}\n"
        f"  {'':<{width}}    {row.meaning}"
        for row in fields
    ]


def _drawn(config: TrainConfig, ranges: Sequence[Range]) -> list[str]:
    if is_foreign(config.task):
        return [f"physics: that of {config.task}"]
    width = max((len(each.name) for each in ranges), default=0)
    lines = [
        f"  {each.name:<{width}}  {each.low:g} to {each.high:g}{_unit(each)}{_RELATIVE[each.operation]}"
        for each in ranges
    ]
    if config.delays is not None:
        lines.append("  delays as measured (--latency)")
    return ["physics, drawn for each episode from (--randomization and --command-delay change it):", *lines]


def _unit(each: Range) -> str:
    return "" if each.unit in ("", "1") or each.operation == "scale" else f" {each.unit}"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
