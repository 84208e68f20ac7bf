"""What a robot's left and right make of each other: where each element of its vectors is found in a mirror.

The mirror is the plane x–z of a floating base. What is measured there (x forward, y left, z up) keeps or changes its
sign by what kind of vector it is; which joints, feet and commands are each other's images is the task's to say.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.contract import ObservationTerm, PolicyContract
from sim2real.errors import InputError
from sim2real.observation import ObservationBuilder
from sim2real.signals import SIGNALS

__all__ = ["Image", "Mirror", "MirrorMaps", "mirror_maps", "named_images"]

_Float = TypeVar("_Float", np.float32, np.float64)

_POLAR: Final = (1, -1, 1)
"""A velocity or a force: its y turns round."""
_AXIAL: Final = (-1, 1, -1)
"""A rotation: all but its y turn round."""
_BASE: Final[Mapping[str, tuple[int, ...]]] = {
    "base_ang_vel": _AXIAL,
    "base_lin_acc": _POLAR,
    "base_lin_vel": _POLAR,
    "base_quat": (1, *_AXIAL),
    "projected_gravity": _POLAR,
}
_QUATERNION: Final = {"wxyz": (0, 1, 2, 3), "xyzw": (1, 2, 3, 0)}


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """Element i in the mirror is signs[i] × element columns[i]."""

    columns: tuple[int, ...]
    signs: tuple[int, ...]

    @staticmethod
    def joined(parts: Iterable[Image]) -> Image:
        """Return the image of vectors that are put one after the other."""
        columns: list[int] = []
        signs: list[int] = []
        for part in parts:
            columns += [len(signs) + column for column in part.columns]
            signs += part.signs
        return Image(columns=tuple(columns), signs=tuple(signs))

    @property
    def is_involution(self) -> bool:
        """Whether the image of the image is the vector itself."""
        return len(self.columns) == len(self.signs) and all(
            0 <= column < len(self.columns) and self.columns[column] == index and sign == self.signs[column]
            for index, (column, sign) in enumerate(zip(self.columns, self.signs, strict=True))
        )

    def of(self, values: npt.NDArray[_Float]) -> npt.NDArray[_Float]:
        """Return the image of vectors, shape (..., len(columns))."""
        image = values[..., np.array(self.columns, np.intp)]
        image *= np.array(self.signs)
        return image


class Mirror(msgspec.Struct, frozen=True, kw_only=True):
    """A task that is the same task in the mirror: what its robot and its operator look like there."""

    joints: Mapping[str, tuple[str, Literal[-1, 1]]]
    """Of each joint the one that it becomes, and the sign of its position, on the robot's axes."""
    commands: tuple[Literal[-1, 1], ...] = ()
    """Sign of each of the operator's inputs, in the contract's order."""
    critic: Mapping[str, Image] = {}
    """Images of what only the critic sees, by the names in `Task.critic`."""


class MirrorMaps(NamedTuple):
    """Images of what goes into the networks and what comes out."""

    observation: Image
    critic_observation: Image
    action: Image


def mirror_maps(mirror: Mirror, contract: PolicyContract, critic: Sequence[str]) -> MirrorMaps:
    """Return where everything is in the mirror.

    Args:
        mirror: What the task says.
        contract: Its contract.
        critic: Names of what only the critic sees, in order.

    Raises:
        InputError: Something has no image, or has other units, limits or an offset than its image.
    """
    missing = [name for name in critic if name not in mirror.critic]
    if missing:
        raise InputError(f"mirror: no image of the critic's {missing[0]!r} is given; add it to Mirror.critic")
    observation = _observation(mirror, contract)
    maps = MirrorMaps(
        observation=observation,
        critic_observation=Image.joined((observation, *(mirror.critic[name] for name in critic))),
        action=_action(mirror, contract),
    )
    for name, image in zip(MirrorMaps._fields, maps, strict=True):
        if not image.is_involution:
            raise InputError(f"mirror: the image of the {name}'s image is not itself; check Mirror's pairs and signs")
    return maps


