from __future__ import annotations

import gzip
import hashlib
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from emcaps.data import smallnorb
from emcaps.data.matrix_format import read_matrix, write_matrix
from emcaps.data.prepared import Examples, load_prepared
from emcaps.data.smallnorb import (
    ORIGINALS,
    area_mean,
    check_full_set,
    label_matrices,
    original_name,
    prepare_part,
    prepare_smallnorb,
    write_originals,
)

MakeExamples = Callable[..., Examples]
PACK = Path(os.environ.get("EMCAPS_SMALLNORB_PACK") or Path(__file__).resolve().parents[2].parent / "shared/smallnorb")


def halved_by_hand(image: np.ndarray) -> list[list[int]]:
    """Means of 2x2 squares in whole-number arithmetic, halves up."""
    squares = [[image[y : y + 2, x : x + 2] for x in range(0, 96, 2)] for y in range(0, 96, 2)]
    return [[(2 * sum(square.ravel().tolist()) + 4) // 8 for square in row] for row in squares]


def some_matrices(count: int, seed: int = 0, instances: Sequence[int] = (4, 6, 7, 8, 9)) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    info = [
        rng.choice(instances, count),
        rng.integers(0, 9, count),
        2 * rng.integers(0, 18, count),
        rng.integers(0, 6, count),
    ]
    return {
        "dat": rng.integers(0, 256, (count, 2, 96, 96), np.uint8),
        "cat": rng.integers(0, 5, count, np.int32),
        "info": np.stack(info, axis=1).astype(np.int32),
    }


def row(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def write_six(folder: Path, count: int = 3) -> dict[str, dict[str, np.ndarray]]:
    """Small files under the original names, training packed and testing unpacked."""
    parts = {"train": some_matrices(count), "test": some_matrices(count + 1, seed=1, instances=(0, 1, 2, 3, 5))}
    for part, matrices in parts.items():
        for kind, matrix in matrices.items():
            name = original_name(part, kind)
            write_matrix(folder / (name if part == "train" else name.removesuffix(".gz")), matrix)
    return parts


def full_labels(instances: tuple[int, ...]) -> dict[str, np.ndarray]:
    grid = np.array(list(itertools.product(range(5), instances, range(9), range(0, 36, 2), range(6))), np.int16)
    return dict(zip(("category", "instance", "elevation", "azimuth", "lighting"), grid.T, strict=True))


def labels_only(labels: dict[str, np.ndarray]) -> Examples:
    """Examples for what looks at labels alone; the images take no memory."""
    return Examples(np.broadcast_to(np.uint8(0), (len(labels["category"]), 2, 48, 48)), **labels)


def test_originals_are_the_published_six() -> None:
    assert len({original.name for original in ORIGINALS}) == 6
    assert {(original.part, original.kind) for original in ORIGINALS} == {
        (part, kind) for part in ("train", "test") for kind in ("cat", "dat", "info")
    }
    base = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/"
    assert ORIGINALS[0].url == base + "smallnorb-5x46789x9x18x6x2x96x96-training-cat.mat.gz"
    assert ORIGINALS[-1].url == base + "smallnorb-5x01235x9x18x6x2x96x96-testing-dat.mat.gz"
    content = {"cat": (20, 4 * 24300), "info": (20, 4 * 4 * 24300), "dat": (24, 2 * 96 * 96 * 24300)}
    for original in ORIGINALS:
        assert original.unpacked_size == sum(content[original.kind])
        assert original.size < original.unpacked_size
        assert len(bytes.fromhex(original.sha256)) == len(bytes.fromhex(original.unpacked_sha256)) == 32


@pytest.mark.parametrize("original", [o for o in ORIGINALS if o.kind != "dat"], ids=lambda o: f"{o.part}-{o.kind}")
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_write_matrix_of_the_real_labels_gives_the_published_bytes(
    tmp_path: Path, original: smallnorb.Original, suffix: str
) -> None:
    pack = PACK / f"{original.part}-labels.npz"
    if not pack.is_file():
        pytest.skip(f"no smallNORB labels at {pack}: set EMCAPS_SMALLNORB_PACK to the folder that has them")
    with np.load(pack) as labels:
        cat, info = label_matrices(labels_only({name: labels[name] for name in labels.files}))
    path = tmp_path / f"labels.mat{suffix}"
    write_matrix(path, {"cat": cat, "info": info}[original.kind])
    content = gzip.decompress(path.read_bytes()) if suffix else path.read_bytes()
    assert len(content) == original.unpacked_size
    assert hashlib.sha256(content).hexdigest() == original.unpacked_sha256


def test_area_mean_rounds_halves_up() -> None:
    squares = {(0, 0, 0, 0): 0, (0, 0, 0, 1): 0, (0, 0, 1, 1): 1, (1, 1, 1, 0): 1, (2, 3, 2, 3): 3, (255,) * 4: 255}
    for square, mean in squares.items():
        image = np.array(square, np.uint8).reshape(1, 1, 2, 2)
        assert area_mean(image).tolist() == [[[[mean]]]], square


def test_area_mean_in_chunks_reports_and_equals_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smallnorb, "CHUNK", 2)
    images = some_matrices(5)["dat"]
    seen: list[tuple[int, int]] = []
    halved = area_mean(images, lambda *step: seen.append(step))
    assert seen == [(2, 5), (4, 5), (5, 5)]
    assert halved.dtype == np.uint8
    assert halved.tolist() == [[halved_by_hand(camera) for camera in pair] for pair in images]


def test_prepare_part_gives_images_and_labels() -> None:
    matrices = some_matrices(4)
    examples = prepare_part(**matrices)
    np.testing.assert_array_equal(examples.images, area_mean(matrices["dat"]))
    columns = (examples.category, examples.instance, examples.elevation, examples.azimuth, examples.lighting)
    for column, expected in zip(columns, (matrices["cat"], *matrices["info"].T), strict=True):
        assert column.dtype == np.int16
        np.testing.assert_array_equal(column, expected)


def test_label_matrices_undoes_prepare_part() -> None:
    matrices = some_matrices(4)
    cat, info = label_matrices(prepare_part(**matrices))
    assert cat.dtype == info.dtype == np.int32
    np.testing.assert_array_equal(cat, matrices["cat"])
    np.testing.assert_array_equal(info, matrices["info"])


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (
            "dat",
            lambda m: m[:3],
            r"with 3 images, cat must be int32 of shape \(3,\), not int32 of shape \(4,\): take all",
        ),
        (
            "dat",
            lambda m: m[:, :, :48, :48],
            r"dat must be uint8 of shape \(4, 2, 96, 96\), not uint8 of shape \(4, 2, 48",
        ),
        ("dat", lambda m: m.astype(np.int16), r"dat must be uint8 .* not int16"),
        ("cat", lambda m: m.astype(np.uint8), r"cat must be int32 .* not uint8"),
        ("info", lambda m: m[:, :3], r"info must be int32 of shape \(4, 4\), not int32 of shape \(4, 3\)"),
        ("info", lambda m: m[:2], r"info must be int32 of shape \(4, 4\), not int32 of shape \(2, 4\)"),
        ("cat", lambda m: m + 5, r"category must be one of \[0, 1, 2, 3, 4\], not \d: the label files are damaged"),
        ("info", lambda m: m + row(10, 0, 0, 0), r"instance must be one of .*, not 1\d"),
        ("info", lambda m: m - row(0, 9, 0, 0), r"elevation must be one of .*, not -\d"),
        ("info", lambda m: m + row(0, 0, 1, 0), r"azimuth must be one of \[0, 2, 4,.* 34\], not \d*[13579]:"),
        ("info", lambda m: m + row(0, 0, 65536, 0), r"azimuth must be one of .*, not 655\d\d"),
        ("info", lambda m: m + row(0, 0, 0, 6), r"lighting must be one of .*, not \d+"),
    ],
)
def test_prepare_part_refuses(kind: str, change: Callable[[np.ndarray], np.ndarray], message: str) -> None:
    matrices = some_matrices(4)
    matrices[kind] = change(matrices[kind])
    with pytest.raises(ValueError, match=message):
        prepare_part(**matrices)


