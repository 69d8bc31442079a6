"""What every request meets first: its name, the key, other origins, and endpoints that do not exist."""

import logging
from typing import Any

import pytest

from benthic.errors import ConfigError
from benthic.server.config import ServerConfig
from benthic.server.protocols import open_answer
from benthic.telemetry import REQUESTS
from benthic.text.tokenizer import EOS

pytestmark = pytest.mark.anyio
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
ASK = [{"role": "user", "content": "hi"}]
HELLO = {"model": "tiny", "messages": ASK, "max_tokens": 5}


async def test_an_answer_carries_the_clients_own_name_for_its_request(scripted: Any) -> None:
    async with scripted("a" + EOS) as up:
        for path in (CHAT, MESSAGES, "/nowhere"):
            response = await up.client.post(path, json=HELLO, headers={"x-request-id": "trace/7:a.b"})
            assert response.headers["x-request-id"] == "trace/7:a.b"
        stream = await up.client.post(CHAT, json={**HELLO, "stream": True}, headers={"x-request-id": "s-1"})
        assert stream.headers["x-request-id"] == "s-1"


@pytest.mark.parametrize("sent", [None, "", "two words", "a" * 129, "<script>", "\u00e4".encode()])
async def test_a_request_without_a_fit_name_gets_a_fresh_one(scripted: Any, sent: Any) -> None:
    async with scripted("a" + EOS) as up:
        headers = {} if sent is None else {"x-request-id": sent}
        names = [(await up.client.post(CHAT, json=HELLO, headers=headers)).headers["x-request-id"] for _ in range(2)]
        assert all(name.startswith("req_") for name in names)
        assert names[0] != names[1]


async def test_anthropic_clients_find_the_name_where_they_look(scripted: Any) -> None:
    async with scripted("a" + EOS) as up:
        good = await up.client.post(MESSAGES, json=HELLO)
        assert good.headers["request-id"] == good.headers["x-request-id"]
        bad = await up.client.post(MESSAGES, json={**HELLO, "messages": []})
        assert bad.json()["request_id"] == bad.headers["request-id"]


async def test_the_log_names_a_request_that_failed(scripted: Any, caplog: Any) -> None:
    async with scripted("a" + EOS) as up:
        up.service.prompts._split = None  # a defect
        for body in (HELLO, {**HELLO, "stream": True}):
            response = await up.client.post(CHAT, json=body, headers={"x-request-id": "trace-7"})
            assert response.status_code == 500
            assert response.headers["x-request-id"] == "trace-7"
            assert response.json()["error"]["type"] == "server_error"
        assert caplog.text.count("trace-7") == 2


async def test_every_line_of_the_log_has_the_name_of_its_request(scripted: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO, logger=REQUESTS)
    async with scripted("a" + EOS, api_key="k") as up:
        for number, (stream, key) in enumerate([(False, "k"), (True, "k"), (False, "wrong")]):
            headers = {"x-request-id": f"trace-{number}", "x-api-key": key}
            await up.client.post(CHAT, json={**HELLO, "stream": stream}, headers=headers)
    lines = [record.__dict__["benthic_figures"] for record in caplog.records if record.name == REQUESTS]
    assert [(line["id"], line["status"]) for line in lines] == [("trace-0", 200), ("trace-1", 200), ("trace-2", 401)]


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, {"messages": []}, "invalid_request_error"),
        (404, {"model": "claude-9"}, "not_found_error"),
        (413, {"metadata": {"user_id": "x" * 5000}}, "request_too_large"),
    ],
)
async def test_refusals_of_messages_have_anthropics_envelope(
    scripted: Any, status: int, body: dict[str, Any], kind: str
) -> None:
    async with scripted("a" + EOS, max_body_bytes=4000) as up:
        for path in (MESSAGES, f"{MESSAGES}/count_tokens"):
            if kind == "not_found_error" and path != MESSAGES:
                continue  # counting does not ask for the model
            response = await up.client.post(path, json={**HELLO, **body})
            assert response.status_code == status
            assert set(response.json()) == {"type", "error", "request_id"}
            assert response.json()["type"] == "error"
            assert response.json()["error"]["type"] == kind
            assert response.json()["error"]["message"]


async def test_a_wrong_key_and_a_full_server_are_said_in_anthropics_words(scripted: Any) -> None:
    async with scripted("a b c", api_key="k", max_open_sequences=1, step_s=0.02) as up:
        wrong = await up.client.post(MESSAGES, json=HELLO)
        assert (wrong.status_code, wrong.json()["error"]["type"]) == (401, "authentication_error")
        headers = {"x-api-key": "k"}
        running = await open_answer(up.service, "messages", {**HELLO, "max_tokens": 300, "ignore_eos": True})
        full = await up.client.post(MESSAGES, json=HELLO, headers=headers)
        running.close()
        assert (full.status_code, full.json()["error"]["type"]) == (429, "rate_limit_error")
        assert full.headers["retry-after"] == "1"


async def test_each_of_several_keys_opens_the_server(scripted: Any) -> None:
    async with scripted("a" + EOS, api_key="one", api_keys=("two", "three")) as up:
        for key, status in (("one", 200), ("two", 200), ("three", 200), ("tw", 401), ("", 401), ("onetwo", 401)):
            for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
                assert (await up.client.post(CHAT, json=HELLO, headers=headers)).status_code == status, headers


