"""What a source says of a contract, what others add to it, and what is then still unsaid.

A contract in the making is its own JSON form with holes: a field that nobody said is absent. Nothing here fills one
by itself.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec

from sim2real.contract import PolicyContract
from sim2real.errors import InputError
from sim2real_train.importers.plain import as_list, as_mapping

__all__ = [
    "Document",
    "Facts",
    "Rounding",
    "Unsaid",
    "check_shape",
    "complete",
    "in_order_of",
    "infer_histories",
    "unsaid_fields",
]

Document = dict[str, Any]

_PER_JOINT: Final = ("scale", "offset", "rate_limit")
_HINTS: Final = (
    (r"joints\[.*\]\.name", "--joint-names, in the order of the policy"),
    (r"joints\[.*\]\.kp", "--joint-kp {joint}=…"),
    (r"joints\[.*\]\.kd", "--joint-kd {joint}=…"),
    (r"joints\[.*\]\.default_position", "--joint-default {joint}=…"),
    (r"joints\[.*\]\.velocity_limit", "--joint-velocity-limit {joint}=…"),
    (r"joints\[.*\]\.effort_limit", "--joint-effort-limit {joint}=…"),
    (r"joints\[.*\]\.position_limits", "--joint-position-limits {joint}=LOW:HIGH"),
    (r"timing\.control_period_ns", "--step-dt"),
    (r"timing\.(decimation|physics_step_ns)", "--decimation"),
    (r"action\.offset", "--action-offset default (each joint's default position) or zero"),
    (r"action\.scale", "--action-scale"),
    (r"action\.clip", "--action-clip LOW:HIGH or none"),
    (r"observation\.terms\[.*\]\.offset", "--term-offset {term}=default (each joint's default position) or zero"),
    (r"commands\[.*\]\.initial", "--command-initial {command}=…"),
    (r"identity\.task", "--task-name"),
    (r"identity\.robot", "--robot-name"),
)
"""Which option says a field, besides a --contract file."""


@dataclass(frozen=True)
class Rounding:
    """A number that was written with few digits."""

    half_width: float
    """By how much the number that was trained with may differ."""
    visible: bool
    """Whether it fills all its digits, so that it very likely does differ."""


@dataclass(frozen=True)
class Facts:
    """What a source says."""

    told_by: str
    """What it is, for people: ``deploy.yaml``."""
    document: Document
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    """Path of an absent field to why the source's word on it does not count."""
    rounded: dict[str, Rounding] = field(default_factory=dict[str, Rounding])
    """Path of a number to how it was rounded."""
    relative_terms: tuple[str, ...] = ()
    """Terms whose offset is the default pose, whatever that turns out to be."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unsaid:
    """A field that nobody said."""

    path: str
    text: str
    """One clause: the path, why, and what to give."""


def complete(facts: Facts, given: Document, fallback: tuple[str, Document] | None) -> tuple[Document, list[str]]:
    """Return what the source, the user and a task say together, and notes on where they do not agree.

    The source's word stands: it is what the policy was trained with. The user may say what it leaves open and give
    more digits of what it rounded, but not contradict it; a task only fills what is open after that, and nothing of
    which the source's word is in doubt.

    Raises:
        InputError: The user contradicts the source, or joints cannot be matched since they have no names.
    """
    document = msgspec.json.decode(msgspec.json.encode(facts.document))
    unnamed = [index for index, joint in enumerate(document.get("joints", ())) if "name" not in joint]
    if unnamed:
        raise InputError(
            f"contract.joints[{_ranges(unnamed)}].name: {facts.told_by} does not say; give --joint-names: "
            f"{len(document['joints'])} names in the order of the policy, since all else is matched by name"
        )
    rounded, notes = dict(facts.rounded), list(facts.notes)
    by_user = _Merge("you", rounded)
    document = by_user.merge(document, given, "")
    if by_user.differences:
        raise InputError(f"{facts.told_by} and you contradict each other: {'; '.join(by_user.differences)}")
    if fallback is not None:
        name, contract = fallback
        by_task = _Merge(name, rounded)
        doubtful = [path.rpartition(".") for path in facts.reasons]
        doubtful = [(holder, field) for holder, _, field in doubtful if field not in _value_at(document, holder)]
        document = by_task.merge(document, in_order_of(contract, document), "")
        notes += [f"{facts.told_by} stands where {name} says otherwise: {each}" for each in by_task.differences]
        # Of these the source says something that cannot be taken at its word: a person decides, not another policy.
        for holder, field in doubtful:
            _value_at(document, holder).pop(field, None)
    _set_offsets(document, facts.relative_terms)
    return document, [*notes, *_told_roundings(rounded, document)]


def check_shape(document: Document, name: str) -> None:
    """Check that every part of a document is what a contract has there, so that it can be looked through.

    Raises:
        InputError: It is not, or has a field that no contract has.
    """
    _check_shape(PolicyContract, document, "contract", name)


def unsaid_fields(facts: Facts, document: Document) -> list[Unsaid]:
    """Return what is still open, in the contract's order; the same of neighbouring elements in one."""
    grouped: dict[str, list[str]] = {}
    for path in _open(PolicyContract, document, ""):
        grouped.setdefault(re.sub(r"\[\d+\]", "[]", path), []).append(path)
    return [_unsaid(facts, document, shape, paths) for shape, paths in grouped.items()]


