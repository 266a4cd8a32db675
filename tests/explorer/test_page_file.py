"""How the page is put together, and how it is written and served."""

import base64
import json
import re
import subprocess
import urllib.error
import urllib.request
import zlib
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from PIL import Image

from emcaps.config import RunConfig, preset
from emcaps.explorer.explore import explorer_page, write_page
from emcaps.explorer.page_file import LARGEST_PAGE, bundled, page_html
from emcaps.explorer.pictures import given_images, given_pictures
from emcaps.explorer.serve import page_server
from emcaps.nn import build_network
from emcaps.train.checkpoint import save_weights
from explorer.twin import PAGE, node

GREY = np.zeros((1, 1, 48, 48), np.uint8)


@pytest.fixture
def weights(tmp_path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "own.safetensors"
    save_weights(path, build_network(preset("tiny").network, 1), preset("tiny"), 0)
    return path


def test_the_script_holds_every_module_once_and_no_name_twice():
    code = bundled("main")
    assert not re.search(r"^(import|export) ", code, re.MULTILINE)
    names = re.findall(r"^(?:async )?(?:const|let|function|class) (\w+)", code, re.MULTILINE)
    assert sorted(set(names)) == sorted(names)
    for module in PAGE.glob("*.js"):
        assert module.read_text(encoding="utf-8").splitlines()[0] in code, module.name


def test_the_script_can_be_read(tmp_path):
    script = tmp_path / "page.mjs"
    script.write_text(bundled("main"), encoding="utf-8")
    done = subprocess.run([node(), "--check", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"network.layers": "2:3:2, 2:3:1:1"}, "windows of .* are padded, which the page cannot show: name a network"),
        ({"network.pose": "vector"}, "the poses of .* are vectors, which the page cannot show: name a network"),
    ],
)
def test_networks_that_the_page_cannot_show(tmp_path, setting, message):
    config = preset("tiny").override(setting)
    path = tmp_path / "own.safetensors"
    save_weights(path, build_network(config.network, 1), config, 0)
    with pytest.raises(ValueError, match=message):
        explorer_page(str(path))


def test_nothing_in_the_page_can_end_its_script(weights):
    name = "</script><b> a<!--b.png"
    page = page_html(weights.read_bytes(), given_images(GREY, [name]), "title")
    assert page.count("</script>") == 3
    held = re.search(r'id="pictures">(.*?)</script>', page)
    assert held is not None
    assert "<" not in held[1]
    assert json.loads(held[1])["names"] == [name]


def test_a_page_that_is_too_large_is_refused(weights):
    with pytest.raises(ValueError, match=r"would have \d\.\d MB, more than 5: name fewer images"):
        page_html(b"\0" * LARGEST_PAGE, given_images(GREY, ["a"]), "title")


def test_only_pages_of_its_own_are_replaced(tmp_path, weights):
    out = tmp_path / "notes.html"
    out.write_text("<p>mine", encoding="utf-8")
    page = page_html(weights.read_bytes(), given_images(GREY, ["a"]), "title")
    with pytest.raises(ValueError, match=r"notes\.html is there and is no page of the explorer, so it is not replaced"):
        write_page(page, out)
    assert out.read_text(encoding="utf-8") == "<p>mine"
    with pytest.raises(ValueError, match="is a folder: name a file in it"):
        write_page(page, tmp_path)
    other = tmp_path / "explorer.html"
    other.touch()  # an empty file is replaced
    write_page(page, other)
    write_page(page + " ", other)
    assert other.read_text(encoding="utf-8") == page + " "


def test_a_network_without_routing_is_refused(tmp_path):
    path = tmp_path / "cnn.safetensors"
    save_weights(path, build_network(preset("cnn").network, 1), preset("cnn"), 0)
    with pytest.raises(ValueError, match="is a cnn network, which has no routing to show: name a capsule network"):
        explorer_page(str(path))


def test_what_is_no_picture_is_refused(weights, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("no picture")
    with pytest.raises(ValueError, match=r"notes\.txt is no \.png, \.jpg or \.jpeg file"):
        explorer_page(str(weights), [path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="a page shows 1 to 200 pictures, not 0"):
        explorer_page(str(weights), [tmp_path / "empty"])


def test_both_cameras_of_a_stereo_network_see_a_picture(tmp_path):
    from PIL import Image

    Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).resize((60, 48)).save(tmp_path / "own.png")
    data = preset("small").override({"data.view": "stereo"}).data
    shown = given_pictures([tmp_path / "own.png"], data)
    pixels = np.frombuffer(zlib.decompress(base64.b64decode(shown["pixels"])), np.uint8).reshape(2, 48, 48)
    assert (pixels[0] == pixels[1]).all()
    assert len(np.unique(pixels)) > 50


def test_the_page_of_a_network_with_a_decoder_leaves_the_decoder_out(tmp_path):
    config = preset("tiny").override({"network.decoder": 512})
    path = tmp_path / "drawing.safetensors"
    save_weights(path, build_network(config.network, 1), config, 0)
    Image.fromarray(GREY[0, 0]).save(tmp_path / "grey.png")
    page = explorer_page(str(path), [tmp_path / "grey.png"])
    assert len(page) < path.stat().st_size
    found = base64.b64decode(re.search(r'id="weights"[^>]*>([^<]*)<', page)[1])
    assert b"network.class_caps.weight" in found
    assert b"network.decoder." not in found


def test_a_network_of_own_data_is_shown_on_its_test_images(tmp_path):
    random = np.random.default_rng(0)
    data = tmp_path / "birds.npz"
    labels = np.repeat([0, 1, 2], 20)
    np.savez(data, images=random.integers(0, 256, (60, 16, 16, 3), np.uint8), labels=labels, names=["a", "b", "c"])
    sections = {"dataset": str(data), "names": ["a", "b", "c"], "channels": 3, "size": 16, "crop": 16}
    config = RunConfig.from_dict({"network": {"classes": 3}, "data": sections})
    path = tmp_path / "own.safetensors"
    save_weights(path, build_network(config.network, 3, 16), config, 0)
    assert "<title>own.safetensors on test images</title>" in explorer_page(str(path))
    data.unlink()
    with pytest.raises(ValueError, match=r"birds\.npz cannot be shown .*: name pictures of your own"):
        explorer_page(str(path))


def test_the_server_gives_the_page_and_nothing_else():
    with page_server("<p>page") as server:
        host, port = server.server_address[:2]
        assert host == "127.0.0.1"
        Thread(target=server.serve_forever, daemon=True).start()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
            assert answer.read() == b"<p>page"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/etc/passwd", timeout=10)
        elsewhere = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Host": f"other.example:{port}"})
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(elsewhere, timeout=10)
        with pytest.raises(ValueError, match=f"port {port} cannot be used .*: name another one with --port"):
            page_server("", port)
        server.shutdown()
