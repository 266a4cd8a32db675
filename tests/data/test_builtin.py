import gzip
import hashlib

import numpy as np
import pytest

from emcaps.data import builtin
from emcaps.data.builtin import IDX_FILES, NAMES, ORIGINALS, prepare_builtin
from emcaps.data.idx import idx_header
from emcaps.data.prepared import load_prepared, prepared_path
from own_images import bars


def write_idx_files(folder, packed):
    """MNIST in small: ten classes, 28x28; gives the content of each file."""
    folder.mkdir()
    contents = {}
    for seed, (part, names) in enumerate(IDX_FILES.items()):
        images, labels = bars(40 if part == "train" else 20, 10, 28, seed=seed)
        for name, array in zip(names, (images[:, 0], labels.astype(np.uint8)), strict=True):
            contents[name] = idx_header(array) + array.tobytes()
            target = folder / (name if packed else name.removesuffix(".gz"))
            target.write_bytes(gzip.compress(contents[name], mtime=0) if packed else contents[name])
    return contents


@pytest.mark.parametrize("packed", [True, False])
def test_the_published_content_is_prepared_however_it_is_packed(tmp_path, monkeypatch, packed):
    contents = write_idx_files(tmp_path / "files", packed)
    with pytest.raises(ValueError, match=r"train-images.* is not the published file \(SHA-256 .*with --unverified"):
        prepare_builtin("mnist", tmp_path / "files", tmp_path / "data")
    assert not (tmp_path / "data").exists()
    published = tuple(
        original._replace(content_sha256=hashlib.sha256(contents[original.name]).hexdigest())
        for original in ORIGINALS["mnist"]
    )
    monkeypatch.setitem(builtin.ORIGINALS, "mnist", published)
    paths = prepare_builtin("mnist", tmp_path / "files", tmp_path / "data")
    assert paths == [prepared_path("mnist", part, tmp_path / "data") for part in ("train", "test")]
    train, test = map(load_prepared, paths)
    np.testing.assert_array_equal(train.images, bars(40, 10, 28)[0])
    assert train.names == tuple("0123456789")
    assert len(test.images) == 20


def test_files_that_are_missing_or_do_not_belong_together(tmp_path):
    write_idx_files(tmp_path / "files", True)
    (tmp_path / "files" / "t10k-labels-idx1-ubyte.gz").rename(tmp_path / "kept.gz")
    with pytest.raises(
        FileNotFoundError, match=r"lacks t10k-labels.*`emcaps data get mnist`, or by other means from http"
    ):
        prepare_builtin("mnist", tmp_path / "files", tmp_path / "data", verify=False)
    (tmp_path / "files" / "t10k-labels-idx1-ubyte.gz").write_bytes(
        (tmp_path / "files" / "train-labels-idx1-ubyte.gz").read_bytes()
    )
    with pytest.raises(ValueError, match=r"test_labels must have the shape \(20,\)"):
        prepare_builtin("mnist", tmp_path / "files", tmp_path / "data", verify=False)
    assert not (tmp_path / "data").exists()


def test_cifar_is_verified_by_its_archive(tmp_path):
    from test_cifar import write_archive, write_folder

    (tmp_path / "files").mkdir()
    archive = write_archive(tmp_path / "files" / "cifar-10-binary.tar.gz")
    with pytest.raises(ValueError, match=r"cifar-10-binary\.tar\.gz is not the published file"):
        prepare_builtin("cifar10", tmp_path / "files", tmp_path / "data")
    with pytest.raises(ValueError, match=r"no published checksum of the unpacked files"):
        prepare_builtin("cifar10", write_folder(tmp_path / "unpacked"), tmp_path / "data")
    for source in (tmp_path / "files", archive, tmp_path / "unpacked"):
        train, _ = prepare_builtin("cifar10", source, tmp_path / "data", verify=False)
        found = load_prepared(train)
        assert found.images.shape == (100, 3, 32, 32)
        assert found.names == NAMES["cifar10"]


def test_every_set_has_ten_names_and_verified_files():
    for dataset, originals in ORIGINALS.items():
        assert len(set(NAMES[dataset])) == 10
        for original in originals:
            assert len(bytes.fromhex(original.sha256)) == 32
            assert original.url.endswith(original.name)
            assert dataset == "cifar10" or len(bytes.fromhex(original.content_sha256)) == 32
