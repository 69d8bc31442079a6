"""The playground in a real Chromium, before a server whose model says what the test wants.

By default what a person does most is tried, for a page costs a second; the rest, and the bundled model, are nightly.
"""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benthic.cli.assemble import ModelChoice, open_service
from benthic.errors import CapacityError
from benthic.server.config import ServerConfig
from benthic.text.tokenizer import EOS, Tokenizer
from tests.server.browser import Browser, keep, open_browser
from tests.server.conftest import Live
from tests.server.scripted_engine import Script, answers_by_prompt

CALL = (
    '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n'
    '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)
REASONING = "7+5=12, write 2, carry 1; 4+8+1=13, write 3, carry 1; 3+2+1=6."
Server = Callable[..., Live]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


def say(page: Any, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def shown(page: Any, text: str) -> None:
    """Waits until it stands on the page, the line for screen readers not counted."""
    page.locator("main, .status, dialog[open]").get_by_text(text).first.wait_for()


def foot(page: Any) -> Any:
    return page.locator(".foot-text").last


def wait_for_end(page: Any) -> None:
    page.get_by_role("button", name="Send", exact=True).wait_for()


def height_of_composer(page: Any) -> tuple[float, float]:
    box = page.locator(".composer").bounding_box()
    return box["y"], box["height"]


def test_an_answer_streams_with_its_reasoning_folded(browser: Browser, live: Server, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_markup(f"{REASONING}</think>It is **632**." + EOS)
    answer_at = len(tokenizer.encode_markup(REASONING + "</think>")) + 2
    script = Script(ids, delay_s=0.005, delays_s={0: 0.4, 20: 0.6, answer_at: 0.6})
    with live(script) as up, browser.page(up.url) as page:
        keep(page, "welcome")
        before = height_of_composer(page)
        page.get_by_role("button", name="Think it over").click()
        shown(page, "Waiting for the first token")
        foot_height = page.locator(".foot").last.bounding_box()["height"]
        page.locator("[data-phase=thinking]").wait_for()
        assert page.get_by_role("button", name="Stop", exact=True).is_visible()
        shown(page, "tokens/s")
        keep(page, "thinking")
        page.locator("[data-phase=answering]").wait_for()
        wait_for_end(page)
        assert page.locator(".markdown strong").inner_text() == "632"
        thinking = page.locator("details.thinking")
        assert not thinking.evaluate("details => details.open")
        page.get_by_text("Thought for").click()
        assert thinking.locator(".thinking-text").inner_text() == REASONING
        assert page.locator(".foot").last.bounding_box()["height"] == foot_height
        assert height_of_composer(page) == before
        keep(page, "answer")
    [request] = up.engine.requests
    assert tokenizer.decode(list(request.prompt_ids)).endswith("<think>")


def test_a_tool_is_defined_called_and_answered(browser: Browser, live: Server, tokenizer: Tokenizer) -> None:
    said = answers_by_prompt(tokenizer, {"19 degrees": "It is 19 degrees in Paris." + EOS, "": CALL + EOS})
    with live(said, step_s=0.002, context_len=4096) as up, browser.page(up.url) as page:
        page.get_by_role("button", name="Add a tool").click()
        page.get_by_label("Name", exact=True).fill("get weather")
        page.get_by_role("button", name="Save tool").click()
        shown(page, "Letters, digits, _ and -")
        page.get_by_label("Name", exact=True).fill("get_weather")
        page.get_by_label("Description").fill("The weather of a city")
        page.get_by_label("Parameters").fill('{"type": "object", "properties": {"city": {"type": "string"}}}')
        page.get_by_label("Strict").check()
        keep(page, "tool-dialog")
        page.get_by_role("button", name="Save tool").click()
        say(page, "How is Paris?")
        result = page.get_by_label("What does get_weather return?")
        result.wait_for()
        page.wait_for_function("document.activeElement.id.startsWith('result-')")
        assert json.loads(page.locator(".call pre").first.inner_text()) == {"city": "Paris"}
        keep(page, "tool-call")
        page.keyboard.type("19 degrees")
        page.keyboard.press("Control+Enter")
        shown(page, "It is 19 degrees in Paris.")
        wait_for_end(page)
        assert page.locator(".call-state").inner_text() == "answered"
        keep(page, "tool-result")
    assert up.engine.requests[0].params.grammar is not None, "it is strict"
    first, second = (tokenizer.decode(list(request.prompt_ids)) for request in up.engine.requests)
    assert "The weather of a city" in first
    assert "19 degrees" in second


@pytest.mark.nightly
def test_two_calls_are_answered_before_the_model_goes_on(browser: Browser, live: Server, tokenizer: Tokenizer) -> None:
    start, end = "<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>"
    inner = CALL.partition(start)[2].partition(end)[0]
    twice = f"\n\n{start}{inner}{inner.replace('Paris', 'Oslo')}{end}"
    said = answers_by_prompt(tokenizer, {"first": "Both are warm." + EOS, "": twice + EOS})
    with live(said, context_len=4096) as up, browser.page(up.url) as page:
        page.get_by_role("button", name="Call a tool").click()
        results = page.get_by_label("What does get_weather return?")
        results.first.wait_for()
        assert results.count() == 2
        assert page.get_by_role("button", name="Send", exact=True).is_disabled()
        results.first.fill("first")
        page.keyboard.press("Control+Enter")
        page.get_by_label("What does get_weather return?").fill("second")
        page.keyboard.press("Control+Enter")
        shown(page, "Both are warm.")
    assert len(up.engine.requests) == 2


def test_an_answer_in_json_is_asked_for_and_shown_as_such(browser: Browser, live: Server, tokenizer: Tokenizer) -> None:
    said = answers_by_prompt(tokenizer, {"broken": '{"name": "An' + EOS, "": '{"name": "Anna", "age": 31}' + EOS})
    with live(said, step_s=0.002, context_len=4096) as up, browser.page(up.url) as page:
        bodies: list[dict[str, Any]] = []
        page.on("request", lambda request: bodies.append(request.post_data_json) if request.method == "POST" else None)
        page.get_by_role("button", name="Answer in JSON").click()
        wait_for_end(page)
        assert page.locator(".markdown .code pre").inner_text() == '{\n  "name": "Anna",\n  "age": 31\n}'
        schema = bodies[0]["response_format"]["json_schema"]["schema"]
        assert schema["required"] == ["name", "age", "city"]
        keep(page, "json")
        say(page, "broken")
        shown(page, "This answer is not JSON.")
        page.get_by_label("JSON schema", exact=True).fill("{")
        shown(page, "No JSON yet")
        say(page, "again")
        shown(page, "A schema in the settings is not JSON")
    assert len(up.engine.requests) == 2


@pytest.mark.parametrize("way", [pytest.param("button", marks=pytest.mark.nightly), "key"])
def test_a_stop_ends_the_answer_here_and_in_the_engine(
    browser: Browser, live: Server, tokenizer: Tokenizer, way: str
) -> None:
    script = Script(tokenizer.encode_markup("on and on and "), delay_s=0.01, is_endless=True)
    with live(script, context_len=4096) as up, browser.page(up.url) as page:
        say(page, "Go")
        shown(page, "on and on and on")
        if way == "button":
            page.get_by_role("button", name="Stop", exact=True).click()
        else:
            page.keyboard.press("Escape")
        wait_for_end(page)
        assert foot(page).inner_text().startswith("Stopped")
        assert page.locator(".markdown").inner_text().startswith("on and on")
        keep(page, f"stopped-by-{way}")
        [request] = up.engine.requests
        assert request.request_id in up.engine.cancelled


@pytest.mark.nightly
def test_what_was_reused_is_told_with_each_answer(browser: Browser, live: Server) -> None:
    with live("Hello." + EOS) as up, browser.page(up.url) as page:
        up.engine.cached_len, up.engine.drafts = 4, (6, 3)
        say(page, "Hi")
        page.get_by_role("button", name=re.compile("% cached")).click()
        report = page.locator(".report")
        assert "4 from the cache" in report.inner_text()
        assert "3 of 6 accepted" in report.inner_text()
        keep(page, "report")


def test_charts_follow_the_metrics(browser: Browser, live: Server) -> None:
    with live("one two three" + EOS, step_s=0.01) as up, browser.page(up.url) as page:
        for _ in range(2):
            say(page, "Count")
            wait_for_end(page)
        page.keyboard.press("Escape")
        page.get_by_role("link", name="Metrics").click()
        page.get_by_role("img", name=re.compile("^Throughput.*generated [0-9.]+, prompt [0-9.]+")).wait_for()
        page.get_by_role("img", name=re.compile("^First token.*median [0-9.]+ m?s")).wait_for()
        assert page.locator(".chart").count() >= 8
        assert page.locator(".tiles div", has_text="Tokens, all time").locator("dd").inner_text() == str(
            sum(len(request.prompt_ids) > 0 for request in up.engine.requests) * 4
        )
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Go on").wait_for()
        page.locator(".plot").first.hover()
        page.locator(".pointer").wait_for(state="attached")
        keep(page, "metrics")


def test_the_page_fits_a_phone(browser: Browser, live: Server) -> None:
    with live("A word " * 40 + EOS) as up, browser.page(up.url, is_phone=True) as page:
        keep(page, "phone-welcome")
        say(page, "Write something that is a little longer than the screen of a phone is wide.")
        wait_for_end(page)
        keep(page, "phone-chat")
        page.get_by_role("button", name="Settings (s)").click()
        page.get_by_role("heading", name="Settings").wait_for()
        keep(page, "phone-settings")
        page.get_by_role("button", name="Close settings").click()
        page.get_by_role("link", name="Metrics").click()
        page.locator(".chart").first.wait_for()
        keep(page, "phone-metrics")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        for width in (390, 360):
            page.set_viewport_size({"width": width, "height": 640})
            for name in ("Key needed", "an-organisation/a-model-with-a-long-name"):
                page.evaluate("name => { document.getElementById('status-text').textContent = name; }", name)
                assert page.evaluate("document.documentElement.scrollWidth") == width, (width, name)
        small = page.evaluate(
            """() => [...document.querySelectorAll(".top a, .top button")].filter(node => node.offsetParent)
            .filter(node => node.getBoundingClientRect().height < 30).map(node => node.outerHTML)"""
        )
        assert not small


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_is_the_systems_until_another_is_chosen(browser: Browser, live: Server, scheme: Any) -> None:
    colours = {"light": "rgb(251, 251, 249)", "dark": "rgb(15, 21, 24)"}
    is_shown = "colour => getComputedStyle(document.documentElement).backgroundColor === colour"
    other = "dark" if scheme == "light" else "light"
    with live("x" + EOS) as up, browser.page(up.url, color_scheme=scheme) as page:
        say(page, "Hi")
        wait_for_end(page)
        page.wait_for_function(is_shown, arg=colours[scheme])
        keep(page, f"theme-{scheme}")
        page.get_by_role("button", name="Dark or light").click()
        page.wait_for_function(is_shown, arg=colours[other])
        page.reload()
        page.wait_for_function(is_shown, arg=colours[other])
        page.get_by_role("button", name="Dark or light").click()
        page.wait_for_function(is_shown, arg=colours[scheme])
        assert page.evaluate("localStorage.getItem('benthic.theme')") == '"system"'


def test_a_key_is_asked_for_until_it_is_right(browser: Browser, live: Server) -> None:
    with live("Hello." + EOS, api_key="secret") as up, browser.page(up.url, expected="401") as page:
        field = page.get_by_label("Key", exact=True)
        field.wait_for()
        keep(page, "key")
        field.fill("wrong")
        page.keyboard.press("Enter")
        shown(page, "Key needed")
        say(page, "Hi")
        page.get_by_role("alert").get_by_text("This server asks for a key").wait_for()
        field.fill("secret")
        page.keyboard.press("Enter")
        page.locator("#status", has_text="tiny").wait_for()
        page.get_by_role("button", name="Again").click()
        shown(page, "Hello.")
        page.reload()
        page.locator("#status", has_text="tiny").wait_for()
        assert page.evaluate("localStorage.getItem('benthic.key')") is None


def test_errors_are_told_in_words_with_something_to_do(browser: Browser, live: Server) -> None:
    with live("one two three" + EOS) as up, browser.page(up.url, expected="Failed to load") as page:
        up.engine.refuses = CapacityError("the pool has no room for another sequence")
        say(page, "Hi")
        alert = page.get_by_role("alert").last
        alert.get_by_text("The server is busy").wait_for()
        keep(page, "busy")
        up.engine.refuses = None
        up.engine.ends = ("the step failed", "engine")
        alert.get_by_role("button", name="Try again", exact=True).click()
        shown(page, "The server cannot answer right now")
        assert page.locator(".turn.assistant").count() == 1
        up.engine.ends = None
        page.locator("#set-max_tokens").fill("100000")
        say(page, "Hi again")
        page.get_by_role("alert").last.get_by_text("max_tokens is 100000").wait_for()
        page.get_by_role("button", name="Reset").click()
        page.get_by_role("button", name="Again").last.click()
        shown(page, "one two three")


@pytest.mark.nightly
def test_a_server_that_went_away_is_noticed_and_its_return_as_well(browser: Browser, live: Server) -> None:
    with live("x" + EOS, step_s=0.02) as up, browser.page(up.url, expected="Failed to load") as page:
        page.locator("#status", has_text="tiny").wait_for()
        page.route("**/*", lambda route: route.abort())
        say(page, "Hi")
        page.get_by_role("alert").get_by_text("The server cannot be reached").wait_for()
        page.locator("#banner", has_text="The server does not answer").wait_for()
        keep(page, "away")
        page.unroute("**/*")
        page.locator("#status", has_text="tiny").wait_for()
        assert page.locator("#banner").is_hidden()


@pytest.mark.nightly
def test_a_stream_that_breaks_off_is_no_answer(browser: Browser, live: Server) -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "half"}, "finish_reason": None}]}
    with live("x" + EOS) as up, browser.page(up.url) as page:
        body = f"data: {json.dumps(chunk)}\n\n"
        page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
        say(page, "Hi")
        shown(page, "The connection broke off")
        assert page.locator(".markdown").inner_text() == "half"


