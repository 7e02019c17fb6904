"""The handout's web pages in a real browser, at the widths of a phone and of a desk, light and dark."""

import html
import re

import pytest

from autograder.tests.browser import SCHEMES, found_by, needs_browser

LANGUAGES = ("en", "zh")
PHONE, DESK = 360, 1280  # pixels

WRAPPER = """<!DOCTYPE html><meta charset="utf-8"><body>{frames}<script>
const luminance = c => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) =>
  sum + weight * (c[i] <= 10.31 ? c[i] / 3294.6 : ((c[i] / 255 + 0.055) / 1.055) ** 2.4), 0);
const colour = text => text.match(/[\\d.]+/g).map(Number);
const background = e => {
  const c = colour(getComputedStyle(e).backgroundColor);
  return c.length < 4 || c[3] === 1 ? c : e.parentElement ? background(e.parentElement) : [255, 255, 255];
};
const contrast = e => {
  const [a, b] = [colour(getComputedStyle(e).color), background(e)].map(luminance);
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
};
const name = e => `${e.tagName}.${e.className} ${e.textContent.trim().slice(0, 40)}`;
onload = async () => {
  const found = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, root = page.documentElement, all = [...page.body.querySelectorAll("*")];
    await page.fonts.ready;
    const words = all.filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
    const scrolling = e => e.closest("pre, .scroll");
    found[frame.id] = {
      width: root.clientWidth,
      needs: root.scrollWidth,
      beyond: all.filter(e => !scrolling(e) && e.getBoundingClientRect().right > root.clientWidth + 1).map(name),
      cut: [...page.querySelectorAll(".eq > :first-child")].filter(e => e.scrollWidth > e.clientWidth).map(name),
      pale: words.filter(e => !e.closest("style") && contrast(e) < 4.5).map(e => `${contrast(e).toFixed(1)} ${name(e)}`),
      pictures: [...page.images].filter(i => i.naturalWidth > 0).length,
      fonts: [...page.fonts].filter(f => f.status === "loaded").map(f => f.family.replaceAll('"', "")),
      text: getComputedStyle(page.body).color,
    };
  }
  document.body.textContent = JSON.stringify(found);
};
</script>"""


def looked_at(pages, scheme, folder):
    """Return what a browser finds on pages, by the language and the width."""
    frames = "".join(
        f'<iframe id="{language} {width}" style="width:{width}px;height:800px;border:0" srcdoc="{html.escape(page)}"></iframe>'
        for language, page in pages.items()
        for width in (PHONE, DESK)
    )
    return found_by(WRAPPER.replace("{frames}", frames), folder, scheme)


@pytest.fixture(scope="module")
def pages():
    """Both web pages."""
    pytest.importorskip("typst", reason="the handout needs typst: the extra `handout`")
    from handout import build

    handout = build.Handout()
    return {language: build.finish_html(handout.compile(language, "html")[0].decode()) for language in LANGUAGES}


@needs_browser
@pytest.mark.parametrize("scheme", SCHEMES)
def test_pages_fit_phone_and_desk_and_can_be_read(pages, scheme, tmp_path):
    found = looked_at(pages, scheme, tmp_path)

    assert {place: seen["width"] for place, seen in found.items()} == {
        f"{language} {width}": width for language in LANGUAGES for width in (PHONE, DESK)
    }
    for place, seen in found.items():
        assert seen["needs"] <= seen["width"], (place, seen["beyond"])
        assert seen["cut"] == [], f"{place}: formulas that have to be scrolled"
        assert seen["pale"] == [], f"{place}: too little contrast"
        assert seen["pictures"] == 6, place
        assert {"Libertinus Serif", "LM Math"} <= set(seen["fonts"]), place
    (bright,) = {max(map(int, re.findall(r"\d+", seen["text"]))) > 128 for seen in found.values()}
    assert bright == (scheme == "dark")
