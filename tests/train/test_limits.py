from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from sim2real.errors import InputError
from sim2real_train.config import PlacementConfig, TrainConfig, check_config
from sim2real_train.distill import DistillConfig, TeacherRef
from sim2real_train.encoder import ConvConfig
from sim2real_train.limits import allowed_of, check_limits
from sim2real_train.models import ModelConfig
from sim2real_train.ppo import PpoConfig
from sim2real_train.sac import SacConfig
from tests.train.builders import small_config

PARTS = (
    PpoConfig(value_clip=0.2),
    SacConfig(),
    DistillConfig(teacher=TeacherRef(checkpoint="nowhere", weights_sha256="")),
    ModelConfig(encoder=ConvConfig(term="scan", grid=(2, 2))),
    PlacementConfig(),
    small_config(),
)


def numbers(part: msgspec.Struct) -> list[tuple[str, Any]]:
    """Every number of a part, and of what lies within it, with its name."""
    found: list[tuple[str, Any]] = []
    for name in part.__struct_fields__:
        value: Any = getattr(part, name)
        if isinstance(value, msgspec.Struct):
            found += [(f"{name}.{inner}", each) for inner, each in numbers(value)]
        elif type(value) in {int, float, tuple}:
            found.append((name, value))
    return found


def with_value(part: Any, name: str, value: Any) -> Any:
    field, _, rest = name.partition(".")
    return msgspec.structs.replace(part, **{field: with_value(getattr(part, field), rest, value) if rest else value})


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_no_number_may_be_just_anything(part: Any) -> None:
    check_limits(part)
    for name, value in numbers(part):
        for wrong in (math.nan, math.inf, -math.inf, -(10**12), 10**30):
            changed = with_value(part, name, (wrong, *value[1:]) if isinstance(value, tuple) else wrong)
            with pytest.raises(InputError, match=rf"^{name}: expected an? (number|integer) >") as error:
                check_limits(changed)
            assert "\n" not in str(error.value)


def test_what_is_allowed_is_said_in_words() -> None:
    config = PpoConfig()
    assert allowed_of(config, "clip") == "a number > 0 and <= 1e9"
    assert allowed_of(config, "epochs") == "an integer >= 1 and <= 1e9"
    assert allowed_of(config, "value_clip") == allowed_of(config, "clip")
    assert allowed_of(config, "symmetry") == "one of augment, loss, none"
    assert allowed_of(config, "normalize_values") == ""
    assert allowed_of(ModelConfig(), "hidden") == "1 or more, each an integer >= 1 and <= 65536"


@pytest.mark.parametrize(
    ("where", "told"),
    [
        (PlacementConfig(learners=2), "placement.learners: means nothing with placement.kind=colocated"),
        (PlacementConfig(max_staleness=2), "placement.max_staleness: means nothing"),
        (PlacementConfig(kind="overlapped", max_staleness=2), "placement.max_staleness: means nothing"),
        (PlacementConfig(kind="overlapped", inference="server"), "placement.inference: means nothing"),
    ],
)
def test_a_placement_has_no_settings_of_another(where: PlacementConfig, told: str) -> None:
    with pytest.raises(InputError, match=told):
        check_config(small_config(placement=where))
    check_config(small_config(placement=msgspec.structs.replace(where, kind="disaggregated")))


def test_a_configuration_is_as_valid_after_its_json() -> None:
    config = small_config()
    assert msgspec.json.decode(msgspec.json.encode(config), type=TrainConfig) == config
    wrong = small_config(algorithm=PpoConfig(epochs=0))
    with pytest.raises(msgspec.ValidationError, match="Expected `int` >= 1"):
        msgspec.json.decode(msgspec.json.encode(wrong), type=TrainConfig)
