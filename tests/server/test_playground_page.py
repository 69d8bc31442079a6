"""The files of the playground over HTTP: what is sent, to whom, and with which policy. No browser needed."""

import re
from collections.abc import Callable

import httpx
import pytest

from benthic.server.playground_page import FOLDER, read_files
from benthic.text.tokenizer import EOS
from tests.server.conftest import Live, Script

pytestmark = pytest.mark.anyio

NAMES = sorted(read_files(FOLDER))


async def test_the_page_stands_at_the_root_and_needs_no_key(scripted: Script) -> None:
    async with scripted("x" + EOS, api_key="secret") as up:
        page = await up.client.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "<title>Benthic</title>" in page.text
        assert (await up.client.get("/playground/app.js")).status_code == 200
        assert (await up.client.get("/v1/models")).status_code == 401
        head = await up.client.head("/")
        assert head.status_code == 200 and not head.content


async def test_every_file_is_sent_with_a_policy_that_allows_only_this_server(scripted: Script) -> None:
    async with scripted("x" + EOS) as up:
        for path in ("/", *(f"/playground/{name}" for name in NAMES)):
            answer = await up.client.get(path)
            assert answer.status_code == 200, path
            policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
            assert policy["default-src"] == "'none'"
            assert set(policy.values()) == {"'none'", "'self'"}
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"


async def test_a_browser_that_has_a_file_gets_it_again_only_when_it_changed(scripted: Script) -> None:
    async with scripted("x" + EOS) as up:
        first = await up.client.get("/playground/app.js")
        again = await up.client.get("/playground/app.js", headers={"if-none-match": first.headers["etag"]})
        other = await up.client.get("/playground/app.js", headers={"if-none-match": '"other", W/"another"'})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
        assert other.status_code == 200


@pytest.mark.parametrize(
    "path", ["/playground/", "/playground/none.js", "/playground/..%2fapp.py", "/playground/%2e%2e/app.py"]
)
async def test_nothing_but_these_files_is_sent(scripted: Script, path: str) -> None:
    async with scripted("x" + EOS) as up:
        answer = await up.client.get(path)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "unknown_url"


async def test_the_page_can_be_left_out(scripted: Script) -> None:
    async with scripted("x" + EOS, playground=False) as up:
        assert (await up.client.get("/")).status_code == 404
        assert (await up.client.get("/playground/app.js")).status_code == 404


@pytest.mark.parametrize("name", NAMES)
def test_files_name_no_other_place_and_each_other_rightly(name: str) -> None:
    text = (FOLDER / name).read_text()
    places = set(re.findall(r"https?://[\w.]+", text)) - {"http://www.w3.org"}
    assert not places, places
    wanted = re.findall(r'(?:from|import) "(\.[^"]+)"', text) + re.findall(r'(?:href|src)="/playground/([^"]+)"', text)
    base = FOLDER if name.endswith(".html") else (FOLDER / name).parent
    for target in wanted:
        assert (base / target).resolve().relative_to(FOLDER).as_posix() in NAMES, target


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".js")])
def test_scripts_are_short_and_say_first_what_they_are_for(name: str) -> None:
    lines = (FOLDER / name).read_text().splitlines()
    assert lines[0].startswith("// ")
    assert len(lines) <= 250
    assert max(map(len, lines)) <= 120
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", "\n".join(lines))


def test_it_is_served_over_a_socket_as_well(live: Callable[..., Live]) -> None:
    with live("x" + EOS) as up:
        assert httpx.get(up.url).headers["content-type"].startswith("text/html")
