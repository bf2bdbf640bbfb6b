"""Run the node plugin and record whether its sockets accept connections when libraries load.

``python import_witness.py RECORD FOLDER node-plugin FLAGS`` appends one JSON line to RECORD when
the Kubernetes client is first looked for: its name, and the sockets below FOLDER that accept a
connection at that moment. The import waits meanwhile, so the moment does
not depend on how busy the machine is.
"""

import json
import runpy
import socket
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path

CLIENT = ("kubernetes", "urllib3")


class Witness(MetaPathFinder):
    """Finder that finds nothing, and is asked before all others."""

    def __init__(self, record: Path, folder: Path) -> None:
        self._record = record
        self._folder = folder

    def find_spec(self, name: str, *_: object) -> None:
        if name in CLIENT:
            line = json.dumps({"module": name, "sockets": sorted(self._accepting())})
            with self._record.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    def _accepting(self) -> Iterator[str]:
        for path in self._folder.rglob("*.sock"):
            with socket.socket(socket.AF_UNIX) as client:
                if client.connect_ex(str(path)) == 0:
                    yield path.name


def main() -> None:
    record, folder, *arguments = sys.argv[1:]
    sys.argv[1:] = arguments
    # `python FILE` puts the file's folder first; the package is in the working directory.
    sys.path[0] = str(Path.cwd())
    sys.meta_path.insert(0, Witness(Path(record), Path(folder)))
    runpy.run_module("tensorfusion_dra", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
