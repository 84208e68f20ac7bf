"""The batched environment of a task: plant, observation, action, reward and reset on arrays of shape (N, …)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from sim2real.action import ActionMapper
from sim2real.arguments import EngineName
from sim2real.contract import PolicyContract
from sim2real.errors import InputError
from sim2real.observation import ObservationBuilder
from sim2real.randomization import RandomizationFile
from sim2real.sim.engines import make_sim
from sim2real.sim.plant import Plant
from sim2real.sim.ranges import Randomizer
from sim2real.tasks.base import Array, Motion, Task, unpublished
from sim2real.tasks.dump import Episode, StateRing, write_dump
from sim2real.tasks.env_checks import (
    MARK,
    as_action,
    check_generator,
    check_state,
    check_whole,
    mark_of,
    steps_of_episode,
)
from sim2real.tasks.motion import MotionState
from sim2real.tasks.schedule import Schedule
from sim2real.tasks.starts import put_down
from sim2real.tasks.vector import StepResult

__all__ = ["FASTEST", "TaskEnv"]

FASTEST: Final = 1e4
"""A generalised velocity [m/s, rad/s] that no robot reaches: beyond it a simulation has diverged."""
LARGEST: Final = 1e15
"""An action that no policy means: beyond it, as where it is no number, its simulation counts as diverged.

