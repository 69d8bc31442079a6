"""Exactly once: whatever callers do, a call runs once, and the same call gets the same answer."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from benthic.sandbox.errors import GuestLost, PathError, TrajectoryDiverged, TrajectoryUnwritable
from benthic.sandbox.host import Answer, Request
from benthic.sandbox.trajectory import ledger as ledger_module
from benthic.sandbox.trajectory.ledger import Ledger
from tests.sandbox.trajectory.written import command, new_log, opened, printed


class Sandbox:
    """Stands for a living sandbox: its job table makes a call that is run again join what ran before."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.runs: Counter[int] = Counter()
        self.table: dict[int, Answer] = {}
        self.pause_s = pause_s
        self.fails: dict[int, BaseException] = {}

    async def run(self, seq: int, request: Request) -> Answer:
        if seq in self.fails:
            raise self.fails.pop(seq)
        if seq not in self.table:
            self.runs[seq] += 1
            self.table[seq] = printed(seq)
        await asyncio.sleep(self.pause_s)
        return self.table[seq]


def played(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scene(), 60))  # type: ignore[arg-type]


def test_a_second_program_is_answered_from_the_log_and_goes_on_behind_it(tmp_path: Path) -> None:
    async def scene() -> None:
        sandbox, log = Sandbox(), await new_log(tmp_path)
        first = Ledger(log, sandbox.run)
        answers = [await first.call(seq, command(seq)) for seq in range(5)]
        assert not any(answer.is_replayed for answer in answers)
        await log.close()
        log = await opened(tmp_path)
        second = Ledger(log, sandbox.run)
        again = [await second.call(seq, command(seq)) for seq in range(7)]
        assert [answer.is_replayed for answer in again] == [True] * 5 + [False] * 2
        assert [answer.data for answer in again[:5]] == [answer.data for answer in answers]
        assert sandbox.runs == Counter(range(7))
        await log.close()

    played(scene)


def test_the_same_call_sent_twice_at_once_runs_once(tmp_path: Path) -> None:
    async def scene() -> None:
        sandbox, log = Sandbox(0.01), await new_log(tmp_path)
        ledger = Ledger(log, sandbox.run)
        answers = await asyncio.gather(*(ledger.call(0, command(0)) for _ in range(5)))
        assert {answer.data for answer in answers} == {b"0\n"}
        assert sandbox.runs == {0: 1}
        await log.close()

    played(scene)


def test_calls_that_overtake_each_other_are_written_down_in_the_order_of_their_places(tmp_path: Path) -> None:
    async def scene() -> None:
        sandbox, log = Sandbox(0.001), await new_log(tmp_path)
        ledger = Ledger(log, sandbox.run)
        order = list(range(30))
        random.shuffle(order)
        answers = await asyncio.gather(*(ledger.call(seq, command(seq)) for seq in order))
        assert [answer.data for answer in answers] == [b"%d\n" % seq for seq in order]
        assert sandbox.runs == Counter(order)
        assert [entry.request for entry in log.entries()] == [command(seq) for seq in range(30)]
        await log.close()

    played(scene)


def test_a_call_whose_predecessor_never_comes_is_refused_and_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        sandbox, log = Sandbox(), await new_log(tmp_path)
        with pytest.raises(TrajectoryDiverged, match="call 0 before it never did"):
            await Ledger(log, sandbox.run).call(1, command(1))
        assert not sandbox.runs
        await log.close()

    monkeypatch.setattr(ledger_module, "EARLY_WAIT_S", 0.05)
    played(scene)


@pytest.mark.parametrize("moment", ["while it runs", "after its end", "after a restart"])
def test_another_call_at_the_same_place_is_refused_and_says_what_differs(tmp_path: Path, moment: str) -> None:
    async def scene() -> None:
        sandbox, log = Sandbox(0.02), await new_log(tmp_path)
        ledger = Ledger(log, sandbox.run)
        running = asyncio.create_task(ledger.call(0, command(0)))
        await asyncio.sleep(0.005)
        if moment != "while it runs":
            await running
        if moment == "after a restart":
            await log.close()
            log = await opened(tmp_path)
            ledger = Ledger(log, sandbox.run)
        with pytest.raises(TrajectoryDiverged, match="shell of exec was 'echo 0', and is 'echo 9'"):
            await ledger.call(0, command(9))
        assert (await ledger.call(0, command(0))).data == b"0\n"
        await running
        assert sandbox.runs == {0: 1}
        await log.close()

    played(scene)