@pytest.mark.nightly
def test_an_answer_cut_off_while_thinking_says_what_helps(browser: Browser, live: Server) -> None:
    """B187: all tokens go into reasoning and the answer is empty; the page says so and names the budget."""
    with live("round and round and round" + EOS) as up, browser.page(up.url) as page:
        page.locator("label[for=thinking-on]").click()
        page.locator("#set-max_tokens").fill("3")
        page.locator("#set-budget").fill("64")
        say(page, "Hi")
        shown(page, "set a thinking budget")
        assert page.locator(".markdown").inner_text() == ""
    assert up.engine.requests[0].params.max_tokens == 3


def test_markup_in_an_answer_stays_text(browser: Browser, live: Server) -> None:
    attack = '<img src=x onerror="window.hit=1"> <script>window.hit=1</script> [a](javascript:alert(1))'
    with live(attack + EOS) as up, browser.page(up.url) as page:
        say(page, attack)
        wait_for_end(page)
        assert page.locator(".markdown").inner_text() == attack
        assert page.locator(".turn img, .turn script, .turn a").count() == 0
        assert page.evaluate("window.hit") is None


@pytest.mark.nightly
def test_a_conversation_outlives_a_reload_and_can_be_changed(browser: Browser, live: Server) -> None:
    with live("An answer." + EOS) as up, browser.page(up.url) as page:
        say(page, "First")
        wait_for_end(page)
        page.reload()
        shown(page, "An answer.")
        page.get_by_label("Message", exact=True).press("ArrowUp")
        assert page.get_by_label("Message", exact=True).input_value() == "First"
        assert page.locator(".turn").count() == 0
        page.keyboard.press("Enter")
        shown(page, "An answer.")
        wait_for_end(page)
        page.get_by_role("button", name="New chat").click()
        page.get_by_role("heading", name="Ask the model something").wait_for()
    assert len(up.engine.requests) == 2


