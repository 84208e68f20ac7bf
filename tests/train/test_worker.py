from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sim2real_train.config import TrainConfig
from sim2real_train.models import ModelConfig
from sim2real_train.ppo import PpoConfig, PpoLearner
from sim2real_train.worker import Worker
from tests.train.builders import iterate, make_worker, small_config, task_env

MODELS = {
    "mlp": small_config().model,
    "gru": ModelConfig(hidden=(16,), recurrent="gru", recurrent_size=8),
    "lstm": ModelConfig(hidden=(16,), recurrent="lstm", recurrent_size=8, recurrent_critic=True),
}


def everything(worker: Worker) -> dict[str, npt.NDArray[Any]]:
    """All arrays that the next iterations depend on, and the generator's state."""
    state, learner = worker.state(), worker.learner_state()
    flat = {f"{part}/{name}": array for part, arrays in learner.items() for name, array in arrays.items()}
    return flat | state.arrays | {"generator/numpy": np.array(str(state.generator))}


def assert_same(first: Worker, second: Worker) -> None:
    left, right = everything(first), everything(second)
    assert left.keys() == right.keys()
    for name, array in left.items():
        np.testing.assert_array_equal(array, right[name], err_msg=name)


def run(worker: Worker, iterations: int) -> None:
    for _ in range(iterations):
        iterate(worker)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_going_on_from_a_state_equals_never_having_stopped(model: ModelConfig) -> None:
    """Case 23: weights, optimiser, normaliser, generators and environments are all in the state."""
    # 2 × 12 iterations of 32 steps: episodes of 400 steps end on both sides of the stop.
    config = small_config(model=model, num_envs=4, algorithm=PpoConfig(num_steps=32, epochs=1, minibatches=2))
    whole = make_worker(config)
    run(whole, 24)

    first = make_worker(config)
    run(first, 12)
    second = make_worker(config)
    run(second, 3)  # whatever a worker did before must not show through
    second.load_state(first.learner_state(), first.state())
    run(second, 12)
    assert_same(whole, second)


def test_same_seed_same_run_and_another_seed_another() -> None:
    """Case 27."""
    first, second, third = (make_worker(small_config(seed=seed)) for seed in (5, 5, 6))
    for worker in (first, second, third):
        run(worker, 3)
    assert_same(first, second)
    assert first.weights_sha256() == second.weights_sha256() != third.weights_sha256()


def test_a_loaded_state_owns_its_arrays() -> None:
    first, second = make_worker(small_config()), make_worker(small_config())
    run(first, 1)
    learner, state = first.learner_state(), first.state()
    for arrays in (*learner.values(), state.arrays):
        for array in arrays.values():
            array.flags.writeable = False
    second.load_state(learner, state)
    run(second, 2)
    run(first, 2)
    assert_same(first, second)


def test_workers_start_from_the_same_weights_in_different_environments() -> None:
    config = small_config(num_envs=8, num_workers=2)
    first, second = (Worker(config, rank, lambda gradient: None) for rank in range(2))
    assert first.weights_sha256() == second.weights_sha256()
    assert task_env(first).num_envs == task_env(second).num_envs == 4
    assert not np.array_equal(task_env(first).observation, task_env(second).observation)
    first.collect()
    second.collect()
    assert not torch.equal(first.collector.rollout.actions, second.collector.rollout.actions)


def test_the_last_observation_is_carried_into_the_next_rollout() -> None:
    worker = make_worker(small_config())
    worker.collect()
    last = worker.collector.rollout.observations[-1].clone()
    worker.collect()
    assert torch.equal(worker.collector.rollout.observations[0], last)


def ppo(worker: Worker) -> PpoLearner:
    assert isinstance(worker.algorithm, PpoLearner)
    return worker.algorithm


def time_limit_config() -> TrainConfig:
    """Rollouts as long as an episode, so that each environment meets its time limit in one."""
    return small_config(num_envs=2, algorithm=PpoConfig(num_steps=400, epochs=1, minibatches=1))


def test_a_time_limit_is_bootstrapped_with_the_value_of_the_last_observation() -> None:
    worker = make_worker(time_limit_config())
    task_env(worker).episode_step[:] = 0
    worker.collect()
    rollout = worker.collector.rollout
    assert rollout.truncated[-1].all()
    assert not rollout.truncated[:-1].any()
    steps, env_ids, final_observation = rollout.finals()
    assert (steps.tolist(), env_ids.tolist()) == ([399, 399], [0, 1])
    # The observation that follows in the rollout is the next episode's first, not the last of this one.
    assert not torch.equal(rollout.observations[-1], final_observation)
    worker.score()
    discount = ppo(worker).config.discount
    with torch.no_grad():
        following = ppo(worker).actor_critic.value(final_observation)
    expected = (1.0 - discount) * rollout.rewards[-1] + discount * following
    samples = ppo(worker).samples
    assert samples is not None
    torch.testing.assert_close(samples.targets[-1], expected)


def test_returns_are_those_of_whole_episodes() -> None:
    worker = make_worker(time_limit_config())
    task_env(worker).episode_step[:] = [0, 100]
    # Neither of the first episodes was seen from its start by this worker's bookkeeping.
    assert worker.collect().episode_returns == []
    task_env(worker).episode_step[:] = 0
    worker.collector._returns[:] = 0.0  # pyright: ignore[reportPrivateUsage] both begin an episode here
    collected = worker.collect()
    np.testing.assert_allclose(collected.episode_returns, worker.collector.rollout.rewards.sum(dim=0), rtol=1e-5)
