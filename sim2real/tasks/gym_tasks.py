"""Environments of others for our trainer: `gym:HalfCheetah-v5`, `envpool:Go1JoystickFlatTerrain-v1`.

Whatever a library does at the end of an episode, here the next one starts within the same step, as in `TaskEnv`: no
step leads from one episode to another, and none is lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.tasks.env_checks import as_action
from sim2real.tasks.gym_libraries import Environments, EnvPool, Gymnasium, Ids, Tree, foreign
from sim2real.tasks.vector import Array, StepResult

__all__ = ["LIBRARIES", "GymTaskEnv", "GymTaskSpec", "is_foreign"]

LIBRARIES: Final = ("gym", "envpool")
"""What may stand before the colon."""


class GymTaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a trainer asks before it makes the environments."""

    name: str
    """As given, e.g. ``gym:HalfCheetah-v5``."""
    observation_size: int
    critic_observation_size: int
    """Larger where the critic sees more than the policy."""
    action_size: int
    control_period: float
    """Time of one step [s]; not a number where the library does not say."""


def is_foreign(name: str) -> bool:
    """Return whether `name` is of the form ``gym:ID`` or ``envpool:ID``, and not the name of a task of ours."""
    library, colon, _ = name.partition(":")
    return bool(colon) and library in LIBRARIES