def _observation(mirror: Mirror, contract: PolicyContract) -> Image:
    """Return the image of the observation: of each term in each frame of its history."""
    size = contract.model.observation_size
    # Taken apart like any observation. A float32 holds every column below 2²⁴ exactly.
    where = ObservationBuilder(contract, 1).split(np.arange(size, dtype=np.float32)[None])
    columns, signs = np.zeros(size, np.intp), np.zeros(size, np.intp)
    for term in contract.observation.terms:
        image = _term(mirror, contract, term)
        for frame in where[term.name][0].astype(np.intp):
            columns[frame] = frame[list(image.columns)]
            signs[frame] = image.signs
    return Image(columns=tuple(columns.tolist()), signs=tuple(signs.tolist()))


def _term(mirror: Mirror, contract: PolicyContract, term: ObservationTerm) -> Image:
    """Return the image of one frame of a term."""
    image = _source(mirror, contract, term)
    _check(f"term {term.name!r}", image, term.offset, term.scale, term.clip)
    # The cosine does not know a sign.
    return msgspec.structs.replace(image, signs=(1,) * len(image.signs)) if term.function == "cos" else image


def _source(mirror: Mirror, contract: PolicyContract, term: ObservationTerm) -> Image:
    """Return the image of the elements of a term before offset, function and scale."""
    if term.joints:
        return _joints(mirror, contract, term.joints, f"term {term.name!r}")
    signs = mirror.commands if term.source == "command" else _BASE.get(term.source, ())
    if len(signs) != len(term.scale):
        allowed = ", ".join(name for name in SIGNALS if name in _BASE)
        raise InputError(
            f"mirror, term {term.name!r}: expected the signs of {len(term.scale)} elements of {term.source!r}, got "
            f"{len(signs)}; give as many in Mirror.commands as there are commands; known are {allowed}"
        )
    if term.quaternion is not None:
        signs = tuple(signs[index] for index in _QUATERNION[term.quaternion])
    return Image(columns=tuple(range(len(signs))), signs=signs)


def _action(mirror: Mirror, contract: PolicyContract) -> Image:
    action = contract.action
    image = _joints(mirror, contract, action.joints, "action")
    _check("action", image, action.offset, action.scale, action.clip)
    return image


def _joints(mirror: Mirror, contract: PolicyContract, names: Sequence[str], what: str) -> Image:
    """Return the image of one number for each of these joints, on the policy's axes."""
    axes = {joint.name: joint.axis_sign for joint in contract.joints}
    columns: list[int] = []
    signs: list[int] = []
    for name in names:
        image, sign = mirror.joints.get(name, ("", 1))
        if image not in names:
            raise InputError(f"mirror, {what}: no image of joint {name!r} is in it; complete Mirror.joints")
        columns.append(names.index(image))
        signs.append(axes[name] * sign * axes[image])
    return Image(columns=tuple(columns), signs=tuple(signs))


def _check(
    what: str, image: Image, offset: Sequence[float], scale: Sequence[float], clip: tuple[float, float] | None
) -> None:
    """Check that a number and its image are made alike: then the image of the sum is the sum of the images."""
    for index, (column, sign) in enumerate(zip(image.columns, image.signs, strict=True)):
        if scale[index] != scale[column] or offset[index] != sign * offset[column]:
            raise InputError(
                f"mirror, {what}: elements {index} and {column} are each other's images, but their scales "
                f"{scale[index]} and {scale[column]} or their offsets {offset[index]} and {offset[column]} are not"
            )
    if clip is not None and -1 in image.signs and clip[0] != -clip[1]:
        raise InputError(f"mirror, {what}: expected a clip that is the same on both sides, got {clip}")


def named_images(
    names: Sequence[str], sides: Sequence[tuple[str, str]], *, sideways: Sequence[str]
) -> dict[str, tuple[str, Literal[-1, 1]]]:
    """Return what each joint or foot becomes in a mirror, by their names: the one with its side changed, or itself.

    Args:
        names: Of joints and feet.
        sides: Beginnings of names on the left, each with the one on the right.
        sideways: What is in the names of joints that turn about the x or z axis: in a mirror, the other way.

    Raises:
        InputError: The other side's is missing.
    """
    images: dict[str, tuple[str, Literal[-1, 1]]] = {}
    for name in names:
        image = name
        for here, there in itertools.chain(sides, ((right, left) for left, right in sides)):
            if name.startswith(here):
                image = there + name.removeprefix(here)
        if image not in names:
            raise InputError(f"mirror: {name!r} has no image {image!r} among {', '.join(names)}")
        images[name] = image, -1 if any(part in name for part in sideways) else 1
    return images