Squares of such actions, and of differences of them, fit into the float32 that policies compute in.
"""
_NOBODY: Final = np.zeros(0, np.intp)


class TaskEnv:
    """`num_envs` environments of one task; a `VectorEnv`.

    Args:
        task: The task.
        num_envs: Number of environments N.
        seed: Seeds every draw of this object: two of the same seed give the same numbers.
        randomization: Ranges from which each episode's physics is drawn; None: the robot's nominal parameters.
        noise: Whether measurements and commands have the task's errors and delays.
        engine: Which simulator.
        num_threads: Threads that step the simulation.
        episode_length: Time [s] after which an episode is cut off; None: the task's.
        stagger: Start the first episodes at random ages, so that they do not all end together.
        dump_folder: Where the last states of a diverged simulation go, for `sim2real replay`; None: nowhere.

    Raises:
        InputError: A number is out of its range, or the robot does not fit the task or the engine.

    Attributes:
        motion: The true motion, which rewards look at.
        diverged: How many simulations have become unstable, or were given an action that is no number, and were begun
            anew.
        levels: Level of the curriculum of each environment, shape (N,).
    """

    resumes_exactly: ClassVar[bool] = True

    def __init__(
        self,
        task: Task,
        num_envs: int,
        *,
        seed: int,
        randomization: RandomizationFile | None = None,
        noise: bool = True,
        engine: EngineName = "mujoco",
        num_threads: int = 1,
        episode_length: float | None = None,
        stagger: bool = False,
        dump_folder: Path | None = None,
    ) -> None:
        check_whole("num_envs", num_envs, 1)
        check_whole("seed", seed, 0)
        check_whole("num_threads", num_threads, 0)
        self.task = task
        self.num_envs = num_envs
        self.seed = seed
        self.engine: EngineName = engine
        self.contract: PolicyContract = task.contract(unpublished(task))
        self.control_period = self.contract.timing.control_period_ns * 1e-9
        length = task.episode_length if episode_length is None else episode_length
        self.episode_steps = steps_of_episode(length, self.control_period)
        sim = make_sim(
            self.contract, num_envs, robot=task.robot, engine=engine, scene=task.scene, num_threads=num_threads
        )
        self.plant = Plant(
            self.contract, sim, sensors=task.sensors if noise else None, delays=task.delays if noise else None
        )
        self.observer = ObservationBuilder(self.contract, num_envs)
        self.mapper = ActionMapper(self.contract, num_envs)
        self.motion_state = MotionState(self.contract, sim, self.observer.commands)
        self.motion = Motion(self.motion_state)
        self.reward_names = tuple(task.rewards)
        self._terms = [reward.term for reward in task.rewards.values()]
        self._weights = np.array([reward.weight for reward in task.rewards.values()])
        self._rng = np.random.default_rng(seed)
        self._randomizer = None if randomization is None else Randomizer(randomization, sim, self.plant)
        self._schedule = Schedule(task, self.control_period, num_envs)
        self.levels = np.zeros(num_envs, np.int64)
        self.episode_step = np.zeros(num_envs, np.int64)
        self.diverged = 0
        self._ring = None if dump_folder is None else StateRing(self.plant)
        self._dump_folder = dump_folder
        self._allocate()
        self.reset()
        if stagger:
            self.episode_step[:] = self._rng.integers(0, self.episode_steps, num_envs)

    def _allocate(self) -> None:
        """Make the arrays that every step writes into."""
        num_envs, observation = self.num_envs, self.observer.observation
        self.observation_size = observation.shape[1]
        self.action_size = self.contract.model.action_size
        self._critic = observation
        if self.task.critic:
            size = sum(term(self.motion).shape[1] for term in self.task.critic.values())
            self._critic = np.zeros((num_envs, self.observation_size + size), np.float32)
        self.critic_observation_size = self._critic.shape[1]
        self._term_sums = np.zeros(len(self._terms))
        self._steps_summed = 0
        self._result = StepResult(
            observation=observation,
            critic_observation=self._critic,
            reward=np.zeros(num_envs),
            terminated=np.zeros(num_envs, np.bool_),
            truncated=np.zeros(num_envs, np.bool_),
            done_ids=np.zeros(0, np.intp),
            final_observation=np.zeros((0, self.observation_size), np.float32),
            final_critic_observation=np.zeros((0, self.critic_observation_size), np.float32),
            reward_terms=np.zeros((len(self._terms), num_envs)),
        )

    @property
    def observation(self) -> npt.NDArray[np.float32]:
        """Newest observations, shape (N, O); live."""
        return self.observer.observation

    @property
    def critic_observation(self) -> npt.NDArray[np.float32]:
        """What the critic sees, shape (N, Oc); live."""
        return self._critic

    def reset(self, seed: int | None = None) -> npt.NDArray[np.float32]:
        """Start a new episode everywhere, from a new generator if a seed is given; return the first observations.

        Raises:
            InputError: The seed is no whole number from 0 on.
        """
        if seed is not None:
            check_whole("seed", seed, 0)
            self.seed = seed
            self._rng = np.random.default_rng(seed)
            self.levels[:] = 0
        self._start(np.arange(self.num_envs))
        return self.observation

    def step(self, action: npt.NDArray[np.float32]) -> StepResult:
        """Apply actions, shape (N, A), for one control period; ended episodes start anew.

        A row that holds what is not a number, or more than `LARGEST`, ends its own episode as diverged: with zero
        reward and zero final observations.

        Raises:
            InputError: The actions have another shape, or are no real floating point numbers.
        """
        action = as_action(action, self.motion_state.action.shape)
        result = self._result
        # What is huge or no number is in the row of a diverged simulation, which is begun anew below.
        with np.errstate(over="ignore", invalid="ignore"):
            diverged = self._simulate(action)
            self._judge(diverged)
            self._happen()
            self._observe(action)
        result.done_ids = np.flatnonzero(result.terminated | result.truncated)
        result.final_observation = self._finals(self.observation, diverged)
        result.final_critic_observation = self._finals(self._critic, diverged)
        if len(result.done_ids):
            self._climb(result.done_ids)
            self._start(result.done_ids)
        return result

    def _simulate(self, action: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
        """Move the robots for one control period; return which simulations have diverged."""
        self.motion_state.before_step(action)
        command = self.mapper.apply(action)
        if self._ring is not None:
            self._ring.append(command)
        self.plant.step(command, self._rng)
        self.motion.renew()
        self.motion_state.after_step(self.motion.feet_contact)
        qpos, qvel = self.plant.sim.qpos, self.plant.sim.qvel
        # Written so that what is not a number counts as diverged. All together are cheaper to look at than each.
        if (
            np.einsum("ij,ij->", qvel, qvel) < FASTEST**2
            and np.einsum("ij,ij->", qpos, qpos) < np.inf
            and np.einsum("ij,ij->", action, action) < LARGEST**2
        ):
            return _NOBODY
        moves = (np.abs(qvel).max(axis=1) < FASTEST) & np.isfinite(qpos).all(axis=1)
        return np.flatnonzero(~(moves & (np.abs(action).max(axis=1) < LARGEST)))

    def _judge(self, diverged: npt.NDArray[np.intp]) -> None:
        """Reward the step and see whether episodes end with it."""
        result, motion = self._result, self.motion
        for row, term, weight in zip(result.reward_terms, self._terms, self._weights, strict=True):
            np.multiply(term(motion), weight, out=row)
        result.terminated[:] = False
        for ends in self.task.terminations.values():
            result.terminated |= ends(motion)
        if len(diverged):
            result.terminated[diverged] = True
            result.reward_terms[:, diverged] = 0.0
            self._report(diverged)
        result.reward_terms.sum(axis=0, out=result.reward)
        self._term_sums += result.reward_terms.sum(axis=1)
        self._steps_summed += 1
        self.episode_step += 1
        np.greater_equal(self.episode_step, self.episode_steps, out=result.truncated)
        result.truncated &= ~result.terminated

    def _happen(self) -> None:
        """Let what is due happen: pushes, and new wishes of the operator."""
        sim = self.plant.sim
        for event, rows in self._schedule.due_events(self._rng):
            qpos, qvel = sim.qpos[rows], sim.qvel[rows]
            event.apply(self._rng, qpos, qvel)
            sim.qpos[rows], sim.qvel[rows] = qpos, qvel
            self.motion.renew()
            if self._ring is not None:
                self._ring.written(rows)
        self._schedule.renew_commands(self._rng, self.observer.commands)

    def _observe(self, action: npt.NDArray[np.float32]) -> None:
        self.plant.sense(self.observer.signals, self._rng)
        self.observer.last_action[:] = action
        self.observer.update()
        self._criticize(None)

    def _criticize(self, rows: npt.NDArray[np.intp] | None) -> None:
        """Write what the critic sees: the observation, and what only a simulation knows; of `rows`, or of all."""
        if not self.task.critic:
            return
        motion = self.motion if rows is None else Motion(self.motion_state, rows)
        observation = self.observation if rows is None else self.observation[rows]
        parts = (observation, *(term(motion) for term in self.task.critic.values()))
        if rows is None:
            np.concatenate(parts, axis=1, out=self._critic, casting="same_kind")
        else:
            self._critic[rows] = np.concatenate(parts, axis=1)

    def _finals(self, observation: npt.NDArray[np.float32], diverged: npt.NDArray[np.intp]) -> npt.NDArray[np.float32]:
        """Last observations of ended episodes; of a diverged one, zeros: nobody may learn from what is not a number."""
        finals = observation[self._result.done_ids]
        if len(diverged):
            finals[np.isin(self._result.done_ids, diverged)] = 0.0
        return finals

    def _climb(self, rows: npt.NDArray[np.intp]) -> None:
        """Move environments whose episode ended to their next level."""
        curriculum = self.task.curriculum
        if curriculum is None:
            return
        levels = np.maximum(self.levels[rows] + curriculum.change(Motion(self.motion_state, rows)), 0)
        anywhere = self._rng.integers(0, curriculum.levels, len(rows))
        self.levels[rows] = np.where(levels < curriculum.levels, levels, anywhere)

    def _start(self, rows: npt.NDArray[np.intp]) -> None:
        """Begin an episode in `rows`: physics, state, first measurement, first observation."""
        sim = self.plant.sim
        drawn: dict[str, Array] = {}
        if self._randomizer is not None:
            drawn = self._randomizer.draw(self._rng, rows)
        if self._ring is not None:
            self._ring.start(rows, drawn)
        sim.reset(rows)
        qpos, qvel = self.task.start(self._rng, len(rows))
        put_down(self.task, qpos, self._rng, self.levels[rows])
        sim.qpos[rows], sim.qvel[rows] = qpos, qvel
        self.episode_step[rows] = 0
        self._schedule.start(self._rng, rows, self.observer.commands)
        self.motion_state.start(rows)
        self.motion.renew()
        self.mapper.reset(self.motion.joint_pos, rows)
        self.plant.reset(self.mapper.command, rows, self._rng)
        # Forces on the feet are those under the first command, and not under the last one of the old episode.
        sim.refresh(rows)
        self.plant.sense(self.observer.signals, self._rng, rows)
        self.observer.last_action[rows] = 0.0
        self.observer.reset(rows)
        self._criticize(rows)

    def _report(self, rows: npt.NDArray[np.intp]) -> None:
        """Count diverged simulations, and keep what led there."""
        self.diverged += len(rows)
        if self._ring is None or self._dump_folder is None:
            return
        for row in rows.tolist():
            episode = Episode(env=row, step=int(self.episode_step[row]), seed=self.seed, engine=self.engine)
            write_dump(self._dump_folder, self._ring, self.task, episode)

    def term_means(self) -> dict[str, float]:
        """Return the mean of each term of the reward per control step since the last call, and other figures to log."""
        means = self._term_sums / max(self._steps_summed, 1)
        figures = {f"reward/{name}": value for name, value in zip(self.reward_names, means.tolist(), strict=True)}
        figures = {name: value / self.num_envs for name, value in figures.items()}
        if self.task.curriculum is not None:
            figures["curriculum/level"] = float(self.levels.mean())
        figures["diverged"] = float(self.diverged)
        self._term_sums[:] = 0.0
        self._steps_summed = 0
        return figures

    def close(self) -> None:
        """Do nothing: memory goes with the object."""

    def state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Return everything that later steps depend on: arrays by name, and the generator's state as plain data."""
        parts: dict[str, Mapping[str, npt.NDArray[Any]]] = {
            "plant": self.plant.snapshot(),
            "observer": self.observer.state(),
            "mapper": self.mapper.state(),
            "motion": self.motion_state.state(),
            "schedule": self._schedule.state(),
            "env": {
                "critic": self._critic.copy(),
                "levels": self.levels.copy(),
                "episode_step": self.episode_step.copy(),
                "diverged": np.array(self.diverged),
                "term_sums": self._term_sums.copy(),
                "steps_summed": np.array(self._steps_summed),
            },
        }
        arrays = {f"{part}/{name}": values for part, state in parts.items() for name, values in state.items()}
        arrays[MARK] = mark_of(self.task.name, self.task.robot.name, self.engine)
        return arrays, dict(self._rng.bit_generator.state)

    def load_state(self, arrays: Mapping[str, npt.NDArray[Any]], generator: Mapping[str, Any]) -> None:
        """Continue exactly from what `state` returned.

        Raises:
            InputError: It is the state of another task, engine or number of environments; nothing is changed.
        """
        before = self.state()
        try:
            check_state(before[0], arrays)
            check_generator(self._rng, generator)
            self._load(arrays, generator)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            self._load(*before)
            raise InputError(f"state: it is damaged ({type(error).__name__}: {error}); take another one") from error

    def _load(self, arrays: Mapping[str, npt.NDArray[Any]], generator: Mapping[str, Any]) -> None:
        names = ("plant", "observer", "mapper", "motion", "schedule", "env")
        parts: dict[str, dict[str, npt.NDArray[Any]]] = {name: {} for name in names}
        for name, values in arrays.items():
            part, _, key = name.partition("/")
            parts[part][key] = values
        self.plant.restore(parts["plant"])
        self.observer.load_state(parts["observer"])
        self.mapper.load_state(parts["mapper"])
        self.motion_state.load_state(parts["motion"])
        self._schedule.load_state(parts["schedule"])
        env = parts["env"]
        self._critic[:] = env["critic"]
        self.levels[:] = env["levels"]
        self.episode_step[:] = env["episode_step"]
        self.diverged = int(env["diverged"])
        self._term_sums[:] = env["term_sums"]
        self._steps_summed = int(env["steps_summed"])
        self.motion.renew()
        if self._ring is not None:
            self._ring.clear()
        self._rng.bit_generator.state = dict(generator)
