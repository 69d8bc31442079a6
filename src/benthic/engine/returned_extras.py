"""Routes and picks as callers get them: in types that do not depend on the model or on the engine's settings.

With the pages they are kept in the smallest unsigned type that holds them, whose largest number stands for "no pick".
"""

import numpy as np
from numpy.typing import NDArray

from benthic.engine.request import Extras

NO_PICK = -1


def wide_routes(routes: Extras | None) -> NDArray[np.uint16] | None:
    """Expert ids, uint16 [tokens, routed layers, experts a token]."""
    return None if routes is None else routes.astype(np.uint16)


def wide_picks(picks: Extras | None) -> NDArray[np.int32] | None:
    """Entry numbers, int32 [tokens, indexed layers, index_topk]; NO_PICK where fewer entries are to be seen."""
    if picks is None:
        return None
    return np.where(picks == np.iinfo(picks.dtype).max, NO_PICK, picks.astype(np.int32)).astype(np.int32)
