"""What is left out of collections for good; in a process of its own, as it cannot be undone."""

from __future__ import annotations

import subprocess
import sys

_CODE = """
import gc, weakref
from pagewire.kit import garbage

class Node: pass

def cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)

early = cycle()
garbage.settle()
assert early() is None, "what was garbage before is collected, not kept"
frozen = gc.get_freeze_count()
assert frozen > 1000 and gc.get_threshold()[0] > 700
late = cycle()
garbage.settle()
assert gc.get_freeze_count() == frozen and late() is not None, "a second call does nothing"
gc.collect()
assert late() is None, "later garbage is collected as ever"
"""


def test_settling_keeps_what_there_is_out_of_collections_and_nothing_later() -> None:
    found = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
