"""Tokens, quotas, and what was promised for a key, in the gateway's file."""

import asyncio
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from benthic.errors import ConfigError
from benthic.sandbox.errors import QuotaExceeded, TokenRefused
from benthic.sandbox.fleet.config import AgentConfig
from benthic.sandbox.fleet.creations import Creations
from benthic.sandbox.fleet.launch import fleet_token
from benthic.sandbox.fleet.projects import Caller, Projects, Quota
from benthic.sandbox.fleet.sandbox_rows import SandboxRows
from benthic.sandbox.fleet.state import open_state, transaction
from benthic.sandbox.host import SandboxInfo
from benthic.sandbox.records import Limits, Reason, SandboxSpec, State
from tests.sandbox.fleet.small_fleet import FLEET_TOKEN, small_fleet

SPEC = SandboxSpec(limits=Limits(cpus=2.0, memory_bytes=100))


@pytest.fixture
def sql(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = open_state(tmp_path / "state.sqlite")
    yield connection
    connection.close()


def make(sql: sqlite3.Connection, key: str) -> None:
    creations = Creations(sql, Projects(sql))
    creations.reserve("p", key, SPEC, lambda: "h")
    SandboxRows(sql).add(SandboxInfo(id=key, spec=SPEC, state=State.RUNNING), project="p", host="h")
    creations.finish("p", key, SPEC, "h", key)


def test_a_token_opens_its_project_until_it_is_removed_and_only_its_digest_is_kept(
    sql: sqlite3.Connection, tmp_path: Path
) -> None:
    projects = Projects(sql)
    token = projects.add_token("p", label="laptop")
    assert projects.caller(token) == Caller("p")
    assert projects.caller(projects.add_token("p", is_admin=True)) == Caller("p", is_admin=True)
    sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert token.encode() not in (tmp_path / "state.sqlite").read_bytes()
    projects.remove_token(token)
    assert projects.caller(token) is None


@pytest.mark.parametrize(
    ("quota", "said"),
    [
        (Quota(max_sandboxes=2), "has 2 sandboxes and asks for 1 more; its quota is 2"),
        (Quota(max_cpus=5.0), "has 4 processors and asks for 2 more"),
        (Quota(max_memory_bytes=299), "has 200 bytes of memory"),
    ],
    ids=["sandboxes", "processors", "memory"],
)
def test_a_quota_counts_what_lives_and_what_is_being_made(sql: sqlite3.Connection, quota: Quota, said: str) -> None:
    projects, creations, rows = Projects(sql), Creations(sql, Projects(sql)), SandboxRows(sql)
    projects.set_quota("p", quota)
    make(sql, "a")
    pending = creations.reserve("p", "b", SPEC, lambda: "h")
    with pytest.raises(QuotaExceeded, match=said):
        creations.reserve("p", "c", SPEC, lambda: "h")
    with pytest.raises(QuotaExceeded):
        creations.reserve_forks("p", ["d", "e"], SPEC, "h")
    assert creations.reserve("p", "b", SPEC, lambda: "h").key == pending.key  # asked again, it counts once
    creations.reserve("q", "c", SPEC, lambda: "h")
    rows.set_state("a", State.DEAD, Reason.CLOSED)
    creations.reserve("p", "c", SPEC, lambda: "h")


def test_a_promise_that_nobody_came_back_for_is_dropped_and_a_kept_one_is_not(sql: sqlite3.Connection) -> None:
    creations = Creations(sql, Projects(sql))
    make(sql, "a")
    creations.reserve("p", "b", SPEC, lambda: "h")
    assert creations.drop_abandoned(before_s=2e9) == 1
    assert creations.get("p", "b") is None
    kept = creations.get("p", "a")
    assert kept is not None
    assert kept.sandbox_id == "a"


def test_the_dead_stay_dead(sql: sqlite3.Connection) -> None:
    rows = SandboxRows(sql)
    make(sql, "a")
    rows.set_state("a", State.DEAD, Reason.HOST_LOST, "gone")
    rows.set_state("a", State.RUNNING)
    rows.move("a", "elsewhere", "")
    row = rows.get("a", "p")
    assert (row.state, row.reason, row.host) == (State.DEAD, Reason.HOST_LOST, "h")


def test_a_failed_transaction_leaves_nothing(sql: sqlite3.Connection) -> None:

    def fail() -> None:
        with transaction(sql):
            Projects(sql).set_quota("p", Quota(max_sandboxes=1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert Projects(sql).quota("p") == Quota()


def test_the_state_and_the_fleets_secret_can_be_read_by_their_owner_alone(tmp_path: Path) -> None:
    open_state(tmp_path / "s").close()
    token = fleet_token(tmp_path / "t")
    assert len(token) >= 40
    assert fleet_token(tmp_path / "t") == token
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("s", "t")] == [0o600, 0o600]
    (tmp_path / "t").chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others"):
        fleet_token(tmp_path / "t")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"listen": "http://0.0.0.0:7"}, "token must be set"),
        ({"listen": "8080"}, "must be http://address:port or unix:/path"),
        ({"listen": "unix:/a", "name": "a/b"}, "name"),
        ({"listen": "unix:/a", "max_starting": 0}, "max_starting"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        AgentConfig(**fields)  # type: ignore[arg-type]


def test_an_administrator_gives_out_tokens_and_quotas_over_http_and_nobody_else_does(tmp_path: Path) -> None:
    async def scene() -> None:
        async with small_fleet(tmp_path) as fleet:
            admin, client = fleet.client(FLEET_TOKEN), fleet.client()
            with pytest.raises(TokenRefused):
                await client.connection.json("POST", "/tokens", {"project": "p", "is_admin": True})
            with pytest.raises(TokenRefused):
                await client.connection.json("PUT", "/projects/p/quota", {})
            token = (await admin.connection.json("POST", "/tokens", {"project": "new"}))["token"]
            await admin.connection.json("PUT", "/projects/new/quota", {"max_sandboxes": 1})
            newcomer = fleet.client(token)
            await newcomer.create(SPEC)
            with pytest.raises(QuotaExceeded):
                await newcomer.create(SPEC)
            await admin.connection.json("POST", "/tokens/remove", {"token": token})
            with pytest.raises(TokenRefused):
                await newcomer.sandboxes()

    asyncio.run(scene())
