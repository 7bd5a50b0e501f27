# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: what it plays, to the sample; keys; what it refuses; how it fits.

Needs Chromium, and playwright, which drives it; without one of them the tests are skipped, unless
``VOICETRACE_BROWSER_TESTS=required``, as in CI.
"""

from __future__ import annotations

import base64
import importlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audio_support import tone
from viewer_support import example, long_call, message, recorded, short_call
from voicetrace.judge.result import Dimension, DimensionScore, Evidence
from voicetrace.messages import Channel
from voicetrace.viewer import Judgement, sound, write_page, write_pages
from voicetrace.voice_call import VoiceCall

pytestmark = pytest.mark.browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
REQUIRED = os.environ.get("VOICETRACE_BROWSER_TESTS") == "required"

# notes every sound that is started, with its samples: what a listener will hear
LISTEN = """
window.heard = [];
const start = AudioBufferSourceNode.prototype.start;
AudioBufferSourceNode.prototype.start = function (when, ...rest) {
  const { buffer } = this;
  const voices = [];
  for (let n = 0; n < buffer.numberOfChannels; n += 1) {
    const bytes = new Uint8Array(buffer.getChannelData(n).slice().buffer);
    let text = "";
    for (const byte of bytes) text += String.fromCharCode(byte);
    voices.push(btoa(text));
  }
  const one = { when, rest, voices, rate: buffer.sampleRate, context: this.context.sampleRate, ended: false };
  this.addEventListener("ended", () => { one.ended = true; });
  window.heard.push(one);
  return start.call(this, when, ...rest);
};
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    missing = "" if CHROMIUM is not None else "there is no Chromium here: apt-get install chromium"
    try:
        playwright = importlib.import_module("playwright.sync_api")
    except ImportError:
        missing = "playwright is not installed: pip install playwright"
    if missing and REQUIRED:
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--mute-audio",
            ],
        )
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens a file without a network; at the end nothing was asked for and nothing complained."""
    complaints: list[str] = []
    requests: list[str] = []
    contexts: list[Any] = []

    def open_page(path: Path, *, may_read: tuple[Path, ...] = (), **options: Any) -> Any:
        context = chromium.new_context(offline=True, viewport={"width": 1100, "height": 900}, **options)
        contexts.append(context)
        context.add_init_script(LISTEN)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda said: complaints.append(f"console: {said.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        allowed = {path.as_uri(), *(other.as_uri() for other in may_read)}
        page.on(
            "request",
            lambda asked: requests.append(asked.url) if asked.url.partition("#")[0] not in allowed else None,
        )
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert requests == []


def samples_of(heard: dict[str, Any]) -> list[np.ndarray]:
    """What was started, as the recording has it: int16."""
    voices = [np.frombuffer(base64.b64decode(text), "<f4") for text in heard["voices"]]
    # Chromium's own scale: the largest positive sample is 1, as the largest negative one is -1
    return [np.rint(voice * np.where(voice < 0, 32768, 32767)).astype(np.int64) for voice in voices]


def heard_after(page: Any, count: int) -> list[dict[str, Any]]:
    page.wait_for_function("count => window.heard.length >= count", arg=count)
    found: list[dict[str, Any]] = page.evaluate("window.heard")
    assert len(found) == count
    return found


def play(page: Any, place: int) -> None:
    page.locator(f"#m{place} .play").click()


# -- the sound ---------------------------------------------------------------------------------------
def test_a_message_plays_exactly_its_samples_and_ends_by_itself(tmp_path: Path, opened: Any) -> None:
    call = short_call(tmp_path)
    page = opened(write_page(call, tmp_path / "call.html").path)
    for place, one in enumerate(call.messages):
        play(page, place)
        heard = heard_after(page, place + 1)[-1]
        clip = call.clip(one)
        assert heard["rate"] == heard["context"] == clip.sample_rate_hz
        assert heard["rest"] == []  # all of the buffer, from its first sample
        [samples] = samples_of(heard)
        assert np.array_equal(samples, clip.samples)
        page.wait_for_function("() => window.heard.at(-1).ended")
        page.wait_for_function(f"() => !document.querySelector('#m{place} .play').classList.contains('on')")


def test_the_gaps_of_a_message_are_left_out(tmp_path: Path, opened: Any) -> None:
    call = example()
    page = opened(write_page(call, tmp_path / "call.html").path)
    play(page, 0)
    [heard] = heard_after(page, 1)
    [samples] = samples_of(heard)
    assert samples.size == (1500 + 1100) * 8
    assert np.array_equal(samples, call.clip(call.messages[0]).samples)


def test_a_message_over_several_pieces(tmp_path: Path, opened: Any) -> None:
    rate = 8000
    samples = tone(rate * 40).reshape(-1, 2)
    call = recorded(
        tmp_path / "r.wav", samples, rate, [(Channel.AGENT, 3001, 19_003), (Channel.CALLER, 7900, 8100)]
    )
    page = opened(write_page(call, tmp_path / "call.html").path)
    play(page, 0)
    first, second = heard_after(page, 2)  # a long message is put together ten seconds at a time
    whole = np.concatenate([samples_of(first)[0], samples_of(second)[0]])
    assert np.array_equal(whole, samples[3001 * 8 : 19_003 * 8, 1])
    assert second["when"] - first["when"] == pytest.approx(10, abs=1e-6)  # to less than a sample
    play(page, 1)
    [third] = heard_after(page, 3)[2:]
    assert np.array_equal(samples_of(third)[0], samples[7900 * 8 : 8100 * 8, 0])


def test_compressed_audio_is_where_it_was(
    tmp_path: Path, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sound, "EMBED_LIMIT", 1000)
    rate = 24_000
    at = np.arange(rate * 20) / rate
    chirp = 9000 * np.sin(2 * np.pi * (200 + 40 * at) * at)  # no two stretches of it are alike
    samples = np.stack([np.zeros(at.size), chirp], axis=1).astype(np.int16)
    call = recorded(tmp_path / "r.wav", samples, rate, [(Channel.AGENT, 6500, 9500)])
    page = opened(write_page(call, tmp_path / "call.html", audio="embed").path)
    play(page, 0)
    [heard] = heard_after(page, 1)
    [decoded] = samples_of(heard)
    clip = call.clip(call.messages[0]).samples.astype(float)
    assert decoded.size == clip.size
    likeness = [
        float(np.corrcoef(clip[100:-100], np.roll(decoded, shift)[100:-100])[0, 1])
        for shift in range(-20, 21)
    ]
    assert int(np.argmax(likeness)) == 20  # not one sample early or late
    assert likeness[20] > 0.98


def test_the_whole_call_plays_without_a_gap(tmp_path: Path, opened: Any) -> None:
    call = example()
    page = opened(write_page(call, tmp_path / "call.html").path)
    page.get_by_role("button", name="Play the call").click()
    first, second = heard_after(page, 2)
    lengths = [len(samples_of(one)[0]) for one in (first, second)]
    assert sum(lengths) == 14_000 * 8
    assert second["when"] - first["when"] == pytest.approx(lengths[0] / 8000, abs=1e-6)
    assert len(first["voices"]) == 2  # both voices, in both ears
    page.wait_for_selector(".message.sounding")
    page.get_by_role("button", name="Pause").first.click()
    assert page.get_by_role("button", name="Go on").count() == 1


def test_another_message_silences_the_first(tmp_path: Path, opened: Any) -> None:
    page = opened(write_page(example(), tmp_path / "call.html").path)
    play(page, 0)
    heard_after(page, 1)
    play(page, 1)
    page.wait_for_function(
        "() => window.heard.length === 2 && window.heard[0].ended && !window.heard[1].ended"
    )
    assert page.locator(".message .play.on").count() == 1
    assert page.locator("#m1 .play.on").count() == 1


def test_evidence_of_the_judge_can_be_heard(tmp_path: Path, opened: Any) -> None:
    call = example()
    evidence = (
        Evidence(message_id="item_a1", start_ms=3400, end_ms=5000, metric="response_gap_s", value=1.6),
        Evidence(message_id="gone", start_ms=100, end_ms=100, metric="silence_s", quote="<b>er</b>"),
    )
    judgement = Judgement(
        {Dimension.LATENCY_DEAD_AIR: DimensionScore.of(0.2, reason="slow", evidence=evidence)}, "1"
    )
    page = opened(write_page(call, tmp_path / "call.html", judgement=judgement).path)
    page.locator("#judge-title").click()
    assert "latency dead air: Critical" in page.locator("#judge-title").inner_text()
    assert page.locator("#judge q").inner_text() == "<b>er</b>"
    page.get_by_role("button", name="Play 0:03.40 to 0:05.00: response gap 1.6 s").click()
    [heard] = heard_after(page, 1)
    assert len(samples_of(heard)[0]) == 1600 * 8
    assert page.locator(".message.picked").get_attribute("id") == "m1"


def test_linked_audio_starts_and_ends_with_the_message(tmp_path: Path, opened: Any) -> None:
    call = short_call(tmp_path)
    recording = call.recording_path()
    assert recording is not None
    page = opened(write_page(call, tmp_path / "call.html", audio="link").path, may_read=(recording,))
    page.evaluate(
        """() => {
          window.moments = [];
          for (const what of ["play", "pause"]) {
            const really = HTMLMediaElement.prototype[what];
            HTMLMediaElement.prototype[what] = function () {
              window.moments.push([what, this.currentTime]);
              return really.call(this);
            };
          }
        }"""
    )
    play(page, 2)  # 1.4 to 1.7 s of the recording
    page.wait_for_function("() => window.moments.length >= 3 && window.moments.at(-1)[0] === 'pause'")
    start, end = (ms / 1000 for ms in (call.messages[2].start_ms or 0, call.messages[2].end_ms or 0))
    moments = page.evaluate("window.moments")
    began = [at for what, at in moments if what == "play"]
    assert began == [pytest.approx(start, abs=0.001)]
    assert moments[-1][1] >= end
    assert "Both voices are heard at once" in page.locator("#facts").inner_text()

    play(page, 1)
    page.wait_for_function("() => window.moments.filter(([what]) => what === 'play').length === 2")
    play(page, 1)  # pause
    page.keyboard.press("Escape")  # and stop: it stays silent
    assert page.evaluate("window.moments.at(-1)[0]") == "pause"
    assert page.locator(".play.on").count() == 0


def test_audio_that_cannot_be_decoded_is_said(tmp_path: Path, opened: Any) -> None:
    call = short_call(tmp_path)
    path = write_page(call, tmp_path / "call.html").path
    broken = tmp_path / "broken.html"
    before, _, after = path.read_text("utf-8").partition('id="piece-0">')
    broken.write_text(f'{before}id="piece-0">AAAA{after}', "utf-8")
    page = opened(broken)
    play(page, 0)
    page.wait_for_selector(".play.failed")
    assert page.locator("#now").inner_text().startswith("The audio cannot be played: ")


# -- keys and links ----------------------------------------------------------------------------------
def test_keys(tmp_path: Path, opened: Any) -> None:
    page = opened(write_page(example(), tmp_path / "call.html").path)
    focused = "document.activeElement.id"
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused) == "m0"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    assert page.evaluate(focused) == "m1"
    assert page.locator(".message.picked").get_attribute("id") == "m1"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"  # where the keyboard is can be seen
    page.keyboard.press("Space")
    heard_after(page, 1)
    assert page.locator("#m1 .play.on").count() == 1
    page.keyboard.press("Space")
    assert page.locator("#now").inner_text() == "paused: message 2, agent"
    page.keyboard.press("Space")
    assert page.locator("#now").inner_text() == "message 2, agent"
    page.keyboard.press("Escape")
    assert page.locator(".play.on").count() == 0
    page.keyboard.press("ArrowRight")
    assert page.locator("#clock").inner_text().startswith("0:1")  # five seconds on from where it was
    page.keyboard.press("Tab")
    page.keyboard.press("Space")  # on a button the key is the button's, and the focus stays there
    heard_after(page, 2)
    assert page.evaluate("document.activeElement.className") == "play on"


def test_a_step_shows_what_it_read_and_wrote(tmp_path: Path, opened: Any) -> None:
    page = opened(write_page(example(), tmp_path / "call.html").path)
    step = page.get_by_role("button", name="LLM step 4")
    step.click()
    assert step.get_attribute("aria-pressed") == "true"
    ids = "nodes => nodes.map(node => node.id)"
    assert page.locator(".reads").evaluate_all(ids) == ["m0", "m1", "m2"]
    assert page.locator(".writes").evaluate_all(ids) == ["m3"]
    assert "Step 4 read 3 messages, 5 other items, wrote #5" in page.locator("#say").inner_text()
    page.keyboard.press("Escape")
    assert page.locator(".linking").count() == 0
    page.get_by_role("button", name="written by step 2").click()
    assert page.locator(".writes").evaluate_all(ids) == ["m1"]


def test_the_timeline_leads_to_a_message(tmp_path: Path, opened: Any) -> None:
    page = opened(write_page(example(), tmp_path / "call.html").path)
    box = page.locator("#timeline").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 6500 / 14_000, box["y"] + box["height"] * 0.65)
    assert page.locator(".message.picked").get_attribute("id") == "m1"
    assert page.locator("#clock").inner_text().startswith("0:06.5")


def test_an_address_leads_to_a_message(tmp_path: Path, opened: Any) -> None:
    path = write_page(example(), tmp_path / "call.html").path
    page = opened(path)
    page.goto(path.as_uri() + "#m2")
    page.reload()
    assert page.locator(".message.picked").get_attribute("id") == "m2"


# -- what one reads ----------------------------------------------------------------------------------
def test_what_was_never_heard_is_struck_out(tmp_path: Path, opened: Any) -> None:
    page = opened(write_page(example(), tmp_path / "call.html").path)
    text = page.locator("#m1-text")
    assert text.evaluate("node => node.firstChild.data") == (
        "Your appointment with Doctor Adler is on Tuesday the ninth at ten"
    )
    cut = text.locator(".cut")
    assert cut.inner_text().endswith(
        "in the morning. Please bring your insurance card and arrive ten minutes early."
    )
    assert "line-through" in cut.evaluate("node => getComputedStyle(node).textDecorationLine")
    assert (
        cut.locator(".unseen").inner_text().strip() == "never heard:"
    )  # said aloud, where a line is not seen
    assert page.locator("#m1-worth").inner_text() == "what was heard"
    assert page.locator("#m1 .state").inner_text() == "cut off"
    page.locator("#m1 summary").click()
    record = page.locator("#m1 dl").inner_text().split("\n")
    assert record[record.index("interrupted_at_ms") + 1] == "7900"


HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"


def test_hostile_text_is_text(tmp_path: Path, opened: Any) -> None:
    call = short_call(tmp_path)
    said = [
        message(0, text=HOSTILE, id=HOSTILE, generated_text=f"{HOSTILE} and more"),
        message(1, text="\u202eevil\u2066 \x00 \ud800 שלום עולם"),
        message(2, text="x" * 300_000),
        message(3, text=""),
    ]
    call = replace(call, messages=(*said,), agent_name=HOSTILE, warnings=(HOSTILE,), end_reason=HOSTILE)
    written = write_pages([call], tmp_path / "pages")
    page = opened(written[0].path)
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.locator("#m0-text").evaluate("node => node.firstChild.data") == HOSTILE
    assert page.locator("#m1-text").inner_text() == "⟨U+202E⟩evil⟨U+2066⟩ ⟨U+0000⟩ ⟨U+D800⟩ שלום עולם"
    assert len(page.locator("#m2-text").inner_text()) < 5000
    page.get_by_role("button", name="show all 300,000 characters").click()
    assert len(page.locator("#m2-text").inner_text()) == 300_000
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    index = opened(tmp_path / "pages" / "index.html", may_read=(written[0].path,))
    index.locator("tbody a").click()
    assert index.locator("h1").inner_text() == HOSTILE


def test_the_policy_stops_foreign_code(chromium: Any, tmp_path: Path) -> None:
    path = write_page(example(), tmp_path / "call.html").path
    page = chromium.new_page()
    refused: list[str] = []
    page.on("console", lambda said: refused.append(said.text))
    page.goto(path.as_uri())
    page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.hacked = 1";
          document.body.append(script);
          const image = new Image();
          image.src = "https://example.com/x.png";
          document.body.append(image);
          return fetch("https://example.com/").catch(() => null);
        }"""
    )
    assert page.evaluate("window.hacked") is None
    assert sum("Content Security Policy" in sentence for sentence in refused) >= 3
    page.close()


