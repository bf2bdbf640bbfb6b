"""Registered plugins of a node, and the deletion of slices of drivers that are gone.

Source: pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go, release 1.36.
"""

import time
from collections.abc import Sequence
from threading import Condition, Thread
from typing import Final

from dra_simulator.node.kubelet_context import KubeletContext
from dra_simulator.node.plugin import (
    DRA_SERVICES,
    HEALTH_SERVICES,
    DeviceHealth,
    Plugin,
    PluginError,
)
from dra_simulator.responses import RestError
from dra_simulator.rest import SLICES

HEALTH_OF_1_36: Final = "v1alpha1.DRAResourceHealth"
"""Health service that the kubelet calls if a plugin lists no known one."""

_JOIN_SECONDS: Final = 15.0
_EVERY_DRIVER: Final = ""


class Plugins:
    """Plugins by driver; several instances of a driver overlap during its update."""

    def __init__(self, setting: KubeletContext) -> None:
        self._client: Final = setting.client
        self._node_name: Final = setting.node_name
        self._timings: Final = setting.timings
        self._journal: Final = setting.journal
        self._changed: Final = Condition()  # guards everything below
        self._plugins: Final[dict[str, list[Plugin]]] = {}
        self._wipes: Final[dict[str, float]] = {}
        self._is_stopping = False
        self._wiper: Final = Thread(target=self._wipe_when_due, name="slice-wiper")

    def start(self, *, wipe_all: bool) -> None:
        """Start deleting slices of absent drivers, and with wipe_all first all slices."""
        if wipe_all:
            self._wipes[_EVERY_DRIVER] = time.monotonic()
        self._wiper.start()

    def stop(self) -> None:
        """Close all connections and return once all threads have ended."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
            plugins = [plugin for found in self._plugins.values() for plugin in found]
            self._plugins.clear()
        if self._wiper.ident is not None:
            self._wiper.join(_JOIN_SECONDS)
        for plugin in plugins:
            plugin.close()

    def register(self, driver: str, endpoint: str, versions: Sequence[str]) -> None:
        """Add a plugin and connect to it.

        Raises:
            PluginError: It supports no known service, another plugin of the driver has its
                endpoint, or the kubelet is stopping.
        """
        plugin = Plugin(
            driver,
            endpoint,
            services=chosen_services(driver, endpoint, versions),
            timings=self._timings,
            changed=lambda: self._connection_changed(driver),
        )
        with self._changed:
            if self._is_stopping:
                raise PluginError("the kubelet is stopping")
            found = self._plugins.setdefault(driver, [])
            if any(other.endpoint == endpoint for other in found):
                raise PluginError(
                    f"endpoint {endpoint} already registered for DRA driver plugin {driver}"
                )
            found.append(plugin)
            plugin.open()
            self._schedule_wipe(driver)
        facts = {"driver": driver, "endpoint": endpoint, "service": plugin.service}
        self._journal.add("plugin_registered", **facts)

    def deregister(self, driver: str, endpoint: str) -> None:
        """Remove a plugin, if it is registered, and close its connection."""
        with self._changed:
            found = self._plugins.get(driver, [])
            plugin = next((other for other in found if other.endpoint == endpoint), None)
            if plugin is None:
                return
            found.remove(plugin)
            if not found:
                del self._plugins[driver]
            self._schedule_wipe(driver)
        # Outside of the lock: close() waits for a thread that reports changes and takes the lock.
        plugin.close()
        self._journal.add("plugin_deregistered", driver=driver, endpoint=endpoint)

    def plugin(self, driver: str) -> Plugin:
        """Return the driver's newest connected plugin, or its newest if none is connected.

        Raises:
            PluginError: The driver has no registered plugin.
        """
        with self._changed:
            found = self._plugins.get(driver)
            if not found:
                raise PluginError(f"DRA driver {driver} is not registered")
            connected = [plugin for plugin in found if plugin.is_connected]
            return (connected or found)[-1]

    @property
    def registered(self) -> dict[str, tuple[Plugin, ...]]:
        """Plugins by driver, in the order of their registration."""
        with self._changed:
            return {driver: tuple(found) for driver, found in self._plugins.items()}

    @property
    def health(self) -> dict[tuple[str, str, str], DeviceHealth]:
        """Valid health reports by driver, pool and device; other devices are Unknown."""
        return {
            (driver, *device): reported
            for driver, found in self.registered.items()
            for plugin in found
            for device, reported in plugin.health.items()
        }

    def _connection_changed(self, driver: str) -> None:
        with self._changed:
            self._schedule_wipe(driver)

    def _schedule_wipe(self, driver: str) -> None:
        """Schedule or cancel the deletion of a driver's slices; the caller holds the lock."""
        if any(plugin.is_connected for plugin in self._plugins.get(driver, ())):
            self._wipes.pop(driver, None)
        else:
            due = time.monotonic() + self._timings.wipe_delay_seconds
            self._wipes.setdefault(driver, due)
        self._changed.notify_all()

    def _wipe_when_due(self) -> None:
        retry_seconds = dict.fromkeys([_EVERY_DRIVER], self._timings.first_wipe_retry_seconds)
        while True:
            with self._changed:
                if self._is_stopping:
                    return
                driver, due = min(
                    self._wipes.items(), key=lambda item: item[1], default=(None, 0.0)
                )
                wait = due - time.monotonic()
                if driver is None or wait > 0:
                    self._changed.wait(None if driver is None else wait)
                    continue
            if self._wipe(driver):
                retry_seconds.pop(driver, None)
                with self._changed:
                    self._wipes.pop(driver, None)
                continue
            pause = retry_seconds.get(driver, self._timings.first_wipe_retry_seconds)
            retry_seconds[driver] = min(pause * 2, self._timings.most_wipe_retry_seconds)
            with self._changed:
                if driver in self._wipes:
                    self._wipes[driver] = time.monotonic() + pause

    def _wipe(self, driver: str) -> bool:
        selector = f"spec.nodeName={self._node_name}"
        if driver != _EVERY_DRIVER:
            selector += f",spec.driver={driver}"
        try:
            found = self._client.delete_all(SLICES, field_selector=selector)
        except RestError as error:
            self._journal.add("slices_not_wiped", driver=driver, error=str(error))
            return False
        names = ", ".join(item["metadata"]["name"] for item in found.get("items") or ())
        self._journal.add("slices_wiped", driver=driver, slices=names)
        return True


def chosen_services(driver: str, endpoint: str, versions: Sequence[str]) -> tuple[str, str]:
    """Return the DRA and the health service to call: the first known ones in the plugin's list.

    Raises:
        PluginError: The list is empty or has no known DRA service.
    """
    prefix = f"invalid supported gRPC versions of DRA driver plugin {driver} at endpoint {endpoint}"
    if not versions:
        raise PluginError(
            f"{prefix}: empty list of supported gRPC services (aka supported versions)"
        )
    service = next((version for version in versions if version in DRA_SERVICES), None)
    if service is None:
        offered, known = (
            " ".join(f'"{name}"' for name in names) for names in (versions, DRA_SERVICES)
        )
        raise PluginError(
            f"{prefix}: none of services supported by the plugin ([{offered}]) are supported by the"
            f" kubelet ([{known}])"
        )
    listed = (version for version in versions if version in HEALTH_SERVICES)
    return service, next(listed, HEALTH_OF_1_36)
