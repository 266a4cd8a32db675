"""A report in Chromium: it opens from disk, asks for nothing, and its charts can be read with the keyboard."""

from pathlib import Path

from browser import chromium
from emcaps.report.run_page import write_report
from emcaps.report.run_record import read_runs

RESULTS = Path(__file__).parents[2] / "results" / "demo"


def test_the_page_in_a_browser(tmp_path):
    write_report([(record, None) for record in read_runs([RESULTS / "small", RESULTS / "cnn"])], tmp_path / "page.html")
    messages, requests = [], []
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 320, "height": 800})
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto((tmp_path / "page.html").as_uri())
        chart = page.locator(".chart", has_text="Training accuracy")
        chart.get_by_role("slider").focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        assert chart.locator("output span").all_inner_texts() == ["step 40", "small: 23.75 %", "cnn: 22.5 %"]
        chart.get_by_role("slider").hover(position={"x": 2, "y": 9})
        assert chart.locator("output span").first.inner_text() == "step 20"
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        assert page.evaluate("document.documentElement.scrollWidth") == 320
    assert messages == []
    assert requests == [(tmp_path / "page.html").as_uri()]
