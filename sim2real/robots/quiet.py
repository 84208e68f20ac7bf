"""MuJoCo's warnings, which it would write to the console and into the working folder."""

from __future__ import annotations

import mujoco

__all__ = ["silence_mujoco"]


def silence_mujoco() -> None:
    """Let MuJoCo keep its warnings to itself, in this whole process.

    Of each it would write a line to the console and one to MUJOCO_LOG.TXT in the working directory; they stay counted.
    """
    config = mujoco.MjLogConfig.get()
    config.logto_file = config.logto_console = False
    config.set()
