"""The simulated API server in a process of its own, in place of a real one."""

import multiprocessing
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from benchmark.fleet.control_plane import AGENT, PATHS, SLICES
from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.cluster.api import USER_AGENT, Api

_STOP_SECONDS: Final = 20.0


class SimulatedControlPlane:
    """The simulated API server; it keeps its objects when it is stopped and started again.

    It has no rights and no tokens, so all publishers have the same kubeconfig.
    """

    has_tls: bool = False

    def __init__(self, folder: Path) -> None:
        """Fork the process of the server; start() has it serve. No other thread may run."""
        context = multiprocessing.get_context("fork")
        self._commands, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(folder, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._kubeconfig = folder / "simulated.kubeconfig"

    def start(self) -> None:
        """Have the server serve."""
        self.start_api_server()
        self.api = Api(self._kubeconfig, user_agent=AGENT)

    def stop(self) -> None:
        """End the process."""
        self._ask("end")
        self._process.join(_STOP_SECONDS)

    def start_api_server(self) -> None:
        self._ask("start")

    def stop_api_server(self, *, gracefully: bool) -> None:
        """Stop the server. To kill it is the same here: it has nothing that it could lose."""
        self._ask("stop")

    def counters(self) -> Mapping[str, float]:
        answer: Mapping[str, float] = self._ask("counters")
        return answer

    def gauges(self) -> Mapping[str, float]:
        return {}

    def create(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object; return it as stored."""
        return self.api.call("POST", PATHS[document["kind"]], body=document)

    def delete_slices(self) -> None:
        """Delete the slices of all nodes, as their kubelets do when they start."""
        self.api.call("DELETE", SLICES)

    def let_pools_be_read(self) -> None:
        """Do nothing: everybody may read them."""

    def node_kubeconfig(self, _node: Mapping[str, Any]) -> Path:
        """Return a kubeconfig for a publisher."""
        return self._kubeconfig

    def _ask(self, command: str) -> Any:
        self._commands.send(command)
        return self._commands.recv()


def _serve(folder: Path, commands: Connection) -> None:
    server = ApiServer(tensor_fusion=True)
    server.kubeconfig(folder / "simulated.kubeconfig")
    while (command := commands.recv()) != "end":
        answer: Mapping[str, float] = {}
        match command:
            case "start":
                server.requests.reset()
                server.start()
            case "stop":
                server.stop()
            case "counters":
                answer = {"requests": server.requests.received(USER_AGENT)}
        commands.send(answer)
    server.stop()
    commands.send(None)
