"""Parameters by place: what is found is what the name says, acts as if compiled in, and what is not found is told."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mujoco.batch import MODEL_FIELDS

from sim2real.errors import InputError
from sim2real.sim.model import load_model
from sim2real.sim.mujoco import MujocoSim
from sim2real.sim.places import field_values, find_place, nominal_value, places_of
from sim2real.sim.scene import FLAT
from tests.core.sim_robots import WALKER, robot, walker

# Field, the object's kind, its names, and the attribute by which MuJoCo's own named views give the same numbers.
NAMED = (
    ("body_mass", "body", ("trunk", "left_leg", "right_leg"), "mass"),
    ("body_ipos", "body", ("trunk", "left_leg", "right_leg"), "ipos"),
    ("body_inertia", "body", ("trunk", "left_leg"), "inertia"),
    ("jnt_axis", "jnt", ("left", "right", "base"), "axis"),
    ("dof_damping", "jnt", ("left", "right", "base"), "damping"),
    ("jnt_solref", "jnt", ("left", "right", "base"), "solref"),
    ("qpos_spring", "jnt", ("left", "right", "base"), "qpos_spring"),
    ("qpos0", "jnt", ("left", "right", "base"), "qpos0"),
    ("geom_friction", "geom", ("ground", "trunk", "left_foot"), "friction"),
    ("site_pos", "site", ("imu",), "pos"),
    ("actuator_gainprm", "actuator", ("left", "right"), "gainprm"),
    ("actuator_gear", "actuator", ("left", "right"), "gear"),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> mujoco.MjModel:
    return load_model(walker(tmp_path_factory.mktemp("walker")), FLAT)[1]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_place_is_the_number_that_its_name_says(model: mujoco.MjModel, data: st.DataObject) -> None:
    field, kind, names, attribute = data.draw(st.sampled_from(NAMED))
    name = data.draw(st.sampled_from(names))
    values: Any = getattr(getattr(model, kind)(name), attribute)
    # A value of one element has no index in a place: MuJoCo's view of it is an array all the same.
    shape = () if values.size == 1 else values.shape
    index = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
    place = find_place(model, f"{field}/{name}" + "".join(f"[{number}]" for number in index))
    assert place.field == field
    old = values[index or 0].copy()
    try:
        values[index or 0] = 123.25
        assert field_values(model, field)[place.index] == 123.25
        assert (field_values(model, field) == 123.25).sum() == 1
    finally:
        values[index or 0] = old


def test_options_are_places(model: mujoco.MjModel) -> None:
    assert nominal_value(model, "opt.gravity[2]") == -9.81
    assert nominal_value(model, "opt.impratio") == 1.0


@given(st.text(max_size=30) | st.from_regex(r"(geom_friction|opt\.gravity|body_mass)/?\w*(\[\d\])*", fullmatch=True))
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_place_or_is_refused_in_one_line(model: mujoco.MjModel, text: str) -> None:
    refusals: list[str] = []
    try:
        place = find_place(model, text)
    except InputError as refused:
        refusals.append(str(refused))
    else:
        assert field_values(model, place.field)[place.index].shape == ()
    assert not any("\n" in refusal for refusal in refusals)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_slip_of_the_pen_is_told_with_the_right_name(model: mujoco.MjModel, data: st.DataObject) -> None:
    """One letter is left out of a field or of a name, none of which is then another's."""
    field, _, names, _ = data.draw(st.sampled_from([each for each in NAMED if each[0] != "qpos0"]))
    name = data.draw(st.sampled_from(names))
    word = data.draw(st.sampled_from((field, name)))
    at = data.draw(st.integers(0, len(word) - 1))
    slip = word[:at] + word[at + 1 :]
    assume(slip not in MODEL_FIELDS)
    place = f"{slip}/{name}[0]" if word is field else f"{field}/{slip}[0]"
    with pytest.raises(InputError) as refused:
        find_place(model, place)
    assert repr(word) in str(refused.value) or word in str(refused.value).partition("there are ")[2]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("geom_frictoin/left_foot[0]", "no physical field 'geom_frictoin' in a model; did you mean 'geom_friction'"),
        ("geom_friction/left_fot[0]", "no geom named 'left_fot' in the model; did you mean 'left_foot'"),
        ("geom_friction/wing[0]", "no geom named 'wing' in the model; there are ground, trunk, left_foot, right_foot"),
        ("geom_friction/left_foot", r"give an index from \[0\] to \[2\]"),
        ("geom_friction/left_foot[3]", r"give an index from \[0\] to \[2\]"),
        ("body_mass/trunk[0]", "it is one number; leave the index out"),
        ("dof_damping/base", r"give an index from \[0\] to \[5\]"),
        ("body_parentid/trunk", "no physical field 'body_parentid'"),
        ("actuator_biasprm/left[1]", "cannot be set: it holds the gains"),
        ("actuator_forcerange/left[1]", "cannot be set: it holds the effort limits, which are the contract's"),
        ("opt.timestep", "cannot be set: the physics step is the same everywhere"),
        ("opt.gravty[2]", "did you mean 'opt.gravity'"),
        ("site_pos/imu[x]", "no site named"),
        ("geom_friction/", "expected field/object"),
    ],
)
def test_what_is_no_place_is_told(model: mujoco.MjModel, place: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_place(model, place)


def test_a_name_of_the_robot_may_stand_for_several_places(tmp_path: Path) -> None:
    sim = MujocoSim(walker(tmp_path), 3, scene=FLAT)
    sim.randomize("foot_friction", np.array([0.2, 0.4]), np.array([0, 2]))
    for foot in ("left_foot", "right_foot"):
        geom = sim.model.geom(foot).id
        assert sim.batch.expand("geom_friction")[:, geom, 0].tolist() == [0.2, 0.8, 0.4]
    assert [place.field for place in places_of(sim.robot, sim.model, "foot_friction")] == ["geom_friction"] * 2
    with pytest.raises(InputError, match=r"'foot_fricton' of robot tiny: unknown; .* did you mean 'foot_friction'"):
        sim.randomize("foot_fricton", np.ones(3))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_no_number_is_refused(tmp_path: Path, value: float) -> None:
    sim = MujocoSim(walker(tmp_path), 2)
    with pytest.raises(InputError, match=f"'payload': expected finite values, got {value}"):
        sim.randomize("payload", np.array([4.0, value]))


NO_PHYSICS = re.compile(
    r"(cam|light|mat|tex|skin)_.*|.*_rgba|body_(subtreemass|margin)|geom_(rbound|aabb)|.*_[a-zA-Z]+0"
)


@pytest.mark.parametrize(
    "field", [field for field in sorted(MODEL_FIELDS) if NO_PHYSICS.fullmatch(field) and field != "eq_active0"]
)
def test_what_mujoco_computes_or_only_shows_is_no_place(model: mujoco.MjModel, field: str) -> None:
    """The end of a name says so: …0, or a colour; so do a few whole names."""
    with pytest.raises(InputError, match=r"cannot be set: |no physical field"):
        find_place(model, f"{field}/left[0]")


def test_computed_fields_are_told_so_by_name(model: mujoco.MjModel) -> None:
    with pytest.raises(InputError, match="body_subtreemass cannot be set: MuJoCo computes it"):
        find_place(model, "body_subtreemass/trunk")
    with pytest.raises(InputError, match="geom_rgba cannot be set: it changes what is seen"):
        find_place(model, "geom_rgba/trunk[0]")


@pytest.mark.parametrize(
    "place",
    ["body_mass/trunk", "dof_armature/left", "geom_friction/left_foot[0]", "geom_size/left_foot[0]", "opt.tolerance"],
)
def test_a_value_below_zero_is_refused_where_there_is_none(tmp_path: Path, place: str) -> None:
    sim = MujocoSim(walker(tmp_path), 2)
    with pytest.raises(InputError, match=f"{re.escape(place)}': expected at least 0, got -0.5"):
        sim.randomize(place, np.array([4.0, -0.5]))
    assert sim.batch.expanded(place.partition("/")[0]) is None


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_ratio_that_is_not_positive_is_refused(tmp_path: Path, value: float) -> None:
    with pytest.raises(InputError, match=r"opt.impratio': expected a number > 0, got"):
        MujocoSim(walker(tmp_path), 2).randomize("opt.impratio", np.array([1.0, value]))


def attribute(kind: str, name: str, key: str, index: int | None = None) -> Callable[[Any, float], None]:
    """Return how to put a value into a specification."""

    def put(spec: Any, value: float) -> None:
        element = spec.option if kind == "option" else getattr(spec, kind)(name)
        if index is None:
            setattr(element, key, value)
        else:
            getattr(element, key)[index] = value

    return put


@pytest.mark.parametrize(
    ("place", "value", "put"),
    [
        ("body_mass/trunk", 6.0, attribute("body", "trunk", "mass")),
        ("body_ipos/trunk[0]", 0.05, attribute("body", "trunk", "ipos", 0)),
        ("body_inertia/left_leg[1]", 0.0022, attribute("body", "left_leg", "inertia", 1)),
        ("body_pos/left_leg[1]", 0.15, attribute("body", "left_leg", "pos", 1)),
        ("body_gravcomp/trunk", 0.5, attribute("body", "trunk", "gravcomp")),
        ("dof_armature/left", 0.02, attribute("joint", "left", "armature")),
        ("dof_damping/left", 0.5, attribute("joint", "left", "damping", 0)),
        ("dof_frictionloss/left", 0.4, attribute("joint", "left", "frictionloss")),
        ("jnt_stiffness/left", 3.0, attribute("joint", "left", "stiffness", 0)),
        ("qpos_spring/right", 0.2, attribute("joint", "right", "springref")),
        ("geom_friction/left_foot[0]", 0.3, attribute("geom", "left_foot", "friction", 0)),
        ("geom_size/left_foot[0]", 0.05, attribute("geom", "left_foot", "size", 0)),
        ("geom_pos/left_foot[0]", 0.05, attribute("geom", "left_foot", "pos", 0)),
        ("geom_margin/right_foot", 0.02, attribute("geom", "right_foot", "margin")),
        ("geom_solref/right_foot[0]", 0.05, attribute("geom", "right_foot", "solref", 0)),
        ("actuator_gainprm/left[0]", 0.7, attribute("actuator", "left", "gainprm", 0)),
        ("opt.gravity[0]", 1.5, attribute("option", "", "gravity", 0)),
        ("opt.wind[1]", 9.0, attribute("option", "", "wind", 1)),
        ("opt.viscosity", 0.1, attribute("option", "", "viscosity")),
    ],
)
def test_a_randomized_field_acts_as_if_compiled_in(
    tmp_path: Path, place: str, value: float, put: Callable[[Any, float], None]
) -> None:
    """200 steps of a falling, landing walker equal those of a model that was compiled with the value, bit for bit."""
    xml = WALKER.replace('joint name="right"', 'joint stiffness="2" name="right"').replace(
        "<option ", '<option density="1.2" '
    )
    made = robot(tmp_path, xml, "left", "right", base="floating")
    sim = MujocoSim(made, 3, scene=FLAT)
    sim.randomize(place, np.array([value]), np.array([1]))
    put(sim.spec, value)
    reference = sim.spec.compile()
    data = mujoco.MjData(reference)
    data.ctrl[:] = sim.ctrl[:] = 0.7
    mujoco.mj_step(reference, data, 200)
    sim.step(200)
    assert sim.nominal(place) != value
    assert sim.qpos[1].tolist() == data.qpos.tolist()
    assert sim.qpos[0].tolist() == sim.qpos[2].tolist() != sim.qpos[1].tolist()
