"""What the Python test programs share. They print hashes, which must be the same with and without hugeswap."""

import hashlib
import sys


def show(what, data):
    """Prints a hash of a buffer (or of an array's bytes, or of text)."""
    if isinstance(data, str):
        data = data.encode()
    view = memoryview(data)
    if view.nbytes and not view.c_contiguous:
        view = memoryview(view.tobytes())
    print(what, hashlib.sha1(view.cast("B") if view.nbytes else b"").hexdigest()[:20], view.nbytes)
    sys.stdout.flush()
