"""Which fields of MuJoCo's model have numbers that no physics has. MuJoCo simulates them without a word."""

from __future__ import annotations

from typing import Final

__all__ = ["NOT_NEGATIVE", "POSITIVE", "RANGES"]

POSITIVE: Final = frozenset({"opt.impratio"})
"""Fields whose numbers are above zero."""
NOT_NEGATIVE: Final = frozenset(
    {
        *("body_mass", "body_inertia", "dof_armature", "dof_damping", "dof_frictionloss", "jnt_stiffness"),
        *("geom_friction", "geom_size", "geom_solmix", "pair_friction"),
        *("tendon_armature", "tendon_damping", "tendon_frictionloss", "tendon_stiffness"),
        *("opt.density", "opt.viscosity"),
        *("opt.tolerance", "opt.ls_tolerance", "opt.noslip_tolerance", "opt.ccd_tolerance"),
    }
)
"""Fields whose numbers are zero or above."""
RANGES: Final = frozenset({"jnt_range", "jnt_actfrcrange", "tendon_range", "tendon_actfrcrange", "actuator_ctrlrange"})
"""Fields of a lower end and an upper one."""