def test_a_call_of_which_little_is_known(tmp_path: Path, opened: Any) -> None:
    call = VoiceCall(
        call_id="c",
        messages=(
            message(
                0,
                role="user",
                text_source="stt",
                text=None,
                text_status="missing",
                start_ms=None,
                end_ms=None,
            ),
            message(
                1, state="unplayed", text="Never said.", text_source="tts_input", start_ms=None, end_ms=None
            ),
            message(2, state="open", text=None, text_status="missing", end_ms=None),
            message(3, text=None, text_status="not_captured"),
        ),
        ended=False,
    )
    page = opened(write_page(call, tmp_path / "call.html").path)
    assert "time not known" in page.locator("#m0-line").inner_text()
    assert "end of turn not known" in page.locator("#m0 .about").inner_text()
    assert page.locator("#m0-text").inner_text() == "(no text)"
    assert page.locator("#m1-text .cut").count() == 1
    assert "end not known" in page.locator("#m2-line").inner_text()
    assert "text not captured" in page.locator("#m3-worth").inner_text()
    assert page.locator(".play:enabled").count() == 0
    assert "The call was not recorded." in page.locator("#facts").inner_text()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")  # nothing to play, and nothing breaks


def test_an_empty_call(tmp_path: Path, opened: Any) -> None:
    page = opened(write_page(VoiceCall(call_id="c"), tmp_path / "call.html").path)
    assert page.locator("#list").inner_text() == "No message is known of this call."
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")


