"""Routes beside generation: models, health, metrics, tokens, keys, and errors for everything unknown."""

from typing import Any

import pytest

from benthic.errors import BenthicError
from benthic.server.errors import ApiError
from benthic.text.tokenizer import EOS, Tokenizer

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
ASK = [{"role": "user", "content": "hi"}]


async def test_the_served_model_is_listed_and_others_are_unknown(scripted: Any) -> None:
    async with scripted("a" + EOS, served_name="deep/tiny") as up:
        [card] = (await up.client.get("/v1/models")).json()["data"]
        assert card["id"] == "deep/tiny"
        assert card["object"] == "model"
        assert (await up.client.get("/v1/models/deep/tiny")).json() == card
        for other in ("tiny", "deep"):
            response = await up.client.get(f"/v1/models/{other}")
            assert response.status_code == 404
            assert response.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nope", 404), ("POST", "/v1/embeddings", 404), ("GET", CHAT, 405), ("DELETE", "/v1/models", 405)],
)
async def test_an_unknown_route_or_method_is_an_error_object(
    scripted: Any, method: str, path: str, status: int
) -> None:
    async with scripted("a" + EOS) as up:
        response = await up.client.request(method, path)
        assert response.status_code == status
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert path in error["message"]


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"null", b'{"messages": NaN}', b"\xff\xfe", b'{"a":' * 5000])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/tokenize", "/detokenize"])
async def test_a_body_that_is_no_json_object_gets_400(scripted: Any, path: str, raw: bytes) -> None:
    async with scripted("a" + EOS) as up:
        response = await up.client.post(path, content=raw)
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/completions", "/tokenize"])
async def test_a_compressed_body_is_refused_as_such(scripted: Any, path: str) -> None:
    async with scripted("a" + EOS) as up:
        response = await up.client.post(path, content=b"\x1f\x8b\x08\x00", headers={"content-encoding": "gzip"})
        assert response.status_code == 415
        assert "content-encoding is 'gzip'" in response.json()["error"]["message"]
        plain = await up.client.post("/tokenize", json={"prompt": "a"}, headers={"content-encoding": "identity"})
        assert plain.status_code == 200


async def test_with_a_key_only_its_holders_are_served(scripted: Any) -> None:
    async with scripted("a" + EOS, api_key="secret") as up:
        body = {"model": "tiny", "messages": ASK}
        for headers, status in (
            ({}, 401),
            ({"authorization": "Bearer wrong"}, 401),
            ({"authorization": "secret"}, 401),
            ({"authorization": "Bearer s\u00e4cret".encode()}, 401),
            ({"authorization": "Bearer secret"}, 200),
            ({"x-api-key": "secret"}, 200),
        ):
            response = await up.client.post(CHAT, json=body, headers=headers)
            assert response.status_code == status, headers
        assert (await up.client.get("/health")).status_code == 200


async def test_metrics_count_requests_tokens_and_times(scripted: Any) -> None:
    async with scripted("one two" + EOS) as up:
        answer = await up.json(CHAT, model="tiny", messages=ASK, thinking={"type": "disabled"}, unheard_of=1)
        await up.post(CHAT, model="other", messages=ASK)
        text = (await up.client.get("/metrics")).text
        values = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}
        assert values['benthic_requests_total{route="/v1/chat/completions",status="200"}'] == 1
        assert values['benthic_requests_total{route="/v1/chat/completions",status="404"}'] == 1
        assert values["benthic_prompt_tokens_total"] == answer["usage"]["prompt_tokens"]
        assert values["benthic_generation_tokens_total"] == answer["usage"]["completion_tokens"]
        assert values["benthic_time_to_first_token_seconds_count"] == 1
        assert values["benthic_e2e_request_latency_seconds_count"] == 1
        assert values["benthic_unknown_fields_total"] == 1
        assert values["benthic_open_sequences"] == 0


async def test_two_servers_in_one_process_count_apart(scripted: Any) -> None:
    async with scripted("a" + EOS) as first, scripted("a" + EOS) as second:
        await first.json(CHAT, model="tiny", messages=ASK)
        assert "benthic_prompt_tokens_total 0.0" in (await second.client.get("/metrics")).text


async def test_a_strict_server_refuses_unknown_fields(scripted: Any) -> None:
    async with scripted("a" + EOS, strict_fields=True) as up:
        for path, body in ((CHAT, {"messages": ASK}), ("/v1/completions", {"prompt": "x"})):
            response = await up.post(path, model="tiny", **body, temprature=0.5)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "temprature"


