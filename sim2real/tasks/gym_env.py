"""Our tasks for people who use Gymnasium: `gymnasium.make_vec("sim2real/PendulumSwingup-v0", num_envs=256)`.

Gymnasium has no plugins since its version 1.0, so a program imports this module before it asks for an id, or names the
module in the id: `gymnasium.make_vec("sim2real.tasks.gym_env:sim2real/PendulumSwingup-v0")`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real import extras
from sim2real.arguments import EngineName
from sim2real.contract import PolicyContract
from sim2real.errors import InputError
from sim2real.randomization import RandomizationFile, read_randomization
from sim2real.tasks.base import Task, get_task, task_names
from sim2real.tasks.env import TaskEnv
from sim2real.tasks.ranges import check_robot, with_own_ranges

try:
    import gymnasium
    from gymnasium.spaces import Box
    from gymnasium.vector import AutoresetMode
    from gymnasium.vector.utils import batch_space
except ModuleNotFoundError as error:
    raise extras.missing(error.name or "gymnasium", "gym") from error

__all__ = ["NAMESPACE", "EnvOptions", "Sim2RealEnv", "Sim2RealVectorEnv", "gym_id", "register"]

NAMESPACE: Final = "sim2real"

Floats = npt.NDArray[np.float32]
Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class EnvOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What both kinds of environment take beside the task, as keyword arguments of `make` and `make_vec`."""

    engine: EngineName = "mujoco"
    """Which simulator."""
    num_threads: int = 1
    """Threads that step the simulation."""
    noise: bool = True
    """Whether measurements and commands have the task's errors and delays."""
    randomization: RandomizationFile | str | Path | None = None
    """Ranges from which each episode's physics is drawn beside the task's own, or the file that holds them."""
    nominal: bool = False
    """Whether physics is the nominal robot's in every episode."""
    episode_length: float | None = None
    """Time [s] after which an episode is cut off; None: the task's."""


