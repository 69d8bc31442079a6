"""DeepSeek-V4 once more, straight from the written rules: loops over tokens, float64, nothing shared with the package.

Slow and literal on purpose. It is the yardstick for the `quantized` policy, which no other open implementation of the
whole model has, and takes weights under official names.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MAGNITUDES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


def rms(x: Tensor, gain: Tensor | float, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * gain


def scale_of(group: Tensor, floor: float, largest: float) -> float:
    return 2.0 ** math.ceil(math.log2(max(float(group.abs().max()), floor) / largest))


def q8(x: Tensor, size: int) -> Tensor:
    parts = []
    for group in x.split(size):
        s = scale_of(group, 1e-4, 448.0)
        parts.append((group / s).clamp(-448, 448).to(torch.float8_e4m3fn).to(torch.float64) * s)
    return torch.cat(parts)


def q4(x: Tensor, size: int) -> Tensor:
    parts = []
    for group in x.split(size):
        s = scale_of(group, 6 * 2.0**-126, 6.0)
        nearest = (group.abs()[:, None] / s - MAGNITUDES).abs().argmin(1)
        parts.append(MAGNITUDES[nearest].copysign(group) * s)
    return torch.cat(parts)


def walsh(size: int) -> Tensor:
    h = torch.ones(1, 1, dtype=torch.float64)
    while len(h) < size:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return h / math.sqrt(size)


@dataclass
class WrittenRules:
    """`weights`: official name -> tensor, one per expert. `c`: the configuration."""

    weights: dict[str, Tensor]
    c: object
    quantized: bool

    def w(self, name: str) -> Tensor:
        return self.weights[name].to(torch.float64)

    def linear(self, x: Tensor, name: str) -> Tensor:
        """A product whose weight is FP8 or FP4 in the file: its input is rounded."""
        rows = torch.stack([q8(row, 128) for row in x]) if self.quantized else x
        return rows @ self.w(name + ".weight").T

    # 2.2 mHC, 2.9 head
    def site(self, streams: Tensor, name: str):
        n, z = self.c.hc_mult, streams.flatten()
        a = (self.w(name + "_fn") @ z) / math.sqrt(float((z * z).mean()) + self.c.rms_norm_eps)
        scale, base = self.w(name + "_scale"), self.w(name + "_base")
        pre = torch.sigmoid(a[:n] * scale[0] + base[:n]) + self.c.hc_eps
        post = 2 * torch.sigmoid(a[n : 2 * n] * scale[1] + base[n : 2 * n])
        comb = (a[2 * n :] * scale[2] + base[2 * n :]).view(n, n).softmax(1) + self.c.hc_eps
        comb = comb / (comb.sum(0, keepdim=True) + self.c.hc_eps)
        for _ in range(self.c.hc_sinkhorn_iters - 1):
            comb = comb / (comb.sum(1, keepdim=True) + self.c.hc_eps)
            comb = comb / (comb.sum(0, keepdim=True) + self.c.hc_eps)
        return pre @ streams, post, comb

    def head(self, streams: Tensor, prefix: str = "") -> Tensor:
        z = streams.flatten()
        a = (self.w(prefix + "hc_head_fn") @ z) / math.sqrt(float((z * z).mean()) + self.c.rms_norm_eps)
        pre = torch.sigmoid(a * self.w(prefix + "hc_head_scale") + self.w(prefix + "hc_head_base")) + self.c.hc_eps
        return self.w("head.weight") @ rms(pre @ streams, self.w(prefix + "norm.weight"), self.c.rms_norm_eps)

    # 2.3 rotation
    def rotate(self, x: Tensor, position: int, ratio: int, sign: int = 1) -> Tensor:
        r, yarn = self.c.qk_rope_head_dim, self.c.rope_scaling
        theta = self.c.compress_rope_theta if ratio else self.c.rope_theta
        out = x.clone()
        for i in range(r // 2):
            f = theta ** (-2 * i / r)
            if ratio and yarn is not None:
                low, high = (
                    r * math.log(yarn.original_max_position_embeddings / (2 * math.pi * b)) / (2 * math.log(theta))
                    for b in (yarn.beta_fast, yarn.beta_slow)
                )
                low, high = max(math.floor(low), 0), min(math.ceil(high), r - 1)
                ramp = min(max((i - low) / (high - low if high > low else 0.001), 0), 1)
                f = f * (1 - ramp) + f / yarn.factor * ramp
            angle = sign * position * f
            at = x.shape[-1] - r + 2 * i
            a, b = x[..., at], x[..., at + 1]
            out[..., at] = a * math.cos(angle) - b * math.sin(angle)
            out[..., at + 1] = a * math.sin(angle) + b * math.cos(angle)
        return out

    def keep_kv(self, kv: Tensor) -> Tensor:
        still = kv.shape[-1] - self.c.qk_rope_head_dim
        return torch.cat([q8(kv[:still], 64), kv[still:]]) if self.quantized and still else kv

    def keep_index(self, x: Tensor) -> Tensor:
        return q4(x @ walsh(len(x)), 32) if self.quantized else x

    # 2.5 compressor
    def entries(self, h: Tensor, prefix: str, m: int, d: int) -> list[Tensor]:
        a, b = h @ self.w(prefix + "wkv.weight").T, h @ self.w(prefix + "wgate.weight").T
        ape, found = self.w(prefix + "ape"), []
        for w in range(len(h) // m):
            own = range(w * m, w * m + m)
            if m == 4:
                before = range(w * m - m, w * m) if w else []
                values = [a[t, :d] for t in before] + [a[t, d:] for t in own]
                gates = [b[t, :d] + ape[t % m, :d] for t in before] + [b[t, d:] + ape[t % m, d:] for t in own]
            else:
                values, gates = [a[t] for t in own], [b[t] + ape[t % m] for t in own]
            pooled = (torch.stack(gates).softmax(0) * torch.stack(values)).sum(0)
            pooled = rms(pooled, self.w(prefix + "norm.weight"), self.c.rms_norm_eps)
            found.append(self.rotate(pooled, w * m, m))
        return found

    # 2.6 indexer
    def chosen(self, h: Tensor, latent: Tensor, prefix: str) -> list[list[int]]:
        c = self.c
        keys = [self.keep_index(e) for e in self.entries(h, prefix + "indexer.compressor.", 4, c.index_head_dim)]
        query = self.linear(latent, prefix + "indexer.wq_b").view(len(h), c.index_n_heads, c.index_head_dim)
        gamma = h @ self.w(prefix + "indexer.weights_proj.weight").T
        gamma = gamma * c.index_head_dim**-0.5 * c.index_n_heads**-0.5
        picked = []
        for t in range(len(h)):
            q = torch.stack([self.keep_index(head) for head in self.rotate(query[t], t, 4)])
            scores = [float(gamma[t] @ (q @ keys[w]).relu()) for w in range((t + 1) // 4)]
            order = sorted(range(len(scores)), key=lambda w: (-scores[w], w))
            picked.append(sorted(order[: c.index_topk]))
        return picked

    # 2.4 attention
    def attention(self, h: Tensor, prefix: str, ratio: int) -> Tensor:
        c, heads, d = self.c, self.c.num_attention_heads, self.c.head_dim
        latent = rms(self.linear(h, prefix + "wq_a"), self.w(prefix + "q_norm.weight"), c.rms_norm_eps)
        query = rms(self.linear(latent, prefix + "wq_b").view(len(h), heads, d), 1.0, c.rms_norm_eps)
        kv = rms(self.linear(h, prefix + "wkv"), self.w(prefix + "kv_norm.weight"), c.rms_norm_eps)
        kv = [self.keep_kv(self.rotate(row, t, ratio)) for t, row in enumerate(kv)]
        entries = [self.keep_kv(e) for e in self.entries(h, prefix + "compressor.", ratio, d)] if ratio else []
        chosen = self.chosen(h, latent, prefix) if ratio == 4 else None
        sink, out = self.w(prefix + "attn_sink"), []
        for t in range(len(h)):
            keys = kv[max(0, t - c.sliding_window + 1) : t + 1]
            if ratio:
                keys = keys + [entries[w] for w in (chosen[t] if chosen else range((t + 1) // ratio))]
            keys = torch.stack(keys)
            e = torch.exp(self.rotate(query[t], t, ratio) @ keys.T * d**-0.5)
            o = (e @ keys) / (e.sum(1) + torch.exp(sink))[:, None]
            out.append(self.rotate(o, t, ratio, sign=-1).flatten())
        groups = torch.stack(out).view(len(h), c.o_groups, -1)
        wo_a = self.w(prefix + "wo_a.weight").view(c.o_groups, c.o_lora_rank, -1)
        return self.linear(torch.einsum("tgi,goi->tgo", groups, wo_a).flatten(1), prefix + "wo_b")

    # 2.8 experts
    def expert(self, x: Tensor, prefix: str, weight: float) -> Tensor:
        gate = self.linear(x, prefix + "w1").clamp(max=self.c.swiglu_limit)
        up = self.linear(x, prefix + "w3").clamp(-self.c.swiglu_limit, self.c.swiglu_limit)
        return self.linear(gate * torch.sigmoid(gate) * up * weight, prefix + "w2")

    def experts(self, x: Tensor, token: int, prefix: str, routing: str) -> Tensor:
        scores = torch.sqrt(torch.log1p(torch.exp(self.w(prefix + "gate.weight") @ x)))
        if routing == "hash":
            picks = self.weights[prefix + "gate.tid2eid"][token]
        else:
            picks = (scores + self.w(prefix + "gate.bias")).argsort(descending=True)[: self.c.num_experts_per_tok]
        g = scores[picks] / scores[picks].sum() * self.c.routed_scaling_factor
        total = self.expert(x[None], prefix + "shared_experts.", 1.0)[0]
        for pick, weight in zip(picks.tolist(), g.tolist(), strict=True):
            total = total + self.expert(x[None], f"{prefix}experts.{pick}.", weight)[0]
        return total

    def layer(self, streams: Tensor, ids: list[int], prefix: str, spec) -> Tensor:
        eps = self.c.rms_norm_eps
        for site, norm in (("hc_attn", "attn_norm"), ("hc_ffn", "ffn_norm")):
            mixes = [self.site(x, prefix + site) for x in streams]
            h = rms(torch.stack([mix[0] for mix in mixes]), self.w(prefix + norm + ".weight"), eps)
            if site == "hc_attn":
                y = self.attention(h, prefix + "attn.", spec.ratio)
            else:
                y = torch.stack(
                    [self.experts(x, t, prefix + "ffn.", spec.routing) for x, t in zip(h, ids, strict=True)]
                )
            streams = torch.stack(
                [post[:, None] * row + comb.T @ x for x, row, (_, post, comb) in zip(streams, y, mixes, strict=True)]
            )
        return streams

    def logits(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        """[T, V] of the main model; [T - 1, V] of the first MTP block, which sees tokens t and t + 1."""
        embedded = self.w("embed.weight")[ids]
        streams = embedded[:, None, :].expand(-1, self.c.hc_mult, -1)
        for index, spec in enumerate(self.c.layers):
            streams = self.layer(streams, ids, f"layers.{index}.", spec)
        main = torch.stack([self.head(x) for x in streams])
        eps = self.c.rms_norm_eps
        token = self.linear(rms(embedded[1:], self.w("mtp.0.enorm.weight"), eps), "mtp.0.e_proj")
        mixed = [self.linear(rms(x, self.w("mtp.0.hnorm.weight"), eps), "mtp.0.h_proj") for x in streams[:-1]]
        draft = self.layer(token[:, None, :] + torch.stack(mixed), ids[1:], "mtp.0.", self.c.mtp_layers[0])
        return main, torch.stack([self.head(x, "mtp.0.") for x in draft])
