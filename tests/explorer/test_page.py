"""The explorer's page in a real browser: it opens from disk, computes what Python computes, and answers to its user."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import emcaps
from browser import chromium
from emcaps.config import preset
from emcaps.data.crops import evaluation_crops
from emcaps.data.toy_set import Views
from emcaps.explorer.page_file import page_html
from emcaps.explorer.pictures import turning_toys
from emcaps.nn import build_network
from emcaps.train import load_network
from emcaps.train.checkpoint import load, save_weights
from emcaps.weights import find_weights

NAME = "small-toys"
VIEWS = ("network", "layer", "vote", "laboratory")


@pytest.fixture(scope="module")
def pictures():
    data = load(find_weights(NAME)).config.data
    return turning_toys(data, toys=(0, 4), views=Views(elevations=(0, 4), azimuths=(0, 2, 4), lightings=(0, 2, 4)))


@pytest.fixture(scope="module")
def address(pictures, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("page") / "explorer.html"
    path.write_text(page_html(find_weights(NAME).read_bytes(), pictures, "a <network> on toys"), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture
def page(browser, address):
    """The page, fresh; the test fails if anything went to the console or to the network."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(15_000)
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if request.url.startswith("http") else None)
    page.goto(address)
    page.wait_for_selector(".stages")
    yield page
    context.close()
    assert wrong == []


def state(page, expression: str):
    return page.evaluate(f"(() => {{ const s = globalThis.emcaps.store.state; return {expression}; }})()")


def scores(page) -> list[float]:
    return state(page, "Array.from(s.run.results.at(-1).activation)")


def set_slider(page, label: str, value: int) -> None:
    page.get_by_label(label, exact=True).fill(str(value))


