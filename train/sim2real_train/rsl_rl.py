"""Our tasks for rsl_rl's runners: `OnPolicyRunner(RslRlVecEnv(env), config)`."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict

from sim2real import extras
from sim2real.tasks import TaskEnv

try:
    from rsl_rl.env import VecEnv
except ModuleNotFoundError as error:
    raise extras.missing(error.name or "rsl_rl", "rsl-rl") from error

__all__ = ["RslRlVecEnv"]


class RslRlVecEnv(VecEnv):
    """A `TaskEnv` as rsl_rl sees it.

    Observations have two groups: ``policy``, shape (N, O), and ``critic``, shape (N, Oc), which begins with the former.
    An episode that ends starts anew within the step: the observation is the new episode's, and `dones` says so.

    Args:
        env: The environments; this object steps them, nobody else should.
        device: Where rsl_rl wants its tensors.

    Attributes:
        num_envs: N.
        num_actions: A.
        max_episode_length: Steps after which an episode is cut off.
        device: As given.
        cfg: Names of task and robot, and seed; what rsl_rl's loggers keep of the environment.
    """

    def __init__(self, env: TaskEnv, device: torch.device | str = "cpu") -> None:
        self.env = env
        self.num_envs = env.num_envs
        self.num_actions = env.action_size
        self.max_episode_length = env.episode_steps
        self.device = device
        self.cfg = {"task": env.task.name, "robot": env.task.robot.name, "seed": env.seed}

    @property
    def episode_length_buf(self) -> torch.Tensor:
        """Steps since each episode began, shape (N,), int64; live. A runner may write to it, to stagger episodes."""
        return torch.from_numpy(self.env.episode_step)

    @episode_length_buf.setter
    def episode_length_buf(self, value: torch.Tensor) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.env.episode_step[:] = value.cpu().numpy()

    def get_observations(self) -> TensorDict:
        """Return copies of the newest observations."""
        return self._observations()

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Apply actions, shape (N, A), for one control period.

        Returns:
            Observations; rewards, shape (N,), float32; whether the episode ended, shape (N,); and extras. Of these
            ``time_outs``, shape (N,), says where it was cut off without having failed, so that its value is
            bootstrapped, and ``log`` holds the mean of each weighted term of the reward.
        """
        result = self.env.step(actions.detach().to("cpu", torch.float32).numpy())
        rewards = torch.from_numpy(result.reward).to(self.device, torch.float32)
        dones = torch.from_numpy(result.terminated | result.truncated).to(self.device)
        means = result.reward_terms.mean(axis=1).tolist()
        extra = {
            "time_outs": torch.from_numpy(result.truncated.copy()).to(self.device),
            "log": {f"reward/{name}": mean for name, mean in zip(self.env.reward_names, means, strict=True)},
        }
        return self._observations(), rewards, dones, extra

    def _observations(self) -> TensorDict:
        arrays = {"policy": self.env.observation, "critic": self.env.critic_observation}
        groups = {name: torch.tensor(array, device=self.device) for name, array in arrays.items()}
        return TensorDict(groups, batch_size=[self.num_envs], device=self.device)
