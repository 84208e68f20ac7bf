"""The two libraries whose environments `gym_tasks` puts behind one protocol, and all that they differ in."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sim2real import extras
from sim2real.errors import InputError, Sim2RealError

__all__ = ["EnvPool", "Environments", "Gymnasium", "Ids", "Tree", "foreign"]

Ids = npt.NDArray[np.intp]
Tree = Any
"""Observations as a library gives them: an array, shape (N, …), or a dictionary of such arrays."""


@contextlib.contextmanager
def foreign(name: str, doing: str) -> Generator[None]:
    """Turn whatever an environment of others raises into one line that names it.

    Args:
        name: Of the environment.
        doing: What it was asked to do: ``make``, ``reset`` or ``step``.

    Raises:
        InputError: It raised something, or gave what cannot be taken as numbers.
    """
    try:
        yield
    except Sim2RealError:
        raise
    # Code that is not ours may raise anything, and the person needs to know whose fault it is.
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"environment {name!r}: its {doing} failed ({what})") from error


class Environments(ABC):
    """N environments of one library.

    Attributes:
        observation_space: Of one environment.
        action_space: Of one environment.
        control_period: Time of one step [s]; not a number where the library does not say.
    """

    observation_space: Any
    action_space: Any
    control_period: float
    _envs: Any

    @abstractmethod
    def reset(self) -> Tree:
        """Start an episode everywhere; return the first observations."""

    @abstractmethod
    def renew(self, ids: Ids, observation: Tree, info: Mapping[str, Any]) -> tuple[Tree, Tree]:
        """Start new episodes in `ids`, whose last ended in the step that gave `observation` and `info`.

        Returns:
            The last observations of the ended episodes and the first of the new ones, in the order of `ids`.
        """

    def step(self, action: npt.NDArray[Any]) -> tuple[Tree, Any, Any, Any, Mapping[str, Any]]:
        """Return observations, rewards, terminations, truncations and the library's info."""
        return self._envs.step(action)

    def close(self) -> None:
        """Free what the library holds, which for EnvPool may be 60 MiB per environment; no use after it."""
        self._envs.close()
        # EnvPool frees its memory with the last reference, and what it stores of its first import may refer to this.
        self._envs = None


class Gymnasium(Environments):
    """Environments of `gymnasium.make_vec`."""

    def __init__(self, name: str, env_id: str, num_envs: int, seed: int) -> None:
        gymnasium = extras.require("gymnasium", "gym")
        self._seed: int | None = seed
        module, _, bare_id = env_id.rpartition(":")
        try:
            if module:
                importlib.import_module(module)
            with _each_warning_once():
                self._envs = _make_vec(name, gymnasium.spec(bare_id), num_envs)
        except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
            raise _unknown(name, bare_id, gymnasium.registry, "Gymnasium") from error
        except (gymnasium.error.Error, ImportError) as error:
            raise InputError(f"environment {name!r}: Gymnasium cannot make it ({error})") from error
        self._resets_itself = self._envs.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.SAME_STEP
        self.observation_space = self._envs.single_observation_space
        self.action_space = self._envs.single_action_space
        self.control_period = _control_period(self._envs)

    def reset(self) -> Tree:
        """Start an episode everywhere, the same ones each time."""
        observation, _ = self._envs.reset(seed=self._seed)
        return observation

    def renew(self, ids: Ids, observation: Tree, info: Mapping[str, Any]) -> tuple[Tree, Tree]:
        """Take the first observations from the step itself, or reset those environments."""
        if self._resets_itself:
            return _stack([info["final_obs"][env_id] for env_id in ids]), _rows(observation, ids)
        final = _rows(observation, ids)
        mask = np.zeros(self._envs.num_envs, np.bool_)
        mask[ids] = True
        first, _ = self._envs.reset(options={"reset_mask": mask})
        return final, _rows(first, ids)


def _make_vec(name: str, spec: Any, num_envs: int) -> Any:
    """Return the library's own vector environment if it can do what is needed, else single ones in a row."""
    import gymnasium
    from gymnasium.vector import AutoresetMode

    if spec.vector_entry_point is not None:
        envs = gymnasium.make_vec(spec, num_envs)
        mode = envs.metadata.get("autoreset_mode")
        if mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED):
            return envs
        envs.close()
        if spec.entry_point is None:
            raise InputError(
                f"environment {name!r}: expected autoreset mode SAME_STEP or DISABLED, got {mode}, whose first step of "
                "an episode belongs to none; give it another mode or an entry point for single environments"
            )
    return gymnasium.make_vec(
        spec,
        num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP, "copy": False},
        disable_env_checker=True,
    )


@contextlib.contextmanager
def _each_warning_once() -> Generator[None]:
    """MuJoCo compiles a model for every environment; what it warns of is said once, and in no file."""
    try:
        import mujoco
    except ModuleNotFoundError:
        yield
        return
    told: set[str] = set()

    def tell(message: str) -> None:
        if message not in told:
            told.add(message)
            sys.stderr.write(f"MuJoCo: {message}\n")

    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(tell)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(previous)


def _control_period(envs: Any) -> float:
    """Time of one step [s], where somebody says."""
    single = envs.envs[0].unwrapped if hasattr(envs, "envs") else envs.unwrapped
    if hasattr(single, "dt"):
        return float(single.dt)
    rate = envs.metadata.get("render_fps")
    return 1.0 / rate if rate else float("nan")


class EnvPool(Environments):
    """Environments of `envpool.make`.

    EnvPool would begin an episode in the step after the one that ends the last, and ignore its action; here those
    environments are reset at once instead.
    """

    def __init__(self, name: str, env_id: str, num_envs: int, seed: int, num_threads: int) -> None:
        envpool = extras.require("envpool", "envpool")
        known: list[str] = envpool.list_all_envs()
        if env_id not in known:
            raise _unknown(name, env_id, known, "EnvPool")
        self._envs = envpool.make(env_id, env_type="gymnasium", num_envs=num_envs, num_threads=num_threads, seed=seed)
        self.observation_space = self._envs.observation_space
        self.action_space = self._envs.action_space
        self.control_period = float(self._envs.config.get("ctrl_dt", "nan"))

    def reset(self) -> Tree:
        """Start an episode everywhere."""
        return self._envs.reset()[0]

    def renew(self, ids: Ids, observation: Tree, info: Mapping[str, Any]) -> tuple[Tree, Tree]:
        """Reset those environments, so that the next step is their first."""
        first, first_info = self._envs.reset(ids.astype(np.int32))
        return _rows(observation, ids), _rows(first, np.argsort(first_info["env_id"]))


def _rows(tree: Tree, rows: Ids) -> Tree:
    """Copies of some rows of observations."""
    if isinstance(tree, dict):
        return {key: values[rows] for key, values in cast("dict[str, npt.NDArray[Any]]", tree).items()}
    return tree[rows]


def _stack(trees: list[Tree]) -> Tree:
    """Observations of single environments as one."""
    if isinstance(trees[0], dict):
        return {key: np.stack([tree[key] for tree in trees]) for key in cast("dict[str, Any]", trees[0])}
    return np.stack(trees)


def _unknown(name: str, env_id: str, known: Iterable[str], library: str) -> InputError:
    close = difflib.get_close_matches(env_id, list(known), n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return InputError(f"environment {name!r}: unknown to {library}{hint}")
