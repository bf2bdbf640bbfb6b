"""Plugin registration: the kubelet requests this plugin's info and reports the result."""

from datetime import UTC, datetime
from typing import Final

import grpc
import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.observed.node_view import RegistrationState, RegistrationView
from tensorfusion_dra.kubelet.pb import pluginregistration_v1_pb2 as pb

log = structlog.get_logger()

_SERVICE: Final = "pluginregistration.Registration"


class Registration:
    """The Registration service of one instance."""

    def __init__(self, endpoint: str) -> None:
        """Prepare the plugin info for the kubelet.

        Args:
            endpoint: The socket path of the DRA services.
        """
        self._plugin = pb.PluginInfo(
            type=names.PLUGIN_TYPE,
            name=names.DRIVER,
            endpoint=endpoint,
            supported_versions=list(names.SUPPORTED_VERSIONS),
        )
        self._endpoint = endpoint
        self._view = RegistrationView()

    def check(self) -> None:
        """Return if the kubelet has registered this instance.

        Raises:
            RetryableError: It has not, or no longer.
        """
        if self._view.state is not RegistrationState.REGISTERED:
            raise RetryableError(f"{self._endpoint}: not registered by the kubelet")

    def service(self) -> grpc.GenericRpcHandler:
        """Return the gRPC service for a server on the registration socket."""
        return grpc.method_handlers_generic_handler(
            _SERVICE,
            {
                "GetInfo": grpc.unary_unary_rpc_method_handler(
                    self._get_info,
                    request_deserializer=pb.InfoRequest.FromString,
                    response_serializer=pb.PluginInfo.SerializeToString,
                ),
                "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
                    self._notify,
                    request_deserializer=pb.RegistrationStatus.FromString,
                    response_serializer=pb.RegistrationStatusResponse.SerializeToString,
                ),
            },
        )

    def view(self) -> RegistrationView:
        """Return what the kubelet last reported."""
        return self._view

    @property
    def is_notified(self) -> bool:
        """True once the kubelet has reported a result of the registration, good or bad."""
        return self._view.state is not RegistrationState.WAITING

    def _get_info(self, _request: pb.InfoRequest, _context: grpc.ServicerContext) -> pb.PluginInfo:
        return self._plugin

    def _notify(
        self, request: pb.RegistrationStatus, _context: grpc.ServicerContext
    ) -> pb.RegistrationStatusResponse:
        is_registered = request.plugin_registered
        self._view = RegistrationView(
            state=RegistrationState.REGISTERED if is_registered else RegistrationState.REFUSED,
            since=datetime.now(UTC),
            error="" if is_registered else request.error,
        )
        if is_registered:
            log.info("registered", endpoint=self._endpoint)
        else:
            # The kubelet tries again, with a growing delay, as long as the socket exists.
            log.warning("registration_refused", error=request.error)
        return pb.RegistrationStatusResponse()
