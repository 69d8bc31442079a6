"""Random lives of requests over the cache, against brute-force oracles and a device that holds fingerprints.

Every operation takes its decisions from `choose(low, high)`, so that hypothesis and a plain generator can drive it.
After each one `check` asserts all laws.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from benthic.cache.geometry import CacheCapacity, CacheGeometry
from benthic.cache.layout import LayerCache
from benthic.cache.manager import CacheManager
from benthic.cache.retention import retention
from benthic.cache.row import Row
from benthic.cache.trie import PageNode
from benthic.cache.work import Match
from tests.cache.simulated_device import PassRow, SimulatedDevice

Choose = Callable[[int, int], int]
Namespace = tuple[Hashable, ...]

MAX_DRAFTS = 4
MAX_LEN = 240


def small_geometry(page_size: int = 16, window: int = 8) -> CacheGeometry:
    """Three layers: a replay takes 3 * (W - 1) + 1 tokens. Without a window three of V3.2's, and no replay."""
    if not window:
        return CacheGeometry(page_size, 0, (LayerCache(1, False, 4, 2),) * 3, 2, MAX_DRAFTS)
    layers = (LayerCache(0, False, 4, 0), LayerCache(4, True, 4, 2), LayerCache(16, False, 4, 0))
    return CacheGeometry(page_size, window, layers, 3, MAX_DRAFTS)


def fingerprints(namespace: Hashable, tokens: list[int], after: int | None = None) -> list[int]:
    """What each position's state depends on: the namespace and the tokens up to it."""
    prints, last = [], hash(namespace) if after is None else after
    for token in tokens:
        last = hash((last, token))
        prints.append(last)
    return prints


@dataclass(eq=False)
class Life:
    """A running sequence."""

    row: Row
    namespace: Namespace
    tokens: list[int]
    prints: list[int]
    prompt_len: int
    replayed_to: int
    need_extras: bool
    written_len: int
    """Positions from here on have never been written by this sequence, nor by the one that it was forked from."""
    scheduled_len: int
    """Positions before this are computed or in flight."""
    known_len: int
    """Tokens, those included that a pass in flight samples."""
    num_drafts: int = 0
    """In flight: until they are verified, nothing behind them can be scheduled."""
    num_in_flight: int = 0


@dataclass(eq=False)
class Flight:
    """One sequence's part of a pass in flight; `guesses` are tokens that it computes beyond the known ones."""

    life: Life
    part: PassRow
    guesses: list[int]
    accepted_len: int = 0


@dataclass(eq=False)
class Pass:
    step: int
    flights: list[Flight] = field(default_factory=list)


