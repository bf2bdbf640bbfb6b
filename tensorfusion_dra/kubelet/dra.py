"""The DRA gRPC service, v1 and v1beta1: claims in, CDI device IDs out."""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc
import structlog
from structlog.contextvars import bind_contextvars, reset_contextvars

from tensorfusion_dra.core.claims import cdi
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import FatalError
from tensorfusion_dra.driver.operations import Failure
from tensorfusion_dra.driver.prepare import Preparer
from tensorfusion_dra.kubelet.pb import dra_v1_pb2 as pb
from tensorfusion_dra.runtime.calls import CallsInFlight

log = structlog.get_logger()

_SERVICES: Final = (
    "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    # The same messages, except for Device.share_id, which a v1beta1 reader skips as unknown.
    "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
)
KUBELET_SECONDS: Final = 45.0
"""The kubelet's deadline for both calls."""
_MARGIN_SECONDS: Final = 1.0
"""An error must arrive before the kubelet's deadline; after it, nobody sees the error."""


class DraService:
    """The DRA service: answers each claim of a request with its devices or its own error.

    Attributes:
        calls: The calls that are not answered yet.
    """

    def __init__(
        self, preparer: Preparer, calls: CallsInFlight, on_fatal: Callable[[FatalError], None]
    ) -> None:
        self.calls: Final = calls
        self._preparer = preparer
        self._on_fatal = on_fatal

    def services(self) -> Iterator[grpc.GenericRpcHandler]:
        """Yield the gRPC services for a server on the DRA socket."""
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
                self._prepare,
                request_deserializer=pb.NodePrepareResourcesRequest.FromString,
                response_serializer=pb.NodePrepareResourcesResponse.SerializeToString,
            ),
            "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(
                self._unprepare,
                request_deserializer=pb.NodeUnprepareResourcesRequest.FromString,
                response_serializer=pb.NodeUnprepareResourcesResponse.SerializeToString,
            ),
        }
        for service in _SERVICES:
            yield grpc.method_handlers_generic_handler(service, methods)

    def _prepare(
        self, request: pb.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> pb.NodePrepareResourcesResponse:
        with self._call(context) as deadline:
            outcomes = self._preparer.prepare(_refs(request.claims), deadline=deadline)
        # Filled in place: messages that are passed to a constructor are copied.
        response = pb.NodePrepareResourcesResponse()
        for uid, outcome in outcomes.items():
            answer = response.claims[uid]
            if isinstance(outcome, Failure):
                answer.error = _text(outcome)
                continue
            for share, ids in zip(outcome.shares, cdi.ids_by_share(outcome), strict=True):
                answer.devices.add(
                    request_names=[share.request],
                    pool_name=share.pool,
                    device_name=share.device,
                    cdi_device_ids=ids,
                    share_id=share.share_id,
                )
        return response

    def _unprepare(
        self, request: pb.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> pb.NodeUnprepareResourcesResponse:
        with self._call(context) as deadline:
            outcomes = self._preparer.unprepare(_refs(request.claims), deadline=deadline)
        response = pb.NodeUnprepareResourcesResponse()
        for uid, failure in outcomes.items():
            response.claims[uid].error = _text(failure) if failure else ""
        return response

    @contextmanager
    def _call(self, context: grpc.ServicerContext) -> Iterator[float]:
        """Count and log a call, and yield its deadline on the monotonic clock.

        A fatal error ends the call and then the process.
        """
        seconds = min(context.time_remaining(), KUBELET_SECONDS)
        with self.calls:
            bound = bind_contextvars(op_id=f"{random.getrandbits(32):08x}")
            try:
                yield time.monotonic() + seconds - _MARGIN_SECONDS
            except FatalError as error:
                log.error("call_failed_fatally", error=str(error))
                self._on_fatal(error)
                context.abort(grpc.StatusCode.INTERNAL, str(error))
            except Exception as error:
                # gRPC reports the error to the kubelet, but does not log it here.
                log.error("call_failed", error=repr(error), exc_info=True)
                raise
            finally:
                reset_contextvars(**bound)


def _refs(claims: Iterable[pb.Claim]) -> list[ClaimRef]:
    return [ClaimRef(namespace=c.namespace, name=c.name, uid=c.uid) for c in claims]


def _text(failure: Failure) -> str:
    """Return the failure's text without lone surrogates.

    API objects may contain them, but a protobuf string cannot.
    """
    return failure.text.encode(errors="replace").decode()
