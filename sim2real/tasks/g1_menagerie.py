"""`g1_velocity` with the model of MuJoCo Menagerie, which may have to be downloaded when this is imported."""

from __future__ import annotations

from typing import Final

from sim2real.robots import get_robot
from sim2real.tasks.base import FETCHED
from sim2real.tasks.g1_velocity import flat

__all__ = ["TASK"]

TASK: Final = flat(get_robot(FETCHED["g1-velocity-flat"].robot))
