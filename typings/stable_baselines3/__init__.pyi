"""What benchmarks/ppo_sb3.py uses of it; the library itself is installed by `make bench` alone."""

from typing import Any

from stable_baselines3.common.vec_env import VecEnv

class PPO:
    def __init__(self, policy: str, env: VecEnv, **kwargs: Any) -> None: ...
    def learn(self, total_timesteps: int, **kwargs: Any) -> PPO: ...
