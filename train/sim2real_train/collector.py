"""Environments and what acts in them: fills one rollout after the other. It knows nothing of learning."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from sim2real.tasks import StepResult, VectorEnv
from sim2real_train.behaviour import Behaviour
from sim2real_train.chunks import Collected, WorkerState
from sim2real_train.config import TrainConfig
from sim2real_train.environments import training_env
from sim2real_train.moments import Moments
from sim2real_train.rollout import Rollout

__all__ = ["Collected", "Collector", "WorkerState"]


class _Group:
    """Environments that are stepped together, and their columns of the rollout."""

    def __init__(self, env: VectorEnv, columns: slice) -> None:
        self.env = env
        self.columns = columns
        self.result: Future[StepResult] | None = None


class Collector:
    """Acts in environments with a policy that explores.

    Args:
        config: The run.
        num_envs: Number of environments B.
        rank: Which of the run's collectors this is, from 0; each draws from streams of its own.
        incarnation: How many before it had this rank and died.
        groups: 1: all environments are stepped together. 2: halves take turns, so that one is simulated while the
            policy computes the other's actions.
        num_threads: Threads that step the simulation.
        dumps: Folder for what led to diverged simulations; None: it is only counted.

    Attributes:
        envs: The environments, by group.
        rollout: The newest rollout.
    """

    def __init__(
        self,
        config: TrainConfig,
        num_envs: int,
        *,
        rank: int,
        incarnation: int = 0,
        groups: int = 1,
        num_threads: int = 1,
        dumps: Path | None = None,
    ) -> None:
        key = (rank, incarnation) if incarnation else (rank,)
        env_seed, noise_seed = np.random.SeedSequence(config.seed, spawn_key=key).generate_state(2)
        seeds = [int(env_seed), *np.random.SeedSequence(int(env_seed)).generate_state(groups - 1).tolist()]
        ends = [num_envs * (group + 1) // groups for group in range(groups)]
        folder = None if dumps is None else dumps / f"worker-{rank}"
        self._groups = [
            _Group(
                training_env(config, end - start, seed=seed, num_threads=num_threads, dumps=folder), slice(start, end)
            )
            for start, end, seed in zip([0, *ends[:-1]], ends, seeds, strict=True)
        ]
        self.envs = [group.env for group in self._groups]
        first = self.envs[0]
        self.sizes: Final = (first.observation_size, first.critic_observation_size, first.action_size)
        self.rollout = Rollout(config.algorithm.num_steps, num_envs, *self.sizes)
        for group in self._groups:
            self.rollout.critic_observations[-1, group.columns] = torch.from_numpy(group.env.critic_observation)
        self.rollout.episode_start[-1] = True
        self.rollout.source = (rank, incarnation)
        self._generator = torch.Generator().manual_seed(int(noise_seed))
        self._state: tuple[torch.Tensor, ...] | None = None
        # Not a number until an environment's first whole episode begins: of the staggered ones only the end is seen.
        self._returns = np.full(num_envs, np.nan)
        self._executor = ThreadPoolExecutor(1) if groups > 1 else None
        self._simulation_ns = 0

    @torch.no_grad()
    def collect(self, behaviour: Behaviour, version: int = 0) -> Collected:
        """Act for T control steps in every environment; `version` says of which weights `behaviour` is."""
        began = time.perf_counter_ns()
        self._simulation_ns = 0
        rollout = self.rollout
        if self._state is None:
            self._state = behaviour.initial_state(rollout.actions.shape[1])
        rollout.begin(self._state)
        rollout.version = version
        rollout.log_std = behaviour.log_std().clone()
        noise = behaviour.noise(rollout.actions.shape, self._generator)
        returns: list[float] = []
        for step in range(len(rollout.actions)):
            for group in self._groups:
                returns += self._finish(step - 1, group)
                self._act(behaviour, step, group, noise)
        for group in self._groups:
            returns += self._finish(len(rollout.actions) - 1, group)
        torch.logical_or(rollout.terminated, rollout.truncated, out=rollout.episode_start[1:])
        return Collected(
            observations=Moments.of(rollout.critic_observations[:-1].numpy()),
            mean_reward=float(rollout.rewards.mean()),
            episode_returns=returns,
            terms=_mean([env.term_means() for env in self.envs]),
            simulation_seconds=self._simulation_ns * 1e-9,
            inference_seconds=(time.perf_counter_ns() - began - self._simulation_ns) * 1e-9,
        )

    def _act(self, behaviour: Behaviour, step: int, group: _Group, noise: torch.Tensor) -> None:
        """Let the policy act in a group, and let its environments begin the step."""
        assert self._state is not None
        rollout, columns = self.rollout, group.columns
        state = tuple(tensor[columns] for tensor in self._state)
        observations = rollout.critic_observations[step, columns, : behaviour.observation_size]
        acted = behaviour.act(observations, state, noise[step, columns])
        rollout.actions[step, columns] = acted.actions
        rollout.means[step, columns] = acted.means
        for tensor, following in zip(self._state, acted.state, strict=True):
            tensor[columns] = following
        action = rollout.actions[step, columns].numpy()
        if self._executor is not None:
            group.result = self._executor.submit(group.env.step, action)
            return
        group.result = Future()
        began = time.perf_counter_ns()
        group.result.set_result(group.env.step(action))
        self._simulation_ns += time.perf_counter_ns() - began

    def _finish(self, step: int, group: _Group) -> list[float]:
        """Wait until the environments of a group have made their step; return the returns of episodes that ended."""
        if group.result is None:
            return []
        began = time.perf_counter_ns()
        result = group.result.result()
        self._simulation_ns += time.perf_counter_ns() - began
        group.result = None
        rollout, columns = self.rollout, group.columns
        # As arrays: PyTorch takes ten times as long to look up an index.
        rollout.critic_observations.numpy()[step + 1, columns] = result.critic_observation
        rollout.rewards.numpy()[step, columns] = result.reward
        rollout.terminated.numpy()[step, columns] = result.terminated
        rollout.truncated.numpy()[step, columns] = result.truncated
        self._returns[columns] += result.reward
        if not len(result.done_ids):
            return []
        return self._end_episodes(step, result.done_ids + columns.start, result.final_critic_observation)

    def _end_episodes(
        self, step: int, env_ids: npt.NDArray[np.intp], final_observation: npt.NDArray[np.float32]
    ) -> list[float]:
        """Reset the memory of environments whose episode ended; return the returns of those seen from their start."""
        ids = torch.from_numpy(env_ids)
        self.rollout.final_observations.append((torch.full_like(ids, step), ids, torch.from_numpy(final_observation)))
        for tensor in self._state or ():
            tensor[ids] = 0.0
        returns = self._returns[env_ids]
        self._returns[env_ids] = 0.0
        return returns[~np.isnan(returns)].tolist()

    def state(self) -> WorkerState:
        """Return what later rollouts depend on, beside the policy's weights."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        generators: dict[str, Any] = {}
        for index, env in enumerate(self.envs):
            of_env, generators[str(index)] = env.state()
            arrays |= {f"env/{index}/{name}": array for name, array in of_env.items()}
        arrays["generator"] = self._generator.get_state().numpy()
        arrays["returns"] = self._returns.copy()
        arrays["observation"] = self.rollout.critic_observations[-1].numpy().copy()
        arrays["episode_start"] = self.rollout.episode_start[-1].numpy().copy()
        for index, tensor in enumerate(self._state or ()):
            arrays[f"state/{index}"] = tensor.numpy().copy()
        return WorkerState(arrays=arrays, generator=generators)

    def load_state(self, state: WorkerState) -> None:
        """Continue exactly from what `state` returned; foreign environments begin new episodes."""
        arrays = state.arrays
        for index, env in enumerate(self.envs):
            prefix = f"env/{index}/"
            of_env = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            env.load_state(of_env, state.generator[str(index)])
        self._generator.set_state(torch.tensor(arrays["generator"]))
        if not self.envs[0].resumes_exactly:
            self._begin_again()
            return
        self._returns[:] = arrays["returns"]
        self.rollout.critic_observations[-1] = torch.tensor(arrays["observation"])
        self.rollout.episode_start[-1] = torch.tensor(arrays["episode_start"])
        self._state = _state_in(arrays)

    def _begin_again(self) -> None:
        """Begin episodes everywhere: memory and returns are of none before."""
        for group in self._groups:
            self.rollout.critic_observations[-1, group.columns] = torch.from_numpy(group.env.critic_observation)
        self.rollout.episode_start[-1] = True
        self._state = None
        self._returns[:] = 0.0

    def close(self) -> None:
        """Let go of environments and threads."""
        for env in self.envs:
            env.close()
        if self._executor is not None:
            self._executor.shutdown()


def _state_in(arrays: Mapping[str, npt.NDArray[Any]]) -> tuple[torch.Tensor, ...] | None:
    count = sum(name.startswith("state/") for name in arrays)
    return tuple(torch.tensor(arrays[f"state/{index}"]) for index in range(count)) or None


def _mean(parts: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(part[name] for part in parts) / len(parts) for name in parts[0]}
