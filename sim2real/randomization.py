"""`randomization.json`: what calibration knows of a robot's physics, and how sure it is of it.

Written by calibration, read by training (which draws an episode's physics from it) and by the bench.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any, Final, Literal, cast

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real import __version__
from sim2real.errors import InputError
from sim2real.files import atomic_write, read_bytes

__all__ = [
    "COMMAND_DELAY",
    "DELAYS",
    "INERTIA",
    "INERTIA_COORDINATES",
    "OBSERVATION_DELAY",
    "SCHEMA_VERSION",
    "Covariance",
    "HeldOutError",
    "LogRecord",
    "ParameterRange",
    "RandomizationFile",
    "no_ranges",
    "read_randomization",
    "sample",
    "validate",
    "without_delays",
    "write_randomization",
]

Floats = npt.NDArray[np.float64]

SCHEMA_VERSION: Final = 2
COMMAND_DELAY: Final = "command_delay"
"""Name of the parameter that delays commands [s]."""
OBSERVATION_DELAY: Final = "observation_delay"
"""Name of the parameter that delays measurements [s], in all groups of `DelaySpec.observations`."""
DELAYS: Final = (COMMAND_DELAY, OBSERVATION_DELAY)
INERTIA: Final = "inertia/"
"""What the names of a body's inertia begin with; see `ParameterRange.name`."""
INERTIA_COORDINATES: Final = 10
_PSD_TOLERANCE: Final = 1e-5
"""How far below zero the least eigenvalue of a correlation matrix may be: matrices are written with six digits."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Complete, named, closed: no field has a default."""


class ParameterRange(_Part, frozen=True):
    """One physical parameter: its best value, and the values that the data do not exclude."""

    name: str
    """One of `DELAYS`, one of the robot's parameters, or a place in the simulated robot: ``body_mass/base``,
    ``geom_friction/FL_foot[0]``, ``opt.gravity[2]``, ``drive.friction.coulomb/FL_hip_joint``; or
    ``inertia/<body>[k]``, the k-th of the ten coordinates of `sim2real.sim.inertia`, without ``[k]`` each of the ten.
    """
    unit: str
    """Of `nominal`, `low` and `high`: that of the parameter, for ``scale`` and inertias ``1``."""
    nominal: float
    low: float
    high: float
    operation: Literal["set", "scale", "add"]
    """``set``: a draw is the value. ``scale``, ``add``: it multiplies, or is added to, what the model holds there."""
    distribution: Literal["fixed", "uniform", "log_uniform"]
    """How training draws it between `low` and `high`; ``fixed`` always gives `nominal`."""
    identified: bool
    """False: the logs do not show it; the range is then a prior, and wide."""
    how: str
    """How the interval came about, in one sentence."""
    delays: str | None
    """For a delay: what is delayed, e.g. ``command``; None for any other parameter."""


class Covariance(_Part, frozen=True):
    """How parameters vary together.

    How far each varies is said by its range alone. Of the covariance, training uses the correlations: those of the
    normal variables whose quantiles are the quantiles of the parameters in their own ranges (a Gaussian copula).
    """

    names: tuple[str, ...]
    """Names of `RandomizationFile.parameters`, each once, none of them fixed; the others are drawn independently."""
    matrix: tuple[tuple[float, ...], ...]
    """Symmetric and positive semidefinite; row and column as in `names`, in the product of their two units."""


class LogRecord(_Part, frozen=True):
    """One log that went into the fit or judged it."""

    name: str
    sha256: str
    role: Literal["fit", "validate"]


class HeldOutError(_Part, frozen=True):
    """Open-loop replay error of one set of parameters on the logs that judge."""

    candidate: str
    """Whose parameters: ``fitted``, ``datasheet``, ``published``."""
    position_mae: float
    """Mean absolute position error [rad], without the windows in which something pushed the robot."""
    position_mae_all: float
    """The same over all windows [rad]."""
    window: float
    """Length of the replayed windows [s]."""