class GymTaskEnv:
    """N environments of Gymnasium or EnvPool behind the `VectorEnv` protocol.

    Actions from −1 to 1 are spread over the bounds of the library's action space, and clipped there; where it has no
    bounds they pass unchanged. Of a dictionary of observations with ``state`` the policy sees that entry, and the
    critic ``privileged_state`` after it, or alone where it begins with ``state``; of another dictionary both see all
    entries, in its order. Observations of several dimensions are flattened.

    Gymnasium's environments run one after the other in this thread, which is faster than its processes (measured:
    HalfCheetah 2.5 times); EnvPool's run in `num_threads` threads. For more cores use more workers. EnvPool holds the
    meshes of a robot once per environment: 50 MiB each for Go1.

    Args:
        name: ``gym:ID`` or ``envpool:ID``; ``gym:MODULE:ID`` imports the module that registers the id first.
        num_envs: Number of environments N.
        seed: Two of the same seed give the same numbers.
        num_threads: Threads of EnvPool.

    Raises:
        InputError: There is no such environment, its spaces are not of numbers, it fails, what it observes is not
            finite, or it cannot start an episode within the step that ends one.
        MissingExtraError: The library is not installed.

    Attributes:
        spec: Name and sizes.
        resumes_exactly: False: the state of these engines cannot be kept, see `load_state`.
    """

    resumes_exactly: ClassVar[bool] = False
    reward_names: tuple[str, ...] = ("reward",)

    def __init__(self, name: str, num_envs: int, *, seed: int, num_threads: int = 1) -> None:
        self.name = name
        self.num_envs = num_envs
        self._seed = seed
        self._num_threads = num_threads
        self._steps = 0
        self._envs = self._open()
        self._policy = _Reader.of_policy(name, self._envs.observation_space)
        self._actions = _ActionScale(name, self._envs.action_space)
        with foreign(name, "reset"):
            first = self._envs.reset()
            self._critic = _Reader.of_critic(name, self._envs.observation_space, self._policy, first)
        self.spec = GymTaskSpec(
            name=name,
            observation_size=self._policy.size,
            critic_observation_size=self._critic.size,
            action_size=self._actions.size,
            control_period=self._envs.control_period,
        )
        self.observation_size = self.spec.observation_size
        self.critic_observation_size = self.spec.critic_observation_size
        self.action_size = self.spec.action_size
        self.control_period = self.spec.control_period
        self._observation = np.zeros((num_envs, self._policy.size), np.float32)
        shared = self._critic == self._policy
        self._critic_observation = self._observation if shared else np.zeros((num_envs, self._critic.size), np.float32)
        self._everyone = np.arange(num_envs)
        self._figures = _Figures()
        reward = np.zeros(num_envs)
        self._result = StepResult(
            observation=self._observation,
            critic_observation=self._critic_observation,
            reward=reward,
            terminated=np.zeros(num_envs, np.bool_),
            truncated=np.zeros(num_envs, np.bool_),
            done_ids=np.zeros(0, np.intp),
            final_observation=np.zeros((0, self._policy.size), np.float32),
            final_critic_observation=np.zeros((0, self._critic.size), np.float32),
            reward_terms=reward[None],
        )
        with foreign(name, "reset"):
            self._observe(first, self._everyone)

    @classmethod
    def check(cls, name: str) -> GymTaskSpec:
        """Return the sizes of an environment, before many are made.

        Raises:
            InputError: As above.
            MissingExtraError: As above.
        """
        env = cls(name, 1, seed=0)
        env.close()
        return env.spec

    @property
    def observation(self) -> npt.NDArray[np.float32]:
        """Newest observations, shape (N, O); live."""
        return self._observation

    @property
    def critic_observation(self) -> npt.NDArray[np.float32]:
        """What the critic sees, shape (N, Oc); live, and `observation` itself where it sees nothing else."""
        return self._critic_observation

    def step(self, action: npt.NDArray[np.float32]) -> StepResult:
        """Apply actions, shape (N, A), for one step; ended episodes start anew.

        Raises:
            InputError: The actions have another shape or kind; or the environment fails, or gives what has another
                shape than its spaces say or is not finite.
        """
        taken = self._actions.scaled(as_action(action, (self.num_envs, self.action_size)))
        with foreign(self.name, "step"):
            observation, reward, terminated, truncated, info = self._envs.step(taken)
            self._steps += 1
            self._judge(reward, terminated, truncated)
            self._figures.add(self._result.reward, info)
            self._observe(observation, self._everyone)
            self._renew(observation, info)
        return self._result

    def _judge(self, reward: Any, terminated: Any, truncated: Any) -> None:
        """Keep the rewards, and which episodes ended."""
        result = self._result
        for what, values in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
            if np.shape(values) != (self.num_envs,):
                raise ValueError(f"{what}: expected shape {(self.num_envs,)}, got {np.shape(values)}")
        result.reward[:] = reward
        self._check_finite("reward", result.reward[:, None])
        result.terminated[:] = terminated
        np.logical_and(truncated, ~result.terminated, out=result.truncated)
        result.done_ids = np.flatnonzero(result.terminated | result.truncated)

    def _renew(self, observation: Tree, info: Mapping[str, Any]) -> None:
        """Keep the last observations of ended episodes, and start new ones in their place."""
        result, ids = self._result, self._result.done_ids
        if not len(ids):
            result.final_observation = result.final_observation[:0]
            result.final_critic_observation = result.final_critic_observation[:0]
            return
        final, first = self._envs.renew(ids, observation, info)
        result.final_observation = self._read(self._policy, final, ids)
        result.final_critic_observation = self._read(self._critic, final, ids)
        self._observe(first, ids)

    def _observe(self, observation: Tree, rows: Ids) -> None:
        self._observation[rows] = self._read(self._policy, observation, rows)
        if self._critic_observation is not self._observation:
            self._critic_observation[rows] = self._read(self._critic, observation, rows)

    def _read(self, reader: _Reader, observation: Tree, rows: Ids) -> npt.NDArray[np.float32]:
        """Return what `reader` sees of `rows`, shape (n, size); all of it finite."""
        values = reader.read(observation)
        if values.shape != (len(rows), reader.size):
            raise ValueError(f"observation: expected {(len(rows), reader.size)} numbers, got {values.shape}")
        self._check_finite("observation", values)
        return values

    def _check_finite(self, what: str, values: npt.NDArray[Any]) -> None:
        """Check values, shape (n, …); the sum of all is cheaper to look at than each, but may be infinite itself."""
        if np.isfinite(np.einsum("ij->", values)) or np.isfinite(values).all():
            return
        raise InputError(
            f"environment {self.name!r}: its {what} is not finite in step {self._steps}; mend or bound it there, or "
            "train another environment"
        )

    def term_means(self) -> dict[str, float]:
        """Return the mean reward per step since the last call, and those of its terms that the library tells."""
        return self._figures.take()

    def state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Return how many steps were taken; the engines' own state cannot be had."""
        return {"steps": np.array(self._steps)}, {}

    def load_state(self, arrays: Mapping[str, npt.NDArray[Any]], generator: Mapping[str, Any]) -> None:
        """Start new episodes everywhere, from a seed that follows from this object's and from the steps taken.

        This is no exact continuation: the episodes that were under way are lost. Read the observations anew after it.
        """
        self._steps = int(arrays["steps"])
        self._envs.close()
        self._envs = self._open()
        self._figures = _Figures()
        with foreign(self.name, "reset"):
            self._observe(self._envs.reset(), self._everyone)

    def close(self) -> None:
        """Free what the library holds."""
        self._envs.close()

    def _open(self) -> Environments:
        library, _, env_id = self.name.partition(":")
        if library not in LIBRARIES or not env_id:
            raise InputError(f"environment {self.name!r}: expected gym:ID or envpool:ID, e.g. gym:HalfCheetah-v5")
        # Libraries take 31 bits, and Gymnasium gives environment i the seed + i.
        seed = int(np.random.SeedSequence((self._seed, self._steps)).generate_state(1)[0] >> 2)
        with foreign(self.name, "make"):
            if library == "gym":
                return Gymnasium(self.name, env_id, self.num_envs, seed)
            return EnvPool(self.name, env_id, self.num_envs, seed, self._num_threads)


