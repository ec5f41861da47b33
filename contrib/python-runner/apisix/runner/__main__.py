"""`python -m apisix.runner FOLDER` starts the runner."""

from .server import main

main()