def test_prepare_smallnorb_of_packed_and_unpacked_files(tmp_path: Path) -> None:
    parts = write_six(tmp_path / "raw")
    seen: list[tuple[int, int]] = []
    paths = prepare_smallnorb(tmp_path / "raw", tmp_path / "out", lambda *step: seen.append(step), verify=False)
    assert paths == [tmp_path / "out/smallnorb48-train.npz", tmp_path / "out/smallnorb48-test.npz"]
    assert seen == [(3, 7), (7, 7)]
    for path, matrices in zip(paths, parts.values(), strict=True):
        examples, expected = load_prepared(path), prepare_part(**matrices)
        for name in Examples._fields:
            np.testing.assert_array_equal(getattr(examples, name), getattr(expected, name), err_msg=name)


def test_prepare_smallnorb_prefers_the_unpacked_file(tmp_path: Path) -> None:
    write_six(tmp_path)
    other = some_matrices(3, seed=5)["cat"]
    write_matrix(tmp_path / original_name("train", "cat").removesuffix(".gz"), other)
    train, _ = prepare_smallnorb(tmp_path, tmp_path, verify=False)
    np.testing.assert_array_equal(load_prepared(train).category, other)


def test_prepare_smallnorb_names_missing_files(tmp_path: Path) -> None:
    write_six(tmp_path)
    (tmp_path / original_name("train", "info")).unlink()
    with pytest.raises(
        FileNotFoundError, match=r"lacks 1 of the six .*training-info\.mat\.gz.*`emcaps data get`.*https"
    ):
        prepare_smallnorb(tmp_path, tmp_path / "out", verify=False)
    with pytest.raises(FileNotFoundError, match=r"nowhere lacks 6 of the six"):
        prepare_smallnorb(tmp_path / "nowhere", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_prepare_smallnorb_says_which_files_do_not_belong_together(tmp_path: Path) -> None:
    write_six(tmp_path)
    write_matrix(tmp_path / original_name("train", "cat"), np.zeros(9, np.int32))
    with pytest.raises(ValueError, match=r"\(train files\): with 3 images, cat must be int32 of shape \(3,\), not .*9"):
        prepare_smallnorb(tmp_path, tmp_path / "out", verify=False)
    assert not (tmp_path / "out").exists()


def test_prepare_smallnorb_names_a_damaged_file_once(tmp_path: Path) -> None:
    write_six(tmp_path)
    path = tmp_path / original_name("train", "dat")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=rf"^{path}: expected gzip data of \d+ bytes, found: Compressed file ended"):
        prepare_smallnorb(tmp_path, tmp_path / "out", verify=False)


