"""The batched environment of a task: plant, observation, action, reward and reset on arrays of shape (N, …)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.action import ActionMapper
from sim2real.contract import PolicyContract
from sim2real.observation import ObservationBuilder
from sim2real.randomization import COMMAND_DELAY, RandomizationFile, sample
from sim2real.sim.plant import Plant, make_sim
from sim2real.tasks.base import Array, Motion, Task, unpublished

__all__ = ["StepResult", "TaskEnv"]


class StepResult(msgspec.Struct):
    """What one step gives. Arrays are live: copy what must survive the next step."""

    observation: npt.NDArray[np.float32]
    """Shape (N, O); of the new episode where one ended."""
    reward: Array
    """Shape (N,)."""
    terminated: npt.NDArray[np.bool_]
    """The episode ended by itself: no value follows. Shape (N,)."""
    truncated: npt.NDArray[np.bool_]
    """The episode was cut off by the time limit: the value of `final_observation` follows. Shape (N,)."""
    done_ids: npt.NDArray[np.intp]
    """Environments whose episode ended, shape (n,)."""
    final_observation: npt.NDArray[np.float32]
    """Last observation of each ended episode, shape (n, O), in the order of `done_ids`."""


class TaskEnv:
    """`num_envs` environments of one task.

    Args:
        task: The task.
        num_envs: Number of environments N.
        seed: Seeds every draw of this object: two of the same seed give the same numbers.
        randomization: Ranges from which each episode's physics is drawn; None: the robot's nominal parameters.
        noise: Whether measurements carry the task's noise.
        num_threads: Threads that step the simulation.
        episode_length: Time [s] after which an episode is cut off; None: the task's.
        stagger: Start the first episodes at random ages, so that they do not all end together.
    """

    def __init__(
        self,
        task: Task,
        num_envs: int,
        *,
        seed: int,
        randomization: RandomizationFile | None = None,
        noise: bool = True,
        num_threads: int = 1,
        episode_length: float | None = None,
        stagger: bool = False,
    ) -> None:
        self.task = task
        self.num_envs = num_envs
        self.contract: PolicyContract = task.contract(unpublished(task))
        self.control_period = self.contract.timing.control_period_ns * 1e-9
        self.episode_steps = round((episode_length or task.episode_length) / self.control_period)
        self.plant = Plant(self.contract, make_sim(self.contract, num_envs, num_threads=num_threads))
        self.observer = ObservationBuilder(self.contract, num_envs)
        self.mapper = ActionMapper(self.contract, num_envs)
        self._rng = np.random.default_rng(seed)
        self._randomization = randomization
        self._noise = _noise_scale(self.observer, task.measurement_noise) if noise else None
        self._layout = self.plant.layout
        self._exact = np.zeros_like(self.observer.signals)
        size = self.contract.model.action_size
        self._motion = Motion(
            joint_pos=self._exact[:, self._layout.slices["joint_pos"]],
            joint_vel=self._exact[:, self._layout.slices["joint_vel"]],
            action=np.zeros((num_envs, size), np.float32),
            previous_action=np.zeros((num_envs, size), np.float32),
        )
        self.episode_step = np.zeros(num_envs, np.int64)
        self._result = StepResult(
            observation=self.observer.observation,
            reward=np.zeros(num_envs),
            terminated=np.zeros(num_envs, np.bool_),
            truncated=np.zeros(num_envs, np.bool_),
            done_ids=np.zeros(0, np.intp),
            final_observation=np.zeros((0, self.contract.model.observation_size), np.float32),
        )
        self._everyone = np.arange(num_envs)
        self.reset()
        if stagger:
            self.episode_step[:] = self._rng.integers(0, self.episode_steps, num_envs)

    @property
    def joint_pos(self) -> Array:
        """Joint positions [rad] without noise, shape (N, J); live."""
        return self._motion.joint_pos

    @property
    def joint_vel(self) -> Array:
        """Joint velocities [rad/s] without noise, shape (N, J); live."""
        return self._motion.joint_vel

    def reset(self) -> npt.NDArray[np.float32]:
        """Start a new episode everywhere; return the first observations, shape (N, O)."""
        self._start(self._everyone)
        return self.observer.observation

    def step(self, action: npt.NDArray[np.float32]) -> StepResult:
        """Apply actions, shape (N, A), for one control period; ended episodes start anew."""
        result, motion = self._result, self._motion
        motion.previous_action[:] = motion.action
        motion.action[:] = action
        self.plant.step(self.mapper.apply(action))
        self._measure()
        self.observer.last_action[:] = action
        self.observer.update()
        self.task.reward(motion, result.reward)
        self.task.terminated(motion, result.terminated)
        self.episode_step += 1
        np.greater_equal(self.episode_step, self.episode_steps, out=result.truncated)
        result.truncated &= ~result.terminated
        result.done_ids = np.flatnonzero(result.terminated | result.truncated)
        result.final_observation = self.observer.observation[result.done_ids]
        if len(result.done_ids):
            self._start(result.done_ids)
        return result

    def _start(self, rows: npt.NDArray[np.intp]) -> None:
        """Begin an episode in `rows`: physics, state, first measurement, first observation."""
        sim = self.plant.sim
        if self._randomization is not None:
            for name, values in sample(self._randomization, self._rng, len(rows)).items():
                if name == COMMAND_DELAY:
                    self.plant.set_delay(values, rows)
                else:
                    sim.randomize(name, values, rows)
        sim.reset(rows)
        sim.qpos[rows], sim.qvel[rows] = self.task.start(self._rng, len(rows))
        self.episode_step[rows] = 0
        self._motion.action[rows] = 0.0
        self._motion.previous_action[rows] = 0.0
        self.observer.last_action[rows] = 0.0
        self._measure()
        self.mapper.reset(self._motion.joint_pos, rows)
        self.plant.reset(self.mapper.command, rows)
        self.observer.reset(rows)

    def _measure(self) -> None:
        self.plant.read(self._exact)
        if self._noise is None:
            self.observer.signals[:] = self._exact
            return
        noise = self._rng.standard_normal(self._exact.shape, np.float32)
        np.multiply(noise, self._noise, out=self.observer.signals)
        self.observer.signals += self._exact

    def state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Return everything that later steps depend on: arrays by name, and the generator's state as plain data."""
        arrays: dict[str, npt.NDArray[Any]] = {f"plant/{k}": v for k, v in self.plant.snapshot().items()}
        arrays |= {f"observer/{k}": v for k, v in self.observer.state().items()}
        arrays |= {f"mapper/{k}": v for k, v in self.mapper.state().items()}
        arrays |= {
            "env/exact": self._exact.copy(),
            "env/action": self._motion.action.copy(),
            "env/previous_action": self._motion.previous_action.copy(),
            "env/episode_step": self.episode_step.copy(),
        }
        return arrays, dict(self._rng.bit_generator.state)

    def load_state(self, arrays: Mapping[str, npt.NDArray[Any]], generator: Mapping[str, Any]) -> None:
        """Continue exactly from what `state` returned."""
        parts: dict[str, dict[str, npt.NDArray[Any]]] = {"plant": {}, "observer": {}, "mapper": {}, "env": {}}
        for name, values in arrays.items():
            part, _, key = name.partition("/")
            parts[part][key] = values
        self.plant.restore(parts["plant"])
        self.observer.load_state(parts["observer"])
        self.mapper.load_state(parts["mapper"])
        self._exact[:] = parts["env"]["exact"]
        self._motion.action[:] = parts["env"]["action"]
        self._motion.previous_action[:] = parts["env"]["previous_action"]
        self.episode_step[:] = parts["env"]["episode_step"]
        self._rng.bit_generator.state = dict(generator)


def _noise_scale(observer: ObservationBuilder, noise: Mapping[str, float]) -> Array:
    """Standard deviation of every element of the measurement vector, shape (S,)."""
    scale = np.zeros(observer.layout.size)
    for name, deviation in noise.items():
        scale[observer.layout.slices[name]] = deviation
    return scale
