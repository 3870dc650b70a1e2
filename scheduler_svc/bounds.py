"""How many peers a scheduler has at a time, whatever they ask of it.

One number for all streams that a gateway opens, so that whoever may open one may open all. It knows
none of these streams.
"""

from __future__ import annotations

MAX_GATEWAYS = 1024