# -- how it fits -------------------------------------------------------------------------------------
def test_two_thousand_messages(tmp_path: Path, opened: Any) -> None:
    page = opened(write_page(long_call(2000), tmp_path / "call.html").path)
    assert page.locator("#list > .message").count() == 2000
    assert page.locator("#list > .step").count() == 1000
    page.locator("#m1999").scroll_into_view_if_needed()
    assert page.locator("#m1999-text").text_content() == "This is message 1999."
    page.locator("#m1999 .seq").click()  # its address: the timeline follows
    assert page.locator("#overview").is_visible()
    page.locator("#zoom-all").click()
    assert not page.locator("#overview").is_visible()


@pytest.mark.parametrize("width", [320, 768, 1600])
def test_nothing_sticks_out(tmp_path: Path, opened: Any, width: int) -> None:
    path = write_page(short_call(tmp_path), tmp_path / "call.html").path
    page = opened(path)
    page.set_viewport_size({"width": width, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#timeline canvas").bounding_box()["width"] <= width


def test_everything_has_a_name_for_who_does_not_see_it(tmp_path: Path, opened: Any) -> None:
    page = opened(write_page(short_call(tmp_path), tmp_path / "call.html").path)
    tree = page.locator("body").aria_snapshot()
    assert 'button "Play the call"' in tree
    assert 'button "Play message 0, Agent, 0.30 s of audio"' in tree
    assert 'region "Playback and timeline"' in tree
    assert "list:" in tree
    assert (
        'img "Timeline of 0:07: two voices, 5 messages, 2 LLM steps. The list below says the same."' in tree
    )
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, a, summary")].filter(
          (node) => !node.closest("[hidden]") && !(node.getAttribute("aria-label") || node.textContent).trim()
        ).length"""
    )
    assert unnamed == 0
    item = page.get_by_role("listitem", name="Agent #2")
    assert item.count() == 1
    assert page.evaluate("document.documentElement.lang") == "en"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(tmp_path: Path, opened: Any, scheme: str) -> None:
    page = opened(write_page(short_call(tmp_path), tmp_path / "call.html").path, color_scheme=scheme)
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]
    blue = {"light": [9, 105, 218], "dark": [88, 166, 255]}[scheme]  # the caller's wave
    drawn = page.evaluate(
        """(blue) => {
          const canvas = document.querySelector("#timeline canvas");
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          let count = 0;
          for (let i = 0; i < data.length; i += 4) {
            if (blue.every((part, n) => Math.abs(data[i + n] - part) <= 3)) count += 1;
          }
          return count;
        }""",
        blue,
    )
    assert drawn > 500


def test_on_paper(tmp_path: Path, opened: Any) -> None:
    page = opened(write_page(short_call(tmp_path), tmp_path / "call.html").path, color_scheme="dark")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#m1-text").is_visible()
    assert page.locator("#timeline").is_visible()
    assert not page.locator("#m1 .play").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf().startswith(b"%PDF")
