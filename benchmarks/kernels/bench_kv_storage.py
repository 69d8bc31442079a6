"""Price of packing and unpacking keys."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from timing import main

from benthic.kernels.kv_storage import pack_index, pack_kv, unpack_index, unpack_kv

Case = tuple[str, Callable[..., Any], int, int]


def cases(rows: int, device: torch.device) -> Iterator[Case]:
    """(name, call, bytes, operations) at sizes of the bundled model and of the released one."""
    for dim, rope, index in ((64, 32, 32), (512, 64, 128)):
        kv, keys = torch.randn(rows, dim, device=device), torch.randn(rows, index, device=device)
        packed, codes = pack_kv(kv, rope), pack_index(keys)
        kv_moved, index_moved = kv.nbytes + packed.nbytes, keys.nbytes + codes.nbytes
        yield f"pack kv {dim}", partial(pack_kv, kv, rope), kv_moved, 0
        yield f"unpack kv {dim}", partial(unpack_kv, packed, dim, rope, torch.float32), kv_moved, 0
        yield f"pack index {index}", partial(pack_index, keys), index_moved, 0
        yield f"unpack index {index}", partial(unpack_index, codes, index, torch.float32), index_moved, 0
    kv, keys = torch.randn(rows, 576, device=device), torch.randn(rows, 128, device=device)
    packed, codes = pack_kv(kv, 64, "v3.2"), pack_index(keys, "v3.2")
    yield "pack kv v3.2", partial(pack_kv, kv, 64, "v3.2"), kv.nbytes + packed.nbytes, 0
    unpack = partial(unpack_kv, packed, 576, 64, torch.float32, "v3.2")
    yield "unpack kv v3.2", unpack, kv.nbytes + packed.nbytes, 0
    yield "pack index v3.2", partial(pack_index, keys, "v3.2"), keys.nbytes + codes.nbytes, 0
    unpack = partial(unpack_index, codes, 128, torch.float32, "v3.2")
    yield "unpack index v3.2", unpack, keys.nbytes + codes.nbytes, 0


if __name__ == "__main__":
    main("kv_storage", cases)
