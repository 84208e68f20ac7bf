"""What a person sees of a simulation: the robot's model with light, a sky, and a ground that shows motion.

It is a model of its own, posed by `qpos` alone, so every simulation engine is shown in the same way.
"""

from __future__ import annotations

from typing import Final

import msgspec
import mujoco
import numpy as np
import numpy.typing as npt

from sim2real.robots import Robot
from sim2real.sim.model import GROUND, load_model
from sim2real.sim.scene import EMPTY, HeightField, Scene

__all__ = ["IMAGE_SIZE", "PATCH", "Scenery"]

IMAGE_SIZE: Final = (640, 480)
"""Width and height of a video [pixels]."""
PATCH: Final = 12.0
"""Side of the square of terrain that is shown [m]."""
_TILE: Final = 1.0
"""Tiles of the checkered ground per metre."""
_SHADOW_SIZE: Final = 2048
"""Of the map [pixels]: what a processor without a graphics card draws in little time."""
_AZIMUTH, _ELEVATION = 120.0, -15.0
"""From where the camera looks [degrees]: from ahead and the side, a little from above."""
_POSES: Final = 64
"""How many poses show what a fixed robot reaches."""
_DISTANCE: Final = 2.5
"""Of the camera from a robot that walks, in extents of its model."""


class Scenery:
    """One robot in its scene, to be looked at.

    Args:
        robot: The robot.
        scene: What surrounds it. Of a height field, `PATCH` metres around the robot are shown: all of it takes seconds
            for each picture where there is no graphics card.

    Attributes:
        model: The model with light, sky and ground.
        data: Its pose.
        patches: How many patches of terrain were laid so far: whoever has copied the height field copies it again when
            this changes.
    """

    def __init__(self, robot: Robot, scene: Scene) -> None:
        self._floating = robot.base == "floating"
        self._terrain = scene.terrain
        # Of the robot alone: it is what a camera looks at, however wide the land is.
        alone = load_model(robot, EMPTY)[1]
        self._extent = float(alone.stat.extent)
        spec, _ = load_model(robot, scene if scene.terrain is None else _around_origin(scene, scene.terrain))
        if not self._floating:
            spec.stat.center, self._extent = _reach(alone)
        spec.stat.extent = self._extent
        _light(spec, shadow=scene.ground)
        _paint(spec)
        spec.visual.quality.shadowsize = _SHADOW_SIZE
        spec.visual.global_.offwidth, spec.visual.global_.offheight = IMAGE_SIZE
        self.model = spec.compile()
        self.data = mujoco.MjData(self.model)
        self.patches = 0
        self._centre = (np.inf, np.inf)
        self.pose(self.data.qpos)

    def pose(self, qpos: npt.NDArray[np.float64]) -> None:
        """Put the robot where `qpos`, shape (nq,), says; a pose that is not a number leaves it where it was."""
        if not np.isfinite(qpos).all():
            return
        if self._terrain is not None and self._floating and max(abs(qpos[:2] - self._centre)) > PATCH / 6.0:
            self._lay(self._terrain, float(qpos[0]), float(qpos[1]))
        self.data.qpos[:] = qpos
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_comPos(self.model, self.data)
        mujoco.mj_camlight(self.model, self.data)

    def _lay(self, terrain: HeightField, x: float, y: float) -> None:
        """Show the patch of the terrain around a place [m]."""
        model, low, high = self.model, float(terrain.heights.min()), float(terrain.heights.max())
        shape = int(model.hfield_nrow[0]), int(model.hfield_ncol[0])
        row, middle_y = _window(y, terrain.size[1], terrain.heights.shape[0], shape[0])
        column, middle_x = _window(x, terrain.size[0], terrain.heights.shape[1], shape[1])
        patch = terrain.heights[row : row + shape[0], column : column + shape[1]]
        model.hfield_data[: patch.size] = ((patch - low) / ((high - low) or 1.0)).ravel()
        model.hfield_size[0, 2] = (high - low) or 1.0
        ground = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, GROUND)
        model.geom_pos[ground] = middle_x, middle_y, low
        model.geom_sameframe[ground] = mujoco.mjtSameFrame.mjSAMEFRAME_NONE
        self._centre = (x, y)
        self.patches += 1

    def aim(self, camera: mujoco.MjvCamera) -> None:
        """Let `camera` follow the base of the robot, or look at the middle of one that is fixed."""
        mujoco.mjv_defaultFreeCamera(self.model, camera)
        camera.azimuth, camera.elevation = _AZIMUTH, _ELEVATION
        if self._floating:
            camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
            camera.trackbodyid = int(self.model.jnt_bodyid[0])
            camera.distance = _DISTANCE * self._extent


