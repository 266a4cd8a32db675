from __future__ import annotations

import errno
import io
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from emcaps.data import prepared
from emcaps.data.prepared import (
    Examples,
    data_folder,
    imported_names,
    imported_path,
    load_prepared,
    prepared_path,
    save_prepared,
)
from own_images import bars

MakeExamples = Callable[..., Examples]
REMEDY = r"; delete it and make it again with `emcaps data make`$"


def test_data_folder_takes_argument_then_variable_then_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("EMCAPS_DATA", "/data")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert data_folder("given") == Path("given")
    assert data_folder("~/given") == Path("/home/someone/given")
    assert data_folder() == Path("/data")
    monkeypatch.setenv("EMCAPS_DATA", "~/data")
    assert data_folder() == Path("/home/someone/data")
    monkeypatch.setenv("EMCAPS_DATA", "")
    assert data_folder() == Path("/cache/emcaps")
    monkeypatch.delenv("EMCAPS_DATA")
    assert data_folder() == Path("/cache/emcaps")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_folder() == Path("/home/someone/.cache/emcaps")


def test_prepared_path_names_dataset_and_part() -> None:
    assert prepared_path("smallnorb", "train", "d") == Path("d/smallnorb48-train.npz")
    assert prepared_path("toys", "test", "d") == Path("d/toys48-test.npz")


@pytest.mark.parametrize(
    ("dataset", "part", "message"),
    [
        ("smalnorb", "train", r"unknown dataset 'smalnorb': did you mean 'smallnorb'"),
        ("toys", "training", r"unknown part 'training': did you mean 'train'"),
    ],
)
def test_prepared_path_of_unknown_names(dataset: str, part: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepared_path(dataset, part)


def test_load_prepared_gives_back_what_save_prepared_wrote(tmp_path: Path, make_examples: MakeExamples) -> None:
    examples = make_examples(7)
    save_prepared({tmp_path / "toys48-train.npz": examples})
    again = load_prepared(tmp_path / "toys48-train.npz")
    for name, array in examples.arrays.items():
        loaded = getattr(again, name)
        assert loaded.dtype == array.dtype, name
        np.testing.assert_array_equal(loaded, array, err_msg=name)
    assert [entry.name for entry in tmp_path.iterdir()] == ["toys48-train.npz"]


def test_save_prepared_writes_the_same_bytes_again(tmp_path: Path, make_examples: MakeExamples) -> None:
    save_prepared({tmp_path / "a.npz": make_examples(3)})
    save_prepared({tmp_path / "b.npz": make_examples(3)})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


@pytest.mark.parametrize("compressed", [False, True])
def test_load_prepared_of_a_plain_savez(tmp_path: Path, make_examples: MakeExamples, compressed: bool) -> None:
    examples = make_examples(4)
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "smallnorb48-train.npz", **examples._asdict())
    np.testing.assert_array_equal(load_prepared(tmp_path / "smallnorb48-train.npz").images, examples.images)


