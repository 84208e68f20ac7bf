"""A simulation in a browser, by viser: bodies as frames, their geoms as meshes, the operator's inputs as sliders."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final

import mujoco
import numpy as np
import numpy.typing as npt

from sim2real.contract import Command
from sim2real.errors import InputError
from sim2real.extras import require
from sim2real.sim.model import GROUND
from sim2real_hil.scenery import Scenery

__all__ = ["Web"]

_HOST: Final = "127.0.0.1"
"""Of this machine alone: the page takes no password."""
_SEEN_GROUPS: Final = 3
"""Geoms of lower groups are seen; by MuJoCo's convention the others are for collisions only."""
_STEPS: Final = 200
"""Of a slider over its range."""
_RATE: Final = 30.0
"""Poses per second that are sent at most."""
_SEGMENTS: Final = 24
"""Of a circle."""

Array = npt.NDArray[np.float64]
Mesh = tuple[Array, npt.NDArray[np.int64]]
"""Vertices [m], shape (V, 3), and triangles, shape (F, 3)."""


class Web:
    """The page, at ``http://127.0.0.1:<port>``, until the end of a ``with`` block.

    Args:
        port: Port to listen on, of this machine alone.
        scenery: What it shows.
        commands: Operator inputs to have sliders for.
        initial: Where the sliders begin, shape (C,).
        on_command: Called with the index and the value of an input whenever a person moves its slider.

    Raises:
        InputError: Another program has the port.
        MissingExtraError: viser is not installed.
    """

    is_open = True
    """A page has no end of its own."""

    def __init__(
        self,
        port: int,
        scenery: Scenery,
        commands: Sequence[Command],
        initial: Array,
        on_command: Callable[[int, float], None],
    ) -> None:
        viser = require("viser", "play")
        self._scenery = scenery
        with _quiet():
            self._server = viser.ViserServer(host=_HOST, port=port, verbose=False)
        if self._server.get_port() != port:
            # It would have taken the next free one.
            self.close()
            raise InputError(f"--web: port {port} is taken by another program; choose another")
        self._frames = {
            body: self._server.scene.add_frame(f"/{body}", show_axes=False)
            for body in range(scenery.model.nbody)
            if scenery.model.body_geomnum[body]
        }
        for geom in range(scenery.model.ngeom):
            self._add_geom(geom)
        self._server.scene.add_light_hemisphere("/light", intensity=1.0)
        for index, command in enumerate(commands):
            self._add_slider(index, command, float(initial[index]), on_command)
        self._patches = scenery.patches
        self._sent = 0.0
        self._send()

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{_HOST}:{self._server.get_port()}"

    def show(self, qpos: Array) -> None:
        """Show the pose `qpos`, shape (nq,), if it is time for another."""
        if time.monotonic() - self._sent >= 1.0 / _RATE:
            self._scenery.pose(qpos)
            if self._scenery.patches != self._patches:
                self._add_geom(_ground(self._scenery.model))
                self._patches = self._scenery.patches
            self._send()

    def _send(self) -> None:
        data = self._scenery.data
        with self._server.atomic():
            for body, frame in self._frames.items():
                frame.position, frame.wxyz = data.xpos[body], data.xquat[body]
        self._sent = time.monotonic()

    def _add_geom(self, geom: int) -> None:
        model = self._scenery.model
        red, green, blue, alpha = model.geom_rgba[geom]
        if model.geom_group[geom] >= _SEEN_GROUPS or not alpha:
            return
        name = f"/{model.geom_bodyid[geom]}/{geom}"
        placed: dict[str, Any] = {"position": model.geom_pos[geom], "wxyz": model.geom_quat[geom]}
        if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_PLANE:
            self._server.scene.add_grid(name, infinite_grid=True, cell_size=1.0, section_size=5.0, **placed)
            return
        vertices, faces = geom_mesh(model, geom)
        color = (float(red), float(green), float(blue))
        self._server.scene.add_mesh_simple(
            name, vertices.astype(np.float32), faces.astype(np.uint32), color=color, flat_shading=True, **placed
        )

    def _add_slider(
        self, index: int, command: Command, initial: float, on_command: Callable[[int, float], None]
    ) -> None:
        step = (command.high - command.low) / _STEPS
        label = f"{command.name} [{command.unit}]"
        slider = self._server.gui.add_slider(label, command.low, command.high, step, initial)

        def moved(_: object) -> None:
            on_command(index, float(slider.value))

        slider.on_update(moved)

    def close(self) -> None:
        """End the page."""
        with _quiet():
            self._server.stop()

    def __enter__(self) -> Web:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ground(model: mujoco.MjModel) -> int:
    return mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, GROUND)


