"""Settings with which each task is learned on two cores without tuning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from sim2real_train.config import AlgorithmConfig
from sim2real_train.distill import DistillConfig, TeacherRef
from sim2real_train.models import ModelConfig
from sim2real_train.ppo import PpoConfig
from sim2real_train.sac import SacConfig

__all__ = ["DEFAULT", "PPO", "SAC", "Preset", "preset_of", "student_preset"]


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """What `sim2real train` takes where its options say nothing."""

    iterations: int = 180
    num_envs: int = 256
    model: ModelConfig
    algorithm: AlgorithmConfig


def _ppo(*, iterations: int = 180, num_envs: int = 256, model: ModelConfig, **algorithm: Any) -> Preset:
    return Preset(iterations=iterations, num_envs=num_envs, model=model, algorithm=PpoConfig(**algorithm))


DEFAULT: Final = _ppo(model=ModelConfig())
"""For a task that has no preset of its own."""

# A dozen joints: many small steps, none of which moves the policy far; noise of a tenth of a radian or two. What is
# learned of the left is learned of the right. Half of the iterations are for the last falls.
_WALK: Final = _ppo(
    iterations=700,
    symmetry="augment",
    model=ModelConfig(hidden=(128, 128), initial_std=0.4),
    num_steps=24,
    learning_rate=5e-4,
    desired_kl=0.02,
    entropy_coefficient=0.003,
    discount=0.97,
)

# Accuracy of millimetres: noise starts small, and nothing keeps it from vanishing.
_REACH: Final = _ppo(
    iterations=300,
    model=ModelConfig(hidden=(128, 128), initial_std=0.3),
    num_steps=24,
    desired_kl=0.02,
    entropy_coefficient=0.0,
    discount=0.96,
)

_SWINGS: Final = 10.0
"""Where observations of an arm are cut off that stands most of the time: a swing is far from the mean then."""

# Unstable at 9 rad/s: gains of a regulator, which small noise shows and a long horizon rewards.
_BALANCE: Final = _ppo(
    iterations=700,
    num_envs=128,
    model=ModelConfig(hidden=(128, 128), initial_std=0.25, observation_limit=_SWINGS),
    desired_kl=0.02,
    entropy_coefficient=0.005,
    discount=0.99,
)

PPO: Final[Mapping[str, Preset]] = {
    "pendulum-swingup": DEFAULT,
    "acrobot-swingup": _BALANCE,
    "pendubot-swingup": _BALANCE,
    "so101-reach": _REACH,
    "go2-velocity-flat": _WALK,
    "go2-velocity-rough": _WALK,
    "g1-velocity-flat": _WALK,
}


# A twelfth of the experience that PPO is given, and more work with each piece of it.
_SWING_UP: Final = Preset(
    iterations=120,
    num_envs=64,
    model=ModelConfig(),
    algorithm=SacConfig(batch_size=256, value_range=(-0.5, 2.2)),
)

# Held up with one motor, an arm leaves no room for noise: a hundredth of it topples what a tenth of it swings up. SAC's
# noise differs from state to state, and its critics say of each action what it is worth: gains of 100 N·m per radian
# are learned, in few steps. Smooth layers that saturate make them steep at upright alone.
_BALANCE_ALONE: Final = Preset(
    iterations=800,
    num_envs=128,
    model=ModelConfig(hidden=(128, 128), activation="tanh", observation_limit=_SWINGS),
    algorithm=SacConfig(discount=0.985, target_entropy=-2.0, value_range=(-1.0, 4.2)),
)

SAC: Final[Mapping[str, Preset]] = {
    "pendulum-swingup": _SWING_UP,
    "acrobot-swingup": _BALANCE_ALONE,
    "pendubot-swingup": _BALANCE_ALONE,
}

_BY_SAC: Final = frozenset({"acrobot-swingup", "pendubot-swingup"})
"""Tasks that are learned by SAC where nothing is said: PPO does not get there."""

_OF_ALGORITHM: Final[Mapping[str, Mapping[str, Preset]]] = {"ppo": PPO, "sac": SAC}
_DEFAULT_OF_ALGORITHM: Final[Mapping[str, Preset]] = {
    "ppo": DEFAULT,
    "sac": Preset(iterations=500, num_envs=128, model=ModelConfig(hidden=(128, 128)), algorithm=SacConfig()),
}


def preset_of(task: str, algorithm: Literal["ppo", "sac"] | None = None) -> Preset:
    """Return the settings with which a task is learned by an algorithm; None: by the one that suits it."""
    if algorithm is None:
        algorithm = "sac" if task in _BY_SAC else "ppo"
    return _OF_ALGORITHM[algorithm].get(task, _DEFAULT_OF_ALGORITHM[algorithm])


def student_preset(task: str, teacher: TeacherRef) -> Preset:
    """Return the settings with which a teacher of a task is imitated, by a policy with a memory."""
    ppo = preset_of(task, "ppo")
    model = msgspec.structs.replace(ppo.model, recurrent="gru", recurrent_size=64)
    return msgspec.structs.replace(ppo, iterations=200, model=model, algorithm=DistillConfig(teacher=teacher))
