"""From ranges to the physics of simulated robots: every parameter by its name, relative ones made absolute.

A parameter of a `RandomizationFile` is one of these, and anything else is an error:

- a delay, ``command_delay`` or ``observation_delay``;
- one of the robot's own parameters, which may lie at several places;
- a place in the model (`sim2real.sim.places`), e.g. ``geom_friction/FL_foot[0]``;
- a number of a joint's drive, ``drive.<name of sim2real.robots.drives.PARAMETERS>/<joint>``;
- an error of the sensors, ``sensor.…``, as `Plant.randomize` knows them;
- an inertia, ``inertia/<body>`` or ``inertia/<body>[k]`` (`sim2real.sim.inertia`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.randomization import DELAYS, INERTIA, INERTIA_COORDINATES, ParameterRange, RandomizationFile, sample
from sim2real.robots import Robot
from sim2real.robots.drives import PARAMETERS
from sim2real.sim.base import BatchedSim, EnvIds
from sim2real.sim.inertia import apply_inertia, find_inertia, inertia_places, nominal_inertia

__all__ = ["DRIVE", "SENSOR", "Nominal", "Randomizer", "Resolved", "absolute", "resolve"]

Array = npt.NDArray[np.float64]
Nominal = Callable[[str], float]
"""What the robot's model holds at a place, e.g. `BatchedSim.nominal`; InputError: there is no such place."""

DRIVE: Final = "drive."
SENSOR: Final = "sensor."


class Randomizable(Protocol):
    """What takes parameters: a `Plant`, or a simulation alone."""

    def randomize(self, param: str, values: Array, env_ids: EnvIds | None = None, /) -> None:
        """Set a parameter to one value per environment, shape (n,)."""
        ...


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter, and where it acts."""

    parameter: ParameterRange
    places: tuple[str, ...]
    nominal: tuple[float, ...]
    """What the model holds at each of `places`; 0 where there is no model: delays and sensors."""

    @property
    def targets(self) -> tuple[tuple[str, float], ...]:
        """What `randomize` is called with, and what the model holds there.

        That is the parameter's own name where one value goes to all of its places, and the simulation knows these.
        """
        if self.parameter.operation == "set" and not any(place.startswith(DRIVE) for place in self.places):
            return ((self.parameter.name, self.nominal[0]),)
        return tuple(zip(self.places, self.nominal, strict=True))

    @property
    def body(self) -> str | None:
        """The body whose inertia it is; None: it is none."""
        return find_inertia(self.parameter.name)[0] if self.parameter.name.startswith(INERTIA) else None


class Randomizer:
    """Draws the physics of episodes and puts it into simulated robots.

    Args:
        content: The ranges.
        sim: The simulation.
        plant: What takes the values of the parameters; None: the simulation, which has no delays, drives and sensors.

    Raises:
        InputError: A parameter's name matches nothing, and the message lists near names; or two act at one place.
    """

    def __init__(self, content: RandomizationFile, sim: BatchedSim, plant: Randomizable | None = None) -> None:
        self._content = content
        self._sim = sim
        self._plant = sim if plant is None else plant
        found = resolve(content, sim.robot, sim.nominal)
        values = [each for each in found if each.body is None]
        # Worked out once: it runs in every reset, for a few environments at a time.
        self._targets = [(each.parameter, *target) for each in values for target in each.targets]
        bodies = dict.fromkeys(each.body for each in found if each.body is not None)
        self._inertias = {body: nominal_inertia(sim.nominal, body) for body in bodies}
        self._coordinates = [
            (f"{INERTIA}{each.body}[{index}]", each.body, index)
            for each in found
            if each.body is not None
            for index in find_inertia(each.parameter.name)[1]
        ]
        nobody = np.zeros(0, np.intp)
        for _, target, _ in self._targets:
            self._plant.randomize(target, np.zeros(0), nobody)

    def draw(self, rng: np.random.Generator, env_ids: EnvIds) -> dict[str, Array]:
        """Give `env_ids`, shape (n,), new physics.

        Returns:
            What was set, as `randomize` was given it: name or place → shape (n,). It can be set again elsewhere.
        """
        draws = sample(self._content, rng, len(env_ids))
        done = {
            target: absolute(parameter, nominal, draws[parameter.name]) for parameter, target, nominal in self._targets
        }
        for target, values in done.items():
            self._plant.randomize(target, values, env_ids)
        if self._inertias:
            coordinates = {body: np.zeros((len(env_ids), INERTIA_COORDINATES)) for body in self._inertias}
            for name, body, index in self._coordinates:
                coordinates[body][:, index] = draws[name]
            done |= apply_inertia(self._sim, self._inertias, coordinates, env_ids)
        return done


def absolute(parameter: ParameterRange, nominal: float, drawn: Array) -> Array:
    """Return the values that `drawn` stands for where the model holds `nominal`."""
    match parameter.operation:
        case "set":
            return drawn
        case "scale":
            return nominal * drawn
        case "add":
            return nominal + drawn


def resolve(content: RandomizationFile, robot: Robot, nominal: Nominal) -> tuple[Resolved, ...]:
    """Return where each parameter acts.

    Raises:
        InputError: A parameter's name matches nothing, and the message lists near names; two act at one place; or a
            relative one has nothing to be relative to.
    """
    found = tuple(_resolve(parameter, robot, nominal) for parameter in content.parameters)
    taken: dict[str, tuple[str, str]] = {}
    for each in found:
        name = each.parameter.name
        claims = dict.fromkeys(each.places, name if each.body is None else INERTIA + each.body)
        if each.body is not None:
            claims |= {f"{INERTIA}{each.body}[{index}]": name for index in find_inertia(name)[1]}
        for place, owner in claims.items():
            before, who = taken.setdefault(place, (owner, name))
            if before != owner:
                raise InputError(f"parameters {who!r} and {name!r}: both act on {place}; keep one of them")
    return found


def _resolve(parameter: ParameterRange, robot: Robot, nominal: Nominal) -> Resolved:
    places = _places(parameter.name, robot)
    values = tuple(_nominal(parameter, place, robot, nominal) for place in places)
    return Resolved(parameter=parameter, places=places, nominal=values)


def _places(name: str, robot: Robot) -> tuple[str, ...]:
    """Return the places of one of the robot's own parameters, or the place that a name is."""
    own = {parameter.name: parameter for parameter in robot.parameters}
    if name in own:
        return own[name].places
    if name.startswith(INERTIA):
        return inertia_places(find_inertia(name)[0])
    if name in DELAYS or "/" in name or name.startswith(("opt.", DRIVE, SENSOR)):
        return (name,)
    names = [*own, *DELAYS]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise InputError(
        f"parameter {name!r} of robot {robot.name}: unknown; allowed: {', '.join(names)}{hint}; or a place in the "
        "model, e.g. body_mass/BODY"
    )