async def test_tokenize_and_detokenize_are_inverse(scripted: Any, tokenizer: Tokenizer) -> None:
    text = "Grüße, 世界 🌊 </think>"
    async with scripted("a" + EOS) as up:
        answer = await up.json("/tokenize", prompt=text)
        assert answer["tokens"] == tokenizer.encode(text)
        assert answer["count"] == len(answer["tokens"])
        assert (await up.json("/detokenize", tokens=answer["tokens"]))["prompt"] == text
        with_bos = await up.json("/tokenize", prompt=text, add_special_tokens=True)
        assert with_bos["tokens"] == [tokenizer.bos_token_id, *answer["tokens"]]
        for path, body in (("/tokenize", {}), ("/tokenize", {"prompt": 3}), ("/detokenize", {"tokens": [4096]})):
            assert (await up.post(path, **body)).status_code == 400


async def test_the_prompt_of_a_chat_can_be_tokenized(scripted: Any, tokenizer: Tokenizer) -> None:
    async with scripted("a" + EOS) as up:
        answer = await up.json("/tokenize", messages=ASK, thinking=False, return_token_strs=True)
        await up.json(CHAT, messages=ASK, thinking=False)
        assert answer["tokens"] == list(up.engine.requests[0].prompt_ids)
        assert answer["token_strs"] == [tokenizer.token(token_id) for token_id in answer["tokens"]]
        assert (await up.post("/tokenize", messages=[])).status_code == 400
        assert "token_strs" not in await up.json("/tokenize", prompt="a")


async def test_a_completion_begins_a_document_only_when_asked_to(scripted: Any, tokenizer: Tokenizer) -> None:
    async with scripted("a" + EOS) as up:
        for fields in ({}, {"add_special_tokens": True}, {"prompt": [5, 6], "add_special_tokens": True}):
            await up.json("/v1/completions", **{"prompt": "one", **fields})
        plain, begun, ids = (list(request.prompt_ids) for request in up.engine.requests)
        assert plain == tokenizer.encode("one")
        assert begun == [tokenizer.bos_token_id, *plain]
        assert ids == [5, 6]


async def test_harnesses_learn_the_special_tokens(scripted: Any, tokenizer: Tokenizer) -> None:
    async with scripted("a" + EOS) as up:
        info = (await up.client.get("/tokenizer_info")).json()
        assert tokenizer.token_id(info["eos_token"]) == tokenizer.eos_token_id
        assert tokenizer.token_id(info["bos_token"]) == tokenizer.bos_token_id


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/v1/models/tiny", "/tokenizer_info"])
async def test_head_is_answered_as_get_without_a_body(scripted: Any, path: str) -> None:
    async with scripted("a" + EOS) as up:
        assert (await up.client.head(path)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("DELETE", "/health", "GET, HEAD"), ("GET", CHAT, "POST"), ("PUT", "/v1/models/tiny", "GET, HEAD")]
    + [("GET", f"/v1/{path}", "POST") for path in ("responses", "messages/count_tokens", "responses/input_tokens")],
)
async def test_a_wrong_method_is_answered_with_the_right_ones(
    scripted: Any, method: str, path: str, allowed: str
) -> None:
    async with scripted("a" + EOS) as up:
        response = await up.client.request(method, path)
        assert response.status_code == 405
        assert response.headers["allow"] == allowed
        assert response.json()["error"]["code"] == "method_not_allowed"
        assert allowed in response.json()["error"]["message"]


async def test_no_page_needs_the_internet(scripted: Any) -> None:
    async with scripted("a" + EOS) as up:
        assert (await up.client.get("/openapi.json")).status_code == 200
        for path in ("/docs", "/redoc"):
            assert (await up.client.get(path)).status_code == 404


def test_an_answer_that_says_no_is_one_of_our_errors() -> None:
    assert issubclass(ApiError, BenthicError)


async def test_the_described_bodies_are_accepted(scripted: Any) -> None:
    async with scripted("a" + EOS) as up:
        paths = (await up.client.get("/openapi.json")).json()["paths"]
        posts = {path: methods["post"] for path, methods in paths.items() if "post" in methods}
        assert len(posts) == 8
        for path, post in posts.items():
            example = post["requestBody"]["content"]["application/json"]["schema"]["example"]
            assert (await up.post(path, **example)).status_code == 200
