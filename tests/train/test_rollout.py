from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sim2real_train.rollout import Rollout, Samples


def numbered(num_steps: int, num_envs: int, state: tuple[torch.Tensor, ...] = ()) -> Samples:
    """Samples in which every value says where it came from: 100 × step + environment."""
    numbers = 100.0 * torch.arange(num_steps)[:, None] + torch.arange(num_envs)
    return Samples(
        critic_observations=torch.stack((numbers, numbers + 0.5), dim=-1),
        observation_size=1,
        actions=numbers[..., None],
        means=numbers[..., None],
        log_probs=numbers,
        advantages=numbers,
        targets=-numbers,
        values=numbers,
        weights=numbers,
        episode_start=torch.zeros(num_steps, num_envs, dtype=torch.bool),
        state=state,
        critic_state=(),
        mirrored=torch.zeros(num_steps, num_envs, 0),
    )


def test_minibatches_hold_every_step_once_and_keep_rows_together() -> None:
    samples = numbered(6, 4)
    batches = list(samples.minibatches(3, torch.Generator().manual_seed(0)))
    assert [len(batch.advantages) for batch in batches] == [8, 8, 8]
    seen = torch.cat([batch.advantages for batch in batches])
    assert torch.equal(seen.sort().values, samples.advantages.flatten())
    assert seen.tolist() != samples.advantages.flatten().tolist()
    for batch in batches:
        assert torch.equal(batch.observations[:, 0], batch.advantages)
        assert torch.equal(batch.actions[:, 0], batch.advantages)
        assert torch.equal(batch.targets, -batch.advantages)


def test_with_memory_minibatches_are_whole_sequences_with_their_state() -> None:
    samples = numbered(6, 4, (10.0 * torch.arange(4.0)[:, None],))
    batches = list(samples.minibatches(2, torch.Generator().manual_seed(0)))
    columns = torch.cat([batch.advantages[0] % 100.0 for batch in batches])
    assert columns.sort().values.tolist() == [0.0, 1.0, 2.0, 3.0]
    for batch in batches:
        assert batch.advantages.shape == (6, 2)
        assert torch.equal(batch.advantages[:, 0] - batch.advantages[0, 0], 100.0 * torch.arange(6))
        assert torch.equal(batch.state[0][:, 0], 10.0 * (batch.advantages[0] % 100.0))


def test_joined_samples_lie_side_by_side_with_their_states() -> None:
    first, second = numbered(3, 2, (torch.ones(2, 1),)), numbered(3, 4, (torch.zeros(4, 1),))
    joined = Samples.joined([first, second])
    assert torch.equal(joined.targets, torch.cat([first.targets, second.targets], dim=1))
    assert joined.state[0][:, 0].tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_a_rollout_begins_where_the_last_one_ended() -> None:
    rollout = Rollout(2, 3, 1, 1, 1)
    rollout.observations[-1, :, 0] = torch.tensor([1.0, 2.0, 3.0])
    rollout.episode_start[-1] = torch.tensor([True, False, True])
    rollout.begin(())
    assert rollout.observations[0, :, 0].tolist() == [1.0, 2.0, 3.0]
    assert rollout.episode_start[0].tolist() == [True, False, True]


@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 5), st.integers(1, 4)),
    extra=st.integers(0, 3),
    memory=st.integers(0, 2),
    ends=st.lists(st.integers(1, 3), max_size=3),
)
def test_what_travels_arrives(seed: int, shape: tuple[int, int], extra: int, memory: int, ends: list[int]) -> None:
    generator = torch.Generator().manual_seed(seed)
    sent = Rollout(*shape, 2, 2 + extra, 3)
    sent.critic_observations.normal_(generator=generator)
    sent.actions.normal_(generator=generator)
    sent.terminated = sent.rewards > 0.5
    sent.state = tuple(torch.rand(shape[1], 4, generator=generator) for _ in range(memory))
    for count in ends:
        where = torch.randint(0, 2, (count,), generator=generator)
        sent.final_observations.append((where, where, torch.rand(count, 2 + extra, generator=generator)))
    sent.version = seed
    arrays = sent.arrays()
    for array in arrays.values():
        array.flags.writeable = False
    arrived = Rollout.of(arrays)
    assert arrived.version == seed
    assert torch.equal(arrived.observations, sent.observations)
    assert torch.equal(arrived.critic_observations, sent.critic_observations)
    assert torch.equal(arrived.actions, sent.actions)
    assert all(torch.equal(left, right) for left, right in zip(arrived.state, sent.state, strict=True))
    assert all(torch.equal(left, right) for left, right in zip(arrived.finals(), sent.finals(), strict=True))
    arrived.actions += 1.0
    assert not torch.equal(arrived.actions, sent.actions)