def _unsaid(facts: Facts, document: Document, shape: str, paths: Sequence[str]) -> Unsaid:
    indices = [int(match) for path in paths for match in re.findall(r"\[(\d+)\]", path)]
    path = shape.replace("[]", f"[{_ranges(indices)}]", 1)
    reason = next((facts.reasons[each] for each in paths if each in facts.reasons), "does not say")
    hint = next((hint for pattern, hint in _HINTS if re.fullmatch(pattern, path)), "")
    if "{" in hint:
        kind = re.match(r"joints|observation\.terms|commands", path)
        assert kind is not None, path
        named = document["observation"]["terms"] if kind[0] == "observation.terms" else document[kind[0]]
        name = named[indices[0]].get("name", "NAME")
        hint = hint.format(joint=name, term=name, command=name)
    wanted = f"{hint}, or a --contract file" if hint else "a --contract file"
    return Unsaid(path=f"contract.{path}", text=f"contract.{path}: {facts.told_by} {reason}; give {wanted}")


def _value_at(document: Document, path: str) -> Any:
    """Return the value at a path such as ``joints[3].kp``, or None."""
    value: Any = document
    for part in re.findall(r"[^.\[\]]+", path):
        listed = as_list(value)
        if listed is not None:
            value = listed[int(part)] if int(part) < len(listed) else None
        else:
            value = (as_mapping(value) or {}).get(part)
    return value


class _Merge:
    """Fills the holes of one document from another and notes where both speak and differ."""

    def __init__(self, other_name: str, rounded: dict[str, Rounding]) -> None:
        self.differences: list[str] = []
        self._other_name = other_name
        self._rounded = rounded

    def merge(self, own: Any, other: Any, path: str) -> Any:
        """Return `own`, filled from `other`."""
        fields, other_fields = as_mapping(own), as_mapping(other)
        if fields is not None and other_fields is not None:
            return self._merge_fields(fields, other_fields, path)
        values, others = as_list(own), as_list(other)
        if values is not None and others is not None:
            if _are_parts(values) and _are_parts(others):
                return self._merge_parts(values, others, path)
            if len(values) == len(others):
                pairs = zip(values, others, strict=True)
                return [self.merge(one, two, f"{path}[{index}]") for index, (one, two) in enumerate(pairs)]
        return self._settle(own, other, path)

    def _merge_fields(self, own: Mapping[str, Any], other: Mapping[str, Any], path: str) -> Document:
        other = _aligned(other, own)
        merged = dict(own)
        for name, value in other.items():
            where = f"{path}.{name}" if path else name
            merged[name] = self.merge(own[name], value, where) if name in own else value
        return merged

    def _merge_parts(self, own: list[Document], other: list[Document], path: str) -> list[Document]:
        """Elements with names are matched by name; the order is that of `own`."""
        key = "stage" if path == "latency.stages" else "name"
        others = {part.get(key): part for part in other}
        merged = [self.merge(part, others.pop(part.get(key), {}), f"{path}[{index}]") for index, part in enumerate(own)]
        if others:
            have = ", ".join(str(part.get(key)) for part in own)
            told = ", ".join(map(str, others))
            self.differences.append(f"contract.{path} has {have}, {self._other_name} name {told}")
        return merged

    def _settle(self, own: Any, other: Any, path: str) -> Any:
        if own == other:
            return own
        rounding = self._rounded.get(path)
        # A hair wider than it, since the two were rounded to binary as well.
        if rounding is not None and isinstance(other, int | float) and abs(other - own) <= 1.001 * rounding.half_width:
            del self._rounded[path]
            return other
        self.differences.append(f"contract.{path} is {reprlib.repr(own)}, {self._other_name} say {reprlib.repr(other)}")
        return own


def _are_parts(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(value, dict) for value in values)


