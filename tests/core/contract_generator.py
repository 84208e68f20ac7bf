"""Draws valid contracts of every shape that the schema allows; `strategies` is the way to it."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Sequence

from sim2real.contract import (
    SCHEMA_VERSION,
    STAGES,
    Action,
    Command,
    CommandMode,
    DeadlineLadder,
    Fallback,
    FallbackLevel,
    Identity,
    Joint,
    LatencyBudget,
    Model,
    Observation,
    ObservationTerm,
    PolicyContract,
    RecurrentState,
    Safety,
    StageBudget,
    Timing,
)
from sim2real.signals import SIGNALS

__all__ = ["ContractGenerator"]

EXTREMES = (
    5e-324,
    2.2250738585072014e-308,
    1.7976931348623157e308,
    0.0004,
    1 / 3,
    0.1,
    1e16,
    1e23,
    -0.0,
    123456789.12345679,
)
MODES: tuple[CommandMode, ...] = ("position", "velocity", "effort", "passive")
LEVELS: tuple[FallbackLevel, ...] = ("hold", "damp", "stop")
ALPHABET = "abcxyz_09 /·é脚"


class ContractGenerator:
    """Draws the parts of one contract; a part that refers to others is drawn after them."""

    def __init__(self, rng: random.Random, extreme: bool) -> None:
        self.rng = rng
        self.extreme = extreme

    def contract(self) -> PolicyContract:
        joints = self.joints()
        commands = self.commands()
        driven = [joint.name for joint in joints if joint.command_mode != "passive"]
        observation = self.observation([joint.name for joint in joints], driven, commands)
        size = sum(len(term.scale) * term.history_length for term in observation.terms)
        physics_step_ns, decimation = self.rng.randint(1, 10**7), self.rng.randint(1, 20)
        return PolicyContract(
            schema_version=SCHEMA_VERSION,
            identity=self.identity(),
            timing=Timing(
                control_period_ns=physics_step_ns * decimation, physics_step_ns=physics_step_ns, decimation=decimation
            ),
            joints=joints,
            observation=observation,
            action=self.action(driven),
            commands=commands,
            model=self.model(size, len(driven)),
            safety=self.safety(len(joints)),
            latency=self.latency(),
        )

    def identity(self) -> Identity:
        return Identity(
            task=self.text(),
            robot=self.text(),
            toolkit_version=self.text(),
            checkpoint_sha256=f"{self.rng.getrandbits(256):064x}",
            config_sha256=f"{self.rng.getrandbits(256):064x}",
        )

    def joints(self) -> tuple[Joint, ...]:
        names = self.names(self.rng.randint(1, 4))
        driven = self.rng.choice(names)  # something must be
        return tuple(self.joint(name, self.rng.choice(MODES[:3] if name == driven else MODES)) for name in names)

    def joint(self, name: str, mode: CommandMode) -> Joint:
        limits = self.interval() if self.rng.random() < 0.8 else None
        return Joint(
            name=name,
            axis_sign=1 if self.rng.random() < 0.5 else -1,
            position_limits=limits,
            velocity_limit=self.positive(),
            effort_limit=self.positive(),
            default_position=self.number() if limits is None else self.rng.choice(limits),
            command_mode=mode,
            kp=self.positive() if mode == "position" else 0.0,
            kd={"position": self.not_negative, "velocity": self.positive}.get(mode, lambda: 0.0)(),
        )

    def commands(self) -> tuple[Command, ...]:
        return tuple(self.command(name) for name in self.names(self.rng.randint(0, 3)))

    def command(self, name: str) -> Command:
        low, high = self.interval()
        return Command(
            name=name, unit=self.rng.choice(("rad", "m/s")), low=low, high=high, initial=self.rng.choice((low, high))
        )

    def observation(self, joints: Sequence[str], driven: Sequence[str], commands: Sequence[Command]) -> Observation:
        sources = [*SIGNALS, "last_action", *(("command",) if commands else ())]
        layout = self.rng.choice(("term_major", "frame_major"))
        shared = self.history() if layout == "frame_major" else None
        chosen = [(name, self.rng.choice(sources)) for name in self.names(self.rng.randint(1, 5))]
        terms = [
            self.term(name, source, driven if source == "last_action" else joints, commands, shared or self.history())
            for name, source in chosen
        ]
        return Observation(
            terms=tuple(terms),
            layout="frame_major" if shared else "term_major",
            history_order="oldest_first" if self.rng.random() < 0.5 else "newest_first",
            startup_fill="first" if self.rng.random() < 0.5 else "zero",
        )

    def history(self) -> tuple[int, int]:
        return self.rng.randint(1, 4), self.rng.randint(1, 3)

    def term(
        self, name: str, source: str, joints: Sequence[str], commands: Sequence[Command], history: tuple[int, int]
    ) -> ObservationTerm:
        signal = SIGNALS.get(source)
        per_joint = source == "last_action" or (signal is not None and signal.per_joint)
        chosen = tuple(self.rng.sample(joints, self.rng.randint(1, len(joints)))) if per_joint else ()
        width = len(chosen) or (signal.width if signal else len(commands))
        units = {signal.unit} if signal else {command.unit for command in commands if source == "command"}
        return ObservationTerm(
            name=name,
            source=source,
            joints=chosen,
            function=self.rng.choice(("identity", "sin", "cos")) if units == {"rad"} else "identity",
            offset=self.many(self.number, width),
            scale=self.many(self.nonzero, width),
            clip=self.interval() if self.rng.random() < 0.5 else None,
            history_length=history[0],
            history_stride=history[1],
            quaternion=self.rng.choice(("wxyz", "xyzw")) if source == "base_quat" else None,
            frame=signal.frame if signal else "policy",
        )

    def action(self, joints: Sequence[str]) -> Action:
        width = len(joints)
        incremental = self.rng.random() < 0.3
        return Action(
            mode="incremental" if incremental else "absolute",
            joints=tuple(self.rng.sample(joints, width)),
            scale=self.many(self.nonzero, width),
            offset=(0.0,) * width if incremental else self.many(self.number, width),
            clip=self.interval() if self.rng.random() < 0.5 else None,
            rate_limit=self.many(self.positive, width) if self.rng.random() < 0.5 else None,
        )

    def model(self, observation_size: int, action_size: int) -> Model:
        states = self.rng.randint(0, 2)
        names = self.names(2 + 2 * states)
        recurrent = tuple(
            RecurrentState(
                input_name=names[2 + 2 * index],
                output_name=names[3 + 2 * index],
                shape=tuple(self.rng.randint(1, 8) for _ in range(self.rng.randint(1, 3))),
                initial_value=self.rng.uniform(-1, 1),
            )
            for index in range(states)
        )
        return Model(
            observation_name=names[0],
            observation_size=observation_size,
            action_name=names[1],
            action_size=action_size,
            recurrent=recurrent,
        )

    def safety(self, num_joints: int) -> Safety:
        rungs = sorted(self.rng.sample(range(1, 100), 3))
        return Safety(
            stale_timeout_ns=self.rng.randint(1, 2**62),
            on_stale=self.rng.choice(LEVELS),
            on_non_finite=self.rng.choice(LEVELS),
            on_position_limit=self.rng.choice(LEVELS),
            position_margin=self.not_negative(),
            on_velocity_limit=self.rng.choice(LEVELS),
            on_effort_limit=self.rng.choice(LEVELS),
            effort_margin=self.not_negative(),
            max_tilt=self.rng.choice((math.pi, 5e-324, 1.0)) if self.rng.random() < 0.5 else None,
            on_tilt=self.rng.choice(LEVELS),
            deadline_ladder=DeadlineLadder(hold_after=rungs[0], damp_after=rungs[1], stop_after=rungs[2]),
            recover_after=self.rng.randint(1, 100),
            fallback=Fallback(
                hold_kp=self.many(self.not_negative, num_joints),
                hold_kd=self.many(self.not_negative, num_joints),
                damp_kd=self.many(self.positive, num_joints),
            ),
        )

    def latency(self) -> LatencyBudget:
        stages = self.rng.sample(STAGES, self.rng.randint(0, 3))
        return LatencyBudget(
            stages=tuple(self.budget(stage) for stage in stages),
            end_to_end=self.budget("end_to_end"),
            max_deadline_miss_rate=self.rng.choice((0.0, -0.0, 5e-324, 1 / 3, 1.0)),
            max_action_age_ns=self.rng.randint(1, 2**63 - 1),
        )

    def budget(self, stage: str) -> StageBudget:
        p50, p99, p999, largest = sorted(self.rng.randint(1, 10**9) for _ in range(4))
        return StageBudget(stage=stage, p50_ns=p50, p99_ns=p99, p999_ns=p999, max_ns=largest)

    def text(self) -> str:
        return "n" + "".join(self.rng.choice(ALPHABET) for _ in range(self.rng.randint(0, 5))) + "n"

    def names(self, count: int) -> list[str]:
        return [f"{self.text()}{index}" for index in range(count)]

    def number(self) -> float:
        if not self.extreme:
            return self.rng.uniform(-3.0, 3.0)
        if self.rng.random() < 0.5:
            return self.rng.choice(EXTREMES)
        value: float = struct.unpack("<d", struct.pack("<Q", self.rng.getrandbits(64)))[0]
        return value if math.isfinite(value) else -0.0

    def nonzero(self) -> float:
        value = self.number()
        # Ordinary scales stay away from zero, so that an observation can be inverted without losing digits.
        return value if value and (self.extreme or abs(value) > 0.01) else 0.0004 if self.extreme else 0.5

    def positive(self) -> float:
        return abs(self.nonzero())

    def not_negative(self) -> float:
        return abs(self.number())

    def interval(self) -> tuple[float, float]:
        first, second = sorted((self.number(), self.number()))
        return (first, second) if first < second else (-0.5, 0.5)

    def many(self, draw: Callable[[], float], count: int) -> tuple[float, ...]:
        return tuple(draw() for _ in range(count))
