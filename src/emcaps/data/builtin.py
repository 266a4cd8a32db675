"""MNIST, Fashion-MNIST and CIFAR-10: where they are published, how they are verified, and how they are prepared."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from emcaps.config import PLAIN_DATASETS
from emcaps.data.arrays import parts_of_arrays
from emcaps.data.cifar import Part, read_cifar
from emcaps.data.idx import idx_header, read_idx
from emcaps.data.prepared import PARTS, data_folder, prepared_path, save_prepared
from emcaps.data.smallnorb import file_sha256
from emcaps.names import check_name


class Original(NamedTuple):
    """One published file. The content of an IDX file has a SHA-256 of its own, however it is packed."""

    name: str
    url: str
    size: int
    sha256: str
    content_sha256: str = ""


MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"
IDX_FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}

ORIGINALS = {
    "mnist": (
        Original(
            "train-images-idx3-ubyte.gz",
            MNIST_URL + "train-images-idx3-ubyte.gz",
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        Original(
            "train-labels-idx1-ubyte.gz",
            MNIST_URL + "train-labels-idx1-ubyte.gz",
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        Original(
            "t10k-images-idx3-ubyte.gz",
            MNIST_URL + "t10k-images-idx3-ubyte.gz",
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        Original(
            "t10k-labels-idx1-ubyte.gz",
            MNIST_URL + "t10k-labels-idx1-ubyte.gz",
            4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
    "fashion-mnist": (
        Original(
            "train-images-idx3-ubyte.gz",
            FASHION_URL + "train-images-idx3-ubyte.gz",
            26_421_880,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        Original(
            "train-labels-idx1-ubyte.gz",
            FASHION_URL + "train-labels-idx1-ubyte.gz",
            29_515,
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        Original(
            "t10k-images-idx3-ubyte.gz",
            FASHION_URL + "t10k-images-idx3-ubyte.gz",
            4_422_102,
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        Original(
            "t10k-labels-idx1-ubyte.gz",
            FASHION_URL + "t10k-labels-idx1-ubyte.gz",
            5_148,
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    "cifar10": (
        Original(
            "cifar-10-binary.tar.gz",
            CIFAR_URL + "cifar-10-binary.tar.gz",
            170_052_171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
}

NAMES = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        "T-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
}


def prepare_builtin(
    dataset: str, source: str | Path, folder: str | Path | None = None, *, verify: bool = True
) -> list[Path]:
    """Prepare both parts from the published files in `source`, packed or unpacked; gives the paths of the parts.

    Unless `verify` is off, the files must be the published ones.
    """
    check_name("dataset", dataset, PLAIN_DATASETS)
    source = Path(source).expanduser()
    read = _read_cifar if dataset == "cifar10" else _read_idx_files
    found = read(dataset, source, verify)
    (images, labels), (test_images, test_labels) = (found[part] for part in PARTS)
    try:
        parts = parts_of_arrays(images, labels, test_images, test_labels, names=NAMES[dataset])
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    prepared = {prepared_path(dataset, part, folder): parts[part] for part in PARTS}
    save_prepared(prepared)
    return list(prepared)


def originals_folder(dataset: str, folder: str | Path | None = None) -> Path:
    """Where the published files of a set are downloaded to."""
    return data_folder(folder) / f"{dataset}-originals"


def _read_idx_files(dataset: str, source: Path, verify: bool) -> dict[str, Part]:
    originals = {original.name: original for original in ORIGINALS[dataset]}
    found = {}
    for part, names in IDX_FILES.items():
        arrays = []
        for name in names:
            path = next((path for path in (source / name.removesuffix(".gz"), source / name) if path.is_file()), None)
            if path is None:
                raise FileNotFoundError(
                    f"{source} lacks {name}, with or without .gz: fetch it with `emcaps data get {dataset}`, or by "
                    f"other means from {originals[name].url}"
                )
            arrays.append(read_idx(path))
            if verify:
                _check_content(path, arrays[-1], originals[name].content_sha256)
        found[part] = arrays[0], arrays[1]
    return found


def _check_content(path: Path, array: npt.NDArray[np.uint8], want: str) -> None:
    digest = hashlib.sha256(idx_header(array))
    digest.update(np.ascontiguousarray(array).data)
    if digest.hexdigest() != want:
        raise _not_published(path, digest.hexdigest(), want)


def _read_cifar(dataset: str, source: Path, verify: bool) -> dict[str, Part]:
    (original,) = ORIGINALS[dataset]
    archive = source if source.is_file() else source / original.name
    if archive.is_file():
        if verify and (found := file_sha256(archive)) != original.sha256:
            raise _not_published(archive, found, original.sha256)
        return read_cifar(archive)
    if verify:
        raise ValueError(
            f"{source} has no {original.name}, and there is no published checksum of the unpacked files: give the "
            f"archive, from {original.url}, or take the files as they are with --unverified"
        )
    return read_cifar(source)


def _not_published(path: Path, found: str, want: str) -> ValueError:
    return ValueError(
        f"{path} is not the published file (SHA-256 {found}, published {want}): fetch it again, or take it as it is "
        "with --unverified"
    )
