from typing import Any

class VecEnv:
    num_envs: int
    def __init__(self, num_envs: int, observation_space: Any, action_space: Any) -> None: ...
