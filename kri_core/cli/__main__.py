"""`python -m kri_core.cli`, for where the script is not on the path."""

from kri_core.cli import main

main()
