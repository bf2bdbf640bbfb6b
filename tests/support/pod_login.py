"""Run a verb as in a pod: with the login of a service account in place of a kubeconfig.

``python pod_login.py FOLDER node-plugin --kubeconfig FILE FLAGS`` writes the files of the service
account into the folder. The kubeconfig's server has no TLS, which that of a pod always has.
"""

import json
import os
import runpy
import sys
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit


def main() -> None:
    # `python FILE` puts the file's folder first; the package is in the working directory.
    sys.path[0] = str(Path.cwd())
    from tensorfusion_dra.cluster import login

    folder = Path(sys.argv.pop(1))
    place = sys.argv.index("--kubeconfig")
    kubeconfig = json.loads(Path(sys.argv[place + 1]).read_text(encoding="utf-8"))
    del sys.argv[place : place + 2]
    server = urlsplit(kubeconfig["clusters"][0]["cluster"]["server"])
    os.environ["KUBERNETES_SERVICE_HOST"] = str(server.hostname)
    os.environ["KUBERNETES_SERVICE_PORT"] = str(server.port)
    (folder / "token").write_text("any", encoding="ascii")
    (folder / "ca.crt").touch()
    login.of_service_account = partial(login.of_service_account, folder=folder, scheme="http")
    runpy.run_module("tensorfusion_dra", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