def test_a_call_left_open_by_a_crash_joins_what_ran(tmp_path: Path) -> None:
    async def scene() -> None:
        sandbox, log = Sandbox(), await new_log(tmp_path)
        await log.begin(0, command(0))
        await sandbox.run(0, command(0))  # it ran; the crash came before its end was written
        await log.close()
        log = await opened(tmp_path)
        answer = await Ledger(log, sandbox.run).call(0, command(0))
        assert answer.data == b"0\n" and not answer.is_replayed
        assert sandbox.runs == {0: 1}
        await log.close()

    played(scene)


def test_a_restarted_host_settles_open_calls_before_anybody_asks(tmp_path: Path) -> None:
    async def scene() -> None:
        sandbox, log = Sandbox(), await new_log(tmp_path)
        for seq in range(3):
            await log.begin(seq, command(seq))
        await log.end(1, printed(1))
        ledger = Ledger(log, sandbox.run)
        await asyncio.gather(*ledger.settle())
        assert all(entry.answer for entry in log.entries())
        assert sandbox.runs == {0: 1, 2: 1}
        await log.close()

    played(scene)


def test_a_caller_that_goes_away_loses_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        sandbox, log = Sandbox(0.02), await new_log(tmp_path)
        ledger = Ledger(log, sandbox.run)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ledger.call(0, command(0)), 0.005)
        assert (await ledger.call(0, command(0))).data == b"0\n"
        assert sandbox.runs == {0: 1}
        await log.close()

    played(scene)


def test_the_agents_failures_are_answers_and_the_machines_are_not(tmp_path: Path) -> None:
    async def scene() -> None:
        sandbox, log = Sandbox(), await new_log(tmp_path)
        ledger = Ledger(log, sandbox.run)
        sandbox.fails = {0: PathError("/x", "is not there"), 1: GuestLost("init is gone")}
        assert (await ledger.call(0, command(0))).error == "PathError"
        with pytest.raises(GuestLost):
            await ledger.call(1, command(1))
        assert log.entry(0).answer is not None and log.entry(1).answer is None
        assert (await ledger.call(1, command(1))).error is None, "an open call may be sent again"
        await log.close()

    played(scene)


def test_a_read_that_failed_leaves_its_place_free(tmp_path: Path) -> None:
    async def scene() -> None:
        sandbox, log = Sandbox(), await new_log(tmp_path)
        ledger = Ledger(log, sandbox.run)
        sandbox.fails = {0: GuestLost("init is gone")}
        with pytest.raises(GuestLost):
            await ledger.call(0, Request(verb="read", arguments={"path": "/x"}))
        assert (await ledger.call(0, command(0))).data == b"0\n"
        await log.close()

    played(scene)


def test_nothing_runs_that_could_not_be_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    async def scene() -> None:
        sandbox, log = Sandbox(), await new_log(tmp_path)
        ledger = Ledger(log, sandbox.run)
        await ledger.call(0, command(0))
        with monkeypatch.context() as patch:
            patch.setattr("os.fdatasync", fails)
            with pytest.raises(TrajectoryUnwritable):
                await ledger.call(1, command(1))
        for _ in range(2):  # the place is open, but the log has failed
            with pytest.raises(TrajectoryUnwritable):
                await ledger.call(1, command(1))
        assert sandbox.runs == {0: 1}
        await log.close()

    played(scene)


def test_an_end_that_could_not_be_written_down_is_no_answer_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        sandbox, log = Sandbox(), await new_log(tmp_path)
        append, refused = log._file.append, []

        def full_once(text: bytes, data: bytes = b"") -> object:
            if b'"type":"end"' in text and not refused:
                refused.append(text)
                raise TrajectoryUnwritable("No space left on device")
            return append(text, data)

        monkeypatch.setattr(log._file, "append", full_once)
        ledger = Ledger(log, sandbox.run)
        with pytest.raises(TrajectoryUnwritable):
            await ledger.call(0, command(0))
        assert (await ledger.call(0, command(0))).data == b"0\n"
        assert sandbox.runs == {0: 1}
        await log.close()

    played(scene)


def test_any_mix_of_retries_restarts_and_lost_callers_runs_each_call_once(tmp_path: Path, seed: int) -> None:
    async def scene() -> None:
        rng = random.Random(seed)
        sandbox, log = Sandbox(0.001), await new_log(tmp_path)
        ledger, seq, seen = Ledger(log, sandbox.run), 0, {}
        while seq < 60:
            try:
                answer = await asyncio.wait_for(ledger.call(seq, command(seq)), rng.choice([0.0005, 0.005, 5]))
                assert seen.setdefault(seq, answer.data) == answer.data
                seq = rng.randrange(seq + 1) if rng.random() < 0.05 else seq + 1
            except TimeoutError:
                pass
            if rng.random() < 0.2:
                await ledger.close()
                await log.close()
                log = await opened(tmp_path)
                ledger = Ledger(log, sandbox.run)
        assert sandbox.runs == Counter(range(60))
        await log.close()

    played(scene)
