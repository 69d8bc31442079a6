"""/openapi.json says what is so: the fields of every body, what they may be, and what comes back."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator

from benthic.server.app import create_app
from benthic.server.field_schemas import LETTERS, body_schema
from benthic.text.placement import known_fields
from benthic.text.tokenizer import EOS
from tests.server.conftest import Live
from tests.server.good_bodies import BODIES

schemathesis = pytest.importorskip("schemathesis", reason="the package schemathesis is not installed")

from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
LONGEST_S = 20.0
"""No answer may take longer, on a busy machine."""
Start = Callable[..., Live]


@pytest.mark.parametrize("endpoint", LETTERS)
def test_every_field_that_an_endpoint_knows_has_a_schema(endpoint: str) -> None:
    schema = body_schema(endpoint, 4096)
    Draft202012Validator.check_schema(schema)
    assert schema["properties"].keys() == known_fields(endpoint)


@pytest.mark.parametrize("path", BODIES)
def test_good_bodies_fit_their_schema(live: Start, path: str) -> None:
    document = document_of(live)
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    Draft202012Validator(schema).validate(BODIES[path][0])


def test_every_route_says_how_it_refuses(live: Start) -> None:
    operations = [
        (path, operation) for path, methods in document_of(live)["paths"].items() for operation in methods.values()
    ]
    assert len(operations) > 25
    for path, operation in operations:
        for statuses in ("4XX", "5XX"):
            schema = operation["responses"][statuses]["content"]["application/json"]["schema"]
            assert schema["properties"]["error"]["required"] == ["message", "type", "param", "code"], path
        assert "422" not in operation["responses"], path


@pytest.mark.parametrize("path", BODIES)
def test_bodies_made_from_the_document_are_answered_or_refused_as_it_says(live: Start, path: str) -> None:
    check_bodies(live, path, num_bodies=12)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("path", BODIES)
def test_many_bodies_made_from_the_document_are_answered_or_refused_as_it_says(live: Start, path: str) -> None:
    check_bodies(live, path, num_bodies=400)


def document_of(live: Start) -> dict[str, Any]:
    return dict(create_app(live("a" + EOS, admin_key="boss").service).openapi())


def check_bodies(live: Start, path: str, *, num_bodies: int) -> None:
    """Half of them fit the schema, and half do not and must be refused."""
    statuses: dict[int, int] = {}
    with live("so it is" + EOS) as up:
        operation = schemathesis.openapi.from_dict(create_app(up.service).openapi())[path]["POST"]
        for mode in GenerationMode:

            @settings(
                max_examples=num_bodies // 2,
                database=None,
                derandomize=True,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(mode))
            def check(case: Any) -> None:
                response = case.call(base_url=up.url, timeout=LONGEST_S)
                statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
                case.validate_response(response, checks=CHECKS)

            check()
        assert up.service.channel.num_open == 0
    print(f"{path}: {sum(statuses.values())} bodies, answered {statuses}")
