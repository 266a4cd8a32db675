"""What is no ordinary file: to open a pipe would wait for a writer for ever, so every reader must refuse it at once."""

import os
import socket

import pytest

from emcaps.cli.training import _read_config_file
from emcaps.data.archive import open_archive
from emcaps.data.cifar import read_cifar
from emcaps.data.download import download
from emcaps.data.idx import read_idx
from emcaps.data.matrix_format import read_matrix
from emcaps.data.picture_files import is_grey, read_picture
from emcaps.data.prepared import load_prepared
from emcaps.data.smallnorb import file_sha256
from emcaps.data.sources import Options, read_source
from emcaps.files import read_json
from emcaps.train.checkpoint import load

pytestmark = [
    pytest.mark.timeout(20),
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes"),
]

READERS = {
    "a.mat": read_matrix,
    "a.mat.gz": read_matrix,
    "a-idx3-ubyte": read_idx,
    "a-idx3-ubyte.gz": read_idx,
    "toys48-train.npz": load_prepared,
    "a.npz": read_source,
    "b.npz": lambda path: open_archive(path, "").__enter__(),
    "a.png": is_grey,
    "b.png": lambda path: read_picture(path, 8, "crop", 1),
    "config.json": _read_config_file,
    "metrics.json": read_json,
    "sum": file_sha256,
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused_at_once(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=f"{name} is a named pipe, not an ordinary file: name a file"):
        READERS[name](tmp_path / name)


@pytest.mark.parametrize("name", ["a.mat", "a.npz", "toys48-train.npz", "a.png"])
def test_folders_devices_and_sockets_are_refused(tmp_path, name):
    path = tmp_path / name
    read = read_matrix if name == "a.mat" else READERS[name]
    path.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="is a device, not an ordinary file"):
        read(path)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))
        with pytest.raises(ValueError, match="is a socket, not an ordinary file"):
            read(path)
    if name != "a.npz":  # which may well be the name of a folder of pictures
        path.unlink()
        path.mkdir()
        with pytest.raises(ValueError, match="is a folder, not an ordinary file"):
            read(path)


def test_a_pipe_in_place_of_an_archive_or_weights_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.tar.gz")
    with pytest.raises(FileNotFoundError, match="lacks data_batch_1"):
        read_cifar(tmp_path / "pipe.tar.gz")
    os.mkfifo(tmp_path / "a.safetensors")
    with pytest.raises((FileNotFoundError, ValueError), match=r"a\.safetensors"):
        load(tmp_path / "a.safetensors")


def test_a_pipe_of_groups_or_of_a_download_is_refused(tmp_path, picture_folder):
    os.mkfifo(tmp_path / "groups.csv")
    with pytest.raises(ValueError, match=r"groups\.csv is a named pipe"):
        read_source(picture_folder, Options(groups=tmp_path / "groups.csv"))
    os.mkfifo(tmp_path / "file.gz.part")
    with pytest.raises(ValueError, match=r"file\.gz\.part is a named pipe"):
        download("http://127.0.0.1:1/file.gz", tmp_path / "file.gz", size=1, sha256="")


@pytest.fixture
def picture_folder(tmp_path):
    from PIL import Image

    for name in ("ant", "bee"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(5):
            Image.new("L", (8, 8), number).save(tmp_path / "pictures" / name / f"{number}.png")
    return tmp_path / "pictures"


def test_groups_that_are_no_table_are_named(tmp_path, picture_folder):
    (tmp_path / "groups.csv").write_bytes(b"ant/0.png,\xff\n")
    with pytest.raises(ValueError, match=r"groups\.csv cannot be read .*: write lines PICTURE,GROUP in UTF-8"):
        read_source(picture_folder, Options(groups=tmp_path / "groups.csv"))
