"""Stop with one plain sentence where the Python is too old to install anything (runs on any Python 3)."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - the point of this file
    sys.exit(
        "IOP needs Python 3.11 or newer, and this is %d.%d; name another one: make PYTHON=python3.12 ..."  # noqa: UP031
        % sys.version_info[:2]
    )
