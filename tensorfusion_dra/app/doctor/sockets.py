"""The plugin's sockets, as the kubelet finds them."""

import os
from collections.abc import Iterator

from tensorfusion_dra.app.doctor.surroundings import Surroundings
from tensorfusion_dra.core.diagnosis import sockets as judge
from tensorfusion_dra.core.diagnosis.finding import Finding, ok, problem
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.kubelet import socket_survey, sockets


def paths(surroundings: Surroundings) -> Iterator[Finding]:
    """Whether the sockets that the node plugin would bind have room for their paths."""
    settings = surroundings.settings
    try:
        found = sockets.paths(
            registry_folder=settings.registry_folder,
            data_folder=settings.data_folder,
            pod_uid=settings.pod_uid,
        )
    except InputError as error:
        yield problem(
            "socket paths",
            str(error),
            expected="a kubelet root that leaves room for the names",
            cure="give the kubelet a shorter --root-dir, or bind-mount it at a shorter path and "
            "set --kubelet-root",
        )
        return
    longest = max(len(str(path).encode()) for path in (found.registration, found.dra))
    yield ok("socket paths", f"{longest} bytes at most, of {sockets.MAX_PATH_BYTES}")


def served(surroundings: Surroundings) -> Iterator[Finding]:
    """Who serves in the registration folder, and what ours answer."""
    folder = surroundings.settings.registry_folder
    connected = socket_survey.connections()  # before looking, which connects as well
    try:
        os.scandir(folder).close()  # rglob() says nothing of a folder that it may not read
        files = sorted(path for path in folder.rglob("*") if path.is_socket())
    except OSError as error:
        raise RetryableError(f"{folder}: {error.strerror or error}") from error
    found = [socket_survey.look(path, connected) for path in files]
    yield from judge.registered(found)
    for path, socket in zip(files, found, strict=True):
        if socket.live and judge.is_ours(path.name):
            yield from judge.told(socket_survey.plugin_info(path, connected))
