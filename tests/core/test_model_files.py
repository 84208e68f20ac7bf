"""A robot out of a file is known by what is in it: moved it is the same, changed it is another, wherever it is used."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.errors import InputError
from sim2real.robots import get_robot, is_file_name, same_robot
from sim2real.robots.model_files import content_of, name_of, split_name
from sim2real.tasks import get_task

ARM = """<mujoco model="arm">
  <compiler angle="radian" meshdir="shapes" {more}/>
  <include file="options.xml"/>
  <!-- the pole -->
  <asset><mesh name="pole" file="{mesh}"/></asset>
  <worldbody><body name="pole"><joint name="hinge" axis="0 1 0"/><geom type="mesh" mesh="pole"/></body></worldbody>
  <actuator><motor joint="hinge" ctrlrange="-2 2" ctrllimited="true"/></actuator>
</mujoco>
"""
TETRAHEDRON = "v 0 0 0\nv .1 0 0\nv 0 .1 0\nv 0 0 {height}\nf 1 3 2\nf 1 2 4\nf 2 3 4\nf 1 4 3\n"


def write_arm(folder: Path, *, more: str = "", mesh: str = "pole.obj") -> Path:
    (folder / "shapes").mkdir(parents=True)
    (folder / "arm.xml").write_text(ARM.format(more=more, mesh=mesh))
    (folder / "options.xml").write_text('<mujoco><option timestep="0.002"/></mujoco>')
    (folder / "shapes" / "pole.obj").write_text(TETRAHEDRON.format(height=0.1))
    return folder / "arm.xml"


def test_a_file_that_was_moved_is_the_same_robot(tmp_path: Path) -> None:
    before = get_robot(str(write_arm(tmp_path / "here")))
    shutil.move(tmp_path / "here", tmp_path / "there")
    after = get_robot(str(tmp_path / "there" / "arm.xml"))
    assert before.name != after.name
    assert same_robot(before.name, after.name)
    with pytest.raises(InputError, match=r"there is no .*here/arm\.xml any more; .* by --robot where it is now"):
        get_robot(before.name)


def test_a_name_leads_back_to_the_robot_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_arm(tmp_path / "robots")
    monkeypatch.chdir(tmp_path / "robots" / "shapes")
    names = {get_robot(given).name for given in (str(path), "../arm.xml", f"../shapes/../{path.name}")}
    assert len(names) == 1
    (name,) = names
    assert split_name(name)[0] == path
    assert get_robot(name) == get_robot(str(path))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("arm.xml", 'axis="0 1 0"', 'axis="1 0 0"'),
        ("options.xml", "0.002", "0.001"),
        ("shapes/pole.obj", "v .1 0 0", "v .2 0 0"),
    ],
)
def test_whatever_file_is_changed_it_is_another_robot(tmp_path: Path, file: str, old: str, new: str) -> None:
    path = write_arm(tmp_path / "arm")
    before = get_robot(str(path)).name
    changed = tmp_path / "arm" / file
    assert old in changed.read_text()
    changed.write_text(changed.read_text().replace(old, new))
    assert not same_robot(before, get_robot(str(path)).name)
    with pytest.raises(
        InputError, match=r"expected the content [0-9a-f]{16}, got [0-9a-f]{16}: .*changed since; restore"
    ):
        get_robot(before)


@given(st.sampled_from([" ", "\n", "\t\t", "<!-- a word -->", "<!-- <mesh file='no.obj'/> -->"]), st.data())
def test_comments_and_space_do_not_count(
    tmp_path_factory: pytest.TempPathFactory, filler: str, data: st.DataObject
) -> None:
    path = write_arm(tmp_path_factory.mktemp("arm") / "arm")
    before, text = content_of(path), path.read_text()
    between = [match.start() for match in re.finditer(r"\n", text)]
    place = data.draw(st.sampled_from(between))
    path.write_text(text[:place] + filler + text[place:])
    assert content_of(path) == before


@given(st.data())
def test_every_number_and_name_counts(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = write_arm(tmp_path_factory.mktemp("arm") / "arm")
    before, text = content_of(path), path.read_text()
    values = [(match.start(1), match.end(1)) for match in re.finditer(r'="([^"]+)"', text)]
    start, end = data.draw(st.sampled_from(values))
    index = data.draw(st.integers(start, end - 1))
    path.write_text(text[:index] + ("7" if text[index] != "7" else "8") + text[index + 1 :])
    assert content_or_refusal(path) != before


def content_or_refusal(path: Path) -> str | None:
    """What names another file names one that is not there."""
    try:
        return content_of(path)
    except InputError:
        return None


def test_a_compiler_that_strips_paths(tmp_path: Path) -> None:
    path = write_arm(tmp_path / "arm", more='strippath="true"', mesh="elsewhere/deep/pole.obj")
    before = get_robot(str(path)).name
    (tmp_path / "arm" / "shapes" / "pole.obj").write_text(TETRAHEDRON.format(height=0.3))
    assert not same_robot(before, get_robot(str(path)).name)


def test_what_is_included_counts_whatever_it_is_called_and_however_deep(tmp_path: Path) -> None:
    path = write_arm(tmp_path / "arm")
    (tmp_path / "arm" / "options.xml").write_text('<mujoco><include file="deep.mjcf"/></mujoco>')
    deep = tmp_path / "arm" / "deep.mjcf"
    deep.write_text('<mujoco><option timestep="0.002"/></mujoco>')
    before = content_of(path)
    deep.write_text('<mujoco><option timestep="0.001"/></mujoco>')
    assert content_of(path) != before


@pytest.mark.parametrize("place", ["pole.obj", "shapes/pole.obj"])
def test_of_two_files_of_one_name_both_count(tmp_path: Path, place: str) -> None:
    path = write_arm(tmp_path / "arm")
    (tmp_path / "arm" / "pole.obj").write_text(TETRAHEDRON.format(height=0.2))
    before = content_of(path)
    (tmp_path / "arm" / place).write_text(TETRAHEDRON.format(height=0.4))
    assert content_of(path) != before


def test_words_that_look_like_names_of_files_are_words(tmp_path: Path) -> None:
    path = write_arm(tmp_path / "arm")
    note = """<custom><text name="note" data="see file='motor.pdf'"/></custom>"""
    path.write_text(path.read_text().replace("</mujoco>", f"{note}</mujoco>"))
    before = get_robot(str(path)).name
    path.write_text(path.read_text().replace('name="pole"><joint', 'name="pole"><site name="&lt;!--"/><joint'))
    changed = get_robot(str(path)).name
    assert not same_robot(before, changed)
    path.write_text(
        path.read_text().replace('axis="0 1 0"', 'axis="1 0 0"').replace("</body>", '<site name="--&gt;"/></body>')
    )
    assert not same_robot(changed, get_robot(str(path)).name)


def test_what_is_named_and_not_there_is_refused(tmp_path: Path) -> None:
    path = write_arm(tmp_path / "arm")
    (tmp_path / "arm" / "shapes" / "pole.obj").unlink()
    with pytest.raises(InputError, match=r"robot '.*arm\.xml': pole\.obj, which arm\.xml names, is not beside it"):
        content_of(path)
    with pytest.raises(InputError, match=r"robot '.*none\.xml': none\.xml cannot be read \(No such file"):
        name_of(tmp_path / "none.xml")


CONTENT, OTHER = "0123456789abcdef", "fedcba9876543210"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("go2", "go2", True),
        ("go2", "so101", False),
        ("go2", f"/a.xml#{CONTENT}", False),
        (f"/a.xml#{CONTENT}", f"/b/c.xml#{CONTENT}", True),
        (f"/a.xml#{CONTENT}", f"/a.xml#{OTHER}", False),
        (f"/a.xml#{CONTENT}", "/b/../a.xml", True),
        (f"/a.xml#{CONTENT}", "/b.xml", False),
        ("menagerie:a/b.xml", "menagerie:a/b.xml", True),
        ("menagerie:a/b.xml", "menagerie:a/../a/b.xml", False),
    ],
)
def test_which_names_are_of_one_robot(one: str, other: str, same: bool) -> None:
    assert same_robot(one, other) == same_robot(other, one) == same


def test_which_names_are_files() -> None:
    assert all(is_file_name(name) for name in ("a.xml", "/b/a.xml", f"a.xml#{CONTENT}", "a#b.xml", "a\nb.xml"))
    assert not any(is_file_name(name) for name in ("go2", "menagerie:a/b.xml", "a.xml#1", f"a#{CONTENT}", "a.urdf"))


def test_a_policy_finds_its_robot_where_it_is_said_to_be(tmp_path: Path) -> None:
    """Its task is for a robot of this content alone, wherever the file is."""
    (tmp_path / "here.xml").write_bytes(get_robot("pendulum").mjcf.read_bytes())
    trained_on = get_task("pendulum-swingup", str(tmp_path / "here.xml")).robot.name
    shutil.move(tmp_path / "here.xml", tmp_path / "there.xml")
    with pytest.raises(InputError, match="by --robot where it is now"):
        get_task("pendulum-swingup", trained_on)
    moved = str(tmp_path / "there.xml")
    assert same_robot(get_task("pendulum-swingup", trained_on, where=moved).robot.name, trained_on)
    (tmp_path / "there.xml").write_text((tmp_path / "there.xml").read_text().replace("0.6755", "0.7"))
    for robot in (moved, "pendulum"):
        with pytest.raises(InputError, match=r"--robot: expected the robot that the policy drives, '.*here\.xml#"):
            get_task("pendulum-swingup", trained_on, where=robot)
    with pytest.raises(InputError, match=r"the policy drives, 'pendulum', got '.*there\.xml#"):
        get_task("pendulum-swingup", where=moved)