@pytest.mark.parametrize(("dataset", "command"), [("toys", "emcaps data make"), ("smallnorb", "emcaps data get")])
def test_load_prepared_of_a_missing_file_names_the_command(tmp_path: Path, dataset: str, command: str) -> None:
    path = prepared_path(dataset, "train", tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        load_prepared(path)
    assert str(caught.value) == f"{path} is not there: make it with `{command}`"


def test_load_prepared_of_a_damaged_smallnorb_names_its_command(tmp_path: Path) -> None:
    (tmp_path / "smallnorb48-test.npz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"smallnorb48-test\.npz is not a whole .npz.*`emcaps data get`$"):
        load_prepared(tmp_path / "smallnorb48-test.npz")


def damaged(examples: Examples, how: str) -> bytes:
    file = io.BytesIO()
    np.savez(file, **examples._asdict())
    content = file.getvalue()
    if how == "cut":
        return content[: len(content) // 2]
    if how == "flipped":  # one pixel: only the checksum can tell
        return content[:5000] + bytes([content[5000] ^ 1]) + content[5001:]
    if how == "npy":
        file = io.BytesIO()
        np.save(file, examples.images)
        return file.getvalue()
    if how == "other zip":
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("notes.txt", "hello")
        return file.getvalue()
    if how == "pickled":
        file = io.BytesIO()
        np.savez(file, **(examples._asdict() | {"category": np.array([{}, {}, {}], object)}))
        return file.getvalue()
    if how == "not an array":
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name in Examples._fields:
                archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00\xff\xff{")
        return file.getvalue()
    raise AssertionError(how)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("cut", r"is not a whole \.npz file, it is damaged or incomplete"),
        ("npy", r"is not a whole \.npz file"),
        ("flipped", r"is damaged: Bad CRC-32 for file 'images\.npy'"),
        (
            "other zip",
            r": it has no images, category, instance, elevation, azimuth, lighting, only notes\.txt",
        ),
        ("pickled", r": its array category holds Python objects"),
        ("not an array", r"is damaged: EOF"),
    ],
)
def test_load_prepared_refuses_damage(tmp_path: Path, make_examples: MakeExamples, how: str, message: str) -> None:
    path = tmp_path / "toys48-train.npz"
    path.write_bytes(damaged(make_examples(3), how))
    with pytest.raises(ValueError, match=message + ".*" + REMEDY) as caught:
        load_prepared(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


WRONG = [
    ("images", np.zeros((3, 2, 48, 48), np.int16), r"images must be uint8 of shape \(N, 2, 48, 48\), not int16 of"),
    ("images", np.zeros((3, 2, 96, 96), np.uint8), r"images must be uint8 .*, not uint8 of shape \(3, 2, 96, 96\)"),
    ("images", np.zeros(3, np.uint8), r"images must be uint8 .*, not uint8 of shape \(3,\)"),
    ("images", np.zeros((0, 2, 48, 48), np.uint8), r"at least one example, found none"),
    (
        "images",
        np.zeros((2, 2, 48, 48), np.uint8),
        r"category must be int16 of shape \(2,\), one for each image, not .*3",
    ),
    ("category", np.zeros(3, np.int64), r"category must be int16 of shape \(3,\), one for each image, not int64"),
    ("lighting", np.zeros((3, 1), np.int16), r"lighting must be int16 of shape \(3,\).*not int16 of shape \(3, 1\)"),
    ("category", np.array([0, 5, 1], np.int16), r"category must be 0 to 4, not 5"),
    ("instance", np.array([0, 9, 10], np.int16), r"instance must be 0 to 9, not 10"),
    ("elevation", np.array([0, -1, 8], np.int16), r"elevation must be 0 to 8, not -1"),
    ("azimuth", np.array([0, 3, 34], np.int16), r"azimuth must be 0 to 34 in steps of 2, not 3"),
    ("azimuth", np.array([0, 36, 34], np.int16), r"azimuth must be 0 to 34 in steps of 2, not 36"),
    ("lighting", np.array([6, 0, 0], np.int16), r"lighting must be 0 to 5, not 6"),
]


@pytest.mark.parametrize(("name", "array", "message"), WRONG)
def test_load_prepared_refuses_wrong_arrays(
    tmp_path: Path, make_examples: MakeExamples, name: str, array: np.ndarray, message: str
) -> None:
    path = tmp_path / "toys48-train.npz"
    np.savez(path, **make_examples(3)._replace(**{name: array})._asdict())
    with pytest.raises(ValueError, match=message + ".*" + REMEDY):
        load_prepared(path)


@pytest.mark.parametrize(("name", "array", "message"), WRONG)
def test_save_prepared_refuses_wrong_arrays(
    tmp_path: Path, make_examples: MakeExamples, name: str, array: np.ndarray, message: str
) -> None:
    with pytest.raises(ValueError, match=r"cannot write .*toys48-train\.npz: .*" + message):
        save_prepared({tmp_path / "toys48-train.npz": make_examples(3)._replace(**{name: array})})
    assert not list(tmp_path.iterdir())


def test_save_prepared_that_fails_leaves_the_old_file(
    tmp_path: Path, make_examples: MakeExamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "toys48-train.npz"
    save_prepared({path: make_examples(3)})
    before = path.read_bytes()

    def stop(file: io.BytesIO, **_: object) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(prepared.np, "savez", stop)
    with pytest.raises(KeyboardInterrupt):
        save_prepared({path: make_examples(5)})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_parts_are_written_together_or_not_at_all(
    tmp_path: Path, make_examples: MakeExamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old test toys beside new training toys would be another data set than either."""
    paths = [tmp_path / "toys48-train.npz", tmp_path / "toys48-test.npz"]
    save_prepared(dict.fromkeys(paths, make_examples(3)))
    before = [path.read_bytes() for path in paths]
    write, written = prepared.np.savez, []

    def fail_at_the_second(file: io.BytesIO, **arrays: np.ndarray) -> None:
        written.append(file)
        if len(written) > 1:
            raise OSError(errno.ENOSPC, "full")
        write(file, **arrays)

    monkeypatch.setattr(prepared.np, "savez", fail_at_the_second)
    with pytest.raises(OSError, match=r"no space left to write .*what was there before is untouched"):
        save_prepared(dict.fromkeys(paths, make_examples(5)))
    assert len(written) == 2
    assert [path.read_bytes() for path in paths] == before
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def plain(count: int = 6, **changes: object) -> Examples:
    images, labels = bars(count, 3, 20, 2)
    return Examples(images, labels.astype(np.int16), names=("ant", "bee", "cat"), fit="pad")._replace(**changes)


@pytest.mark.parametrize("instance", [None, np.arange(6, dtype=np.int32) // 2])
def test_a_set_without_viewpoints_is_given_back(tmp_path: Path, instance: np.ndarray | None) -> None:
    examples = plain(instance=instance)
    save_prepared({tmp_path / "mine-train.npz": examples})
    again = load_prepared(tmp_path / "mine-train.npz")
    assert (again.names, again.fit, again.has_viewpoints) == (("ant", "bee", "cat"), "pad", False)
    assert again.arrays.keys() == examples.arrays.keys()
    for name, array in examples.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)
    assert prepared.fingerprint(again) == prepared.fingerprint(examples)
    renamed = again._replace(names=("ant", "bee", "cow"))
    assert prepared.fingerprint(renamed) != prepared.fingerprint(examples)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": np.zeros((6, 5, 20, 20), np.uint8)}, r"with 1 to 4 channels, not uint8 of shape \(6, 5, 20, 20\)"),
        ({"images": np.zeros((6, 1, 20, 24), np.uint8)}, r"images must be uint8 of shape \(N, C, side, side\)"),
        ({"names": ("ant", "bee")}, r"category must be 0 to 1, not 2"),
        ({"names": ("ant",)}, r"there must be 2 to 1000 classes to tell apart, found 1"),
        ({"names": ("ant", "bee", "ant")}, r"every class needs a name of its own, and 'ant' is not"),
        ({"instance": np.zeros(6)}, r"instance must be int32 of shape \(6,\)"),
        ({"fit": "cut"}, r"unknown fit 'cut'"),
    ],
)
def test_a_set_without_viewpoints_that_is_wrong(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        save_prepared({tmp_path / "mine-train.npz": plain(**changes)})
    assert not list(tmp_path.iterdir())


def test_imported_sets_are_known_by_name(tmp_path: Path) -> None:
    assert imported_names(tmp_path) == []
    for name in ("mine", "mnist", "toys48"):
        (tmp_path / f"{name}-train.npz").touch()
    assert imported_names(tmp_path) == ["mine"]
    assert prepared_path("mine", "test", tmp_path) == tmp_path / "mine-test.npz"
    with pytest.raises(ValueError, match=r"unknown dataset 'mind': did you mean 'mine'\?.*`emcaps data import`"):
        prepared_path("mind", "test", tmp_path)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a b", "x.npz", "a" * 101])
def test_names_that_cannot_be_files_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a data set's name must be letters, digits"):
        imported_path(name, "train")


@pytest.mark.parametrize("name", ["toys", "smallnorb", "mnist", "toys48", "arrays"])
def test_names_of_built_in_sets_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is the name of a built-in data set"):
        imported_path(name, "train")


@pytest.mark.parametrize(("name", "command"), [("mnist", "emcaps data get mnist"), ("mine", "emcaps data import")])
def test_a_missing_file_of_another_set_names_its_command(tmp_path: Path, name: str, command: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"is not there: make it with `{command}`"):
        load_prepared(tmp_path / f"{name}-train.npz")


def parts_in(folder: Path, name: str = "toys48") -> list[Path]:
    return [folder / f"{name}-{part}.npz" for part in ("train", "test")]


@pytest.mark.parametrize("kind", ["toys48", "mine"])
def test_parts_that_were_not_made_together_are_refused(tmp_path: Path, make_examples: MakeExamples, kind: str) -> None:
    def make(count: int) -> Examples:
        return make_examples(count) if kind == "toys48" else plain(count)

    old, new = parts_in(tmp_path, kind), parts_in(tmp_path / "new", kind)
    save_prepared({old[0]: make(3), old[1]: make(4)})
    save_prepared({new[0]: make(5), new[1]: make(6)})
    for path in (*old, *new):
        load_prepared(path)
    shutil.copy(new[0], old[0])
    for path in old:
        with pytest.raises(ValueError, match=r"were not made together.*: make both again with `emcaps data ") as caught:
            load_prepared(path)
        assert all(str(one) in str(caught.value) for one in old)
    old[1].unlink()  # the other part may be missing or damaged: only what is read must be whole
    load_prepared(old[0])
    old[1].write_bytes(b"damaged")
    load_prepared(old[0])


def test_files_of_older_versions_load_as_before(tmp_path: Path, make_examples: MakeExamples) -> None:
    train, test = parts_in(tmp_path)
    np.savez(train, **make_examples(3).arrays)
    np.savez(test, **make_examples(4).arrays)
    assert len(load_prepared(train).images) == 3
    assert len(load_prepared(test).images) == 4
    save_prepared(dict(zip(parts_in(tmp_path / "new"), (make_examples(3), make_examples(5)), strict=True)))
    assert prepared.file_fingerprint(train) == prepared.file_fingerprint(tmp_path / "new" / train.name)
    shutil.copy(tmp_path / "new" / test.name, test)
    assert prepared.file_fingerprint(test) != prepared.file_fingerprint(train)
    with pytest.raises(ValueError, match="were not made together"):
        load_prepared(train)


KILLED_BETWEEN_THE_TWO = """
import os, sys
from pathlib import Path
import numpy as np
from emcaps.data.prepared import Examples, save_prepared
replace = os.replace
def replace_and_die(*paths):
    replace(*paths)
    os._exit(9)
os.replace = replace_and_die
examples = Examples(np.ones((4, 1, 8, 8), np.uint8), np.array([0, 1, 0, 1], np.int16), names=("a", "b"))
save_prepared({Path(path): examples for path in sys.argv[1:]})
"""


def test_a_kill_between_the_two_files_is_noticed_and_cleaned_up(tmp_path: Path) -> None:
    paths = parts_in(tmp_path, "mine")
    save_prepared(dict.fromkeys(paths, plain()))
    before = [path.read_bytes() for path in paths]
    assert subprocess.run([sys.executable, "-c", KILLED_BETWEEN_THE_TWO, *paths], check=False).returncode == 9
    assert sum(path.read_bytes() != old for path, old in zip(paths, before, strict=True)) == 1
    assert len(list(tmp_path.glob(".*.part"))) == 1
    assert imported_names(tmp_path) == ["mine"]
    with pytest.raises(ValueError, match="were not made together"):
        load_prepared(paths[0])
    save_prepared(dict.fromkeys(paths, plain()))
    assert [path.read_bytes() for path in paths] == before
    assert sorted(tmp_path.iterdir()) == sorted(paths)
