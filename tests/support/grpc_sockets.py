"""gRPC services on unix sockets, for stand-ins of plugins and of the kubelet."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from tests.support.waiting import eventually

Services = Mapping[str, dict[str, Any]]
"""Handlers by the names of their methods, by the names of their services."""


def unary(function: Callable[[Any, grpc.ServicerContext], Any], request: Any) -> Any:
    """Return the handler of a method with one message of this type in each direction."""
    return grpc.unary_unary_rpc_method_handler(
        function, request.FromString, lambda answer: answer.SerializeToString()
    )


@contextmanager
def serving(socket: Path, services: Services) -> Iterator[None]:
    """Serve the services for the block; after it, the socket is gone."""
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        for name, methods in services.items():
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        try:
            yield
        finally:
            server.stop(grace=None).wait()
            assert eventually(lambda: not socket.exists())
