"""Which of the tokens that were drawn at the places of a row are its tokens.

With k drafts a row has k + 1 places: the token at each is drawn as if the drafts before it were
output, with that place's own draw. A token counts while every draft before it equals the token
drawn at the draft's place; so the row gets what single steps would give it. Knows nothing of
logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from worker_svc.step import RowFailure


def count_verified(
    token_ids: npt.NDArray[np.int64],
    failures: Sequence[RowFailure | None],
    draft_token_ids: npt.NDArray[np.int32],
) -> tuple[int, RowFailure | None]:
    """How many of a row's drawn tokens count, and what ended them if a failure did.

    Args:
        token_ids: [k + 1], drawn at each place.
        failures: [k + 1]; a token id beside a failure means nothing.
        draft_token_ids: [k].
    """
    unequal = (token_ids[:-1] != draft_token_ids).nonzero()[0]
    num_tokens = int(unequal[0]) + 1 if len(unequal) else len(token_ids)
    for place, failure in enumerate(failures[:num_tokens]):
        if failure is not None:
            return place, failure
    return num_tokens, None