class RandomizationFile(_Part, frozen=True, cache_hash=True):
    """The whole file."""

    schema_version: Literal[2]
    robot: str
    toolkit_version: str
    parameters: tuple[ParameterRange, ...]
    covariance: Covariance | None
    """None: all parameters are drawn independently."""
    log_parameters: tuple[ParameterRange, ...]
    """What the fit found about the logs and not the robot, e.g. the delay of a logged effort; training skips them."""
    logs: tuple[LogRecord, ...]
    fit_position_mae: float
    """Mean absolute position error [rad] on the logs that were fitted."""
    held_out: tuple[HeldOutError, ...]


def write_randomization(path: Path, content: RandomizationFile) -> None:
    """Write the file atomically.

    Raises:
        InputError: The content does not hold together, or the file cannot be written.
    """
    validate(content)
    with atomic_write(path) as partial:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2))


def read_randomization(path: Path) -> RandomizationFile:
    """Read and validate the file. One of schema 1 means what it did: its parameters are set, and independent.

    Raises:
        InputError: Missing, truncated, of another schema, or a value that cannot be; the message names its path.
    """
    data = read_bytes(path, "randomization file")
    try:
        content = msgspec.convert(_upgraded(msgspec.json.decode(data)), RandomizationFile)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{path}: {error}; make it anew with: sim2real calib fit") from error
    validate(content)
    return content


def _upgraded(raw: Any) -> Any:
    """Return the plain data of a file of any known schema as that of the newest; what is not such data as it is."""
    if not isinstance(raw, dict):
        return raw
    file = cast("dict[str, Any]", raw)
    version = file.get("schema_version")
    if "schema_version" in file and type(version) is not int:
        # Python takes true and 1.0 for 1.
        raise msgspec.ValidationError(f"expected an integer, got {version!r} - at `$.schema_version`")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise msgspec.ValidationError(
            f"expected schema_version 1 or {SCHEMA_VERSION}, got {version}: a newer toolkit wrote it; update this one"
        )
    if version != 1:
        return file
    for field in ("parameters", "log_parameters"):
        ranges = file.get(field)
        for parameter in cast("list[Any]", ranges) if isinstance(ranges, list) else ():
            if isinstance(parameter, dict):
                cast("dict[str, Any]", parameter).setdefault("operation", "set")
    return {"covariance": None} | file | {"schema_version": SCHEMA_VERSION}


def validate(content: RandomizationFile) -> None:
    """Check that the content holds together; `sim2real.tasks.ranges` checks it against a robot.

    Raises:
        InputError: It does not; the message names the field's path.
    """
    for field in ("parameters", "log_parameters"):
        _check_ranges(f"randomization.{field}", getattr(content, field))
    for index, parameter in enumerate(content.parameters):
        _check_meaning(f"randomization.parameters[{index}]", parameter)
    if content.covariance is not None:
        _check_covariance(content.covariance, content.parameters)
    errors = {
        f"held_out[{index}].{field}": getattr(each, field)
        for index, each in enumerate(content.held_out)
        for field in ("position_mae", "position_mae_all")
    }
    for path, error in {"fit_position_mae": content.fit_position_mae, **errors}.items():
        if not 0.0 <= error < math.inf:
            raise InputError(f"randomization.{path}: expected a finite number >= 0, got {error}")


def _check_ranges(path: str, parameters: tuple[ParameterRange, ...]) -> None:
    names = [parameter.name for parameter in parameters]
    if len(set(names)) != len(names):
        raise InputError(f"{path}: expected each name once, got {sorted(names)}")
    for index, parameter in enumerate(parameters):
        for field in ("nominal", "low", "high"):
            value = getattr(parameter, field)
            if not math.isfinite(value):
                raise InputError(f"{path}[{index}].{field}: expected a finite number, got {value}")
        if not parameter.low <= parameter.nominal <= parameter.high:
            raise InputError(
                f"{path}[{index}].nominal: expected a number from low {parameter.low} to high {parameter.high}, "
                f"got {parameter.nominal}"
            )
        if not math.isfinite(parameter.high - parameter.low):
            raise InputError(
                f"{path}[{index}].high: expected a finite distance from low, got {parameter.low} to {parameter.high}"
            )
        if parameter.distribution == "log_uniform" and parameter.low <= 0.0:
            raise InputError(f"{path}[{index}].low: expected a number > 0 for log_uniform, got {parameter.low}")


