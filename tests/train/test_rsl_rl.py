"""Our tasks under rsl_rl: its own runner learns on them, and sees time limits, episode ages and terms as it expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sim2real.tasks import TaskEnv, get_task
from sim2real_train.rsl_rl import RslRlVecEnv

TASK = get_task("pendulum-swingup")
NUM_ENVS = 8
SMALL: dict[str, Any] = {"class_name": "MLPModel", "hidden_dims": [8]}


def make(**options: Any) -> RslRlVecEnv:
    return RslRlVecEnv(TaskEnv(TASK, NUM_ENVS, seed=3, **options))


def config() -> dict[str, Any]:
    """The least that rsl_rl's runner asks for."""
    return {
        "num_steps_per_env": 6,
        "save_interval": 100,
        "obs_groups": {"actor": ["policy"], "critic": ["critic"]},
        "actor": SMALL | {"distribution_cfg": {"class_name": "GaussianDistribution"}},
        "critic": dict(SMALL),
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 1, "num_mini_batches": 2},
    }


@pytest.mark.parametrize("stagger", [False, True])
def test_its_runner_learns(stagger: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rsl_rl.runners import OnPolicyRunner
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    torch.manual_seed(0)
    env = make(episode_length=0.05)
    runner = OnPolicyRunner(env, config(), log_dir=str(tmp_path), device="cpu")
    # It would store the state of the repository that it is installed in.
    runner.logger.git_status_repos.clear()
    before = [parameter.clone() for parameter in runner.alg.actor.parameters()]
    runner.learn(2, init_at_random_ep_len=stagger)
    assert any(not torch.equal(a, b) for a, b in zip(before, runner.alg.actor.parameters(), strict=True))
    events: Any = EventAccumulator(str(tmp_path))
    events.Reload()
    for name in env.env.reward_names:
        assert len(events.Scalars(f"reward/{name}")) == 2
    assert "Mean episode length" in capsys.readouterr().out
    assert bool((env.episode_length_buf != env.episode_length_buf[0]).any()) == stagger


def test_time_limits_are_told_from_failures() -> None:
    """Every fifth step cuts episodes off; a rod that spins too fast has failed, even in that very step."""
    env = make(episode_length=0.05)
    spun = np.zeros(NUM_ENVS, np.bool_)
    for step in range(1, 11):
        if step in (3, 10):
            spun = np.arange(NUM_ENVS) < step // 3
            env.env.plant.sim.qvel[spun] = 20.0
        _, rewards, dones, extras = env.step(torch.zeros(NUM_ENVS, 1))
        assert (rewards.dtype, dones.dtype) == (torch.float32, torch.bool)
        failed = spun if step in (3, 10) else np.zeros(NUM_ENVS, np.bool_)
        # One environment began anew in step 3, so its time is up later.
        late = np.isin(np.arange(NUM_ENVS), [0])
        cut = {5: ~late, 8: late, 10: ~late & ~spun}.get(step, np.zeros(NUM_ENVS, np.bool_))
        np.testing.assert_array_equal(extras["time_outs"].numpy(), cut)
        np.testing.assert_array_equal(dones.numpy(), failed | cut)
        assert sum(extras["log"].values()) == pytest.approx(float(rewards.mean()), abs=1e-6)
        assert set(extras["log"]) == {f"reward/{name}" for name in env.env.reward_names}


def test_episode_ages_can_be_read_and_written() -> None:
    env = make()
    assert env.max_episode_length == round(TASK.episode_length / env.env.control_period)
    env.step(torch.zeros(NUM_ENVS, 1))
    assert env.episode_length_buf.tolist() == [1] * NUM_ENVS
    env.episode_length_buf = torch.arange(NUM_ENVS) + env.max_episode_length - NUM_ENVS
    env.episode_length_buf[0] += 1
    _, _, dones, extras = env.step(torch.zeros(NUM_ENVS, 1))
    assert torch.equal(dones, extras["time_outs"])
    assert torch.nonzero(dones).flatten().tolist() == [NUM_ENVS - 1]
    assert env.episode_length_buf.tolist()[:2] == [env.max_episode_length - NUM_ENVS + 2] * 2


def test_observations_survive_the_next_step() -> None:
    env = make()
    before = env.get_observations()
    kept = before.clone()
    after, *_ = env.step(torch.ones(NUM_ENVS, 1))
    for group, size in (("policy", env.env.observation_size), ("critic", env.env.critic_observation_size)):
        assert before[group].shape == (NUM_ENVS, size)
        assert torch.equal(before[group], kept[group])
        assert not torch.equal(before[group], after[group])
        assert torch.equal(after[group], env.get_observations()[group])