def _nominal(parameter: ParameterRange, place: str, robot: Robot, nominal: Nominal) -> float:
    if place in DELAYS or place.startswith(SENSOR):
        if parameter.operation != "set":
            raise InputError(
                f"parameter {parameter.name!r}: operation: expected set, got {parameter.operation}; no model "
                "holds a value that it could be relative to"
            )
        return 0.0
    return _of_drive(place, robot) if place.startswith(DRIVE) else nominal(place)


def _of_drive(place: str, robot: Robot) -> float:
    """Return what the robot's facts say of a joint's drive at ``drive.<field>/<joint>``."""
    field, _, name = place.removeprefix(DRIVE).partition("/")
    joints = {joint.name: joint for joint in robot.joints}
    if field not in PARAMETERS:
        raise InputError(f"parameter {place!r}: no drive has {field!r}{_near(field, PARAMETERS)}")
    if name not in joints:
        raise InputError(f"parameter {place!r}: robot {robot.name} has no joint {name!r}{_near(name, joints)}")
    if field == "effort_limit":
        return joints[name].effort_limit
    part: object = joints[name].drive
    for attribute in field.split("."):
        part = getattr(part, attribute)
        if part is None:
            raise InputError(
                f"parameter {place!r}: the drive of joint {name} has no {attribute}; give it one in the robot's facts"
            )
    if not isinstance(part, float | int):
        raise TypeError(f"{place}: expected a number, got {part!r}")
    return float(part)


def _near(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    if close:
        return f"; did you mean {' or '.join(repr(each) for each in close)}?"
    return f"; there are {', '.join(known)}"