def test_prepare_smallnorb_of_exchanged_full_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smallnorb, "FULL_COUNT", 3)
    write_six(tmp_path)
    info = np.zeros((3, 4), np.int32)
    write_matrix(tmp_path / original_name("train", "info"), info)
    with pytest.raises(ValueError, match=r"\(train files\): the train part must have the instances \(4, 6, 7, 8, 9\)"):
        prepare_smallnorb(tmp_path, tmp_path / "out", verify=False)


def test_check_full_set_takes_the_published_grid_and_any_smaller_set_of_its_instances(
    make_examples: MakeExamples,
) -> None:
    check_full_set("train", labels_only(full_labels((4, 6, 7, 8, 9))))
    check_full_set("test", labels_only(full_labels((0, 1, 2, 3, 5))))
    check_full_set("train", make_examples(3, instance=[4, 9, 9]))
    with pytest.raises(ValueError, match="are the training and testing files exchanged"):
        check_full_set("train", make_examples(3, instance=[4, 9, 5]))


def test_check_full_set_refuses_exchanged_parts_and_repeated_views() -> None:
    with pytest.raises(
        ValueError, match=r"test part must .* \(0, 1, 2, 3, 5\), found \(4, 6, 7, 8, 9\): are .* exchanged"
    ):
        check_full_set("test", labels_only(full_labels((4, 6, 7, 8, 9))))
    labels = full_labels((4, 6, 7, 8, 9))
    labels["lighting"][1] = labels["lighting"][0]
    with pytest.raises(
        ValueError, match=r"train part must have 24300 different views, found 24299: .*fetch them again"
    ):
        check_full_set("train", labels_only(labels))