class CacheModel:
    """The cache, its users and their device."""

    def __init__(self, choose: Choose, *, page_size: int = 16, window: int = 8) -> None:
        self.choose = choose
        self.geometry = small_geometry(page_size, window)
        name = ("boundaries", "boundaries", "interval", "every_page", "none")[choose(0, 4)]
        num_pages, num_windows = (20, 40)[choose(0, 1)], (6, 12, 40)[choose(0, 2)]
        self.capacity = CacheCapacity(num_pages, num_windows if window else 0, (3, 8)[choose(0, 1)], MAX_LEN)
        policy = retention(name, page_size=page_size, interval=4 * page_size)
        self.manager = CacheManager(self.geometry, self.capacity, policy, keeps_extras=True)
        self.device = SimulatedDevice(self.geometry)
        self.lives: list[Life] = []
        self.passes: list[Pass] = []
        self.version = 0
        self.num_steps = 0
        self.history: list[list[int]] = [[]]
        self.committed: set[tuple[int, int]] = set()
        """(length, fingerprint) of every prefix of whole pages that some sequence has committed."""

    # Operations

    def open(self) -> None:
        """A new prompt, most often a variation of an old one."""
        old = self.history[self.choose(0, len(self.history) - 1)]
        tokens = old[: self.choose(0, len(old))] + [self.choose(0, 2) for _ in range(self.choose(1, 40))]
        salt = "ab"[self.choose(0, 7) == 7]
        self._open(tokens[: MAX_LEN - 40], (self.version, salt), use_cache=self.choose(0, 7) > 0)

    def twin(self) -> None:
        """A second request with a running one's prompt, before much of it is shared."""
        if life := self._pick():
            tokens = life.tokens[: self.choose(1, len(life.tokens))] + [self.choose(0, 2)] * self.choose(0, 20)
            self._open(tokens[: MAX_LEN - 40], (self.version, "a"), use_cache=True)

    def squeeze(self) -> None:
        """A request that takes much of the room and is aborted before its first pass."""
        row = self.manager.open([9], 1, (self.version, "c"))
        if row is not None:
            self.manager.grow(row, self.manager.room(row, self.choose(1, MAX_LEN)))
            self.manager.check()
            self.manager.close(row, finished=False)

    def race(self) -> None:
        """Two requests with one prompt: one finishes while the other, a page behind, shares what that leaves."""
        while self.passes:
            self.land()
        tokens = [self.choose(0, 9) for _ in range(self.choose(33, 100))]
        for _ in range(2):
            self._open(tokens, (self.version, "a"), use_cache=True)
        racers = self.lives[-2:]
        if [life.tokens for life in racers] != [tokens, tokens]:
            return
        while racers[0].row.committed_len < len(tokens) and self._run_alone(racers[0]):
            pass
        self._close(racers[0], finished=True)
        while racers[1].row.committed_len < len(tokens) and self._run_alone(racers[1]):
            self.squeeze()

    def resume(self) -> None:
        """A retraction, and its sequence again with all its tokens."""
        if life := self._pick():
            self._close(life, finished=False)
            if life.namespace[0] == self.version:
                self._open(life.tokens, life.namespace, use_cache=True, prompt_len=life.prompt_len)

    def fork(self) -> None:
        """A sibling in the same committed state."""
        life = self._pick()
        if not life or life.scheduled_len - life.row.committed_len > MAX_DRAFTS + 1:
            return  # more in flight than a ring has to spare
        row = self.manager.fork(life.row)
        if row is None:
            return
        assert row.committed_len == life.row.committed_len and row.index != life.row.index
        length = max(row.committed_len, row.stored_len, life.prompt_len)
        copy = Life(
            row, life.namespace, life.tokens[:length], life.prints[:length], life.prompt_len, life.replayed_to,
            life.need_extras, max(life.written_len, life.scheduled_len), row.committed_len, length,
        )  # fmt: skip
        self.lives.append(copy)

    def launch(self) -> None:
        """A pass over some sequences; at most two are in flight, the second one over plain decodes."""
        if len(self.passes) == 2:
            return
        self.num_steps += 1
        flight = Pass(self.num_steps)
        for life in list(self.lives):
            if self.choose(0, 3):
                self._schedule(life, flight)
        self._take_work()
        self.manager.begin_pass(flight.step)
        self.passes.append(flight)

    def land(self) -> None:
        """The oldest pass ends: results are committed, for verified drafts up to a random one."""
        if not self.passes:
            return
        done = self.passes.pop(0)
        for flight in done.flights:
            self._run(flight)
        self.manager.end_pass(done.step)
        for flight in done.flights:
            if flight.life in self.lives:
                self._commit(flight.life, flight.accepted_len)

    def close(self) -> None:
        """A finish or an abort, whatever is in flight."""
        if life := self._pick():
            self._close(life, finished=self.choose(0, 1) == 1)

    def flush(self) -> None:
        """With nothing running everything comes back."""
        keep = [(self.version, "a")] if self.choose(0, 1) else []
        before = {node for node in self.manager.trie.nodes() if node.namespace in keep}
        self.manager.flush(keep)
        left = set(self.manager.trie.nodes())
        assert before <= left
        assert all(node.locks or node.namespace in keep for node in left)
        if not keep and not self.lives and not self.passes:
            self._assert_empty()

    def update_weights(self) -> None:
        """Everything of the old version goes."""
        while self.passes:
            self.land()
        for life in list(self.lives):
            self._close(life, finished=False)
        self.version += 1
        self.manager.flush([(self.version, "a")])
        self._assert_empty()

    def drain(self) -> None:
        """Everything ends; then the longest request that fits is admitted, whatever the cache holds."""
        while self.passes:
            self.land()
        for life in list(self.lives):
            self._close(life, finished=True)
        stats = self.manager.stats()
        assert stats.num_rows == 0
        assert stats.pages.free + stats.pages.evictable == self.capacity.num_pages, "a page is held by nobody"
        assert stats.windows.free + stats.windows.evictable == self.capacity.num_windows
        tokens = [self.choose(3, 9) for _ in range(self.manager.largest_len)]
        row = self.manager.open(tokens, len(tokens), (self.version, "a"))
        assert row is not None, "a request that fits is not admitted"
        self.lives.append(self._life(row, (self.version, "a"), tokens, len(tokens)))
        while self.lives[0].row.committed_len < len(tokens):
            assert self._run_alone(self.lives[0]), "a request that fits comes to a halt"
        self._close(self.lives[0], finished=self.choose(0, 1) == 1)

    # Laws

    def check(self) -> None:
        """All laws that hold at any moment."""
        self.manager.check()
        nodes = {self._path_print(node): node for node in self.manager.trie.nodes()}
        assert nodes.keys() <= self.committed, "a page is shared that nobody has committed"
        self._check_windows(nodes)
        tokens = self.history[self.choose(0, len(self.history) - 1)]
        salt = (self.version, "ab"[self.choose(0, 1)])
        assert self.manager.match(tokens, salt)[:2] == self._best_match(nodes, tokens, salt)

    def _check_windows(self, nodes: dict[tuple[int, int], PageNode]) -> None:
        """What the first query behind a boundary reads of a cached page's window was computed from its tokens."""
        for node in nodes.values():
            if node.window and node.page in self.device.pages and node.window in self.device.windows:
                first = max(0, self.geometry.page_size - self.geometry.window + 1)
                window = self.device.windows[node.window][first:]
                assert window == self.device.pages[node.page][first:], "a shared window is not exact"

    def _best_match(
        self, nodes: dict[tuple[int, int], PageNode], tokens: list[int], namespace: Namespace
    ) -> tuple[int, int]:
        """Tries every boundary."""
        size, reach = self.geometry.page_size, self.geometry.window_pages
        prints = fingerprints(namespace, tokens)
        ends = range(size, len(tokens), size)
        found = [nodes.get((end, prints[end - 1])) for end in ends]
        whole = [n for n in range(len(found) + 1) if all(found[:n])]
        usable = [n for n in whole if all(node and node.window for node in found[max(0, n - reach) : n])]
        return max(usable) * size, max(whole) * size

    def _assert_empty(self) -> None:
        stats = self.manager.stats()
        assert (stats.pages.free, stats.windows.free) == (self.capacity.num_pages, self.capacity.num_windows)
        assert stats.num_rows == 0 and stats.num_namespaces == 0 and stats.num_checkpoints == 0

    # Parts of operations

    def _run_alone(self, life: Life) -> bool:
        """One pass over one sequence, to its end; whether it came further."""
        before = life.row.committed_len
        self.num_steps += 1
        alone = Pass(self.num_steps)
        self._schedule(life, alone)
        self._take_work()
        self.manager.begin_pass(alone.step)
        self.passes.append(alone)
        self.land()
        return life.row.committed_len > before

    def _pick(self) -> Life | None:
        return self.lives[self.choose(0, len(self.lives) - 1)] if self.lives else None

    def _open(self, tokens: list[int], namespace: Namespace, *, use_cache: bool, prompt_len: int | None = None) -> None:
        manager = self.manager
        need_extras = self.choose(0, 5) == 0
        match = manager.match(tokens, namespace, need_extras=need_extras)
        ages = {node: node.window_use for node in manager.trie.nodes()}
        prompt_len = prompt_len or len(tokens)
        row = manager.open(tokens, prompt_len, namespace, use_cache=use_cache, need_extras=need_extras)
        if row is None:
            self._assert_no_room(match if use_cache else Match(0, 0, "not asked"))
            return
        if not use_cache:
            namespace = row.root.namespace
        assert row.match == (match if use_cache else (0, 0, "not asked"))
        reach = self.geometry.window + self.geometry.page_size
        touched = {node for node, age in ages.items() if node.window_use != age}
        near = [node for i, node in enumerate(row.path) if 0 <= row.match.usable_len - i * 16 <= reach]
        assert touched <= set(near), "a window is kept young that nobody goes on from"
        gap = match.compressed_len - match.usable_len if use_cache else 0
        assert row.replay_len == min(gap, self.geometry.replay_len)
        life = self._life(row, namespace, tokens, prompt_len)
        life.need_extras = need_extras
        self._check_extras(life)
        self.lives.append(life)
        self.history = [*self.history[-30:], life.tokens]

    def _assert_no_room(self, match: Match) -> None:
        """Only a lack of rows, windows or pages refuses a sequence, and only when all that is idle is not enough."""
        manager, size = self.manager, self.geometry.page_size
        fresh_page = match.compressed_len <= max(match.usable_len, match.compressed_len - self.geometry.replay_len)
        locked = {node for row in manager.open_rows.values() for node in row.path}
        own_pages = sum(max(0, r.allocated_len // size - len(r.path)) for r in manager.open_rows.values())
        idle = self.capacity.num_pages - len(locked) - own_pages - manager.stats().pages.fenced
        idle -= match.compressed_len // size
        pages, stats = manager.stats().pages, manager.stats().windows
        reused = 0 if match.compressed_len - match.usable_len > self.geometry.replay_len else match.usable_len // size
        idle_windows = stats.free + stats.evictable - min(reused, self.geometry.window_pages)
        no_row = len(manager.open_rows) == self.capacity.num_rows
        lacks_windows = self.geometry.window > 0 and idle_windows <= 0
        full = pages.free + pages.evictable == 0 or lacks_windows or (fresh_page and idle <= 0)
        assert no_row or full, "a request is refused for nothing"

    def _life(self, row: Row, namespace: Namespace, tokens: list[int], prompt_len: int) -> Life:
        replays = row.start_len > row.match.usable_len
        return Life(
            row, namespace, list(tokens), fingerprints(namespace, tokens), prompt_len,
            row.match.compressed_len if replays else 0, False, row.start_len, row.start_len, len(tokens),
        )  # fmt: skip

    def _check_extras(self, life: Life) -> None:
        size = self.geometry.page_size
        extras = self.manager.row_extras(life.row)
        assert len(extras) == life.row.match.compressed_len // size
        for page, extra in enumerate(extras):
            right = life.prints[page * size : (page + 1) * size]
            assert extra == right or (extra is None and not life.need_extras)

    def _schedule(self, life: Life, flight: Pass) -> None:
        """A chunk of known tokens; behind the last one a token that is sampled, or several that are verified."""
        start, known = life.scheduled_len, life.known_len
        if life.num_drafts:
            return
        want = min(self.choose(1, 64), known - start) if start < known else 1
        drafts = self.choose(0, MAX_DRAFTS) if start + want >= known and not life.num_in_flight else 0
        want = min(want + drafts, MAX_LEN - start)
        end = self.manager.room(life.row, start + want)
        assert end <= start + want
        if end < start + want or not want:
            self.manager.grow(life.row, max(end, life.row.allocated_len))
            self._assert_exhausted(life.row)
        if end <= start:
            return
        self.manager.grow(life.row, end)
        row, tables = life.row, self.manager.tables
        pages, windows = tables.pages[row.index].copy(), tables.windows[row.index].copy()
        part = PassRow(row.index, start, end - start, row.stored_len, life.replayed_to, pages, windows)
        guesses = [self.choose(0, 2) for _ in range(known, end)]
        flight.flights.append(Flight(life, part, guesses))
        life.known_len = max(known, end)
        life.num_drafts = max(0, len(guesses) - 1)
        life.scheduled_len = end
        life.num_in_flight += 1

    def _assert_exhausted(self, row: Row) -> None:
        stats = self.manager.stats()
        short_of_pages = stats.pages.free + stats.pages.evictable == 0 and row.allocated_len >= 16 * len(row.path)
        short_of_windows = self.geometry.window > 0 and stats.windows.free + stats.windows.evictable == 0
        assert short_of_pages or short_of_windows or row.allocated_len >= MAX_LEN, "room is denied for nothing"

    def _run(self, flight: Flight) -> None:
        """The device does a sequence's part of a pass; then its tokens are known up to the accepted one."""
        life, part = flight.life, flight.part
        end = part.start + part.length
        known = len(life.tokens)
        self.device.run(part, life.prints + fingerprints(life.namespace, flight.guesses, life.prints[-1]))
        life.written_len = max(life.written_len, end)
        life.num_in_flight -= 1
        rejected = self.choose(0, len(flight.guesses) - 1) if len(flight.guesses) > 1 else 0
        flight.accepted_len = end - rejected
        new = flight.guesses[: max(0, flight.accepted_len - known)]
        life.prints += fingerprints(life.namespace, new, life.prints[-1])
        life.tokens += new
        if rejected or life.num_drafts:
            life.scheduled_len = flight.accepted_len
            life.known_len = len(life.tokens)
            life.num_drafts = 0

    def _commit(self, life: Life, new_len: int) -> None:
        size = self.geometry.page_size
        for page_end in range(size, new_len + 1, size):
            self.committed.add((page_end, life.prints[page_end - 1]))

        def extras(page: int) -> object:
            return life.prints[page * size : (page + 1) * size]

        self.manager.commit(life.row, new_len, life.tokens, extras if self.choose(0, 2) else None)

    def _take_work(self) -> None:
        work = self.manager.take_work()
        in_flight = [f.part for flight in self.passes for f in flight.flights]
        read = {int(i) for part in in_flight for i in part.pages if i}
        assert not read & set(work.fresh_pages), "a page is cleared that a pass in flight may read"
        read = {int(i) for part in in_flight for i in part.windows if i}
        assert not read & set(work.fresh_windows), "a window is cleared that a pass in flight may read"
        self.device.apply(work)
        self._check_fresh()

    def _check_fresh(self) -> None:
        """What a row got is empty from where nobody has written yet."""
        tables, size = self.manager.tables, self.geometry.page_size
        for life in self.lives:
            row = life.row
            ends = [f.part.start + f.part.length for p in self.passes for f in p.flights if f.life is life]
            start, stop = max([life.written_len, len(row.path) * size, *ends]), row.allocated_len
            assert self.device.unwritten(tables.pages[row.index], self.device.pages, start, stop), "a page is not clear"
            start = max([life.written_len, row.committed_len, *ends])
            if self.geometry.window:
                assert self.device.unwritten(tables.windows[row.index], self.device.windows, start, stop)

    def _close(self, life: Life, *, finished: bool) -> None:
        self.lives.remove(life)
        self.history = [*self.history[-30:], list(life.tokens)]
        self.manager.close(life.row, finished=finished)

    def _path_print(self, node: PageNode) -> tuple[int, int]:
        keys: list[bytes] = []
        at: PageNode | None = node
        while at is not None and at.page:
            keys.append(at.key)
            at = at.parent
        tokens = [int.from_bytes(k[i : i + 4], "little") for k in reversed(keys) for i in range(0, len(k), 4)]
        return len(tokens), fingerprints(node.namespace, tokens)[-1]