def _check_meaning(path: str, parameter: ParameterRange) -> None:
    if (parameter.name in DELAYS) != (parameter.delays is not None):
        raise InputError(
            f"{path}.delays: expected what is delayed for {' and '.join(DELAYS)}, null for any other parameter, "
            f"got {parameter.delays!r} for {parameter.name}"
        )
    only = "set" if parameter.name in DELAYS else "add" if parameter.name.startswith(INERTIA) else None
    if only is not None and parameter.operation != only:
        raise InputError(f"{path}.operation: expected {only} for {parameter.name}, got {parameter.operation}")


def _check_covariance(covariance: Covariance, parameters: tuple[ParameterRange, ...]) -> None:
    path = "randomization.covariance"
    allowed = [each.name for each in parameters if each.distribution != "fixed" and not _is_whole_inertia(each)]
    if len(set(covariance.names)) != len(covariance.names):
        raise InputError(f"{path}.names: expected each name once, got {list(covariance.names)}")
    for index, name in enumerate(covariance.names):
        if name not in allowed:
            raise InputError(
                f"{path}.names[{index}]: expected a parameter of this file that is drawn as one number, got {name!r}; "
                f"allowed: {', '.join(allowed) or 'none'}"
            )
    size = len(covariance.names)
    if size == 0 or {len(covariance.matrix), *map(len, covariance.matrix)} != {size}:
        raise InputError(f"{path}.matrix: expected {size} rows of {size} numbers, as names has {size}")
    matrix = np.array(covariance.matrix)
    variances = np.diag(matrix)
    if not (np.isfinite(matrix).all() and (variances > 0.0).all()):
        raise InputError(f"{path}.matrix: expected finite numbers, on the diagonal > 0")
    correlation = _correlation(covariance)
    row, column = np.unravel_index(np.argmax(np.abs(correlation - correlation.T)), (size, size))
    if abs(correlation[row, column] - correlation[column, row]) > 1e-9:
        raise InputError(
            f"{path}.matrix: expected a symmetric one, got {matrix[row, column]} for {covariance.names[row]} and "
            f"{covariance.names[column]} but {matrix[column, row]} the other way round"
        )
    least = float(np.linalg.eigvalsh(correlation)[0])
    if least < -_PSD_TOLERANCE:
        raise InputError(
            f"{path}.matrix: expected a positive semidefinite one, but its correlations have the eigenvalue "
            f"{least:.3g}; no variables have these covariances"
        )


def _is_whole_inertia(parameter: ParameterRange) -> bool:
    return parameter.name.startswith(INERTIA) and not parameter.name.endswith("]")


def _correlation(covariance: Covariance) -> Floats:
    """Return the matrix of correlations, shape (K, K)."""
    matrix = np.array(covariance.matrix)
    deviation = np.sqrt(np.diag(matrix))
    return matrix / deviation[:, None] / deviation


def no_ranges(robot: str) -> RandomizationFile:
    """Return a file that names no parameter of `robot`: everything is nominal."""
    return RandomizationFile(
        schema_version=SCHEMA_VERSION,
        robot=robot,
        toolkit_version=__version__,
        parameters=(),
        covariance=None,
        log_parameters=(),
        logs=(),
        fit_position_mae=0.0,
        held_out=(),
    )


def without_delays(content: RandomizationFile) -> RandomizationFile:
    """Return the ranges without those of delays, for delays that somebody else knows better."""
    kept = tuple(parameter for parameter in content.parameters if parameter.name not in DELAYS)
    covariance = content.covariance
    if covariance is not None:
        rows = [index for index, name in enumerate(covariance.names) if name not in DELAYS]
        covariance = Covariance(
            names=tuple(covariance.names[row] for row in rows),
            matrix=tuple(tuple(covariance.matrix[row][column] for column in rows) for row in rows),
        )
    return msgspec.structs.replace(content, parameters=kept, covariance=covariance)


