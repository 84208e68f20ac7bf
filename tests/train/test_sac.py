"""Soft actor-critic: its parts against their formulas, and whether it learns; about 30 seconds on two busy cores."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sim2real.errors import InputError
from sim2real_train.checkpoint import State, write_checkpoint
from sim2real_train.checks import check_run
from sim2real_train.config import TrainConfig
from sim2real_train.environments import verdict
from sim2real_train.export import export
from sim2real_train.models import ModelConfig
from sim2real_train.moments import Moments
from sim2real_train.presets import preset_of
from sim2real_train.replay_buffer import Transitions
from sim2real_train.rollout import Rollout
from sim2real_train.sac import SacConfig, SacLearner
from sim2real_train.sac_model import SacModel
from sim2real_train.worker import Worker
from tests.train.builders import TASK, iterate, keep, make_worker, metrics, small_config

SMALL = SacConfig(num_steps=16, updates=4, batch_size=32, buffer_size=512, learning_starts=128)
NONE = Moments.none(1)


def learner_of(
    config: SacConfig, average: Callable[[torch.Tensor], None] = keep, hidden: tuple[int, ...] = (16,)
) -> SacLearner:
    """A learner whose critics see 3 numbers, the actor 2 of them, and actions have 2 elements."""
    torch.manual_seed(0)
    model = SacModel(ModelConfig(hidden=hidden), 2, 3, 2, atoms=config.atoms, initial_alpha=config.initial_alpha)
    return SacLearner(model, config, average, observation_size=3, seed=0)


def transitions(count: int, seed: int = 0) -> Transitions:
    generator = torch.Generator().manual_seed(seed)
    return Transitions(
        observations=torch.randn(count, 3, generator=generator),
        actions=torch.rand(count, 2, generator=generator) * 2.0 - 1.0,
        returns=torch.randn(count, generator=generator),
        discounts=torch.where(torch.rand(count, generator=generator) < 0.3, 0.0, 0.9),
        following=torch.randn(count, 3, generator=generator),
    )


@pytest.mark.parametrize("pessimistic", [False, True])
def test_targets_are_the_bellman_equation_with_entropy(pessimistic: bool) -> None:
    config = SacConfig(atoms=1, pessimistic=pessimistic, initial_alpha=0.3)
    learner = learner_of(config)
    # Targets unlike the critics, so that a mix-up would show.
    for parameter in learner.sac_model.targets.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    batch = transitions(64)
    state = learner.generator.get_state()
    targets = learner.critic_targets(batch)
    learner.generator.set_state(state)
    with torch.no_grad():
        drawn = learner.draw(batch.following)
        first, second = learner.sac_model.targets(batch.following, drawn.actions)[..., 0]
    of_both = torch.minimum(first, second) if pessimistic else 0.5 * (first + second)
    expected = batch.returns + batch.discounts * (of_both - 0.3 * drawn.log_probs)
    torch.testing.assert_close(targets[:, 0], expected)
    ended = batch.discounts == 0.0
    assert torch.equal(targets[ended, 0], batch.returns[ended])


@pytest.mark.parametrize("pessimistic", [False, True])
def test_targets_of_a_distribution_have_the_mean_of_the_bellman_equation(pessimistic: bool) -> None:
    config = SacConfig(pessimistic=pessimistic, initial_alpha=0.05, atoms=31, value_range=(-40.0, 40.0))
    learner = learner_of(config)
    batch = transitions(64)
    state = learner.generator.get_state()
    targets = learner.critic_targets(batch)
    learner.generator.set_state(state)
    with torch.no_grad():
        drawn = learner.draw(batch.following)
        first, second = learner.values(learner.sac_model.targets(batch.following, drawn.actions))
    of_both = torch.minimum(first, second) if pessimistic else 0.5 * (first + second)
    # An end of the support has what would be beyond it: 1/31 of the probability, of returns up to 5 beyond.
    expected = batch.returns + batch.discounts * (of_both - 0.05 * drawn.log_probs)
    torch.testing.assert_close(targets.sum(-1), torch.ones(64))
    ended = batch.discounts == 0.0
    torch.testing.assert_close((targets @ learner.support)[ended], batch.returns[ended], rtol=1e-4, atol=1e-4)
    assert ((targets @ learner.support) - expected)[~ended].abs().max() < 0.5


def slope(loss: Callable[[], torch.Tensor], parameters: list[torch.Tensor]) -> tuple[float, float]:
    """The loss's derivative along a random direction: by its gradient, and by a central difference."""
    directions = [torch.randn_like(parameter) for parameter in parameters]
    gradients = torch.autograd.grad(loss(), parameters)
    by_gradient = sum(float((one * other).sum()) for one, other in zip(gradients, directions, strict=True))
    epsilon, ends = 1e-6, list[float]()
    with torch.no_grad():
        for sign in (1.0, -2.0):
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter += sign * epsilon * direction
            ends.append(float(loss()))
    return by_gradient, (ends[0] - ends[1]) / (2.0 * epsilon)