@pytest.mark.nightly
@pytest.mark.parametrize("stored", ["{", "7", "[null]", '[{"role": "assistant"}]', '{"tools": 3}'])
def test_what_another_version_has_stored_does_no_harm(browser: Browser, live: Server, stored: str) -> None:
    with live("x" + EOS) as up, browser.page(up.url) as page:
        for name in ("turns", "settings", "theme", "panel"):
            page.evaluate("([name, text]) => localStorage.setItem(`benthic.${name}`, text)", [name, stored])
        page.reload()
        page.get_by_role("button", name="Think it over").wait_for()
        say(page, "Hi")
        wait_for_end(page)


@pytest.mark.nightly
def test_a_request_can_be_taken_along_as_a_command(browser: Browser, live: Server) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    with live("It's fine." + EOS) as up, browser.page(up.url, permissions=permissions) as page:
        say(page, 'What\'s the "matter"?')
        wait_for_end(page)
        page.locator("#set-seed").fill("7")
        page.get_by_role("button", name="Request").click()
        shown(page, "Copied")
        command = page.evaluate("navigator.clipboard.readText()")
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=30)
        assert json.loads(done.stdout)["choices"][0]["message"]["content"] == "It's fine."
    by_page, by_command = up.engine.requests
    assert by_command.prompt_ids == by_page.prompt_ids
    assert by_command.params.seed == by_page.params.seed, "with the settings that it was sent with"


