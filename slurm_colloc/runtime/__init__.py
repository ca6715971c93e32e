"""What runs as the user in the allocation: the runner and its members; standard library only."""

import sys

# An older Python cannot even read the modules below; this file it can, and it is read first.
if sys.version_info < (3, 11):  # noqa: UP036 - the node's Python is not the login node's
    sys.exit(
        f"csub: error: {sys.executable} is Python {sys.version_info[0]}.{sys.version_info[1]}, and "
        "packs need 3.11 or newer: set node_python in the settings to one that the nodes have"
    )
