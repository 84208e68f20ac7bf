"""MuJoCo's own window."""

from __future__ import annotations

import os
import warnings
from types import TracebackType

import glfw
import mujoco.viewer
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real_hil.scenery import Scenery

__all__ = ["Viewer", "check_display"]


def check_display() -> None:
    """Check that a window can be opened.

    Raises:
        InputError: There is no display.
    """
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise InputError(
            "no display for MuJoCo's viewer (neither DISPLAY nor WAYLAND_DISPLAY is set); without one, --video out.mp4 "
            "makes a film and --web 8080 shows it in a browser"
        )


class Viewer:
    """The window; closed by the person, or at the end of a ``with`` block.

    Raises:
        InputError: There is no display, or it cannot be used.
    """

    def __init__(self, scenery: Scenery) -> None:
        check_display()
        with warnings.catch_warnings(action="ignore", category=glfw.GLFWError):
            usable = glfw.init()
        # MuJoCo's viewer would wait for ever for a window that cannot be.
        if not usable:
            raise InputError("the display takes no window of MuJoCo's viewer; use --video out.mp4 or --web 8080")
        self._scenery = scenery
        self._patches = scenery.patches
        self._window = mujoco.viewer.launch_passive(
            scenery.model, scenery.data, show_left_ui=False, show_right_ui=False
        )
        with self._window.lock():
            scenery.aim(self._window.cam)

    @property
    def is_open(self) -> bool:
        """Whether the person still looks."""
        return bool(self._window.is_running())

    def show(self, qpos: npt.NDArray[np.float64]) -> None:
        """Show the pose `qpos`, shape (nq,)."""
        with self._window.lock():
            self._scenery.pose(qpos)
        if self._scenery.patches != self._patches:
            self._window.update_hfield(0)
            self._patches = self._scenery.patches
        self._window.sync()

    def __enter__(self) -> Viewer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._window.close()
