"""Errors of real sensors, as data and as arithmetic on measurement vectors.

The order of effects is that of the hardware: a sensor is *mounted* askew or its zero is off, so it sees another
quantity; it then adds its *bias* and *noise*; its converter *quantises* the sum; and the bus now and then *drops* the
finished sample, so that the last one stays.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.layout import SignalLayout
from sim2real.signals import SIGNALS
from sim2real.sim.base import EnvIds, Snapshot
from sim2real.sim.links import require_generator
from sim2real.sim.rotation import quaternion_of, unit

__all__ = ["SensorModel", "SensorSpec", "SignalErrors"]

Array = npt.NDArray[np.float64]
Rows = slice | EnvIds

_DISPLACEMENTS: Final = ("noise", "bias", "bias_walk")
_RANDOMIZABLE: Final = (*_DISPLACEMENTS, "dropout")
# A product of quaternions as a matrix of one factor times the other: which component is where, and with which sign.
_FACTOR: Final = np.array([[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]])
_LEFT_SIGN: Final = np.array([[1, -1, -1, -1], [1, 1, -1, 1], [1, 1, 1, -1], [1, -1, 1, 1]], np.float64)
_RIGHT_SIGN: Final = np.array([[1, -1, -1, -1], [1, 1, 1, -1], [1, -1, 1, 1], [1, 1, -1, 1]], np.float64)
_MOUNTED: Final = ("imu_tilt", "encoder_offset")
_BASE_VECTORS: Final = ("base_ang_vel", "base_lin_vel", "base_lin_acc", "projected_gravity")


class SignalErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of one signal, in its unit; each element has its own. 0: that error is absent, and costs nothing.

    Attitudes are no vectors: errors of ``base_quat`` are rotations about the body's axes [rad], and ``base_quat`` and
    ``projected_gravity`` keep unit length (before quantisation).
    """

    noise: float = 0.0
    """Standard deviation of the white noise in each sample."""
    bias: float = 0.0
    """A constant offset, drawn per episode from ± this, uniformly."""
    bias_walk: float = 0.0
    """The offset walks at random: its standard deviation grows by this after one second [unit/√s]."""
    step: float = 0.0
    """Distance of the values that the sensor can tell apart; a value becomes the nearest multiple of it."""
    dropout: float = 0.0
    """Probability per control step that the last value is repeated, for each joint or, elsewhere, the whole signal."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("noise", "bias", "bias_walk", "step"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise InputError(f"sensor.{name}: expected a finite number >= 0, got {getattr(self, name)}")
        if not 0.0 <= self.dropout <= 1.0:
            raise InputError(f"sensor.dropout: expected a probability from 0 to 1, got {self.dropout}")


class SensorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of all sensors of a robot."""

    signals: Mapping[str, SignalErrors]
    """By name, of `sim2real.signals.SIGNALS`; a signal that is not here is exact but for what follows."""
    imu_tilt: float = 0.0
    """The IMU is turned in its mount about a random axis by up to this [rad], drawn per episode; all signals of the
    base turn with it, consistently."""
    encoder_offset: float = 0.0
    """The zero of each joint's encoder is off by up to ± this [rad], drawn per episode. The joint's own position
    control reads the same encoder, so position targets are off by the same."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("imu_tilt", "encoder_offset"):
            if not 0.0 <= getattr(self, name) <= math.pi:
                raise InputError(f"sensor.{name}: expected 0 to π rad, got {getattr(self, name)}")


class SensorModel:
    """Puts the errors of a spec on measurement vectors, one sample per control step.

    Args:
        spec: The errors.
        layout: Where each signal lies.
        num_envs: Number of environments.
        control_period: Time between samples [s].

    Attributes:
        encoder_offset: What each encoder's zero is off by in this episode [rad], contract order, shape (N, J).

    Raises:
        InputError: The spec names a signal that is not measured; the message lists near names.
    """

    def __init__(self, spec: SensorSpec, layout: SignalLayout, num_envs: int, control_period: float) -> None:
        for name in spec.signals:
            _check_name(f"sensor errors of {name!r}", name, layout.names)
        self._displacements = _Displacements(spec.signals, layout, num_envs, control_period)
        self._signals = {
            name: _SignalSensor(name, layout.slices[name], errors, num_envs) for name, errors in spec.signals.items()
        }
        self._amounts = {name: np.full(num_envs, float(getattr(spec, name))) for name in _MOUNTED}
        self._joint_pos = layout.slices["joint_pos"]
        self._base_quat = layout.slices.get("base_quat")
        vectors = [layout.slices[name] for name in _BASE_VECTORS if name in layout.slices]
        # They are neighbours, the last in the layout.
        self._base_vectors = slice(vectors[0].start, vectors[-1].stop) if vectors else slice(0)
        self.encoder_offset = np.zeros((num_envs, self._joint_pos.stop - self._joint_pos.start))
        self._mount = np.zeros((num_envs, 4))
        self._mount[:, 0] = 1.0
        # Environments come last in what is applied to all of them: NumPy is slow along axes as short as these.
        self._into_imu = np.zeros((3, 3, num_envs))
        self._onto_mount = np.zeros((4, 4, num_envs))
        self._mount_imu(slice(None), self._mount)
        self._find_active()

    def _mount_imu(self, rows: Rows, mount: Array) -> None:
        self._mount[rows] = mount
        onto_mount = _right_factor(mount)
        self._into_imu[:, :, rows] = _inverse_matrix(mount, onto_mount).transpose(1, 2, 0)
        if self._base_quat is not None:
            self._onto_mount[:, :, rows] = onto_mount.transpose(1, 2, 0)

    def _find_active(self) -> None:
        self.offsets_encoders = bool(self._amounts["encoder_offset"].any())
        self._tilts = bool(self._amounts["imu_tilt"].any())

    def reset(self, rows: Rows, rng: np.random.Generator | None) -> None:
        """Begin episodes in `rows`: mount the sensors anew and draw their biases."""
        if self._tilts:
            rng = require_generator(rng, "the IMU's tilt is")
            limit = self._amounts["imu_tilt"][rows]
            axis = rng.standard_normal((len(limit), 3))
            angle = limit * rng.random(len(limit))
            axis *= (angle / np.sqrt(np.einsum("ni,ni->n", axis, axis)))[:, None]
            self._mount_imu(rows, quaternion_of(axis))
        if self.offsets_encoders:
            rng = require_generator(rng, "encoder offsets are")
            limit = self._amounts["encoder_offset"][rows, None]
            offset = rng.uniform(-1.0, 1.0, (len(limit), self.encoder_offset.shape[1]))
            self.encoder_offset[rows] = limit * offset
        self._displacements.reset(rows, rng)
        for sensor in self._signals.values():
            sensor.reset(rows)

    def apply(self, signals: Array, rows: EnvIds | None, rng: np.random.Generator | None) -> None:
        """Turn exact measurements of `rows` (None: all), shape (n, S), into what the sensors say, in place."""
        chosen = slice(None) if rows is None else rows
        if self._tilts:
            self._turn(signals, chosen)
        if self.offsets_encoders:
            joint_pos = signals[:, self._joint_pos]
            joint_pos += self.encoder_offset[chosen]
        self._displacements.apply(signals, chosen, rng)
        for sensor in self._signals.values():
            sensor.apply(signals[:, sensor.columns], chosen, rng)

    def _turn(self, signals: Array, rows: Rows) -> None:
        """See the world from the IMU's own axes: q ⊗ q_mount, and R_mountᵀ v."""
        if self._base_quat is not None:
            terms = self._onto_mount[:, :, rows] * signals[:, self._base_quat].T.copy()
            signals[:, self._base_quat] = (terms[:, 0] + terms[:, 1] + terms[:, 2] + terms[:, 3]).T
        vectors = signals[:, self._base_vectors].T.copy()
        terms = self._into_imu[:, :, rows] * vectors.reshape(len(vectors) // 3, 1, 3, len(signals))
        turned = (terms[:, :, 0] + terms[:, :, 2]) + terms[:, :, 1]
        signals[:, self._base_vectors] = turned.reshape(vectors.shape).T

    def randomize(self, name: str, values: Array, rows: Rows) -> None:
        """Set an error to one amount per environment of `rows`, shape (n,).

        Args:
            name: ``noise/joint_pos`` and the like (noise, bias, bias_walk, dropout), ``imu_tilt``, ``encoder_offset``;
                what is drawn per episode changes at the next one.
            values: In the unit of `SignalErrors` and `SensorSpec`.
            rows: The environments.

        Raises:
            InputError: There is no such error, the spec has none of this signal, or a value is not allowed.
        """
        known = [*_MOUNTED, *(f"{field}/{signal}" for signal in self._signals for field in _RANDOMIZABLE)]
        _check_name(f"sensor.{name}", name, known)
        field, _, signal = name.partition("/")
        highest = {"dropout": 1.0, "imu_tilt": math.pi, "encoder_offset": math.pi}.get(field, math.inf)
        if not np.all((values >= 0.0) & (values <= highest) & np.isfinite(values)):
            raise InputError(f"sensor.{name}: expected 0 to {highest:g}, got {values.min()} to {values.max()}")
        if field in _DISPLACEMENTS:
            self._displacements.set_amount(field, signal, values, rows)
        elif signal:
            self._signals[signal].set_dropout(values, rows)
        else:
            self._amounts[field][rows] = values
            self._find_active()

    def snapshot(self) -> Snapshot:
        """Return a copy of everything that later samples depend on."""
        state = {"mount": self._mount.copy(), "encoder_offset": self.encoder_offset.copy()}
        state |= {f"amount.{name}": values.copy() for name, values in self._amounts.items()}
        for part in (self._displacements, *self._signals.values()):
            state |= {name: values.astype(np.float64) for name, values in part.arrays().items()}
        return state

    def restore(self, snapshot: Snapshot) -> None:
        """Continue exactly from what `snapshot` returned."""
        self._mount_imu(slice(None), snapshot["mount"])
        self.encoder_offset[:] = snapshot["encoder_offset"]
        for name, values in self._amounts.items():
            values[:] = snapshot[f"amount.{name}"]
        for part in (self._displacements, *self._signals.values()):
            for name, values in part.arrays().items():
                values[:] = snapshot[name]
            part.find_active()
        self._find_active()


class _Displacements:
    """Noise and bias of all signals. They are drawn together: a draw for each signal costs more than its numbers."""

    def __init__(
        self, signals: Mapping[str, SignalErrors], layout: SignalLayout, num_envs: int, control_period: float
    ) -> None:
        self._signals = signals
        self._root_period = math.sqrt(control_period)
        self._columns = {name: layout.slices[name] for name in signals}
        # Elements of each signal; an attitude has three, of a rotation vector.
        widths = [3 if name == "base_quat" else where.stop - where.start for name, where in self._columns.items()]
        ends = np.cumsum(widths).tolist()
        self._elements = {name: slice(end - width, end) for name, width, end in zip(signals, widths, ends, strict=True)}
        self._sums = _runs(self._columns, self._elements)
        self._amounts = {field: np.zeros((num_envs, sum(widths))) for field in _DISPLACEMENTS}
        self._bias = np.zeros((num_envs, sum(widths)))
        for name, errors in signals.items():
            for field, amounts in self._amounts.items():
                amounts[:, self._elements[name]] = getattr(errors, field)
        self.find_active()

    def find_active(self) -> None:
        """Look for which errors there are."""
        self._active = {field: bool(amounts.any()) for field, amounts in self._amounts.items()}
        self._is_biased = self._active["bias"] or self._active["bias_walk"]
        if not self._is_biased:
            # Should there be biases again, episodes begin without what they were before.
            self._bias[:] = 0.0

    def set_amount(self, field: str, signal: str, values: Array, rows: Rows) -> None:
        self._amounts[field][rows, self._elements[signal]] = values[:, None]
        self.find_active()

    def reset(self, rows: Rows, rng: np.random.Generator | None) -> None:
        if self._active["bias"]:
            limit = self._amounts["bias"][rows]
            self._bias[rows] = limit * self._generator(rng, "bias").uniform(-1.0, 1.0, limit.shape)
        elif self._is_biased:
            self._bias[rows] = 0.0

    def apply(self, signals: Array, rows: Rows, rng: np.random.Generator | None) -> None:
        """Displace measurements of `rows`, shape (n, S), in place; the biases walk on."""
        if self._active["bias_walk"]:
            stride = self._amounts["bias_walk"][rows] * self._root_period
            self._bias[rows] += stride * self._generator(rng, "bias_walk").standard_normal(stride.shape, np.float32)
        if self._active["noise"]:
            amount = self._amounts["noise"][rows]
            error = self._generator(rng, "noise").standard_normal(amount.shape, np.float32).astype(np.float64)
            error *= amount
            if self._is_biased:
                error += self._bias[rows]
        elif self._is_biased:
            error = self._bias[rows]
        else:
            return
        for columns, elements in self._sums:
            part = signals[:, columns]
            part += error[:, elements]
        if "base_quat" in self._columns:
            quat = signals[:, self._columns["base_quat"]]
            quat[:] = _product(quat, quaternion_of(error[:, self._elements["base_quat"]]))
        if "projected_gravity" in self._columns:
            gravity = signals[:, self._columns["projected_gravity"]]
            gravity[:] = unit(gravity)

    def _generator(self, rng: np.random.Generator | None, field: str) -> np.random.Generator:
        if rng is None:
            names = [name for name, where in self._elements.items() if self._amounts[field][:, where].any()]
            return require_generator(rng, f"the {field} of {', '.join(names)} is")
        return rng

    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Return what later samples depend on; live."""
        return {f"amount.{field}": amounts for field, amounts in self._amounts.items()} | {"bias": self._bias}


def _runs(columns: Mapping[str, slice], elements: Mapping[str, slice]) -> list[tuple[slice, slice]]:
    """Columns and elements of what is added to signals, those of neighbours as one: an addition for each costs more."""
    runs: list[tuple[slice, slice]] = []
    for name in columns:
        to, of = columns[name], elements[name]
        if name == "base_quat":
            continue
        if runs and (runs[-1][0].stop, runs[-1][1].stop) == (to.start, of.start):
            to, of = slice(runs[-1][0].start, to.stop), slice(runs[-1][1].start, of.stop)
            runs.pop()
        runs.append((to, of))
    return runs


class _SignalSensor:
    """What the converter and the bus do to one signal in all environments."""

    def __init__(self, name: str, columns: slice, errors: SignalErrors, num_envs: int) -> None:
        self.name = name
        self.columns = columns
        self._step = errors.step
        if name == "base_quat" and errors.step:
            raise InputError(
                f"sensor.step of {name!r}: expected 0: rounded, it would be no quaternion; got {errors.step}"
            )
        width = columns.stop - columns.start
        self._dropout = np.full((num_envs, 1), errors.dropout)
        self._last = np.zeros((num_envs, width))
        self._has_last = np.zeros((num_envs, 1), np.bool_)
        # Joints have an encoder each; what else there is comes in one sample.
        self._samples = width if SIGNALS[name].per_joint else 1
        self.find_active()

    def find_active(self) -> None:
        """Look for whether samples are dropped."""
        self._drops = bool(self._dropout.any())
        if not self._drops:
            self._has_last[:] = False

    def set_dropout(self, values: Array, rows: Rows) -> None:
        self._dropout[rows, 0] = values
        self.find_active()

    def reset(self, rows: Rows) -> None:
        if self._drops:
            self._has_last[rows] = False

    def apply(self, values: Array, rows: Rows, rng: np.random.Generator | None) -> None:
        if self._step:
            values /= self._step
            np.rint(values, out=values)
            values *= self._step
        if self._drops:
            self._drop(values, rows, rng)

    def _drop(self, values: Array, rows: Rows, rng: np.random.Generator | None) -> None:
        rng = require_generator(rng, f"the dropout of {self.name} is")
        dropped = rng.random((len(values), self._samples), np.float32) < self._dropout[rows]
        dropped &= self._has_last[rows]
        np.copyto(values, self._last[rows], where=dropped)
        self._last[rows] = values
        self._has_last[rows] = True

    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Return what later samples depend on; live."""
        return {
            f"{self.name}.dropout": self._dropout,
            f"{self.name}.last": self._last,
            f"{self.name}.has_last": self._has_last,
        }


def _product(left: Array, right: Array) -> Array:
    """Return left ⊗ right of unit quaternions, shape (n, 4)."""
    return np.einsum("nij,nj->ni", _right_factor(right), left)


def _right_factor(quat: Array) -> Array:
    """Return the matrix of p ↦ p ⊗ q, shape (n, 4) to (n, 4, 4)."""
    return quat.take(_FACTOR, axis=1) * _RIGHT_SIGN


def _inverse_matrix(quat: Array, right: Array) -> Array:
    """Return Rᵀ of unit quaternions, shape (n, 4) to (n, 3, 3): what v ↦ q* ⊗ v ⊗ q does to vectors.

    `right` is `_right_factor(quat)`.
    """
    left = quat.take(_FACTOR, axis=1) * _LEFT_SIGN
    return (right @ left.swapaxes(1, 2))[:, 1:, 1:]


def _check_name(what: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise InputError(f"{what}: unknown; allowed: {', '.join(known)}{hint}")
