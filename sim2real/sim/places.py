"""Physical parameters by their place in MuJoCo's model: ``geom_friction/FL_foot[0]``, ``opt.gravity[2]``.

A place is ``field/object[index]`` with a field of `mjModel`, the name of the object that the field describes, and an
index where that object has several values: ``body_ipos/trunk[2]``. Fields of degrees of freedom (``dof_...``) and of
positions (``qpos0``, ``qpos_spring``) are named by their joint. Options of the whole model are ``opt.field[index]``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
import mujoco
import numpy as np
import numpy.typing as npt
from mujoco.batch import MODEL_FIELDS

from sim2real.errors import InputError
from sim2real.robots import Robot
from sim2real.sim.bounds import NOT_NEGATIVE, POSITIVE

__all__ = ["Lowest", "Place", "field_values", "find_place", "lowest_of", "nominal_value", "places_of"]

_OBJECT: Final = re.compile(r"(?P<field>\w+)/(?P<object>.+?)(?P<index>(?:\[\d+\])*)")
_OPTION: Final = re.compile(r"(?P<field>opt\.\w+)(?P<index>(?:\[\d+\])*)")
_KINDS: Final = {
    "body": mujoco.mjtObj.mjOBJ_BODY,
    "jnt": mujoco.mjtObj.mjOBJ_JOINT,
    "dof": mujoco.mjtObj.mjOBJ_JOINT,
    "qpos0": mujoco.mjtObj.mjOBJ_JOINT,
    "qpos": mujoco.mjtObj.mjOBJ_JOINT,
    "geom": mujoco.mjtObj.mjOBJ_GEOM,
    "site": mujoco.mjtObj.mjOBJ_SITE,
    "actuator": mujoco.mjtObj.mjOBJ_ACTUATOR,
    "tendon": mujoco.mjtObj.mjOBJ_TENDON,
    "eq": mujoco.mjtObj.mjOBJ_EQUALITY,
    "pair": mujoco.mjtObj.mjOBJ_PAIR,
    "sensor": mujoco.mjtObj.mjOBJ_SENSOR,
}
"""What the objects of a field are, by the field's first word."""
_RESERVED: Final = {
    "opt.timestep": "the physics step is the same everywhere; it is given when the simulation is made",
    "actuator_biasprm": "it holds the gains, which every command sets",
    "actuator_forcerange": "it holds the effort limits, which are the contract's",
}
_COMPUTED: Final = frozenset(
    {
        *("body_invweight0", "body_margin", "body_subtreemass", "dof_M0", "dof_invweight0", "dof_length"),
        *("geom_aabb", "geom_rbound", "tendon_invweight0", "tendon_length0"),
        *("actuator_acc0", "actuator_length0", "actuator_lengthrange"),
    }
)
"""Fields that the compiler or `mj_setConst` computes: a value there contradicts the rest of the model, or is lost."""
_SEEN: Final = re.compile("(cam|light|mat|tex|skin)_.*|.*_rgba|tendon_width")
"""Fields that are for the eye alone."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One number of a model."""

    field: str
    """As `mujoco.batch` names it."""
    index: tuple[int, ...]
    """Where in the field."""


def places_of(robot: Robot, model: mujoco.MjModel, param: str) -> tuple[Place, ...]:
    """Return where a parameter lies: one of the robot's, by its name, or one number of the model, by its place.

    Raises:
        InputError: There is no such parameter or place; the message lists near names.
    """
    if any(parameter.name == param for parameter in robot.parameters) or not _is_place(param):
        return tuple(find_place(model, place) for place in robot.parameter(param).places)
    return (find_place(model, param),)


def find_place(model: mujoco.MjModel, place: str) -> Place:
    """Return the field and the index that ``field/object[index]`` or ``opt.field[index]`` stands for.

    Raises:
        InputError: The field, the object or the index does not exist, or the field is no physical quantity.
    """
    match = _OPTION.fullmatch(place) or _OBJECT.fullmatch(place)
    if match is None:
        raise InputError(f"parameter {place!r}: expected field/object, field/object[index] or opt.field[index]")
    field = match["field"]
    _check_field(model, place, field)
    values = field_values(model, field)
    index = tuple(int(number) for number in re.findall(r"\d+", match["index"]))
    if field.startswith("opt."):
        _check_index(place, index, values.shape)
        return Place(field=field, index=index)
    first, rows = _rows(model, place, field, match["object"])
    if rows == 1:
        _check_index(place, index, values.shape[1:])
        return Place(field=field, index=(first, *index))
    _check_index(place, index, (rows, *values.shape[1:]))
    return Place(field=field, index=(first + index[0], *index[1:]))