@pytest.mark.nightly
def test_everything_can_be_done_from_the_keyboard(browser: Browser, live: Server) -> None:
    with live("x" + EOS) as up, browser.page(up.url) as page:
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("?")
        dialog = page.get_by_role("dialog", name="Keyboard")
        dialog.wait_for()
        keep(page, "keys")
        page.keyboard.press("Escape")
        page.keyboard.press("s")
        page.locator("#settings").wait_for(state="hidden")
        page.keyboard.press("m")
        page.get_by_role("heading", name="Metrics").wait_for()
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Message"
        page.keyboard.type("m?")
        assert page.get_by_label("Message", exact=True).input_value() == "m?"


@pytest.mark.nightly
def test_every_control_has_a_name(browser: Browser, live: Server) -> None:
    nameless = """() => [...document.querySelectorAll("button, a, input, select, textarea")].filter(node =>
        !(node.textContent.trim() || node.ariaLabel || node.labels?.length)).map(node => node.outerHTML)"""
    with live(f"why{'</think>'}x" + EOS) as up, browser.page(up.url) as page:
        page.get_by_role("button", name="get_weather").click()
        page.locator("label[for=thinking-on]").click()
        say(page, "Hi")
        wait_for_end(page)
        assert page.evaluate(nameless) == []
        ids = page.evaluate("() => [...document.querySelectorAll('[id]')].map(node => node.id)")
        assert len(ids) == len(set(ids))