def test_write_originals_is_read_back_by_prepare_smallnorb(tmp_path: Path) -> None:
    parts = {"train": some_matrices(3), "test": some_matrices(2, seed=1, instances=(0, 1, 2, 3, 5))}
    for part, m in parts.items():
        labels = np.column_stack([m["cat"], m["info"]]).astype(np.int16)
        paths = write_originals(tmp_path, part, m["dat"], labels)
        assert [path.name for path in paths] == [original_name(part, kind) for kind in ("dat", "cat", "info")]
        for path, kind in zip(paths, ("dat", "cat", "info"), strict=True):
            again = read_matrix(path)
            assert again.dtype == m[kind].dtype
            np.testing.assert_array_equal(again, m[kind])
    for path, m in zip(prepare_smallnorb(tmp_path, tmp_path, verify=False), parts.values(), strict=True):
        np.testing.assert_array_equal(load_prepared(path).images, area_mean(m["dat"]))


def test_write_originals_with_another_prefix(tmp_path: Path) -> None:
    paths = write_originals(tmp_path, "test", np.zeros((1, 2, 96, 96), np.uint8), np.zeros((1, 5), np.int16), "toys")
    assert paths[1].name == "toys-5x01235x9x18x6x2x96x96-testing-cat.mat.gz"


@pytest.mark.parametrize(
    ("part", "images", "labels", "message"),
    [
        (
            "train",
            np.zeros((1, 2, 48, 48), np.uint8),
            np.zeros((1, 5), np.int16),
            r"shape \(N, 2, 96, 96\), not uint8 of",
        ),
        ("train", np.zeros((1, 2, 96, 96), np.float32), np.zeros((1, 5), np.int16), r"must be uint8 .*, not float32"),
        (
            "train",
            np.zeros((1, 2, 96, 96), np.uint8),
            np.zeros((1, 4), np.int16),
            r"\(1, 5\), with the columns category",
        ),
        (
            "train",
            np.zeros((2, 2, 96, 96), np.uint8),
            np.zeros((1, 5), np.int16),
            r"\(2, 5\).*not int16 of shape \(1, 5",
        ),
        ("train", np.zeros((1, 2, 96, 96), np.uint8), np.zeros((1, 5)), r"whole numbers .* not float64"),
        ("dev", np.zeros((1, 2, 96, 96), np.uint8), np.zeros((1, 5), np.int16), r"unknown part 'dev'"),
    ],
)
def test_write_originals_refuses(
    tmp_path: Path, part: str, images: np.ndarray, labels: np.ndarray, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        write_originals(tmp_path, part, images, labels)
    assert not list(tmp_path.iterdir())


def test_prepare_smallnorb_verifies_the_published_bytes(tmp_path: Path) -> None:
    """Whole files with sensible labels are still not the published ones."""
    images, labels = np.zeros((1, 2, 96, 96), np.uint8), np.zeros((1, 5), np.int16)
    for part, instance in (("train", 4), ("test", 0)):
        labels[:, 1] = instance
        write_originals(tmp_path, part, images, labels)
    with pytest.raises(ValueError, match=r"training-cat\.mat\.gz is not the published file \(SHA-256 \w+, published"):
        prepare_smallnorb(tmp_path, tmp_path)
    assert len(prepare_smallnorb(tmp_path, tmp_path, verify=False)) == 2
