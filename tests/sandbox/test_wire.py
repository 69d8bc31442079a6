"""The JSON form of records, results and errors."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benthic.errors import BenthicError, CapacityError, RequestError
from benthic.sandbox.errors import (
    CommandTimeout,
    NotSupported,
    OutcomeUnknown,
    OutputLimit,
    PathError,
    SandboxDied,
    StartFailed,
)
from benthic.sandbox.host import SandboxInfo
from benthic.sandbox.records import (
    Chunk,
    Command,
    FileStat,
    Limits,
    Network,
    Reason,
    Result,
    SandboxSpec,
    SnapshotRef,
    State,
    Usage,
)
from benthic.sandbox.wire import decode, encode, pack_error, pack_result, unpack_error, unpack_result

SPEC = SandboxSpec(
    kind="container",
    image="tiny:1",
    layers=("a", "b"),
    limits=Limits(cpus=0.5, memory_bytes=1 << 20),
    network=Network.allow("pypi.org:443", "[::1]:80"),
    env=(("A", "1"),),
    ttl_s=None,
)
RECORDS = [
    SPEC,
    SandboxSpec(),
    Command(shell="echo", stdin=b"\x00\xff", timeout_s=None),
    Result(returncode=None, stdout=b"a", stderr=b"", reason=Reason.TIMEOUT, usage=Usage(cpu_s=1.5), seq=3),
    FileStat(path="/a\nb", type="link", size_bytes=0, mode=0o777, modified_s=1.0, target="c"),
    SnapshotRef(id="s", kind="vm", seq=-1, layers=("x",)),
    SandboxInfo(id="abc", spec=SPEC, state=State.DEAD, reason=Reason.HOST_LOST, start_s={"mount": 0.5}),
    Chunk("stderr", b"\xfe"),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_survives_json(record: Any) -> None:
    assert decode(type(record), json.loads(json.dumps(encode(record)))) == record


@given(st.binary(max_size=64), st.binary(max_size=64), st.sampled_from(Reason))
def test_a_result_keeps_its_bytes_apart(stdout: bytes, stderr: bytes, reason: Reason) -> None:
    result = Result(returncode=0, stdout=stdout, stderr=stderr, reason=reason)
    value, data = pack_result(result)
    assert unpack_result(json.loads(json.dumps(value)), data) == result


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (SandboxSpec, {"kind": "pod"}, "kind must be one of function, container"),
        (SandboxSpec, {"limits": {"cpus": "2"}}, "limits.cpus must be of type float"),
        (SandboxSpec, {"limits": {"memory_bytes": True}}, "limits.memory_bytes must be of type int"),
        (SandboxSpec, {"color": 1}, "unknown field 'color'"),
        (SandboxSpec, [], "SandboxSpec must be an object"),
        (SandboxSpec, {"env": [["A"]]}, "a list of 2"),
        (SandboxSpec, {"layers": ["a", 1]}, "layers[1] must be of type str"),
        (Command, {}, "either argv or shell"),
        (Command, {"shell": "x", "stdin": "%"}, "stdin must be base64 text"),
        (SnapshotRef, {"id": "a"}, "kind is missing"),
        (Reason, "bored", "must be one of exited"),
        (Reason, [], "must be one of exited"),
    ],
)
def test_what_is_wrong_from_outside_is_named(kind: type, value: Any, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode(kind, value)
    assert said in str(caught.value)


@pytest.mark.parametrize("cut", [-1, 3, None, "1"])
def test_a_result_whose_bytes_do_not_fit_is_refused(cut: Any) -> None:
    with pytest.raises(RequestError, match="num_stdout_bytes"):
        unpack_result({"returncode": 0, "num_stdout_bytes": cut}, b"ab")


RESULT = Result(returncode=None, stdout=b"out", stderr=b"err", reason=Reason.TIMEOUT)
ERRORS: list[BenthicError] = [
    SandboxDied("ab", Reason.HOST_LOST, "no heartbeat"),
    CommandTimeout("too long", RESULT),
    OutputLimit("too much", RESULT),
    StartFailed("no", stage="mount"),
    NotSupported("no"),
    PathError("/a", "is not there"),
    OutcomeUnknown("who knows"),
    CapacityError("full"),
    RequestError("wrong", param="kind"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_it_was_raised(error: BenthicError) -> None:
    answer = pack_error(error)
    arrived = unpack_error(answer)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)


def test_an_unknown_error_is_a_sandbox_error_with_its_message() -> None:
    assert str(unpack_error(pack_error(BenthicError("odd")))) == "odd"