def test_the_page_agrees_with_pytorch(page, pictures):
    """Every assignment of every layer and iteration to 1e-6, computed in the browser from the bytes in the page."""
    network, config, _ = load_network(find_weights(NAME), "cpu", "reference")
    image = torch.tensor(state(page, "Array.from(s.image)"), dtype=torch.uint8).view(1, 1, 48, 48)
    crop = evaluation_crops(image, config.data.crop, 1, config.data.standardise)[:, 0]
    found = torch.tensor(state(page, "Array.from(s.run.crop)"), dtype=torch.float64)
    torch.testing.assert_close(found, crop.double().flatten(), rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        trace = network.double().eval().trace(found.view(1, 1, 32, 32))
    for number, layer in enumerate(trace.routed, start=1):
        for iteration, step in enumerate(layer):
            for name in ("assignment", "mean", "variance", "activation"):
                text = state(page, f"JSON.stringify(Array.from(s.run.results[{number}].steps[{iteration}].{name}))")
                wanted = getattr(step, name).flatten()
                torch.testing.assert_close(torch.tensor(json.loads(text)).double(), wanted, rtol=1e-6, atol=1e-6)
    assert page.locator(".answer strong").inner_text() == "animal"


def test_it_plays_and_slides(page):
    page.get_by_label("Iteration shown").fill("1")
    first = page.locator(".answer").inner_text()
    page.get_by_role("button", name="Play").click()
    page.locator(".answer", has_text="answer:").wait_for()
    assert page.locator(".answer").inner_text() != first
    before = scores(page)
    set_slider(page, "Iterations", 3)
    assert state(page, "s.run.results.at(-1).steps.length") == 3
    assert scores(page) != before
    page.get_by_role("button", name="As trained").click()
    assert scores(page) == before


def test_capsules_are_shown_as_poses(page):
    grid = page.locator(".stages > li:nth-child(3) canvas").first
    pixels = "(canvas) => Array.from(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data)"
    assert grid.evaluate("(canvas) => [canvas.width, canvas.height]") == [7, 7]
    page.get_by_label("poses (blue below 0").check()
    shown = np.array(grid.evaluate(pixels)).reshape(35, 35, 4)
    pose = np.array(state(page, "Array.from(s.run.results[1].pose.slice(0, 16))")).reshape(4, 4)
    red_less_blue = shown[:4, :4, 0] - shown[:4, :4, 2]
    clear = np.abs(pose) > 0.3 * np.abs(pose).max()
    assert (np.sign(red_less_blue[clear]) == np.sign(pose[clear])).all()


def test_turning_the_toy_shows_another_image(page):
    before = state(page, "Array.from(s.run.crop)")
    set_slider(page, "Turn (azimuth)", 2)
    assert state(page, "Array.from(s.run.crop)") != before
    page.get_by_role("button", name="Turn it once round").click()
    page.wait_for_selector(".activation-line", state="attached")
    assert "of 3 sides" in page.locator("section[aria-label=Turntable]").inner_text()


def test_a_click_on_a_capsule_leads_to_its_votes_and_on_to_one_vote(page):
    page.locator(".stages > li:nth-child(3) canvas").nth(2).click()
    assert page.locator("#panel-layer").is_visible()
    assert state(page, "[s.layer, s.type]") == [0, 2]
    picker = page.get_by_label("Parents of type 3")
    place = state(page, "s.position")
    picker.focus()
    page.keyboard.press("ArrowRight" if place % 7 < 6 else "ArrowLeft")
    assert state(page, "s.position") != place
    page.get_by_role("button", name="See this vote in numbers").click()
    assert page.locator("#panel-vote").is_visible()
    assert page.locator(".vote-view .matrix").count() == 7


def test_without_competing_positions_a_child_is_counted_several_times(page):
    page.get_by_role("tab", name="Layer").click()
    page.get_by_role("combobox", name="Layer").select_option("0")
    note = page.locator("[aria-label='Parents of this child'] [aria-live]")
    assert "sum to 1:" in note.inner_text()
    page.evaluate(
        "(() => { const { store } = globalThis.emcaps; const { layer } = store.state.run.results[1];"
        "const most = layer.readers.indexOf(Math.max(...layer.readers)), place = layer.childOf.indexOf(most);"
        "store.set({ position: Math.floor(place / layer.reads), read: place % layer.reads }); })()"
    )
    page.get_by_label("types alone (pitfall 3)").check()
    assert "sum to 4:" in note.inner_text()


def test_own_pictures_run(page, tmp_path):
    from PIL import Image

    path = tmp_path / "own.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)).save(path)
    page.locator("#own-file").set_input_files(path)
    page.locator(".stages >> text=own.png").wait_for()
    assert all(0 <= score <= 1 for score in scores(page))
    dropped = page.evaluate_handle(
        "(bytes) => { const files = new DataTransfer();"
        "files.items.add(new File([Uint8Array.from(bytes)], 'dropped.png', { type: 'image/png' })); return files; }",
        list(path.read_bytes()),
    )
    page.dispatch_event("body", "drop", {"dataTransfer": dropped})
    page.locator(".stages >> text=dropped.png").wait_for()


def test_own_weights_run(page, tmp_path):
    torch.manual_seed(0)
    path = tmp_path / "tiny.safetensors"
    save_weights(path, build_network(preset("tiny").network, 1), preset("tiny"), 0)
    page.locator("#own-file").set_input_files(path)
    page.locator("#message >> text=tiny.safetensors").wait_for()
    assert state(page, "s.network.primary.types") == 4
    image = np.array(state(page, "Array.from(s.image)"), np.uint8).reshape(1, 1, 48, 48)
    expected = emcaps.load(path, impl="reference").predict(image).scores[0]
    torch.testing.assert_close(torch.tensor(scores(page)), expected, rtol=1e-4, atol=1e-4)


STRANGE = {
    "crop": ({"data": {"crop": 60}}, "crop 60"),
    "types": ({"network": {"primary_types": 4_000_000}}, "primary_types 4000000"),
    "iterations": ({"network": {"iterations": 0}}, "iterations 0"),
    "channels": ({"network": {"conv_channels": 7}}, "relu_conv1.0.weight"),
    "names": ({"data": {"names": ["one"]}}, "number of names 1"),
    "kernel": ({"network": {"layers": [{"types": 4, "kernel": 60, "stride": 1}]}}, "does not fit"),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_weights_with_strange_settings_get_a_sentence(page, kind, tmp_path):
    path = tmp_path / "strange.safetensors"
    save_weights(path, build_network(preset("tiny").network, 1), preset("tiny"), 0)
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    config = json.loads(header["__metadata__"]["config"])
    changes, expected = STRANGE[kind]
    for section, settings in changes.items():
        config[section] |= settings
    header["__metadata__"]["config"] = json.dumps(config)
    changed = json.dumps(header).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + size :])
    before = scores(page)
    page.locator("#own-file").set_input_files(path)
    page.locator(f"#message >> text={expected}").wait_for()
    assert scores(page) == before


@pytest.mark.parametrize("kind", ["broken.png", "huge.png", "cnn.safetensors", "letters.safetensors"])
def test_bad_files_get_a_sentence_and_change_nothing(page, kind, tmp_path):
    path = tmp_path / kind
    if kind == "cnn.safetensors":
        save_weights(path, build_network(preset("cnn").network, 1), preset("cnn"), 0)
    elif kind == "huge.png":
        with path.open("wb") as file:
            file.truncate(41_000_000)
    else:
        path.write_bytes(b"\x89PNG no picture at all")
    before = scores(page)
    page.locator("#own-file").set_input_files(path)
    message = page.locator("#message")
    message.wait_for()
    wanted = {"broken.png": "cannot be read", "huge.png": "41 MB", "cnn.safetensors": "no routing"}
    assert wanted.get(kind, "no safetensors file") in message.inner_text()
    assert scores(page) == before


