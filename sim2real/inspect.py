"""`sim2real inspect policy.s2r`: what a bundle holds, as tables that a person can check against the robot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from sim2real.bundle import Bundle, read_bundle
from sim2real.command import Outcome
from sim2real.contract import Observation, PolicyContract, StageBudget
from sim2real.signing import load_public_key
from sim2real.validation import term_width

__all__ = ["InspectArgs", "run_inspect"]


@dataclass(frozen=True)
class InspectArgs:
    """Show the contract of a policy bundle, who signed it and what it holds."""

    bundle: tyro.conf.Positional[Path]
    """The bundle: a folder or a zip file."""
    trust: tyro.conf.UseAppendAction[tuple[Path, ...]] = ()
    """Public keys (.pub); a bundle signed with any other key is refused."""


def run_inspect(args: InspectArgs) -> Outcome:
    """Read a bundle, with every check that belongs to reading, and describe it.

    Raises:
        BundleError: The bundle does not pass.
        InputError: A key of `args.trust` cannot be read.
    """
    bundle = read_bundle(args.bundle, trusted_keys=[load_public_key(path) for path in args.trust] or None)
    result = {"contract": bundle.contract, "manifest": bundle.manifest, "signature": bundle.signature}
    return Outcome(passed=True, result=result, summary="\n".join(_describe(bundle)))


def _describe(bundle: Bundle) -> Iterator[str]:
    contract = bundle.contract
    yield from _bundle(bundle)
    yield from _section("identity", _pairs(contract.identity))
    yield from _section("timing", _timing(contract))
    yield from _section("joints (robot side; rad, rad/s, N·m)", _joints(contract))
    yield from _section(_observation_title(contract), _observation(contract))
    yield from _section(f"action (float32, {contract.model.action_size} values)", _action(contract))
    yield from _section("commands (operator inputs)", _commands(contract))
    yield from _section("recurrent state (float32)", _recurrent(contract))
    yield from _section("safety", _safety(contract))
    yield from _section("fallback gains", _fallback(contract))
    yield from _section("latency budget [ms]", _latency(contract))
    yield from _section("files", _files(bundle))


def _bundle(bundle: Bundle) -> Iterator[str]:
    manifest, signature = bundle.manifest, bundle.signature
    yield f"{bundle.path}: policy bundle, schema {manifest.schema_version}"
    yield f"  written by     {manifest.created_by}, sim2real {manifest.toolkit_version}"
    yield f"  signed by      {signature.public_key}"
    yield f"                 {'trusted' if signature.trusted else 'integrity only: signer unknown, see --trust'}"
    yield f"  contract hash  {bundle.contract_hash.hex()}"


def _timing(contract: PolicyContract) -> Iterator[str]:
    timing = contract.timing
    yield f"{1e9 / timing.control_period_ns:g} Hz control: {timing.control_period_ns} ns"
    yield f"{timing.decimation} physics steps of {timing.physics_step_ns} ns each"


def _joints(contract: PolicyContract) -> Iterator[str]:
    header = ("#", "name", "axis", "mode", "default", "position", "velocity", "effort", "kp", "kd")
    rows = [
        (
            index,
            joint.name,
            f"{joint.axis_sign:+d}",
            joint.command_mode,
            joint.default_position,
            _bounds(joint.position_limits, "endless"),
            joint.velocity_limit,
            joint.effort_limit,
            joint.kp,
            joint.kd,
        )
        for index, joint in enumerate(contract.joints)
    ]
    yield from _table(header, rows)


def _observation_title(contract: PolicyContract) -> str:
    observation = contract.observation
    order = f"{observation.layout}, {observation.history_order}, start-up: {observation.startup_fill}"
    return (
        f"observation {contract.model.observation_name!r} (float32, {contract.model.observation_size} values; {order})"
    )


def _observation(contract: PolicyContract) -> Iterator[str]:
    header = ("index", "term", "source", "joints", "function", "offset", "scale", "clip", "history", "stride", "frame")
    rows = [
        (
            where,
            term.name,
            f"{term.source} {term.quaternion or ''}".strip(),
            " ".join(term.joints) or "-",
            term.function,
            _values(term.offset),
            _values(term.scale),
            _bounds(term.clip, "-"),
            term.history_length,
            term.history_stride,
            term.frame,
        )
        for term, where in zip(contract.observation.terms, _indices(contract.observation, contract), strict=True)
    ]
    yield from _table(header, rows)


def _indices(observation: Observation, contract: PolicyContract) -> Iterator[str]:
    """Yield where each term lies in the observation vector, as half-open ranges."""
    widths = [term_width(term, contract) for term in observation.terms]
    start = 0
    for term, width in zip(observation.terms, widths, strict=True):
        if observation.layout == "frame_major":
            frames = range(start, start + term.history_length * sum(widths), sum(widths))
            yield " ".join(f"{frame}:{frame + width}" for frame in frames)
            start += width
        else:
            yield f"{start}:{start + width * term.history_length}"
            start += width * term.history_length


def _action(contract: PolicyContract) -> Iterator[str]:
    action = contract.action
    yield f"{contract.model.action_name!r}, {action.mode}, clip {_bounds(action.clip, 'none')}"
    rates = action.rate_limit or ("-",) * len(action.joints)
    rows = list(zip(range(len(rates)), action.joints, action.scale, action.offset, rates, strict=True))
    yield from _table(("index", "joint", "scale", "offset", "rate limit [1/s]"), rows)


def _commands(contract: PolicyContract) -> Iterator[str]:
    rows = [(each.name, each.unit, each.low, each.high, each.initial) for each in contract.commands]
    yield from _table(("name", "unit", "low", "high", "initial"), rows)


def _recurrent(contract: PolicyContract) -> Iterator[str]:
    rows = [
        (state.input_name, state.output_name, "×".join(map(str, state.shape)), state.initial_value)
        for state in contract.model.recurrent
    ]
    yield from _table(("input", "output", "shape", "initial"), rows)


def _safety(contract: PolicyContract) -> Iterator[str]:
    safety = contract.safety
    ladder = safety.deadline_ladder
    tilt = "not checked" if safety.max_tilt is None else f"{safety.max_tilt!r} rad"
    rows = [
        ("measurement older than", f"{safety.stale_timeout_ns} ns", safety.on_stale),
        ("value not finite", "", safety.on_non_finite),
        ("position outside limits by", f"{safety.position_margin!r} rad", safety.on_position_limit),
        ("velocity outside limit", "", safety.on_velocity_limit),
        ("effort outside limit by", f"{safety.effort_margin!r} N·m", safety.on_effort_limit),
        ("tilt above", tilt, safety.on_tilt),
        ("deadlines missed in a row", str(ladder.hold_after), "hold"),
        ("", str(ladder.damp_after), "damp"),
        ("", str(ladder.stop_after), "stop"),
        ("healthy ticks in a row", str(safety.recover_after), "leave hold"),
    ]
    yield from _table(("when", "limit", "then"), rows)


def _fallback(contract: PolicyContract) -> Iterator[str]:
    gains = contract.safety.fallback
    rows = list(zip(contract.joint_names, gains.hold_kp, gains.hold_kd, gains.damp_kd, strict=True))
    yield from _table(("joint", "hold kp", "hold kd", "damp kd"), rows)


def _latency(contract: PolicyContract) -> Iterator[str]:
    latency = contract.latency
    yield from _table(("stage", "p50", "p99", "p99.9", "max"), map(_budget, (*latency.stages, latency.end_to_end)))
    yield f"deadline misses at most {latency.max_deadline_miss_rate!r} of all ticks"
    yield f"actions at most {_ms(latency.max_action_age_ns)} ms old"


def _budget(budget: StageBudget) -> tuple[str, ...]:
    return budget.stage, *map(_ms, (budget.p50_ns, budget.p99_ns, budget.p999_ns, budget.max_ns))


def _files(bundle: Bundle) -> Iterator[str]:
    rows = [(member.name, member.size, member.sha256) for member in bundle.manifest.members]
    yield from _table(("name", "bytes", "sha256"), rows)


def _pairs(part: Any) -> Iterator[str]:
    names = part.__struct_fields__
    width = max(map(len, names))
    return (f"{name:<{width}}  {getattr(part, name)}" for name in names)


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"\n{title}"
    yield from (f"  {line}".rstrip() for line in lines)


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a table; numbers in full, since a rounded gain is another gain."""
    cells = [tuple(map(str, row)) for row in rows]
    if not cells:
        yield "none"
        return
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    for row in (header, *cells):
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))


def _values(values: Sequence[float]) -> str:
    if len(values) > 1 and len(set(values)) == 1:
        return f"{values[0]!r} (all)"
    return " ".join(map(repr, values))


def _bounds(bounds: tuple[float, float] | None, unbounded: str) -> str:
    return unbounded if bounds is None else f"[{bounds[0]!r}, {bounds[1]!r}]"


def _ms(nanoseconds: int) -> str:
    return repr(nanoseconds / 1e6)