def sample(content: RandomizationFile, rng: np.random.Generator, num_envs: int) -> dict[str, Floats]:
    """Draw one value of every parameter for each environment: name → shape (num_envs,).

    An inertia as a whole gives its ten coordinates, ``inertia/<body>[0]`` and so on. What is correlated is drawn from
    a Gaussian copula: z ~ N(0, R), then each parameter's own quantile at Φ(z). So every parameter keeps exactly its
    range and distribution, whatever the correlations. Those of the drawn values lie a little below those of z, by
    ρ = 6/π arcsin(ρ_z / 2) for two uniform ones (Kruskal 1958).
    """
    return _sampler(content).draw(rng, num_envs)


@functools.lru_cache(maxsize=8)
def _sampler(content: RandomizationFile) -> _Sampler:
    return _Sampler(content)


class _Sampler:
    """What `sample` works out once for each file: it runs in every reset, for a few environments at a time."""

    def __init__(self, content: RandomizationFile) -> None:
        ranges = [single for parameter in content.parameters for single in _singles(parameter)]
        self._names = [each.name for each in ranges]
        self._nominal = np.array([each.nominal for each in ranges])[:, None]
        together = {} if content.covariance is None else dict.fromkeys(content.covariance.names)
        alone = [row for row, each in enumerate(ranges) if each.distribution != "fixed" and each.name not in together]
        self._alone = np.array(alone, np.intp)
        self._alone_low, self._alone_width = _bounds([ranges[row] for row in alone])
        self._together = np.array([self._names.index(name) for name in together], np.intp)
        self._low, self._width = _bounds([ranges[row] for row in self._together])
        self._root = None if content.covariance is None else _square_root(_correlation(content.covariance))
        self._logarithmic = np.array(
            [row for row, each in enumerate(ranges) if each.distribution == "log_uniform"], np.intp
        )

    def draw(self, rng: np.random.Generator, num_envs: int) -> dict[str, Floats]:
        """Return name → shape (num_envs,); rows of one array."""
        values = np.empty((len(self._names), num_envs))
        values[:] = self._nominal
        if len(self._alone):
            drawn = rng.random((len(self._alone), num_envs))
            drawn *= self._alone_width
            drawn += self._alone_low
            values[self._alone] = drawn
        if self._root is not None:
            # Not a matrix product: that of a BLAS may depend on its number of threads in the last bit.
            normal = np.einsum("ij,jn->in", self._root, rng.standard_normal((len(self._root), num_envs)))
            values[self._together] = self._low + self._width * _normal_cdf(normal)
        if len(self._logarithmic):
            values[self._logarithmic] = np.exp(values[self._logarithmic])
        return dict(zip(self._names, values, strict=True))


def _singles(parameter: ParameterRange) -> list[ParameterRange]:
    if not _is_whole_inertia(parameter):
        return [parameter]
    return [
        msgspec.structs.replace(parameter, name=f"{parameter.name}[{index}]") for index in range(INERTIA_COORDINATES)
    ]


def _bounds(ranges: list[ParameterRange]) -> tuple[Floats, Floats]:
    """Return low and width of a uniform draw, shape (P, 1) each: of the logarithm where that is uniform."""
    pairs = [
        (math.log(each.low), math.log(each.high)) if each.distribution == "log_uniform" else (each.low, each.high)
        for each in ranges
    ]
    bounds = np.array(pairs).reshape(-1, 2)
    return bounds[:, :1], bounds[:, 1:] - bounds[:, :1]


def _square_root(correlation: Floats) -> Floats:
    """Return the symmetric A with A Aᵀ = R, shape (K, K); of a singular R, too. Each row has length 1."""
    values, directions = np.linalg.eigh(correlation)
    root = (directions * np.sqrt(np.maximum(values, 0.0))) @ directions.T
    return root / np.linalg.norm(root, axis=1, keepdims=True)


def _normal_cdf(z: Floats) -> Floats:
    """Φ(z) = ½ erfc(−z / √2), by the standard library: numpy has no error function."""
    scaled = z.ravel() * -math.sqrt(0.5)
    return 0.5 * np.fromiter(map(math.erfc, scaled.tolist()), np.float64, scaled.size).reshape(z.shape)