async def test_the_admin_key_does_not_open_the_clients_routes(scripted: Any) -> None:
    async with scripted("a" + EOS, api_keys=("s3cret",), admin_key="boss") as up:
        boss, client = {"authorization": "Bearer boss"}, {"authorization": "Bearer s3cret"}
        assert (await up.client.post(CHAT, json=HELLO, headers=boss)).status_code == 401
        assert (await up.client.get("/get_weight_version", headers=client)).status_code == 401
        assert (await up.client.get("/get_weight_version", headers=boss)).status_code == 200
        assert "s3cret" not in (await up.client.get("/server_info", headers=boss)).text


async def test_by_key_no_client_shares_the_cache_of_another(scripted: Any) -> None:
    async with scripted("a" + EOS, api_keys=("one", "two"), salt_by_key=True) as up:
        for key in ("one", "two", "one"):
            for path, body in (
                (CHAT, HELLO),
                (MESSAGES, HELLO),
                ("/v1/responses", {"model": "tiny", "input": "hi"}),
                ("/v1/completions", {"model": "tiny", "prompt": "hi"}),
                ("/v1/completions", {"model": "tiny", "prompt": "hi", "echo": True, "logprobs": 1}),
                (CHAT, {**HELLO, "cache_salt": "mine"}),
            ):
                response = await up.client.post(path, json=body, headers={"x-api-key": key})
                assert response.status_code == 200
        salts = [request.cache_salt for request in up.engine.requests]
        assert len(salts) == 21  # echo with logprobs scores in a request of its own
        first, second, third = salts[:7], salts[7:14], salts[14:]
        assert first == third
        assert not set(first) & set(second)
        assert len(set(first)) == 2  # one's own salt still divides
        assert all("one" not in salt for salt in salts)


async def test_without_salts_by_key_all_share(scripted: Any) -> None:
    async with scripted("a" + EOS, api_keys=("one", "two")) as up:
        for key in ("one", "two"):
            await up.client.post(CHAT, json=HELLO, headers={"x-api-key": key})
        assert [request.cache_salt for request in up.engine.requests] == ["", ""]


async def test_no_page_of_another_origin_gets_in_unless_configured(scripted: Any) -> None:
    origin = {"origin": "https://chat.example.org"}
    asks = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    async with scripted("a" + EOS) as up:
        assert "access-control-allow-origin" not in (await up.client.post(CHAT, json=HELLO, headers=origin)).headers
        assert (await up.client.options(CHAT, headers=asks)).status_code == 405
    async with scripted("a" + EOS, api_key="k", cors_origins=("https://chat.example.org",)) as up:
        preflight = await up.client.options(CHAT, headers=asks)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://chat.example.org"
        refused = await up.client.post(CHAT, json=HELLO, headers=origin)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://chat.example.org"
        assert "x-request-id" in refused.headers["access-control-expose-headers"]
        other = await up.client.post(CHAT, json=HELLO, headers={"origin": "https://evil.example.org", "x-api-key": "k"})
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"api_keys": ("a", "")}, "number 2"),
        ({"salt_by_key": True}, "without api_key"),
        ({"cors_origins": ("example.org",)}, "scheme and host"),
        ({"cors_origins": ("https://example.org/page",)}, "scheme and host"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServerConfig(**options)


@pytest.mark.parametrize(
    ("method", "path", "word"),
    [
        ("GET", "/v1/responses/resp_1", "not stored"),
        ("DELETE", "/v1/responses/resp_1", "not stored"),
        ("POST", "/v1/responses/resp_1/cancel", "not stored"),
        ("GET", "/v1/responses/resp_1/input_items", "not stored"),
        ("GET", "/v1/chat/completions/chatcmpl-1", "not stored"),
        ("POST", "/v1/conversations", "not stored"),
        ("POST", "/v1/embeddings", "embeddings"),
        ("POST", "/v1/audio/speech", "text only"),
        ("POST", "/v1/images/generations", "text only"),
        ("GET", "/v1/files", "not stored"),
        ("POST", "/v1/batches", "batch"),
        ("POST", "/v1/messages/batches", "batch"),
        ("GET", "/v1/messages/batches/b_1/results", "batch"),
        ("POST", "/v1/moderations", "moderation"),
        ("POST", "/v1/fine_tuning/jobs", "benthic train"),
    ],
)
async def test_an_endpoint_that_is_not_offered_says_why(scripted: Any, method: str, path: str, word: str) -> None:
    async with scripted("a" + EOS) as up:
        response = await up.client.request(method, path)
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "not_supported"
        assert word in response.json()["error"]["message"]
        assert ("type" in response.json()) is path.startswith(MESSAGES)


async def test_a_base_url_with_or_without_v1_in_the_wrong_place_is_explained(scripted: Any) -> None:
    async with scripted("a" + EOS) as up:
        for path, meant in (
            ("/chat/completions", "/v1/chat/completions"),
            ("/v1/v1/messages", "/v1/messages"),
            ("/models/tiny", "/v1/models/tiny"),
        ):
            message = (await up.client.request("GET" if "models" in path else "POST", path)).json()["error"]["message"]
            assert f"did you mean {meant}?" in message


async def test_the_models_are_listed_for_both_kinds_of_clients(scripted: Any) -> None:
    async with scripted("a" + EOS) as up:
        listed = (await up.client.get("/v1/models")).json()
        [card] = listed["data"]
        assert (listed["object"], listed["has_more"]) == ("list", False)
        assert (card["object"], card["type"], card["display_name"]) == ("model", "model", "tiny")
        assert card["created_at"].endswith("Z")