@pytest.mark.nightly
def test_events_are_read_however_the_bytes_were_cut(browser: Browser, live: Server) -> None:
    stream = ': hello\n\ndata: {"a": "é🌊"}\r\n\r\ndata: one\ndata: two\n\ndata:[DONE]\n\nevent: x\n\n'
    check = """async ({stream, size}) => {
        const { EventParser } = await import("/playground/api/events.js");
        const parser = new EventParser();
        const events = [];
        for (let at = 0; at < stream.length; at += size) events.push(...parser.push(stream.slice(at, at + size)));
        return events;
    }"""
    with live("x" + EOS) as up, browser.page(up.url) as page:
        for size in range(1, len(stream)):
            events = page.evaluate(check, {"stream": stream, "size": size})
            assert events == ['{"a": "é🌊"}', "one\ntwo", "[DONE]"]


@pytest.mark.nightly
def test_quantiles_and_axes_are_right(browser: Browser, live: Server) -> None:
    with live("x" + EOS) as up, browser.page(up.url) as page:
        quantile = """async ([counts, q]) => {
            const { quantileOf } = await import("/playground/metrics/history.js");
            return quantileOf(counts.map(([edge, count]) => [edge ?? Infinity, count]), q);
        }"""
        counts = [[1, 0], [2, 10], [4, 20], [None, 20]]
        assert page.evaluate(quantile, [counts, 0.5]) == pytest.approx(2)
        assert page.evaluate(quantile, [counts, 0.75]) == pytest.approx(3)
        assert page.evaluate(quantile, [[[1, 0], [None, 5]], 0.5]) == pytest.approx(1)
        assert page.evaluate(quantile, [[[1, 0], [None, 0]], 0.5]) is None
        ticks = """async ([top, options]) => (await import("/playground/metrics/scale.js")).ticks(top, options)"""
        assert page.evaluate(ticks, [0.3, {}]) == pytest.approx([0, 0.1, 0.2, 0.3])
        assert page.evaluate(ticks, [7, {}]) == [0, 5, 10]
        assert page.evaluate(ticks, [2, {"isCount": True}]) == [0, 1, 2]
        assert page.evaluate(ticks, [0, {}]) == [0]


@pytest.mark.nightly
def test_the_bundled_model_thinks_calls_a_tool_and_writes_json(browser: Browser) -> None:
    service = open_service(ModelChoice(model="tiny"), server=ServerConfig(engine_in_process=True))
    with Live(service, service.channel.engine) as up, browser.page(up.url) as page:
        page.get_by_role("button", name="Think it over").click()
        wait_for_end(page)
        assert "632" in page.locator(".markdown").inner_text()
        keep(page, "bundled-thinking")
        page.get_by_role("button", name="New chat").click()
        page.get_by_role("button", name="Call a tool").click()
        result = page.get_by_label("What does get_weather return?")
        result.wait_for()
        assert json.loads(page.locator(".call pre").first.inner_text()) == {"city": "Paris"}
        result.fill('{"temperature": 19, "condition": "sunny"}')
        page.keyboard.press("Control+Enter")
        shown(page, "It is 19 degrees and sunny in Paris.")
        wait_for_end(page)
        page.get_by_role("button", name=re.compile("% cached")).last.click()
        shown(page, "from the cache")
        keep(page, "bundled-tool")
        page.get_by_role("button", name="New chat").click()
        page.get_by_role("button", name="Reset").click()
        page.get_by_role("button", name="Answer in JSON").click()
        wait_for_end(page)
        answer = json.loads(page.locator(".markdown .code pre").inner_text())
        assert answer == {"name": "Anna", "age": 31, "city": "Oslo"}
        keep(page, "bundled-json")
        page.locator("label[for=format-regex]").click()
        page.get_by_label("Expression").fill("(yes|no)!")
        say(page, "Is it?")
        wait_for_end(page)
        assert page.locator(".markdown").last.inner_text() in ("yes!", "no!")