class Lowest(NamedTuple):
    """What the values of a parameter may not be below."""

    value: float
    allowed: bool
    """Whether it is itself a value."""

    def check(self, param: str, values: npt.NDArray[np.float64]) -> None:
        """Refuse values of a parameter that no robot has, shape (n,).

        Raises:
            InputError: A value is not finite, or below zero, or zero, where that means nothing.
        """
        # Written so that what is not a number is not within.
        least, most = np.minimum.reduce(values, initial=np.inf), np.maximum.reduce(values, initial=-np.inf)
        if (least > self.value or (self.allowed and least == self.value)) and most < np.inf:
            return
        if len(strange := values[~np.isfinite(values)]):
            raise InputError(f"parameter {param!r}: expected finite values, got {strange[0]}")
        if len(values):
            expected = "at least 0" if self.allowed else "a number > 0"
            raise InputError(f"parameter {param!r}: expected {expected}, got {least}")


def lowest_of(places: Iterable[Place]) -> Lowest:
    """Return what values at these places may not be below."""
    fields = {place.field for place in places}
    if fields & POSITIVE:
        return Lowest(0.0, allowed=False)
    return Lowest(0.0, allowed=True) if fields & NOT_NEGATIVE else Lowest(-np.inf, allowed=False)


def nominal_value(model: mujoco.MjModel, place: str) -> float:
    """Return what a model holds at a place.

    Raises:
        InputError: There is no such place; the message lists near names.
    """
    found = find_place(model, place)
    return float(field_values(model, found.field)[found.index])


def field_values(model: mujoco.MjModel, field: str) -> npt.NDArray[np.float64]:
    """Return a field as the model has it, by the name that `mujoco.batch` gives it."""
    holder = model.opt if field.startswith("opt.") else model
    return np.asarray(getattr(holder, field.removeprefix("opt.")))


def _is_place(param: str) -> bool:
    return "/" in param or param.startswith("opt.")


def _check_field(model: mujoco.MjModel, place: str, field: str) -> None:
    if why := _why_not(field):
        raise InputError(f"parameter {place!r}: {field} cannot be set: {why}")
    known = _fields(model)
    if field not in known:
        raise InputError(f"parameter {place!r}: no physical field {field!r} in a model{_near(field, known)}")


def _why_not(field: str) -> str:
    """Return why a field of the model cannot be set; empty: it can, or there is none of that name."""
    if field in _COMPUTED:
        return "MuJoCo computes it from the rest of the model; set what it follows from, e.g. body_mass or geom_size"
    if field in MODEL_FIELDS and _SEEN.fullmatch(field):
        return "it changes what is seen and no physics"
    return _RESERVED.get(field, "")


def _fields(model: mujoco.MjModel) -> tuple[str, ...]:
    """Fields of real numbers that describe named objects or the whole model."""
    return tuple(
        name
        for name in sorted(MODEL_FIELDS)
        if not _why_not(name)
        and (name.startswith("opt.") or name.partition("_")[0] in _KINDS)
        and field_values(model, name).dtype.kind == "f"
    )


def _rows(model: mujoco.MjModel, place: str, field: str, name: str) -> tuple[int, int]:
    """Return the first row of the field that describes the object, and how many do."""
    prefix = field.partition("_")[0]
    kind = _KINDS[prefix]
    identifier = mujoco.mj_name2id(model, kind, name)
    if identifier < 0:
        count = model.njnt if kind == mujoco.mjtObj.mjOBJ_JOINT else len(field_values(model, field))
        names = [mujoco.mj_id2name(model, kind, each) for each in range(count)]
        what = kind.name.removeprefix("mjOBJ_").lower()
        raise InputError(
            f"parameter {place!r}: no {what} named {name!r} in the model{_near(name, filter(None, names))}"
        )
    if prefix not in {"dof", "qpos0", "qpos"}:
        return identifier, 1
    of_positions = prefix != "dof"
    first = int((model.jnt_qposadr if of_positions else model.jnt_dofadr)[identifier])
    return first, _rows_of_joint(int(model.jnt_type[identifier]), of_positions=of_positions)


def _rows_of_joint(kind: int, *, of_positions: bool) -> int:
    if kind == int(mujoco.mjtJoint.mjJNT_FREE):
        return 7 if of_positions else 6
    if kind == int(mujoco.mjtJoint.mjJNT_BALL):
        return 4 if of_positions else 3
    return 1


def _near(name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=3)
    if close:
        return f"; did you mean {' or '.join(repr(each) for each in close)}?"
    return f"; there are {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}" if names else "; there is none"


def _check_index(place: str, index: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if len(index) == len(shape) and all(i < size for i, size in zip(index, shape, strict=True)):
        return
    last = "".join(f"[{size - 1}]" for size in shape)
    expected = (
        f"give an index from {'[0]' * len(shape)} to {last}" if shape else "it is one number; leave the index out"
    )
    raise InputError(f"parameter {place!r}: {expected}")
