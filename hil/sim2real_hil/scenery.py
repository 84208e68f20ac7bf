"""What a person sees of a simulation: the robot's model with light, a sky, and a ground that shows motion.

It is a model of its own, posed by `qpos` alone, so every simulation engine is shown in the same way.
"""

from __future__ import annotations

from typing import Final

import mujoco
import numpy as np
import numpy.typing as npt

from sim2real.robots import Robot
from sim2real.sim.model import GROUND, load_model
from sim2real.sim.scene import Scene

__all__ = ["IMAGE_SIZE", "Scenery"]

IMAGE_SIZE: Final = (640, 480)
"""Width and height of a video [pixels]."""
_TILE: Final = 1.0
"""Tiles of the checkered ground per metre."""
_SHADOW_SIZE: Final = 2048
"""Of the map [pixels]: what a processor without a graphics card draws in little time."""
_AZIMUTH, _ELEVATION = 120.0, -15.0
"""From where the camera looks [degrees]: from ahead and the side, a little from above."""
_DISTANCE: Final = 2.5
"""Of the camera from a robot that walks, in extents of its model."""


class Scenery:
    """One robot in its scene, to be looked at.

    Args:
        robot: The robot.
        scene: What surrounds it.

    Attributes:
        model: The model with light, sky and ground.
        data: Its pose.
    """

    def __init__(self, robot: Robot, scene: Scene) -> None:
        spec, plain = load_model(robot, scene)
        self._floating = robot.base == "floating"
        # Endless ground counts as one metre; what matters is how large the robot is.
        self._extent = float(plain.stat.extent)
        _light(spec)
        _paint(spec)
        spec.visual.quality.shadowsize = _SHADOW_SIZE
        spec.visual.global_.offwidth, spec.visual.global_.offheight = IMAGE_SIZE
        self.model = spec.compile()
        self.data = mujoco.MjData(self.model)
        self.pose(self.data.qpos)

    def pose(self, qpos: npt.NDArray[np.float64]) -> None:
        """Put the robot where `qpos`, shape (nq,), says; a pose that is not a number leaves it where it was."""
        if np.isfinite(qpos).all():
            self.data.qpos[:] = qpos
            mujoco.mj_kinematics(self.model, self.data)
            mujoco.mj_comPos(self.model, self.data)
            mujoco.mj_camlight(self.model, self.data)

    def aim(self, camera: mujoco.MjvCamera) -> None:
        """Let `camera` follow the base of the robot, or look at the middle of one that is fixed."""
        mujoco.mjv_defaultFreeCamera(self.model, camera)
        camera.azimuth, camera.elevation = _AZIMUTH, _ELEVATION
        if self._floating:
            camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
            camera.trackbodyid = int(self.model.jnt_bodyid[0])
            camera.distance = _DISTANCE * self._extent


def _light(spec: mujoco.MjSpec) -> None:
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
            castshadow=True,
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