@pytest.mark.parametrize(("atoms", "pessimistic"), [(1, False), (1, True), (11, False), (11, True)])
def test_gradients_of_the_losses_equal_finite_differences(atoms: int, pessimistic: bool) -> None:
    learner = learner_of(SacConfig(atoms=atoms, pessimistic=pessimistic))
    model = learner.sac_model.double()
    learner.support = learner.support.double()
    # The first last layer is near zero and the first deviation the same everywhere: neither would show much.
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    batch = transitions(32)
    observations, actions = batch.observations.double(), batch.actions.double()
    targets = torch.softmax(torch.randn(32, atoms, dtype=torch.float64), dim=-1)
    state = learner.generator.get_state()

    def actor_loss() -> torch.Tensor:
        learner.generator.set_state(state)
        return learner.actor_loss(observations, learner.draw(observations))

    losses: list[tuple[Callable[[], torch.Tensor], list[torch.Tensor]]] = [
        (lambda: learner.critic_loss(model.critics(observations, actions), targets), list(model.critics.parameters())),
        (actor_loss, [*model.actor.parameters(), *model.log_std.parameters()]),
        (lambda: learner.temperature_loss(torch.tensor(0.4, dtype=torch.float64)), [model.log_alpha]),
    ]
    for loss, parameters in losses:
        by_gradient, by_difference = slope(loss, parameters)
        assert by_gradient != 0.0
        assert by_gradient == pytest.approx(by_difference, rel=1e-6, abs=1e-9)


def test_losses_flow_to_what_they_are_of() -> None:
    learner = learner_of(SMALL)
    learner.buffer.insert(transitions(256))
    before = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    figures = learner.learn(NONE)
    moved = {
        name.partition(".")[0] for name, tensor in learner.model.state_dict().items() if (tensor != before[name]).any()
    }
    assert moved == {"actor", "critics", "targets", "log_std", "log_alpha"}
    assert all(np.isfinite(value) for value in figures.values())
    assert {"critic_loss", "actor_loss", "alpha", "entropy", "q_mean", "buffer_fill"} <= figures.keys()


@pytest.mark.parametrize(("target", "rises"), [(-5.0, False), (0.69, True)])
def test_the_temperature_moves_the_entropy_to_its_target(target: float, rises: bool) -> None:
    """With a low target exploration gets cheap, with one near that of uniform actions, dear."""
    learner = learner_of(msgspec.structs.replace(SMALL, target_entropy=target, initial_alpha=0.1))
    learner.buffer.insert(transitions(256))
    alphas = [learner.learn(NONE)["alpha"] for _ in range(5)]
    assert alphas == sorted(alphas, reverse=not rises)
    assert (alphas[-1] > 0.1) == rises