def _quiet() -> contextlib.redirect_stdout[io.StringIO]:
    """Keep viser's greetings from stdout, where results go."""
    return contextlib.redirect_stdout(io.StringIO())


def geom_mesh(model: mujoco.MjModel, geom: int) -> Mesh:
    """Return the surface of a geom in its own frame."""
    kind, size = model.geom_type[geom], model.geom_size[geom]
    match kind:
        case mujoco.mjtGeom.mjGEOM_MESH:
            return _asset(model, int(model.geom_dataid[geom]))
        case mujoco.mjtGeom.mjGEOM_HFIELD:
            return _terrain(model, int(model.geom_dataid[geom]))
        case mujoco.mjtGeom.mjGEOM_BOX:
            corners = np.array(np.meshgrid((-1, 1), (-1, 1), (-1, 1), indexing="ij"), np.float64).reshape(3, -1).T
            return corners * size, _BOX
        case mujoco.mjtGeom.mjGEOM_CYLINDER:
            profile = [(0.0, -size[1]), (size[0], -size[1]), (size[0], size[1]), (0.0, size[1])]
            return _revolve(np.array(profile))
        case mujoco.mjtGeom.mjGEOM_CAPSULE:
            return _revolve(_arc(size[0], -size[1], size[1]))
        case mujoco.mjtGeom.mjGEOM_ELLIPSOID:
            vertices, faces = _revolve(_arc(1.0, 0.0, 0.0))
            return vertices * size, faces
        case _:
            return _revolve(_arc(size[0], 0.0, 0.0))


_BOX: Final = np.array(
    [
        *((0, 1, 3), (0, 3, 2), (4, 6, 7), (4, 7, 5), (0, 4, 5), (0, 5, 1)),
        *((2, 3, 7), (2, 7, 6), (0, 2, 6), (0, 6, 4), (1, 5, 7), (1, 7, 3)),
    ]
)
"""Triangles between the corners of a box, seen from outside."""


def _arc(radius: float, low: float, high: float) -> Array:
    """Half circles about `low` and `high` on the axis, as (distance from the axis, height), from below to above."""
    angle = np.linspace(0.0, 0.5 * np.pi, _SEGMENTS // 4 + 1)
    below = np.stack((radius * np.sin(angle), low - radius * np.cos(angle)), axis=1)
    above = np.stack((radius * np.cos(angle), high + radius * np.sin(angle)), axis=1)
    return np.concatenate((below, above))


def _revolve(profile: Array) -> Mesh:
    """Turn a profile of (distance, height), shape (P, 2), about the z axis."""
    angle = 2.0 * np.pi * np.arange(_SEGMENTS) / _SEGMENTS
    distance, height = profile[:, :1], profile[:, 1:]
    around = (distance * np.cos(angle), distance * np.sin(angle), np.broadcast_to(height, (len(profile), _SEGMENTS)))
    ring, column = np.meshgrid(np.arange(len(profile) - 1), np.arange(_SEGMENTS), indexing="ij")
    return np.stack(around, axis=-1).reshape(-1, 3), _quads(ring, column, _SEGMENTS, (column + 1) % _SEGMENTS)


def _quads(row: npt.NDArray[Any], column: npt.NDArray[Any], width: int, right: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Two triangles for each cell of a grid of vertices that has `width` of them in a row."""
    a, b, c, d = (
        (i * width + j).ravel() for i, j in ((row, column), (row, right), (row + 1, right), (row + 1, column))
    )
    return np.concatenate((np.stack((a, b, c), axis=1), np.stack((a, c, d), axis=1)))


def _asset(model: mujoco.MjModel, mesh: int) -> Mesh:
    vertex, face = model.mesh_vertadr[mesh], model.mesh_faceadr[mesh]
    vertices = model.mesh_vert[vertex : vertex + model.mesh_vertnum[mesh]]
    return vertices.astype(np.float64), model.mesh_face[face : face + model.mesh_facenum[mesh]].astype(np.int64)


def _terrain(model: mujoco.MjModel, field: int) -> Mesh:
    rows, columns = int(model.hfield_nrow[field]), int(model.hfield_ncol[field])
    x_radius, y_radius, top, _ = map(float, model.hfield_size[field])
    start = int(model.hfield_adr[field])
    heights = model.hfield_data[start : start + rows * columns].reshape(rows, columns) * top
    x, y = np.meshgrid(np.linspace(-x_radius, x_radius, columns), np.linspace(-y_radius, y_radius, rows))
    row, column = np.meshgrid(np.arange(rows - 1), np.arange(columns - 1), indexing="ij")
    return np.stack((x, y, heights), axis=-1).reshape(-1, 3), _quads(row, column, columns, column + 1)
