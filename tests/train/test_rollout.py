from __future__ import annotations

import torch

from sim2real_train.rollout import Rollout


def numbered(num_steps: int, num_envs: int) -> Rollout:
    """A rollout in which every value says where it came from: 100 × step + environment."""
    rollout = Rollout(num_steps, num_envs, 1, 1, 1)
    numbers = 100.0 * torch.arange(num_steps)[:, None] + torch.arange(num_envs)
    rollout.observations[:-1, :, 0] = numbers
    rollout.actions[..., 0] = numbers
    rollout.advantages = numbers.clone()
    rollout.targets = -numbers
    return rollout


def test_minibatches_hold_every_step_once_and_keep_rows_together() -> None:
    rollout = numbered(6, 4)
    batches = list(rollout.minibatches(3, torch.Generator().manual_seed(0)))
    assert [len(batch.advantages) for batch in batches] == [8, 8, 8]
    seen = torch.cat([batch.advantages for batch in batches])
    assert torch.equal(seen.sort().values, rollout.advantages.flatten())
    assert seen.tolist() != rollout.advantages.flatten().tolist()
    for batch in batches:
        assert torch.equal(batch.observations[:, 0], batch.advantages)
        assert torch.equal(batch.actions[:, 0], batch.advantages)
        assert torch.equal(batch.targets, -batch.advantages)


def test_with_memory_minibatches_are_whole_sequences_with_their_state() -> None:
    rollout = numbered(6, 4)
    rollout.begin((10.0 * torch.arange(4.0)[:, None],))
    rollout.observations[:-1, :, 0] = rollout.advantages
    batches = list(rollout.minibatches(2, torch.Generator().manual_seed(0)))
    columns = torch.cat([batch.advantages[0] % 100.0 for batch in batches])
    assert columns.sort().values.tolist() == [0.0, 1.0, 2.0, 3.0]
    for batch in batches:
        assert batch.advantages.shape == (6, 2)
        assert torch.equal(batch.advantages[:, 0] - batch.advantages[0, 0], 100.0 * torch.arange(6))
        assert torch.equal(batch.state[0][:, 0], 10.0 * (batch.advantages[0] % 100.0))


def test_a_rollout_begins_where_the_last_one_ended() -> None:
    rollout = Rollout(2, 3, 1, 1, 1)
    rollout.observations[-1, :, 0] = torch.tensor([1.0, 2.0, 3.0])
    rollout.episode_start[-1] = torch.tensor([True, False, True])
    rollout.begin(())
    assert rollout.observations[0, :, 0].tolist() == [1.0, 2.0, 3.0]
    assert rollout.episode_start[0].tolist() == [True, False, True]