@given(polyak=st.floats(0.0, 1.0), seed=st.integers(0, 2**32 - 1))
def test_targets_follow_by_the_polyak_average(polyak: float, seed: int) -> None:
    torch.manual_seed(seed)
    model = SacModel(ModelConfig(hidden=(4,)), 2, 3, 2)
    assert all(map(torch.equal, model.targets.parameters(), model.critics.parameters()))
    for parameter in model.critics.parameters():
        parameter.data += torch.randn_like(parameter)
    expected = [
        (1.0 - polyak) * target + polyak * critic.detach()
        for target, critic in zip(model.targets.parameters(), model.critics.parameters(), strict=True)
    ]
    model.follow(polyak)
    for target, value in zip(model.targets.parameters(), expected, strict=True):
        torch.testing.assert_close(target.detach(), value)
        assert not target.requires_grad


def test_what_acts_explores_around_what_is_exported() -> None:
    torch.manual_seed(0)
    model = SacModel(ModelConfig(hidden=(8,), initial_std=0.4), 2, 3, 2)
    learner = SacLearner(model, SMALL, keep, observation_size=3, seed=0)
    behaviour = learner.behaviour
    observations = torch.randn(5, 2)
    with torch.no_grad():
        noise = behaviour.noise(torch.Size((1, 5, 2)), torch.Generator().manual_seed(0))[0]
        acted = behaviour.act(observations, (), noise)
        (exported,) = behaviour.actor(observations)
    torch.testing.assert_close(acted.means, exported)
    torch.testing.assert_close(torch.atanh(acted.actions), torch.atanh(exported) + 0.4 * noise, rtol=1e-4, atol=1e-4)
    assert torch.isnan(behaviour.log_std()).tolist() == [True, True]
    weights, whole = behaviour.weights(), model.state_dict()
    assert {name.partition(".")[0] for name in weights} == {"actor", "log_std"}
    assert all(whole[name].data_ptr() == tensor.data_ptr() for name, tensor in weights.items())


def test_critics_see_what_the_actor_does_not() -> None:
    learner = learner_of(SMALL)
    batch = transitions(8)
    other = batch.observations.clone()
    other[:, 2] += 1.0
    state = learner.generator.get_state()
    first = learner.draw(batch.observations)
    learner.generator.set_state(state)
    assert torch.equal(first.actions, learner.draw(other).actions)
    critics = learner.sac_model.critics
    assert (critics(batch.observations, batch.actions) != critics(other, batch.actions)).all()
    privileged = SacModel(ModelConfig(privileged=True), 2, 3, 2)
    acting = SacLearner(privileged, SMALL, keep, observation_size=3, seed=0)
    assert acting.behaviour.observation_size == 3
    assert acting.draw(batch.observations).actions.shape == (8, 2)


def test_observations_in_the_buffer_are_raw_and_all_networks_normalise_them_alike() -> None:
    learner = learner_of(SMALL)
    rollout = Rollout(4, 2, 2, 3, 2)
    rollout.critic_observations.normal_(mean=7.0, std=3.0, generator=torch.Generator().manual_seed(0))
    moments = learner.score([rollout])
    assert moments.count == 0.0
    learner.publish(Moments.of(rollout.critic_observations[:-1].numpy()))
    assert torch.equal(learner.buffer.content().observations, rollout.critic_observations[:-1].flatten(0, 1))
    mean = torch.from_numpy(learner.moments.mean).float()
    model = learner.sac_model
    torch.testing.assert_close(model.actor.normalizer.mean, mean[:2])
    for critics in (model.critics, model.targets):
        torch.testing.assert_close(critics.normalizer.mean, mean)


