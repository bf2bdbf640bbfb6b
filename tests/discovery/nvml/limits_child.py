"""A process with memory limits by NVML: reads steps as JSON from stdin, prints each result.

``[method, *arguments]`` calls CgroupLimits. ``["write", path, text]`` replaces a file.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.discovery.nvml.memory_limits import CgroupLimits


def main() -> None:
    script = json.load(sys.stdin)
    limits = CgroupLimits(
        Path(script["library"]),
        Path("/nowhere"),
        cgroups=Path(script["cgroups"]),
        replacement_sign=Path(script["cgroups"], "sign"),
    )
    results: list[Any] = []
    for method, *arguments in script["steps"]:
        try:
            if method == "write":
                results.append(Path(arguments[0]).write_text(arguments[1], encoding="utf-8"))
            else:
                results.append(getattr(limits, method)(*arguments))
        except DriverError as error:
            results.append(f"{type(error).__name__}: {error}")
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
