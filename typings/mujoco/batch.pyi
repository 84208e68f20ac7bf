"""Types of the part of `mujoco.batch` that sim2real uses: many simulations of one model, stepped by C++ threads."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from mujoco import MjData, MjModel

Ids = Sequence[int] | npt.NDArray[np.bool_] | npt.NDArray[np.integer[Any]] | None

DATA_FIELDS: frozenset[str]
MODEL_FIELDS: frozenset[str]

class SimulationError(RuntimeError):
    ids: npt.NDArray[np.intp]

class Batch:
    """Simulations whose live arrays, shape (nsim, ...), have the names of `MjData`'s and `MjModel`'s fields."""

    model: MjModel
    state: npt.NDArray[np.float64]
    warning: npt.NDArray[np.int32]
    status: npt.NDArray[np.int32]
    nsim: int
    nthread: int
    nstate: int
    persistent: bool
    def __init__(self, model: MjModel, nsim: int, nthread: int = 0, persistent: bool = False) -> None: ...
    # A field of MjData: the same array as bind() gives.
    def __getattr__(self, name: str) -> npt.NDArray[np.float64]: ...
    def __setattr__(self, name: str, value: npt.ArrayLike) -> None: ...
    def error(self, sim: int) -> str: ...
    def bind(self, name: str) -> npt.NDArray[np.float64]: ...
    def expand(self, name: str) -> npt.NDArray[np.float64]: ...
    def expanded(self, name: str) -> npt.NDArray[np.float64] | None: ...
    def step(self, ids: Ids = None, nstep: int = 1, stage: int = ...) -> None: ...
    def forward(self, ids: Ids = None, stage: int = ...) -> None: ...
    def reset(self, ids: Ids = None, keyframe: npt.ArrayLike = -1, stage: int = ...) -> None: ...
    @property
    def models(self) -> MjModel | tuple[MjModel, ...] | None: ...
    def set_models(self, models: MjModel | Sequence[MjModel] | None) -> None: ...
    def get_model(self, sim: int, model: MjModel | None = None) -> MjModel: ...
    def get_data(self, sim: int, data: MjData | None = None) -> MjData: ...
    def set_const(self, ids: Ids = None) -> None: ...
    def rollout(
        self,
        nstep: int,
        control: npt.ArrayLike | None = None,
        control_spec: int = ...,
        record: Sequence[str] = ("qpos",),
        ids: Ids = None,
        out: dict[str, npt.NDArray[np.float64]] | None = None,
    ) -> dict[str, npt.NDArray[np.float64]]: ...