def test_gradients_are_those_of_all_replicas_and_none_learns_alone() -> None:
    seen: list[int] = []

    def average(vector: torch.Tensor) -> None:
        """A peer whose gradients are opposite."""
        seen.append(len(vector))
        if len(vector) > 1:
            vector.zero_()

    learner = learner_of(SMALL, average)
    learner.buffer.insert(transitions(256))
    before = learner.sac_model.critics.state_dict()["networks.0.0.weight"].clone()
    assert learner.learn(NONE)["critic_grad_norm"] == 0.0
    assert torch.equal(learner.sac_model.critics.state_dict()["networks.0.0.weight"], before)
    model = learner.sac_model
    critics, policy = (sum(each.numel() for each in part.parameters()) for part in (model.critics, model.actor))
    policy += sum(each.numel() for each in model.log_std.parameters())
    # Whether all are ready, then by twos: critics, actor, temperature; critics.
    assert seen == [1, critics, policy, 1, critics, critics, policy, 1, critics]

    def not_ready(vector: torch.Tensor) -> None:
        """A peer whose buffer is not full enough."""
        vector *= 0.5

    waiting = learner_of(SMALL, not_ready)
    waiting.buffer.insert(transitions(256))
    assert waiting.learn(NONE) == {"buffer_fill": 0.5}


class Integrator:
    """x ← x + 0.3 a, reward −x²; cut off after 10 steps, started anew from [−1, 1]. Best: a = −x / 0.3, clipped."""

    def __init__(self, num_envs: int, num_steps: int) -> None:
        self.generator = torch.Generator().manual_seed(1)
        self.rollout = Rollout(num_steps, num_envs, 2, 2, 1)
        self.age = torch.randint(0, 10, (num_envs,), generator=self.generator)
        self.rollout.observations[-1] = self.starts(num_envs)

    def starts(self, count: int) -> torch.Tensor:
        """Positions, and a number that says nothing."""
        return torch.rand(count, 2, generator=self.generator) * 2.0 - 1.0

    @torch.no_grad()
    def collect(self, learner: SacLearner) -> Rollout:
        rollout = self.rollout
        rollout.begin(())
        noise = learner.behaviour.noise(rollout.actions.shape, self.generator)
        for step in range(len(rollout.actions)):
            seen = rollout.observations[step]
            rollout.actions[step] = learner.behaviour.act(seen, (), noise[step]).actions
            after = seen.clone()
            after[:, 0] += 0.3 * rollout.actions[step, :, 0]
            rollout.rewards[step] = -after[:, 0].square()
            self.age += 1
            rollout.truncated[step] = self.age >= 10
            (ended,) = torch.nonzero(rollout.truncated[step], as_tuple=True)
            if len(ended):
                rollout.final_observations.append((torch.full_like(ended, step), ended, after[ended]))
                after[ended] = self.starts(len(ended))
                self.age[ended] = 0
            rollout.observations[step + 1] = after
        return rollout


@pytest.mark.parametrize("atoms", [1, 41])
def test_learning_brings_an_integrator_to_rest(atoms: int) -> None:
    """Bar: after 5 steps, of which the best needs 3, within 0.1."""
    torch.manual_seed(0)
    config = SacConfig(
        num_steps=4,
        updates=8,
        batch_size=128,
        n_steps=2,
        discount=0.9,
        learning_rate=3e-3,
        learning_starts=256,
        initial_alpha=1e-3,
        target_entropy=-1.5,
        buffer_size=8192,
        atoms=atoms,
        value_range=(-1.0, 0.2),
    )
    model = SacModel(ModelConfig(hidden=(32,)), 2, 2, 1, atoms=atoms, initial_alpha=config.initial_alpha)
    learner = SacLearner(model, config, keep, observation_size=2, seed=0)
    task = Integrator(64, config.num_steps)
    for _ in range(60):
        learner.score([task.collect(learner)])
        learner.learn(NONE)
    state = torch.stack((torch.linspace(-0.9, 0.9, 50), torch.zeros(50)), dim=1)
    with torch.no_grad():
        for _ in range(5):
            state[:, :1] += 0.3 * learner.actor(state)[0]
    assert state[:, 0].abs().max() < 0.1


