"""``python -m release wheels`` and its like."""

import sys

from ddl.tools import cli

TOOLS = {
    "wheels": ("release.wheels", "build the source distribution and all wheels into dist/"),
    "matrix": ("release.matrix", "install and run each wheel where there is no compiler, and make the table"),
    "check": ("release.check", "look whether dist/ is ready to be published"),
}

if __name__ == "__main__":
    sys.exit(cli.run("python -m release", "Releases of DDL. Explained in docs/releasing.md.", TOOLS, sys.argv[1:]))