def _aligned(other: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an action or a term with its numbers in the order of the joints of `own`; without them if those differ."""
    mine, theirs = as_list(own.get("joints")) or [], as_list(other.get("joints")) or []
    if not mine or not theirs or mine == theirs or not all(isinstance(name, str) for name in (*mine, *theirs)):
        return other
    if sorted(mine) != sorted(theirs):
        return {name: value for name, value in other.items() if name not in _PER_JOINT}
    kept = {name: _reordered(value, theirs, mine) if name in _PER_JOINT else value for name, value in other.items()}
    return {**kept, "joints": list(mine)}


def in_order_of(other: Document, own: Document) -> Document:
    """Return a contract's document with its fallback gains, one per joint, in the order of the joints of `own`.

    Where joints are not named, or only some, their order is already that. Of another robot's there are none.
    """
    mine, theirs = _joint_names(own), _joint_names(other)
    safety = as_mapping(other.get("safety"))
    fallback = as_mapping((safety or {}).get("fallback"))
    if safety is None or fallback is None or not mine or set(theirs) < set(mine):
        return other
    known = set(mine) <= set(theirs)
    gains = {name: _reordered(values, theirs, mine) for name, values in fallback.items()} if known else {}
    return {**other, "safety": {**safety, "fallback": gains}}


def _reordered(values: object, theirs: Sequence[str], mine: Sequence[str]) -> Any:
    listed = as_list(values)
    return values if listed is None or len(listed) != len(theirs) else [listed[theirs.index(name)] for name in mine]


def _joint_names(part: Mapping[str, Any]) -> list[str]:
    """Names under ``joints``, which are names themselves or parts that have one."""
    joints = as_list(part.get("joints")) or []
    return [str((as_mapping(joint) or {"name": joint}).get("name")) for joint in joints]


def _set_offsets(document: Document, relative_terms: Sequence[str]) -> None:
    """Write out the default pose where an offset is that, and zeros, now that both are known."""
    pose = {joint["name"]: joint.get("default_position") for joint in document.get("joints", ()) if "name" in joint}
    action = document.get("action", {})
    terms = document.get("observation", {}).get("terms", ())
    for part in (action, *terms):
        told = "default" if part.get("name") in relative_terms else part.get("offset")
        if not isinstance(told, str):
            continue
        joints = part.get("joints", ())
        width = len(joints or part.get("scale", ()))
        offset = [0.0] * width if told == "zero" else [pose.get(name) for name in joints]
        if offset and None not in offset:
            part["offset"] = offset
        else:
            part.pop("offset", None)


def infer_histories(document: Document, observation_size: int) -> None:
    """Set histories that are not said to 1 where the network's input is as long as one frame: none can be longer."""
    terms = document.get("observation", {}).get("terms", ())
    if all("scale" in term for term in terms):
        least = sum(len(term["scale"]) * term.get("history_length", 1) for term in terms)
        for term in terms if least == observation_size else ():
            term.setdefault("history_length", 1)
            term.setdefault("history_stride", 1)


def _told_roundings(rounded: dict[str, Rounding], document: Document) -> list[str]:
    """Return one line for each kind of number of which digits are very likely missing."""
    kinds: dict[str, list[str]] = {}
    for path, rounding in rounded.items():
        if rounding.visible:
            value = _value_at(document, path)
            index = re.search(r"\[(\d+)\]", path)
            joint = _value_at(document, f"joints[{index[1]}].name") if index and path.startswith("joints") else None
            told = f"{joint or path} {value:g} ± {rounding.half_width:.1g}"
            kinds.setdefault(re.sub(r"\[\d+\]", "[]", path), []).append(told)
    return [
        f"lossy: contract.{kind} was written with few digits: {', '.join(values)}; give the trainer's own numbers"
        for kind, values in kinds.items()
    ]


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    """Return the part that a field is, or is a list of; None: it is a value."""
    kinds = (kind, *get_args(kind))
    return next((each for each in kinds if isinstance(each, type) and issubclass(each, msgspec.Struct)), None)


def _check_shape(kind: Any, value: Any, path: str, name: str) -> None:
    def expect(holds: bool, expected: str) -> None:
        if not holds:
            raise InputError(f"{name}: {path}: expected {expected}, got {reprlib.repr(value)}")

    struct = _struct_in(kind)
    is_list = any(get_origin(each) is tuple for each in (kind, *get_args(kind)))
    if is_list and not (value is None and type(None) in get_args(kind)):
        expect(as_list(value) is not None, "a list")
    if struct is None:
        expect(kind is not str or isinstance(value, str), "a text")
        return
    if is_list:
        for index, each in enumerate(as_list(value) or ()):
            _check_shape(struct, each, f"{path}[{index}]", name)
        return
    fields = as_mapping(value)
    expect(fields is not None, "a mapping of fields to values")
    hints = get_type_hints(struct)
    for field_name, each in (fields or {}).items():
        expect(field_name in hints, f"fields among {', '.join(hints)}")
        _check_shape(hints[field_name], each, f"{path}.{field_name}", name)


def _open(kind: Any, value: Any, path: str) -> Iterator[str]:
    """Yield the paths of the fields of `kind` that `value` lacks."""
    struct = _struct_in(kind)
    if struct is None:
        return
    for index, each in enumerate(as_list(value) or ()):
        yield from _open(struct, each, f"{path}[{index}]")
    told = as_mapping(value)
    if told is None:
        return
    hints = get_type_hints(struct)
    for name in struct.__struct_fields__:
        where = f"{path}.{name}" if path else name
        if name in told:
            yield from _open(hints[name], told[name], where)
        elif isinstance(hints[name], type) and issubclass(hints[name], msgspec.Struct):
            yield from _open(hints[name], {}, where)
        else:
            yield where


def _ranges(indices: Sequence[int]) -> str:
    """Return ``0..3, 5`` for 0 1 2 3 5."""
    runs: list[list[int]] = []
    for index in sorted(set(indices)):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(f"{run[0]}..{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
