"""Weights of rewards and ends of episodes that a run changes: learned by, kept, and never judged by. About 10 s."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from sim2real.errors import InputError
from sim2real.tasks import TaskEnv, get_task
from sim2real_train.checks import check_run
from sim2real_train.config import TrainConfig, config_sha256
from sim2real_train.environments import evaluate_on, training_env
from sim2real_train.evaluate import Episodes
from sim2real_train.overrides import override
from sim2real_train.search_space import assignments_of, check_space, domain_of, parse_space
from tests.train.builders import TASK, small_config
from tests.train.test_train_command import shown

WALK = "go2-velocity-flat"


def env_of(config: TrainConfig) -> TaskEnv:
    env = training_env(config, 4, seed=0, num_threads=1)
    assert isinstance(env, TaskEnv)
    return env


class Tumbling:
    """Joints at random: the robot falls."""

    def reset(self, num_envs: int) -> None:
        self._rng = np.random.default_rng(0)

    def act(self, observation: Any) -> Any:
        return self._rng.normal(0.0, 3.0, (len(observation), 12)).astype(np.float32)


def judged(config: TrainConfig) -> Episodes:
    return evaluate_on(config, Tumbling(), starts=2, seed=0, num_threads=1)


def test_a_run_learns_by_its_weights() -> None:
    base = small_config(task=WALK)
    doubled = override(base, ["rewards.track_linear=2", "rewards.wobble=0"], "--set")
    envs = [env_of(config) for config in (base, doubled)]
    action = np.full((4, 12), 0.3, np.float32)
    for _ in range(5):
        plain, changed = (env.step(action).reward_terms for env in envs)
        row = dict(zip(envs[0].reward_names, zip(plain, changed, strict=True), strict=True))
        np.testing.assert_array_equal(2.0 * row["track_linear"][0], row["track_linear"][1])
        assert not row["wobble"][1].any()
        np.testing.assert_array_equal(*row["effort"])
    assert envs[0].reward_names == envs[1].reward_names


def test_what_is_switched_off_ends_nothing_in_training() -> None:
    off = small_config(task=WALK, terminations={"fallen": False})
    policy, env = Tumbling(), env_of(off)
    policy.reset(4)
    assert not any(env.step(policy.act(env.observation)).terminated.any() for _ in range(100))
    assert set(env_of(small_config(task=WALK, terminations={"fallen": True})).task.terminations) == {"fallen"}


def test_a_policy_is_judged_by_the_task_whatever_it_learned_by() -> None:
    """Success and falls are the task's; returns are in the units of the run's learning curve."""
    plain = judged(small_config(task=WALK))
    changed = judged(small_config(task=WALK, rewards={"track_linear": 3.0}, terminations={"fallen": False}))
    assert all(plain.ended_early)
    assert (changed.success, changed.ended_early) == (plain.success, plain.ended_early)
    assert changed.terms["track_linear"] == pytest.approx([3.0 * each for each in plain.terms["track_linear"]])


def test_they_are_kept_and_a_run_without_them_is_what_it_was() -> None:
    config = small_config(rewards={"upright": 2.0})
    assert msgspec.json.decode(msgspec.json.encode(config), type=TrainConfig) == config
    plain = msgspec.to_builtins(small_config())
    assert {"rewards", "terminations", "randomization_file"}.isdisjoint(plain)
    assert config_sha256(config) != config_sha256(small_config())


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("rewards.acton_rate=1", "rewards.acton_rate: go2-velocity-flat has no such term; did you mean action_rate?"),
        ("rewards.money=1", "rewards.money: go2-velocity-flat has no such term; there are track_linear, "),
        ("terminations.fell=false", "terminations.fell: go2-velocity-flat has no such term; did you mean fallen?"),
        ("rewards.steps=lots", "--set: rewards.steps: expected a number >= -1e9 and <= 1e9, got 'lots'"),
        ("rewards.steps=nan", "--set: rewards.steps: expected a number"),
        ("terminations.fallen=0", "--set: terminations.fallen: expected true or false, got 0"),
        ("rewards=1", "--set: rewards: expected rewards.NAME=VALUE, got 1"),
    ],
)
def test_what_the_task_has_not_is_told_with_near_names(assignment: str, told: str) -> None:
    with pytest.raises(InputError, match=told.replace("?", r"\?")):
        shown(WALK, "--set", assignment)


def test_runs_and_searches_check_them_too() -> None:
    with pytest.raises(InputError, match=f"rewards.speed: {TASK} has no such term; there are "):
        check_run(small_config(rewards={"speed": 1.0}))
    for field, value in (("rewards", {"a": 1.0}), ("terminations", {"a": False})):
        with pytest.raises(InputError, match=f"gym:Pendulum-v1: has its own {field}; leave out --set {field}.NAME"):
            check_run(small_config(task="gym:Pendulum-v1", **{field: value}))


def test_searches_draw_weights_and_ends_by_the_same_names() -> None:
    space = parse_space(["rewards.action_rate=-0.05..-0.01", "terminations.fallen=true|false"])
    values = check_space(small_config(task=WALK), space)
    assert values == {"rewards.action_rate": (-0.05, -0.01), "terminations.fallen": (True, False)}
    drawn = {axis.name: domain_of(axis, values[axis.name]).sample() for axis in space}
    assert -0.05 <= drawn["rewards.action_rate"] <= -0.01
    trial = override(small_config(task=WALK), assignments_of(drawn), "--set")
    assert trial.rewards == {"action_rate": drawn["rewards.action_rate"]}
    with pytest.raises(InputError, match=r"rewards\.acton_rate: .* did you mean action_rate\?"):
        check_space(small_config(task=WALK), parse_space(["rewards.acton_rate=0..1"]))


def test_show_lists_all_terms_of_the_task_with_their_weights() -> None:
    result, summary = shown(WALK, "--set", "rewards.action_rate=-0.5", "terminations.fallen=false")
    rows = {row.name: row for row in result.fields}
    task = get_task(WALK)
    assert {f"rewards.{name}" for name in task.rewards} <= set(rows)
    assert (rows["rewards.action_rate"].value, rows["rewards.steps"].value) == (-0.5, task.rewards["steps"].weight)
    assert rows["rewards.action_rate"].meaning.endswith(f"the task's own: {task.rewards['action_rate'].weight}.")
    assert rows["terminations.fallen"].value is False
    assert "rewards.action_rate" in summary
    assert result.config.rewards == {"action_rate": -0.5}
