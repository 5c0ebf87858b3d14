"""``python -m everytoken``: ``kedro run`` of the installed package, in a folder with its ``conf``."""

from __future__ import annotations

import sys
from typing import Any

from kedro.framework.cli.utils import find_run_command
from kedro.framework.project import configure_project


def main(*args: Any, **options: Any) -> Any:
    """Run the job, with the options of ``kedro run``; in a notebook return what it returns."""
    configure_project("everytoken")
    run = find_run_command("everytoken")
    return run(*args, **{"standalone_mode": not hasattr(sys, "ps1"), **options})


if __name__ == "__main__":
    main()
