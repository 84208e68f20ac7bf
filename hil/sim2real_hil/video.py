"""A simulation as an MP4 file, without a screen: frames from EGL or OSMesa, H.264 from ffmpeg."""

from __future__ import annotations

import ctypes.util
import importlib
import os
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import mujoco
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.extras import require
from sim2real.files import atomic_write
from sim2real_hil.scenery import IMAGE_SIZE, Scenery

__all__ = ["Renderer", "Video", "offscreen_platform"]

_FASTEST: Final = 50.0
"""Frames per second that a video has at most."""
_MAX_GEOMS: Final = 10_000
_INSTALL: Final = "on Debian and Ubuntu: apt install libegl1 libegl-mesa0, or libosmesa6"


def offscreen_platform() -> str:
    """Return what draws without a screen here, ``egl`` or ``osmesa``; MUJOCO_GL chooses if both do.

    Raises:
        InputError: Neither is there.
    """
    chosen = os.environ.get("MUJOCO_GL", "").strip().lower()
    if chosen in ("egl", "osmesa"):
        return chosen
    for platform, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
        if ctypes.util.find_library(library) is not None:
            return platform
    raise InputError(f"--video: found neither libEGL nor libOSMesa to draw with; {_INSTALL}")


class Renderer:
    """Draws a `Scenery` into arrays, without a screen. To be closed, or used in a ``with`` statement.

    Raises:
        InputError: Nothing here can draw.
    """

    def __init__(self, scenery: Scenery) -> None:
        self._scenery = scenery
        self._context = _gl_context()
        self._context.make_current()
        self._patches = scenery.patches
        self._target = mujoco.MjrContext(scenery.model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._target)
        self._scene = mujoco.MjvScene(scenery.model, _MAX_GEOMS)
        self._option = mujoco.MjvOption()
        self._camera = mujoco.MjvCamera()
        scenery.aim(self._camera)
        self._rectangle = mujoco.MjrRect(0, 0, *IMAGE_SIZE)
        width, height = IMAGE_SIZE
        self._pixels = np.zeros((height, width, 3), np.uint8)

    def draw(self) -> npt.NDArray[np.uint8]:
        """Return the scenery as it is now, shape (height, width, 3), RGB, first row on top."""
        scenery = self._scenery
        if scenery.patches != self._patches:
            mujoco.mjr_uploadHField(scenery.model, self._target, 0)
            self._patches = scenery.patches
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(scenery.model, scenery.data, self._option, None, self._camera, everything, self._scene)
        mujoco.mjr_render(self._rectangle, self._scene, self._target)
        mujoco.mjr_readPixels(self._pixels, None, self._rectangle, self._target)
        # OpenGL's first row is the lowest.
        return self._pixels[::-1]

    def close(self) -> None:
        """Free what the graphics driver holds."""
        self._target.free()
        self._context.free()

    def __enter__(self) -> Renderer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _gl_context() -> Any:
    platform = offscreen_platform()
    try:
        # Not mujoco.Renderer: what that one draws with was decided when MuJoCo was loaded.
        return importlib.import_module(f"mujoco.{platform}").GLContext(*IMAGE_SIZE)
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise InputError(f"--video: {platform} cannot draw here ({error}); {_INSTALL}") from error


class Video:
    """An MP4 file in the making. It is whole after a ``with`` block that ended well, and not there after any other.

    Args:
        path: The file.
        scenery: What it shows.
        control_period: Time [s] between two calls of `show`; of rates above 50 Hz every n-th call is a frame.

    Attributes:
        frames: Frames so far.
        rate: Frames per second of the file.

    Raises:
        InputError: Nothing here can draw, or the file cannot be written.
    """

    def __init__(self, path: Path, scenery: Scenery, control_period: float) -> None:
        self._path = path
        self._scenery = scenery
        self._stride = max(1, int(np.ceil(1.0 / (control_period * _FASTEST) - 1e-9)))
        self.rate = 1.0 / (control_period * self._stride)
        self.frames = 0
        self._calls = 0
        self._parts = ExitStack()

    def __enter__(self) -> Video:
        with ExitStack() as stack:
            self._renderer = stack.enter_context(Renderer(self._scenery))
            partial = stack.enter_context(atomic_write(self._path))
            self._encoder = stack.enter_context(_encoder(partial, self.rate))
            self._parts = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._parts.__exit__(kind, error, trace)

    @property
    def is_open(self) -> bool:
        """A film has no end of its own."""
        return True

    def show(self, qpos: npt.NDArray[np.float64]) -> None:
        """Show the pose `qpos`, shape (nq,), of the next control step."""
        due = self._calls % self._stride == 0
        self._calls += 1
        if due:
            self._scenery.pose(qpos)
            self._encoder.write(self._renderer.draw())
            self.frames += 1


class _Encoder:
    """The running ffmpeg."""

    def __init__(self, process: subprocess.Popen[bytes], complaints: Any) -> None:
        assert process.stdin is not None
        self._process = process
        self._frames = process.stdin
        self._complaints = complaints

    def write(self, pixels: npt.NDArray[np.uint8]) -> None:
        try:
            self._frames.write(pixels.tobytes())
        except BrokenPipeError as error:
            raise self._failure() from error

    def finish(self) -> None:
        try:
            self._frames.close()
        except BrokenPipeError as error:
            raise self._failure() from error
        if self._process.wait():
            raise self._failure()

    def _failure(self) -> InputError:
        self._process.wait()
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        return InputError(f"--video: ffmpeg ended early ({(lines or ['without a word'])[-1]}); choose another place")


@contextmanager
def _encoder(path: Path, rate: float) -> Generator[_Encoder]:
    """Yield an encoder of raw frames into `path`; it has ended when the block has."""
    ffmpeg = require("imageio_ffmpeg", "play").get_ffmpeg_exe()
    width, height = IMAGE_SIZE
    command = [ffmpeg, "-loglevel", "error", "-y"]
    command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{rate:.9g}", "-i", "-"]
    # yuv420p and faststart: what every browser plays, from the first byte on.
    command += ["-c:v", "libx264", "-preset", "veryfast", "-crf", "20", "-pix_fmt", "yuv420p", "-threads", "1"]
    command += ["-movflags", "+faststart", "-f", "mp4", str(path)]
    with tempfile.TemporaryFile() as complaints:
        # A session of its own: Ctrl-C is for us, who then end it.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=complaints, start_new_session=True
        )
        try:
            encoder = _Encoder(process, complaints)
            yield encoder
            encoder.finish()
        finally:
            process.kill()
            process.wait()
            # What it was still to be given is lost with it.
            if process.stdin is not None:
                with suppress(BrokenPipeError):
                    process.stdin.close()
