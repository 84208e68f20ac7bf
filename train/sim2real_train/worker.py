"""One worker: environments and a replica of the learner. It knows nothing of where it runs or who its peers are."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from sim2real.errors import InputError
from sim2real_train.config import TrainConfig
from sim2real_train.environments import evaluate_on, training_env
from sim2real_train.evaluate import Episodes
from sim2real_train.gae import gae
from sim2real_train.models import ActorCritic
from sim2real_train.moments import Moments
from sim2real_train.policy import TorchPolicy
from sim2real_train.ppo import Learner, Update, gaussian_log_prob
from sim2real_train.rollout import Rollout

__all__ = ["Collected", "Worker", "WorkerState"]


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker's rollout was like."""

    observations: Moments
    """Moments of what the critic sees, which begins with the observations."""
    mean_reward: float
    """Per control step."""
    episode_returns: list[float]
    """Sums of rewards of the episodes that ended in it."""
    terms: dict[str, float]
    """Mean of each term of the reward per control step, and other figures of the environments."""


class WorkerState(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs, beside weights and optimiser, to go on exactly from here."""

    arrays: dict[str, npt.NDArray[Any]]
    generator: dict[str, Any]
    """State of the environments' NumPy generator."""


class Worker:
    """Collects, scores, learns and publishes; the controller calls the four in turn on every worker.

    Args:
        config: The run.
        rank: Which of the workers this is, from 0.
        average: Replaces a flat gradient by its mean over all workers, in place.
        num_threads: Threads that step the simulation.
        dumps: Folder for what led to diverged simulations; None: it is only counted.
    """

    def __init__(
        self,
        config: TrainConfig,
        rank: int,
        average: Callable[[torch.Tensor], None],
        *,
        num_threads: int = 1,
        dumps: Path | None = None,
    ) -> None:
        # More threads do not speed up networks this small, and their sums would depend on the number of cores.
        torch.set_num_threads(1)
        self.config = config
        self.rank = rank
        self._num_threads = num_threads
        num_envs = config.num_envs // config.num_workers
        env_seed, noise_seed = np.random.SeedSequence(config.seed).spawn(config.num_workers)[rank].generate_state(2)
        folder = None if dumps is None else dumps / f"worker-{rank}"
        self.env = training_env(config, num_envs, seed=int(env_seed), num_threads=num_threads, dumps=folder)
        sizes = self.env.observation_size, self.env.critic_observation_size, self.env.action_size
        # The same weights on every worker: the only draws that use the run's seed itself.
        torch.manual_seed(config.seed)
        self.model = ActorCritic(config.model, *sizes)
        self.moments = Moments.none(self.env.critic_observation_size)
        self.learner = Learner(self.model, config.ppo, average)
        self.rollout = Rollout(config.ppo.num_steps, num_envs, *sizes)
        self.rollout.critic_observations[-1] = torch.from_numpy(self.env.critic_observation)
        self.rollout.episode_start[-1] = True
        self._generator = torch.Generator().manual_seed(int(noise_seed))
        self._state = self.model.actor.initial_state(num_envs)
        # Not a number until an environment's first whole episode begins: of the staggered ones only the end is seen.
        self._returns = np.full(num_envs, np.nan)

    @torch.no_grad()
    def collect(self) -> Collected:
        """Act for T control steps in every environment."""
        rollout, env, actor = self.rollout, self.env, self.model.actor
        rollout.begin(self._state)
        noise = torch.randn(rollout.actions.shape, generator=self._generator) * self.model.log_std.exp()
        returns: list[float] = []
        for step in range(len(rollout.actions)):
            mean, *state = actor(rollout.observations[step], *self._state)
            self._state = tuple(state)
            torch.add(mean, noise[step], out=rollout.actions[step])
            result = env.step(rollout.actions[step].numpy())
            rollout.means[step] = mean
            rollout.critic_observations[step + 1] = torch.from_numpy(result.critic_observation)
            rollout.rewards[step] = torch.from_numpy(result.reward)
            rollout.terminated[step] = torch.from_numpy(result.terminated)
            rollout.truncated[step] = torch.from_numpy(result.truncated)
            self._returns += result.reward
            if len(result.done_ids):
                returns += self._end_episodes(step, result.done_ids, result.final_critic_observation)
        rollout.episode_start[1:] = rollout.terminated | rollout.truncated
        return Collected(
            observations=Moments.of(rollout.critic_observations[:-1].numpy()),
            mean_reward=float(rollout.rewards.mean()),
            episode_returns=returns,
            terms=env.term_means(),
        )

    def _end_episodes(
        self, step: int, env_ids: npt.NDArray[np.intp], final_observation: npt.NDArray[np.float32]
    ) -> list[float]:
        """Reset the memory of environments whose episode ended; return the returns of those seen from their start."""
        ids = torch.from_numpy(env_ids)
        self.rollout.final_observations.append((step, ids, torch.from_numpy(final_observation)))
        for tensor in self._state:
            tensor[ids] = 0.0
        returns = self._returns[env_ids]
        self._returns[env_ids] = 0.0
        return returns[~np.isnan(returns)].tolist()

    @torch.no_grad()
    def score(self) -> Moments:
        """Compute advantages and value targets; return the moments of the advantages."""
        rollout, ppo = self.rollout, self.config.ppo
        values = self.model.value(rollout.critic_observations)
        next_values = values[1:].clone()
        for step, env_ids, final_observation in rollout.final_observations:
            next_values[step, env_ids] = self.model.value(final_observation)
        # Scaled by 1 − γ, a return is an average of rewards: of their order of magnitude, whatever the horizon.
        rollout.advantages, rollout.targets = gae(
            rollout.rewards * (1.0 - ppo.discount),
            values[:-1],
            next_values,
            rollout.terminated,
            rollout.truncated,
            discount=ppo.discount,
            gae_lambda=ppo.gae_lambda,
        )
        rollout.log_probs = gaussian_log_prob(rollout.actions, rollout.means, self.model.log_std)
        return Moments.of(rollout.advantages[..., None].numpy())

    def learn(self, learning_rate: float, advantages: Moments) -> Update:
        """Learn from the rollout, its advantages normalised by the moments of all workers'."""
        mean, std = float(advantages.mean[0]), float(advantages.std[0])
        self.rollout.advantages = (self.rollout.advantages - mean) / (std + 1e-8)
        return self.learner.learn(self.rollout, learning_rate, self._generator)

    def publish(self, observations: Moments) -> None:
        """Take the observations of all workers into the normaliser, for the next rollout."""
        self.moments = self.moments.merged(observations)
        self.model.set_moments(self.moments)

    def evaluate(self, starts: int, seed: int) -> Episodes:
        """Run whole episodes of the deterministic policy on plants of the training ranges."""
        policy = TorchPolicy(self.model.actor)
        return evaluate_on(self.config, policy, starts=starts, seed=seed, num_threads=self._num_threads)

    def state(self) -> WorkerState:
        """Return what later iterations depend on, beside `learner_state`."""
        arrays, generator = self.env.state()
        arrays = {f"env/{name}": array for name, array in arrays.items()}
        arrays["generator"] = self._generator.get_state().numpy()
        arrays["returns"] = self._returns.copy()
        arrays["observation"] = self.rollout.critic_observations[-1].numpy().copy()
        arrays["episode_start"] = self.rollout.episode_start[-1].numpy().copy()
        for index, tensor in enumerate(self._state):
            arrays[f"state/{index}"] = tensor.numpy().copy()
        return WorkerState(arrays=arrays, generator=generator)

    def learner_state(self) -> dict[str, dict[str, npt.NDArray[Any]]]:
        """Return weights, and the optimiser's and the observations' moments."""
        learner = self.learner.state() | {
            "observations/count": np.array(self.moments.count),
            "observations/mean": self.moments.mean,
            "observations/squares": self.moments.squares,
        }
        weights = {name: tensor.numpy().copy() for name, tensor in self.model.state_dict().items()}
        return {"weights": weights, "learner": learner}

    def load_state(self, learner: Mapping[str, Mapping[str, npt.NDArray[Any]]], state: WorkerState) -> None:
        """Go on exactly from what `learner_state` and `state` returned.

        Raises:
            InputError: It is of another network, or of other environments.
        """
        try:
            self._load_state(learner, state)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"checkpoint: does not fit this run (worker {self.rank}: {type(error).__name__}); train anew"
            ) from error

    def _load_state(self, learner: Mapping[str, Mapping[str, npt.NDArray[Any]]], state: WorkerState) -> None:
        self.model.load_state_dict({name: torch.tensor(array) for name, array in learner["weights"].items()})
        self.learner.load_state(learner["learner"])
        moments = learner["learner"]
        self.moments = Moments(
            float(moments["observations/count"]),
            moments["observations/mean"].copy(),
            moments["observations/squares"].copy(),
        )
        arrays = state.arrays
        environment = {name[4:]: array for name, array in arrays.items() if name.startswith("env/")}
        self.env.load_state(environment, state.generator)
        self._generator.set_state(torch.tensor(arrays["generator"]))
        if not self.env.resumes_exactly:
            # It has begun new episodes, and so must memory and returns.
            self.rollout.critic_observations[-1] = torch.from_numpy(self.env.critic_observation)
            self._returns[:] = 0.0
            return
        self._returns[:] = arrays["returns"]
        self.rollout.critic_observations[-1] = torch.tensor(arrays["observation"])
        self.rollout.episode_start[-1] = torch.tensor(arrays["episode_start"])
        self._state = tuple(torch.tensor(arrays[f"state/{index}"]) for index in range(len(self._state)))

    def weights_sha256(self) -> str:
        """Return a digest of all weights, for comparison with other workers'."""
        digest = hashlib.sha256()
        for tensor in self.model.state_dict().values():
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()

    def process_id(self) -> int:
        """Return the id of the process that this worker lives in."""
        return os.getpid()
