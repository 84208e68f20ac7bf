from __future__ import annotations

import msgspec
import pytest

from sim2real.errors import InputError
from sim2real_train.overrides import describe, override
from sim2real_train.ppo import PpoConfig
from tests.train.builders import small_config


def test_every_field_is_described() -> None:
    """Each has a name that sets it, a value, and a sentence of what it means."""
    rows = describe(small_config())
    assert [row.name for row in rows if not row.meaning] == []
    assert {"algorithm.clip", "model.hidden", "num_envs", "seed"} <= {row.name for row in rows}


def test_every_field_can_be_set_to_what_it_is() -> None:
    config = small_config()
    for row in describe(config):
        assert override(config, [f"{row.name}={msgspec.json.encode(row.value).decode()}"], "--set") == config, row.name


def test_fields_are_set_by_json_or_by_a_plain_word() -> None:
    config = override(small_config(), ["algorithm.clip=0.1", "model.hidden=[8,4]", "model.activation=tanh"], "--set")
    assert isinstance(config.algorithm, PpoConfig)
    assert (config.algorithm.clip, config.model.hidden, config.model.activation) == (0.1, (8, 4), "tanh")


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("algorithm.clip", "expected NAME=VALUE"),
        ("algorithm.clap=0.1", "did you mean algorithm.clip"),
        ("algorithm.clip.x=1", "no field named 'algorithm.clip.x'"),
        ("algorithm.clip=much", "expected a number > 0 and <= 1e9, got 'much'"),
        ("algorithm.clip=-1", r"algorithm\.clip: expected a number > 0 and <= 1e9, got -1"),
        ("algorithm.epochs=0", r"algorithm\.epochs: expected an integer >= 1 and <= 1e9, got 0"),
        ("algorithm.gae_lambda=1.5", r"algorithm\.gae_lambda: expected a number >= 0 and <= 1"),
        ("algorithm.clip=true", "expected a number > 0 and <= 1e9, got True"),
        ("model.activation=sine", "expected one of elu, relu, silu, tanh, got 'sine'"),
        ("num_env=4", "did you mean num_envs"),
        ("reward.upright=1", r"no field named 'reward\.upright'; did you mean rewards\.upright\?"),
        ("termination.fallen=false", r"did you mean terminations\.fallen\?"),
        ("clip=0.1", r"no field named 'clip'; did you mean algorithm\.clip\?"),
        ("hiden=[8]", r"did you mean model\.hidden\?"),
        ("model.hidden=64,64", r"expected a list in brackets, e\.g\. model\.hidden=\[\d+(,\d+)*\] \(1 or more, each "),
        ("model.hidden=64", r"expected a list in brackets, .*, got 64; it is \["),
        ("model.hidden=[0]", r"model\.hidden: expected 1 or more, each an integer >= 1 .*, got \[0\]"),
        ("command_delay=0,0.01", r"expected a list in brackets, e\.g\. command_delay=\[[\d.]+,[\d.]+\], got '0,0.01'"),
        ("=4", "no field named ''"),
    ],
)
def test_what_cannot_be_set_is_told(assignment: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as error:
        override(small_config(), [assignment], "--set")
    assert "\n" not in str(error.value)


def test_a_field_is_set_once() -> None:
    with pytest.raises(InputError, match="seed is set twice"):
        override(small_config(), ["seed=1", "seed=2"], "--set")