def _reach(model: mujoco.MjModel) -> tuple[list[float], float]:
    """Return the middle [m] of all that a fixed robot reaches, and its longest side [m]: over poses drawn at random."""
    rng, data = np.random.default_rng(0), mujoco.MjData(model)
    low, high = np.full(3, np.inf), np.full(3, -np.inf)
    limits = np.where(model.jnt_limited[:, None], model.jnt_range, (-np.pi, np.pi))
    for _ in range(_POSES):
        for joint in range(model.njnt):
            if int(model.jnt_type[joint]) in (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE):
                data.qpos[model.jnt_qposadr[joint]] = rng.uniform(*limits[joint])
        mujoco.mj_kinematics(model, data)
        radius = model.geom_rbound[:, None]
        low = np.minimum(low, (data.geom_xpos - radius).min(axis=0))
        high = np.maximum(high, (data.geom_xpos + radius).max(axis=0))
    return (0.5 * (low + high)).tolist(), float((high - low).max())


def _around_origin(scene: Scene, terrain: HeightField) -> Scene:
    """Return the scene with as many samples of the terrain as are shown at a time."""
    samples, extents = terrain.heights.shape, terrain.size[::-1]
    spacing = [extent / (number - 1) for number, extent in zip(samples, extents, strict=True)]
    size = [min(number, round(PATCH / step) + 1) for number, step in zip(samples, spacing, strict=True)]
    part = HeightField(
        heights=terrain.heights[: size[0], : size[1]],
        size=((size[1] - 1) * spacing[1], (size[0] - 1) * spacing[0]),
    )
    return msgspec.structs.replace(scene, terrain=part)


def _window(place: float, extent: float, samples: int, seen: int) -> tuple[int, float]:
    """Return the first of the `seen` samples along an axis that lie around a place [m], and their middle [m]."""
    spacing = extent / (samples - 1)
    first = min(max(round((place + 0.5 * extent) / spacing) - seen // 2, 0), samples - seen)
    return first, (first + 0.5 * (seen - 1)) * spacing - 0.5 * extent


def _light(spec: mujoco.MjSpec, *, shadow: bool) -> None:
    """Add a sun and a sky; a model that brings lights keeps its own."""
    if not spec.lights:
        # It goes where the robot goes, so that its shadow is always there, and sharp.
        spec.worldbody.first_body().add_light(
            name="sim2real/sun",
            mode=mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM,
            type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
            pos=[0.0, 0.0, 2.0],
            dir=[0.0, 0.0, -1.0],
            diffuse=[0.6, 0.6, 0.6],
            castshadow=shadow,
        )
        spec.visual.headlight.ambient = [0.35, 0.35, 0.35]
        spec.visual.headlight.diffuse = [0.35, 0.35, 0.35]
    spec.add_texture(
        name="sim2real/sky",
        type=mujoco.mjtTexture.mjTEXTURE_SKYBOX,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=[0.75, 0.83, 0.92],
        rgb2=[0.35, 0.45, 0.58],
        width=128,
        height=768,
    )


def _paint(spec: mujoco.MjSpec) -> None:
    """Give the ground tiles, without which nobody sees a robot advance."""
    ground = spec.geom(GROUND)
    if ground is None:
        return
    spec.add_texture(
        name="sim2real/tiles",
        type=mujoco.mjtTexture.mjTEXTURE_2D,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        rgb1=[0.42, 0.45, 0.48],
        rgb2=[0.34, 0.37, 0.40],
        width=256,
        height=256,
    )
    material = spec.add_material(name="sim2real/ground", texuniform=True, texrepeat=[_TILE, _TILE])
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "sim2real/tiles"
    ground.material = "sim2real/ground"
    ground.rgba = [1.0, 1.0, 1.0, 1.0]
