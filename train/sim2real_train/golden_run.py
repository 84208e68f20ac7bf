"""The golden run: what a policy answered to recorded measurements, which every engine must reproduce."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sim2real.action import ActionMapper
from sim2real.contract import PolicyContract
from sim2real.golden import Golden
from sim2real.layout import command_shape
from sim2real.observation import ObservationBuilder
from sim2real.tasks import Task, TaskEnv
from sim2real.tasks.episodes import BatchPolicy

__all__ = ["GOLDEN_STEPS", "GoldenRecorder", "record_golden"]

GOLDEN_STEPS: Final = 600
"""Control steps of the golden run, in two episodes."""


class GoldenRecorder:
    """Shows measurements to a policy, step by step, and keeps what it answers.

    Observations and targets are made from the measurements as the robot's runtime makes them.

    Attributes:
        golden: The run; whole after as many steps as were announced.
    """

    def __init__(self, policy: BatchPolicy, contract: PolicyContract, steps: int) -> None:
        self._policy = policy
        self._builder, self._mapper = ObservationBuilder(contract, 1), ActionMapper(contract, 1)
        self._joint_pos = self._builder.signals[:, self._builder.layout.slices["joint_pos"]]
        self._step = 0
        self.golden = Golden(
            signals=np.zeros((steps, self._builder.layout.size)),
            commands=np.zeros((steps, len(contract.commands))),
            episode_start=np.zeros(steps, np.bool_),
            observations=np.zeros((steps, contract.model.observation_size), np.float32),
            actions=np.zeros((steps, contract.model.action_size), np.float32),
            targets=np.zeros((steps, *command_shape(contract))),
        )

    def record(
        self, signals: npt.NDArray[np.float64], commands: npt.NDArray[np.float64], *, starts: bool
    ) -> npt.NDArray[np.float32]:
        """Take one step and return the action, shape (1, A).

        Args:
            signals: Measurement vector, shape (S,) or (1, S).
            commands: Operator inputs, shape (C,) or (1, C).
            starts: Whether an episode begins: history, last action and recurrent state are reset before the step.
        """
        builder, golden, step = self._builder, self.golden, self._step
        builder.signals[:] = signals
        builder.commands[:] = commands
        builder.last_action[0] = 0.0 if starts else golden.actions[step - 1]
        if starts:
            self._mapper.reset(self._joint_pos)
            self._policy.reset(1)
        observation = builder.reset() if starts else builder.update()
        action = self._policy.act(observation)
        golden.signals[step] = builder.signals[0]
        golden.commands[step] = builder.commands[0]
        golden.episode_start[step] = starts
        golden.observations[step] = observation[0]
        golden.actions[step] = action[0]
        golden.targets[step] = self._mapper.apply(action)[0]
        self._step += 1
        return action


def record_golden(
    policy: BatchPolicy, task: Task, contract: PolicyContract, *, steps: int = GOLDEN_STEPS, seed: int = 0
) -> Golden:
    """Drive the task's nominal plant with `policy` and record what every engine must reproduce.

    A second episode begins half way, so that history, last action and recurrent state are reset once in it.
    """
    env = TaskEnv(task, 1, seed=seed)
    recorder = GoldenRecorder(policy, contract, steps)
    starts = True
    for step in range(steps):
        if step == steps // 2:
            env.reset()
            starts = True
        action = recorder.record(env.observer.signals, env.observer.commands, starts=starts)
        starts = len(env.step(action).done_ids) > 0
    return recorder.golden