class Sim2RealVectorEnv(gymnasium.vector.VectorEnv[Floats, Floats, npt.NDArray[Any]]):
    """N environments of a task, stepped together; an ended episode starts anew within the same step (``SAME_STEP``).

    The action is what a policy gives: the contract scales and clips it. `info` holds the weighted terms of the reward
    as ``reward_NAME``; where an episode ended they are in ``info["final_info"]``, and its last observation in
    ``info["final_obs"]``, as in Gymnasium's own vector environments.

    Args:
        task: The task, or its name (`sim2real tasks`).
        num_envs: Number of environments N.
        render_mode: None, nothing else; `sim2real play` shows a task.
        options: Fields of `EnvOptions`.

    Raises:
        InputError: There is no such task, its ranges cannot be read, or a mode of rendering is asked for.
    """

    def __init__(self, task: str | Task, num_envs: int = 1, *, render_mode: None = None, **options: Any) -> None:
        _refuse_rendering(render_mode)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.env = _make_env(task, num_envs, self.np_random, EnvOptions(**options))
        self.metadata = _metadata(self.env) | {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = observation_space(self.env.contract)
        self.single_action_space = action_space(self.env.contract)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        """Start a new episode everywhere; with a seed, every later draw of this object follows from it.

        Raises:
            InputError: There are options; none is known.
        """
        super().reset(seed=seed)
        _refuse(options)
        return self.env.reset(seed).copy(), {}

    def step(self, actions: Floats) -> tuple[Floats, Array, Flags, Flags, dict[str, Any]]:
        """Apply actions, shape (N, A), for one control period."""
        result = self.env.step(actions)
        done = result.terminated | result.truncated
        info = self._terms(result.reward_terms, ~done)
        if len(result.done_ids):
            final = np.full(self.num_envs, None, dtype=object)
            for env_id, observation in zip(result.done_ids, result.final_observation, strict=True):
                final[env_id] = observation
            final_info = self._terms(result.reward_terms, done)
            info |= {"final_obs": final, "_final_obs": done, "final_info": final_info, "_final_info": done.copy()}
        return (
            result.observation.copy(),
            result.reward.copy(),
            result.terminated.copy(),
            result.truncated.copy(),
            info,
        )

    def _terms(self, terms: Array, present: Flags) -> dict[str, Any]:
        """Return the terms of the reward of the environments that are `present`, shape (N,), as Gymnasium does."""
        info: dict[str, Any] = {}
        if not present.any():
            return info
        for name, values in zip(self.env.reward_names, terms, strict=True):
            info[f"reward_{name}"] = np.where(present, values, 0.0)
            info[f"_reward_{name}"] = present.copy()
        return info


class Sim2RealEnv(gymnasium.Env[Floats, Floats]):
    """One environment of a task; for many at once, `Sim2RealVectorEnv` is far faster.

    Args:
        task: The task, or its name (`sim2real tasks`).
        render_mode: None, nothing else; `sim2real play` shows a task.
        options: Fields of `EnvOptions`.

    Raises:
        InputError: There is no such task, its ranges cannot be read, or a mode of rendering is asked for.
    """

    def __init__(self, task: str | Task, *, render_mode: None = None, **options: Any) -> None:
        _refuse_rendering(render_mode)
        self.render_mode = render_mode
        self.env = _make_env(task, 1, self.np_random, EnvOptions(**options))
        self.metadata = _metadata(self.env)
        self.observation_space = observation_space(self.env.contract)
        self.action_space = action_space(self.env.contract)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        """Start a new episode; with a seed, every later draw of this object follows from it.

        Raises:
            InputError: There are options; none is known.
        """
        super().reset(seed=seed)
        _refuse(options)
        return self.env.reset(seed)[0].copy(), {}

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Apply an action, shape (A,), for one control period."""
        result = self.env.step(action[None])
        observation = result.final_observation if len(result.done_ids) else result.observation
        info = {
            f"reward_{name}": float(values[0])
            for name, values in zip(self.env.reward_names, result.reward_terms, strict=True)
        }
        ends = bool(result.terminated[0]), bool(result.truncated[0])
        return observation[0].copy(), float(result.reward[0]), *ends, info


def observation_space(contract: PolicyContract) -> Box[np.float32]:
    """Return the bounds of one observation: those of clipped terms, of sines and cosines; others have none."""
    observation = contract.observation
    blocks: list[tuple[tuple[int, int], Array, Array]] = []
    for index, term in enumerate(observation.terms):
        reach = np.abs(term.scale) if term.function != "identity" else np.full(len(term.scale), np.inf)
        low, high = term.clip or (-np.inf, np.inf)
        lowest, highest = np.clip(-reach, low, high), np.clip(reach, low, high)
        if term.history_length > 1 and observation.startup_fill == "zero":
            # Before the first frame the history is 0, also of a term that is clipped to other values.
            lowest, highest = np.minimum(lowest, 0.0), np.maximum(highest, 0.0)
        for position in range(term.history_length):
            place = (position, index) if observation.layout == "frame_major" else (index, position)
            blocks.append((place, lowest, highest))
    blocks.sort(key=lambda block: block[0])
    lows, highs = (np.concatenate([block[side] for block in blocks]).astype(np.float32) for side in (1, 2))
    return Box(lows, highs, dtype=np.float32)


def action_space(contract: PolicyContract) -> Box[np.float32]:
    """Return the bounds to which the contract clips an action; none where it does not."""
    low, high = contract.action.clip or (-np.inf, np.inf)
    return Box(low, high, (contract.model.action_size,), np.float32)


def gym_id(task: str) -> str:
    """Return the id of a task: ``pendulum-swingup`` is ``sim2real/PendulumSwingup-v0``."""
    words = task.replace("_", "-").split("-")
    return f"{NAMESPACE}/{''.join(word[:1].upper() + word[1:] for word in words)}-v0"


def register() -> None:
    """Register every task that is installed; done once more, only those that came in between."""
    for task in task_names():
        if gym_id(task) not in gymnasium.registry:
            gymnasium.register(
                id=gym_id(task),
                entry_point=f"{__name__}:{Sim2RealEnv.__name__}",
                vector_entry_point=f"{__name__}:{Sim2RealVectorEnv.__name__}",
                kwargs={"task": task},
            )


def _make_env(task: str | Task, num_envs: int, rng: np.random.Generator, options: EnvOptions) -> TaskEnv:
    task = get_task(task) if isinstance(task, str) else task
    given = options.randomization
    ranges = read_randomization(Path(given)) if isinstance(given, (str, Path)) else given
    ranges = None if options.nominal else with_own_ranges(ranges, task)
    if ranges is not None:
        check_robot(ranges, task.robot, task.scene)
    return TaskEnv(
        task,
        num_envs,
        seed=int(rng.integers(2**63)),
        randomization=ranges,
        noise=options.noise,
        engine=options.engine,
        num_threads=options.num_threads,
        episode_length=options.episode_length,
    )


def _metadata(env: TaskEnv) -> dict[str, Any]:
    return {"render_modes": [], "render_fps": 1.0 / env.control_period}


def _refuse_rendering(render_mode: object) -> None:
    if render_mode is not None:
        raise InputError(
            f"render_mode: expected None, got {render_mode!r}; environments draw nothing, `sim2real play` shows a task"
        )


def _refuse(options: dict[str, Any] | None) -> None:
    if options:
        raise InputError(f"reset: expected no options, got {', '.join(sorted(options))}")


register()