class _Reader(msgspec.Struct, frozen=True):
    """Which entries of an observation are read, one after the other; no key: it is one array."""

    keys: tuple[str, ...]
    size: int

    @classmethod
    def of_policy(cls, name: str, space: Any) -> _Reader:
        """Return what the policy sees."""
        # A Tuple has spaces too, without names; a Dict may have none.
        if not isinstance(getattr(space, "spaces", None), Mapping) or not space.spaces:
            return cls((), _size(name, "observation", space))
        keys = ("state",) if "state" in space.spaces else tuple(space.spaces)
        return cls(keys, sum(_size(name, f"observation {key!r}", space.spaces[key]) for key in keys))

    @classmethod
    def of_critic(cls, name: str, space: Any, policy: _Reader, first: Tree) -> _Reader:
        """Return what the critic sees: it begins with what the policy sees, as `first` observations tell."""
        key = "privileged_state"
        if policy.keys != ("state",) or key not in space.spaces:
            return policy
        alone = cls((key,), _size(name, f"observation {key!r}", space.spaces[key]))
        if np.array_equal(alone.read(first)[:, : policy.size], policy.read(first)):
            return alone
        return cls((*policy.keys, key), policy.size + alone.size)

    def read(self, tree: Tree) -> npt.NDArray[np.float32]:
        """Return the entries, flattened, shape (n, size)."""
        parts = [tree[key] for key in self.keys] if self.keys else [tree]
        flat = [np.asarray(part, np.float32).reshape(len(part), -1) for part in parts]
        return flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1)


class _ActionScale:
    """From −1 … 1 to the bounds of the library's action space."""

    def __init__(self, name: str, space: Any) -> None:
        self.size = _size(name, "action", space)
        self._shape: tuple[int, ...] = space.shape
        self._dtype = space.dtype
        low, high = (np.asarray(bound, np.float64).ravel() for bound in (space.low, space.high))
        bounded = np.isfinite(low) & np.isfinite(high)
        self._clip = np.where(bounded, 1.0, np.inf).astype(np.float32)
        low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        self._scale, self._offset = 0.5 * (high - low), 0.5 * (high + low)

    def scaled(self, action: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        """Return actions, shape (N, A), in the library's unit, type and shape."""
        spread = np.clip(action, -self._clip, self._clip) * self._scale + self._offset
        return spread.astype(self._dtype).reshape(len(action), *self._shape)


class _Figures:
    """Means since they were last taken: of the reward, and of what a library calls ``reward_NAME`` in its info."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, reward: Array, info: Mapping[str, Any]) -> None:
        """Take one step into account; of environments whose info has no such entry in this step, nothing."""
        self._add("reward/reward", float(reward.sum()), len(reward))
        for key, values in info.items():
            if key.startswith("reward_") and np.shape(values) == reward.shape:
                present = info.get(f"_{key}")
                count = len(reward) if present is None else int(np.count_nonzero(present))
                self._add(f"reward/{key.removeprefix('reward_')}", float(np.sum(values)), count)

    def _add(self, name: str, total: float, count: int) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + total
        self._counts[name] = self._counts.get(name, 0) + count

    def take(self) -> dict[str, float]:
        """Return the means, and begin anew."""
        means = {name: total / max(self._counts[name], 1) for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return means


def _size(name: str, what: str, space: Any) -> int:
    """Number of elements of a space of numbers."""
    if not hasattr(space, "low") or not space.shape or 0 in space.shape:
        found = " ".join(str(space).split())
        raise InputError(
            f"environment {name!r}: expected a Box as its {what} space, got {found}; a policy sees and gives one "
            "number at least, in an array"
        )
    shape: tuple[int, ...] = space.shape
    return math.prod(shape)