def test_the_tour_shows_what_it_says(page):
    """On every toy of the page: votes tighten, a parent lives on one child, a child is counted several times."""
    parent = "s.type + s.position * s.network.layers[s.layer].parentTypes"
    for toy in ("animal", "car"):
        page.locator(".pictures").get_by_role("button", name=toy).click()
        answer = page.locator(".answer").inner_text()
        page.get_by_role("button", name="Take the tour").click()
        card = page.locator(".tour")
        spreads, headings = [], set()
        while card.is_visible():
            heading = card.locator("h2").inner_text()
            headings.add(heading)
            assert page.locator(".toured").count() == 1
            if heading in ("At first nobody knows", "Votes that agree win"):
                variance = f"s.run.results[s.layer + 1].steps[s.iteration].variance.slice(16 * ({parent}))"
                spreads.append(state(page, f"{variance}.slice(0, 16).reduce((a, b) => a + b)"))
            if heading.startswith("Pitfall 1"):
                assert "Nearly all of its data comes from one child" in page.locator(".facts").inner_text()
            if heading.startswith("Pitfall 2"):
                assert state(page, "s.run.results.at(-1).steps.at(-1).logit.every((x) => Math.abs(x) > 5)")
            if heading.startswith("Pitfall 3"):
                assert "sum to 4:" in page.locator("[aria-label='Parents of this child']").inner_text()
            card.locator(".strong").click()
        assert len(headings) == 10
        assert spreads[1] < spreads[0]
        assert page.locator(".answer").inner_text() == answer  # everything is as before


def test_settings_that_break_routing_are_named_and_can_be_undone(page):
    page.evaluate(
        "globalThis.emcaps.store.set({ settings: { ...globalThis.emcaps.store.state.settings,"
        " iterations: 5, varianceFloor: 0, finalLambda: 1000, betaU: NaN } })"
    )
    assert "routing broke down" in page.locator(".answer").inner_text()
    page.get_by_role("tab", name="Layer").click()
    page.get_by_role("combobox", name="Layer").select_option("0")
    assert "NaN" in page.locator(".facts").inner_text()
    page.get_by_role("button", name="As trained").click()
    assert "answer: animal" in page.locator(".answer").inner_text()


def test_the_laboratory_brings_the_pitfalls_back(page):
    page.get_by_role("tab", name="Laboratory").click()
    lonely = page.locator("#panel-laboratory section", has_text="Parents with one child")
    floor = lonely.get_by_label("Variance floor")
    floor.fill(floor.get_attribute("max"))  # 0, at the end of the scale
    lonely.get_by_label("Iteration", exact=True).fill("4")
    assert "NaN" in lonely.inner_text()
    competing = page.locator("#panel-laboratory section", has_text="Positions must compete")
    assert "counted 3 times" in competing.inner_text()
    ranges = page.locator("#panel-laboratory section", has_text="operating range")
    ranges.scroll_into_view_if_needed()
    ranges.locator("text=Saturated inputs of class_caps").wait_for()
    assert "2.61" in ranges.inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_rule_of_accessibility_is_broken(browser, address, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python").Axe()
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)  # axe is a script of another origin
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector(".stages")
    for view in VIEWS:
        page.locator(f"#tab-{view}").click()
        page.mouse.wheel(0, 1500)  # some parts are drawn when they are seen
        found = axe.run(page).response["violations"]
        assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found] == [], view
    context.close()


def test_narrow_screens_need_no_sideways_scrolling(browser, address):
    context = browser.new_context(viewport={"width": 320, "height": 640})
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector(".stages")
    for view in VIEWS:
        page.locator(f"#tab-{view}").click()
        assert page.evaluate("document.documentElement.scrollWidth") == 320, view
    context.close()


def test_the_title_is_escaped(address):
    assert "<title>a &lt;network> on toys</title>" in Path(address.removeprefix("file://")).read_text(encoding="utf-8")


def test_pictures_in_the_page_are_those_that_python_sees(page, pictures):
    import base64
    import zlib

    pixels = np.frombuffer(zlib.decompress(base64.b64decode(pictures["pixels"])), np.uint8).reshape(-1, 1, 48, 48)
    set_slider(page, "Turn (azimuth)", 1)
    set_slider(page, "Look from above (elevation)", 1)
    set_slider(page, "Light", 2)
    shown = np.array(state(page, "Array.from(s.image)"), np.uint8)
    assert (shown == pixels[(1 * 3 + 1) * 3 + 2].flatten()).all()
    expected = emcaps.load(NAME, impl="reference").predict(pixels[(1 * 3 + 1) * 3 + 2][None]).scores[0]
    torch.testing.assert_close(torch.tensor(scores(page)), expected, rtol=1e-4, atol=1e-4)


def test_weights_that_read_other_images_wait_for_a_picture(page, tmp_path):
    config = preset("tiny").override({"data.channels": "3", "data.size": "20", "data.crop": "20"})
    path = tmp_path / "colour.safetensors"
    save_weights(path, build_network(config.network, 3), config, 0)
    page.locator("#own-file").set_input_files(path)
    page.locator("#message >> text=Drop a picture of your own").wait_for()
    page.get_by_role("button", name="car", exact=True).first.click()
    assert page.locator("#message").is_visible()
    assert state(page, "s.network.channels") == 3