@pytest.mark.slow
def test_the_preset_swings_the_pendulum_up() -> None:
    """Bar: 95 % of 64 starts; about a minute."""
    preset = preset_of(TASK, "sac")
    worker = make_worker(small_config(seed=0, num_envs=preset.num_envs, model=preset.model, algorithm=preset.algorithm))
    for _ in range(preset.iterations):
        iterate(worker)
    assert verdict(worker.config, [worker.evaluate(64, 1)]).success_rate >= 0.95


def everything(worker: Worker) -> dict[str, npt.NDArray[Any]]:
    learner, state = worker.learner_state(), worker.state()
    return {
        f"{part}/{name}": array for part, arrays in learner.items() for name, array in arrays.items()
    } | state.arrays


def test_with_the_buffer_in_the_checkpoint_going_on_equals_never_having_stopped() -> None:
    config = small_config(num_envs=4, algorithm=msgspec.structs.replace(SMALL, checkpoint_buffer=True))
    whole, first, second = (make_worker(config) for _ in range(3))
    for _ in range(10):
        iterate(whole)
    for _ in range(5):
        iterate(first)
    iterate(second)  # whatever a worker did before must not show through
    second.load_state(first.learner_state(), first.state())
    for _ in range(5):
        iterate(second)
    expected, got = everything(whole), everything(second)
    assert expected.keys() == got.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(array, got[name], err_msg=name)


def test_without_it_the_buffer_is_filled_anew_before_anything_is_learned() -> None:
    config = small_config(num_envs=4, algorithm=SMALL)
    first, second = make_worker(config), make_worker(config)
    for worker in (first, second):
        for _ in range(3):
            iterate(worker)
    assert not [name for name in first.state().arrays if "buffer" in name]
    second.load_state(first.learner_state(), first.state())
    assert second.weights_sha256() == first.weights_sha256()
    iterate(second)  # 64 of 128 transitions
    assert second.weights_sha256() != first.weights_sha256()  # of the normaliser
    actor = dict(second.algorithm.actor.named_parameters())
    assert all(torch.equal(each, actor[name]) for name, each in first.algorithm.actor.named_parameters())
    iterate(second)
    assert not all(torch.equal(each, actor[name]) for name, each in first.algorithm.actor.named_parameters())


def test_what_is_exported_is_what_was_trained(tmp_path: Path) -> None:
    config = small_config(algorithm=SMALL)
    worker = make_worker(config)
    for _ in range(3):
        iterate(worker)
    state = worker.state()
    written = State(
        schema_version=2,
        toolkit_version="0",
        config=config,
        iteration=1,
        wall_seconds=1.0,
        metrics=(metrics(1),),
        generators=(state.generator,),
        members={},
    )
    write_checkpoint(tmp_path / "checkpoint", written, worker.learner_state() | {"worker-0": state.arrays})
    result = export(tmp_path / "checkpoint", tmp_path / "policy.s2r")
    assert result.passed, result.parity


def test_a_configuration_survives_its_json() -> None:
    config = small_config(algorithm=SMALL)
    assert msgspec.json.decode(msgspec.json.encode(config), type=TrainConfig) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": ModelConfig(recurrent="gru")}, "gives a memory nothing to learn from"),
        ({"model": ModelConfig(recurrent_critic=True)}, "gives a memory nothing to learn from"),
        ({"algorithm": SacConfig(polyak=0.0)}, r"algorithm\.polyak: expected a number > 0 and <= 1, got 0\.0"),
        ({"algorithm": SacConfig(target_entropy=math.nan)}, r"algorithm\.target_entropy: expected a number .* got nan"),
        ({"model": ModelConfig(initial_std=3.0)}, "initial_std: expected a number between 0.0067 and 2.72, got 3.0"),
        ({"algorithm": SacConfig(buffer_size=10)}, r"learning_starts: expected at most algorithm\.buffer_size \(10\)"),
        ({"algorithm": SacConfig(atoms=2, value_range=(1.0, 1.0))}, "value_range: expected low < high"),
    ],
)
def test_what_cannot_be_learned_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_run(small_config(**({"algorithm": SMALL} | changes)))
