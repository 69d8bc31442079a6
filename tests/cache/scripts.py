"""Random lives of requests over the real manager, pools and context, with the fingerprint model in between.

A small driver stands in for the engine: it admits, chunks, verifies drafts of which a random number is right, forks,
retracts, aborts, resumes, changes weights and salts. Tokens are fixed beforehand, so that a brute-force evaluation of
each sequence says what every row must hold.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from benthic.cache.geometry import CacheCapacity
from benthic.cache.manager import CacheManager
from benthic.cache.paged_context import PagedContext
from benthic.cache.pools import CachePools, LayerStack
from benthic.cache.retention import retention
from benthic.cache.row import Row
from benthic.cache.trie import PageNode, page_key
from benthic.models.rows import build_rows
from tests.cache.fingerprint import (
    Evaluation,
    FingerprintConfig,
    FingerprintModel,
    Ints,
    config,
    digest,
    evaluate,
    geometry_of,
    latent_config,
    read,
)

PAGE = 16
MAX_LEN = 160


class ContentError(AssertionError):
    """The cache holds something else than what was computed for these tokens."""


@dataclass
class Life:
    """One request: its tokens from the first to the last, known beforehand."""

    tokens: list[int]
    prompt_len: int
    salt: int
    use_cache: bool
    version: int = 0
    expected: Evaluation | None = None
    known_len: int = 0
    row: Row | None = None

    def __post_init__(self) -> None:
        self.known_len = self.known_len or self.prompt_len


@dataclass
class Options:
    """What a script is made of; `family` "V4", or one without windows."""

    family: str = "V4"
    num_steps: int = 20
    max_draft_len: int = 3
    window: int = 8
    policy: str = "boundaries"
    num_pages: int = 36
    num_windows: int = 24
    num_rows: int = 5


@dataclass
class Script:
    """One random script. `run` raises ContentError, or whatever law of the cache breaks."""

    seed: int
    options: Options
    rng: random.Random = field(init=False)
    lives: list[Life] = field(default_factory=list)
    waiting: list[Life] = field(default_factory=list)
    num_checked: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        options = self.options
        is_latent = options.family != "V4"
        self.config: FingerprintConfig = latent_config(options.family) if is_latent else config(window=options.window)
        self.geometry = geometry_of(self.config, page_size=PAGE, max_draft_len=options.max_draft_len)
        capacity = CacheCapacity(options.num_pages, options.num_windows, options.num_rows, MAX_LEN)
        self.manager = CacheManager(
            self.geometry, capacity, retention(options.policy, page_size=PAGE, interval=3 * PAGE)
        )
        self.pools = CachePools(self.geometry, capacity, dtype=torch.float32, device=torch.device("cpu"))
        self.model = FingerprintModel(self.config)
        self.trunks = [self._random_tokens(MAX_LEN) for _ in range(2)]
        self.evaluations: dict[tuple[int, bytes], Evaluation] = {}
        self.sums: dict[tuple[PageNode, str, int], int] = {}
        self.step = 0

    # The script

    def run(self) -> None:
        for _ in range(self.options.num_steps):
            self._event()
            self._pass()
            if self.rng.random() < 0.1:
                self.check_trie()
        for life in list(self.lives):
            self._close(life, finished=self.rng.random() < 0.5)
        self.manager.check()
        self.check_trie()
        self.manager.flush()
        stats = self.manager.stats()
        assert stats.pages.free == self.options.num_pages, stats
        assert stats.windows.free == self.options.num_windows, stats

    def _event(self) -> None:
        draw = self.rng.random()
        if draw < 0.55 or not self.lives:
            self._arrive()
        elif draw < 0.65:
            self._fork(self.rng.choice(self.lives))
        elif draw < 0.75:
            self._retract(self.rng.choice(self.lives))
        elif draw < 0.80:
            self._close(self.rng.choice(self.lives), finished=False)
        elif draw < 0.83:
            self._update_weights()
        for life in [life for life in self.waiting if self.rng.random() < 0.7]:
            self._admit(life)

    def _arrive(self) -> None:
        """A prompt that shares a prefix of random length with earlier ones, or repeats an old conversation."""
        rng = self.rng
        trunk = rng.choice(self.trunks)
        shared = rng.choice([0, rng.randint(1, 120), rng.randint(1, 8) * PAGE, rng.randint(4, 8) * PAGE + 1])
        prompt = trunk[:shared] + self._random_tokens(rng.choice([1, 3, PAGE, rng.randint(1, 40)]))
        output = self._random_tokens(rng.randint(1, 24))
        tokens = (prompt + output)[: MAX_LEN - 10]
        if rng.random() < 0.2:
            self.trunks[rng.randrange(len(self.trunks))] = tokens + self._random_tokens(MAX_LEN - len(tokens))
        prompt_len = min(len(prompt), len(tokens) - 1)
        if prompt_len > 0:
            self.waiting.append(Life(tokens, prompt_len, int(rng.random() < 0.1), rng.random() > 0.08))

    def _admit(self, life: Life) -> None:
        known = life.tokens[: life.known_len]
        name = ("stand-in", self.model.version, life.salt)
        row = self.manager.open(known, life.prompt_len, name, use_cache=life.use_cache)
        if row is None:
            return
        self._count("open")
        self._count("hit", row.match.usable_len > 0)
        self._count("gap", row.match.usable_len == row.start_len < row.stored_len)
        self._count("replay", row.start_len > row.match.usable_len)
        self.waiting.remove(life)
        if life.expected is None or life.version != self.model.version:
            life.expected = self._evaluate(life.tokens)
        life.version, life.row = self.model.version, row
        self.lives.append(life)

    def _fork(self, life: Life) -> None:
        assert life.row is not None
        committed = life.row.committed_len
        row = self.manager.fork(life.row) if committed >= max(life.row.stored_len, 1) else None
        if row is None:
            return
        self._count("fork")
        tokens = life.tokens[:committed] + self._random_tokens(self.rng.randint(1, 40))
        tokens = tokens[: MAX_LEN - 10]
        if len(tokens) <= committed:
            self.manager.close(row, finished=False)
            return
        expected = self._evaluate(tokens)
        known = committed + 1
        prompt_len = min(life.prompt_len, committed)
        child = Life(tokens, prompt_len, life.salt, life.use_cache, self.model.version, expected, known, row)
        self.lives.append(child)

    def _evaluate(self, tokens: list[int]) -> Evaluation:
        """Of a whole sequence, and remembered as that of every prefix of whole pages: a row sees only its past."""
        found = evaluate(self.config, tokens, self.model.version)
        for end in range(PAGE, len(tokens) + 1, PAGE):
            self.evaluations[self.model.version, page_key(tokens, 0, end)] = found
        return found

    def _retract(self, life: Life) -> None:
        self._count("retract")
        self._close(life, finished=False)
        life.row = None
        self.waiting.append(life)

    def _close(self, life: Life, *, finished: bool) -> None:
        assert life.row is not None
        self.manager.close(life.row, finished=finished)
        self.lives.remove(life)

    def _update_weights(self) -> None:
        self._count("update")
        for life in list(self.lives):
            self._retract(life)
        self.model.version += 1
        if self.rng.random() < 0.5:
            self.manager.flush()

    # One pass

    def _pass(self) -> None:
        """Random rows in random order: each a prefill chunk, or the last known token with drafts behind it."""
        planned: list[tuple[Life, int, list[int], int]] = []
        for life in self.rng.sample(self.lives, self.rng.randint(0, len(self.lives))):
            row = life.row
            assert row is not None
            start, want, drafts = row.committed_len, 0, 0
            if life.known_len - start > 1:
                want = min(life.known_len - start, self.rng.choice([1, 5, PAGE, 33, 64, 90]))
            else:
                drafts = min(self.rng.randint(0, self.options.max_draft_len), MAX_LEN - start - 1)
                want = 1 + drafts
            length = self.manager.room(row, start + want) - start
            if length <= 0:
                continue
            self.manager.grow(row, start + length)
            right = min(length, self.rng.randint(1, length), len(life.tokens) - start)
            if not drafts:
                right = length
            ids = life.tokens[start : start + right] + self._random_tokens(length - right)
            planned.append((life, start, ids, right))
        if not planned:
            if self.lives and not any(life.row and self._can_move(life) for life in self.lives):
                self._retract(self.lives[-1])
            return
        self._run(planned)

    def _can_move(self, life: Life) -> bool:
        assert life.row is not None
        start = life.row.committed_len
        return self.manager.room(life.row, start + 1) > start

    def _run(self, planned: list[tuple[Life, int, list[int], int]]) -> None:
        self.step += 1
        self.pools.apply(self.manager.take_work())
        runs = [(life.row.index, start, ids) for life, start, ids, _ in planned if life.row]
        stored = [life.row.stored_len for life, _, _, _ in planned if life.row]
        rows = build_rows(runs, 1, stored_lens=stored)
        frequencies = {ratio: torch.ones(1) for ratio in self.geometry.layer_ratios}
        context = PagedContext(self.config, rows, self.pools, self.manager.tables, frequencies)
        self.manager.begin_pass(self.step)
        streams = self.model(rows, context)
        gone = []
        if self.rng.random() < 0.1:
            # While the pass runs, a request is taken out and others begin.
            gone = [self.rng.choice(planned)[0]]
            self._close(gone[0], finished=False)
            for life in list(self.waiting):
                self._admit(life)
        self.manager.end_pass(self.step)
        values = read(streams[:, 0])
        for chunk, (life, start, _, right) in zip(rows.chunks, planned, strict=True):
            if life not in gone:
                self._accept(life, start, right, values[chunk.start_row : chunk.start_row + right])
        self.check_sums()

    def _accept(self, life: Life, start: int, right: int, values: Ints) -> None:
        row, expected = life.row, life.expected
        assert row is not None and expected is not None
        end = start + right
        # Rows of a replay are exact from the last position before the stored ones on.
        exact_from = row.stored_len - 1 if row.start_len > row.match.usable_len else 0
        skipped = max(0, exact_from - start)
        self._compare(values[skipped:], expected.value[start + skipped : end], f"rows {start}..{end}")
        self.manager.commit(row, end, life.tokens)
        life.known_len = max(life.known_len, min(end + 1, len(life.tokens)))
        if end >= row.stored_len and self.rng.random() < 0.4:
            self.check_row(life)
        if end >= len(life.tokens):
            self._close(life, finished=True)

    # What the pools must hold

    def check_row(self, life: Life) -> None:
        """Readable window rows and visible entries of a row, layer by layer (laws 9, 10, 11, 13)."""
        row, expected = life.row, life.expected
        assert row is not None and expected is not None
        end = row.committed_len
        tables = self.manager.tables
        position = np.arange(max(0, end - self.geometry.window + 1), end)
        windows = tables.windows[row.index, position // PAGE]
        for layer in range(self.geometry.num_main_layers):
            self._compare(self._window_rows(layer, windows, position), expected.window[layer][position], "window")
            ratio = self.geometry.layers[layer].ratio
            if ratio:
                entry = np.arange(end // ratio)
                pages = tables.pages[row.index, entry * ratio // PAGE]
                self._check_entries(layer, pages, entry, expected)

    def check_trie(self) -> None:
        """Every shared page and window, against its own tokens (laws 9, 10, 12)."""
        paths: dict[PageNode, bytes] = {}
        for node in self.manager.trie.nodes():
            assert node.parent is not None
            paths[node] = paths.get(node.parent, b"") + node.key
            if node.namespace[0] != "private":
                number = len(paths[node]) // len(node.key) - 1
                self._check_node(node, number, self.evaluations[int(str(node.namespace[1])), paths[node]])

    def check_sums(self) -> None:
        """No shared page or window has changed since it was shared (law 14): compared after every pass."""
        sums = {"page": self._sums(self.pools._page_blocks), "window": self._sums(self.pools._window_blocks)}
        now: dict[tuple[PageNode, str, int], int] = {}
        for node in self.manager.trie.nodes():
            for kind, number in (("page", node.page), ("window", node.window)):
                if number:
                    place = (node, kind, number)
                    now[place] = int(sums[kind][number])
                    if self.sums.get(place, now[place]) != now[place]:
                        raise ContentError(f"script {self.seed}, step {self.step}: a shared {kind} changed")
        self.sums = now

    def _sums(self, blocks: Callable[[LayerStack], list[Tensor]]) -> Ints:
        """A checksum for each id, over all layers."""
        total: Ints = np.zeros(1, np.int64)
        for stack in self.pools._stacks:
            for block in blocks(stack):
                numbers = read(block)
                weights = digest(np.arange(numbers.shape[0] * numbers.shape[2]).reshape(len(numbers), 1, -1))
                total = total + (numbers * weights).sum((0, 2))
        return total

    def _check_node(self, node: PageNode, number: int, expected: Evaluation) -> None:
        end = (number + 1) * PAGE
        for layer, kind in enumerate(self.geometry.layers[: self.geometry.num_main_layers]):
            if kind.ratio:
                entry = np.arange(number * PAGE // kind.ratio, end // kind.ratio)
                self._check_entries(layer, np.full(len(entry), node.page), entry, expected)
            if not node.window:
                continue
            position = np.arange(max(number * PAGE, end - self.geometry.window + 1), end)
            found = self._window_rows(layer, np.full(len(position), node.window), position)
            self._compare(found, expected.window[layer][position], "shared window")
            snapshots = self.pools.snapshots[layer]
            if snapshots is not None:
                raw = expected.raw[layer][end - 4 : end]
                half = np.concatenate([raw[:, columns] for columns in kind.snapshot_columns], axis=1)
                self._compare(read(snapshots[node.window * 4 : node.window * 4 + 4]), half, "snapshot")

    def _check_entries(self, layer: int, pages: Ints, entry: Ints, expected: Evaluation) -> None:
        kind = self.geometry.layers[layer]
        a_page = self.geometry.entries_per_page(kind.ratio)
        slots = pages * a_page + entry % a_page
        found = read(self.pools.kv[layer][self.pools.entry_base + torch.from_numpy(slots)])
        self._compare(found, expected.entries[layer][entry], f"entries of layer {layer}")
        index = self.pools.index[layer]
        if index is not None:
            self._compare(read(index[torch.from_numpy(slots)]), expected.index[layer][entry], "indexer keys")

    def _window_rows(self, layer: int, windows: Ints, position: Ints) -> Ints:
        if not windows.all():
            raise ContentError(f"script {self.seed}: a row has no window where it reads")
        return read(self.pools.kv[layer][torch.from_numpy(windows * PAGE + position % PAGE)])

    def _compare(self, found: Ints, wanted: Ints, what: str) -> None:
        self.num_checked += found.size
        if not np.array_equal(found, wanted):
            raise ContentError(f"script {self.seed}, step {self.step}: wrong {what}")

    def _random_tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(self.config.vocab_size) for _ in range(count)]

    def _count(self, what: str, by: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + int(by)


def options_of(seed: int) -> Options:
    """Scripts differ in window, policy, draft length and pool sizes."""
    rng = random.Random(~seed)
    return Options(
        max_draft_len=rng.choice([0, 1, 2, 3, 3, 5, 8]),
        window=rng.choice([8, 8, 8, 5, 24]),
        policy=rng.choice(["boundaries", "boundaries", "interval", "every_page", "none"]),
        num_pages=rng.choice([14, 24, 40]),
        num_windows=rng.choice([12, 20, 40]),
        num_rows=rng.choice([2, 4, 6]),
    )


def latent_options_of(seed: int, family: str) -> Options:
    """The same without windows: every retention policy must do."""
    return replace(options_of(seed), family=family, window=0, num_windows=0)


def run_scripts(seeds: range, options: Callable[[int], Options] = options_of) -> dict[str, int]:
    """Runs scripts; returns how often each thing happened."""
    totals: dict[str, int] = {}
    for seed in seeds:
        script = Script(seed, options(seed))
        script.run()
        script._count("numbers", script.num_checked)
        for name, count in script.counts.items():
            totals[name] = totals.get(name, 0) + count
    return totals
