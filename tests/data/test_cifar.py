import gzip
import io
import tarfile
import tracemalloc

import numpy as np
import pytest

from emcaps.data import cifar
from emcaps.data.cifar import ARCHIVE_FOLDER, FILES, RECORD, read_cifar

NAMES = [name for names in FILES.values() for name in names]


def records(count, seed):
    content = np.random.default_rng(seed).integers(0, 256, (count, RECORD), np.uint8)
    content[:, 0] = np.arange(count) % 10
    return content


BATCHES = {name: records(20, seed) for seed, name in enumerate(NAMES)}


def write_archive(path, batches=BATCHES, extra=()):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in [(f"{ARCHIVE_FOLDER}/{name}", array.tobytes()) for name, array in batches.items()] + list(
            extra
        ):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_folder(folder, batches=BATCHES):
    folder.mkdir(parents=True)
    for name, array in batches.items():
        (folder / name).write_bytes(array.tobytes())
    return folder


@pytest.mark.parametrize("kind", ["archive", "folder", "unpacked beside"])
def test_both_parts_are_read(tmp_path, kind):
    if kind == "archive":
        source = write_archive(
            tmp_path / "a.tar.gz", extra=[("../../escape", b"no"), (f"{ARCHIVE_FOLDER}/readme.html", b"")]
        )
    else:
        write_folder(tmp_path / "x" / ("" if kind == "folder" else ARCHIVE_FOLDER))
        source = tmp_path / "x"
    parts = read_cifar(source)
    images, labels = parts["train"]
    assert images.shape == (100, 3, 32, 32)
    first = BATCHES["data_batch_2.bin"][3]
    np.testing.assert_array_equal(images[23], first[1:].reshape(3, 32, 32))
    assert labels[23] == first[0]
    np.testing.assert_array_equal(parts["test"][1], BATCHES["test_batch.bin"][:, 0])


def test_damage_is_named(tmp_path):
    cut = {name: array.reshape(-1)[:-1] for name, array in BATCHES.items()}
    with pytest.raises(ValueError, match=r"data_batch_1\.bin: expected 1 to 10000 records of 3073 bytes, found 61459"):
        read_cifar(write_archive(tmp_path / "cut.tar.gz", cut))
    with pytest.raises(ValueError, match=r"data_batch_1\.bin: expected 1 to 10000 records"):
        read_cifar(write_folder(tmp_path / "cut", cut))
    few = {name: BATCHES[name] for name in NAMES[:-1]}
    with pytest.raises(ValueError, match=r"lacks test_batch\.bin: this is not the binary version"):
        read_cifar(write_archive(tmp_path / "few.tar.gz", few))
    with pytest.raises(FileNotFoundError, match=r"lacks test_batch\.bin, one of the six files"):
        read_cifar(write_folder(tmp_path / "few", few))
    whole = write_archive(tmp_path / "whole.tar.gz").read_bytes()
    for content in (b"nothing", whole[: len(whole) // 2]):
        (tmp_path / "bad.tar.gz").write_bytes(content)
        with pytest.raises(ValueError, match=r"bad\.tar\.gz.*(damaged|archive)"):
            read_cifar(tmp_path / "bad.tar.gz")


def test_a_member_that_announces_too_much_is_refused(tmp_path):
    huge = tarfile.TarInfo(f"{ARCHIVE_FOLDER}/data_batch_1.bin")
    huge.size = 10**12
    import gzip

    (tmp_path / "huge.tar.gz").write_bytes(gzip.compress(huge.tobuf(tarfile.GNU_FORMAT)))
    with pytest.raises(ValueError, match=r"records of 3073 bytes, found 1000000000000 bytes"):
        read_cifar(tmp_path / "huge.tar.gz")


def test_a_tar_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    """tarfile keeps the whole of a header of long names in memory, and passes over other members by unpacking them."""
    monkeypatch.setattr(cifar, "MAX_UNPACKED", 10**7)
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.REGTYPE):
        member = tarfile.TarInfo("long")
        member.type, member.size = kind, 5 * 10**7
        path = tmp_path / "bomb.tar.gz"
        path.write_bytes(gzip.compress(member.tobuf() + bytes(5 * 10**7)))
        tracemalloc.start()
        try:
            with pytest.raises(ValueError, match="found: more than 10000000 unpacked bytes"):
                read_cifar(path)
            assert tracemalloc.get_traced_memory()[1] < 3 * 10**7
        finally:
            tracemalloc.stop()
