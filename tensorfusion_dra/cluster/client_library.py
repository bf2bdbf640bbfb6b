"""The parts of the Kubernetes client library that log in, loaded without the rest of it.

``import kubernetes`` loads 400 modules: generated models, a second client, pydantic, requests and
OAuth. They take 20 MB of memory and a third of a second. A login needs none of them, except with an
identity provider that a kubeconfig names as ``auth-provider``; then all is loaded. Otherwise the
modules that log in are loaded below empty packages, stand-ins for those that would load the rest.
Afterwards these modules are no longer in sys.modules, so that another import of the library, by an
extension for instance, finds all of it.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any, Final

import yaml

from tensorfusion_dra.cluster import kubeconfig_files

_ROOT: Final = "kubernetes"
_PACKAGES: Final = (_ROOT, f"{_ROOT}.client", f"{_ROOT}.config", f"{_ROOT}.utils")
_UNUSED: Final = ("oauthlib", "oauthlib.oauth2", "requests_oauthlib")
"""Imported by the module that reads kubeconfigs, and used for auth-provider only."""
_LOADING: Final = Lock()  # guards sys.modules while it has stand-ins

ACCIDENTS: Final = (TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""Errors that the library's code runs into on a file of another form; they say nothing of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """The parts that log in.

    Attributes:
        configuration: Class of the settings: server, certificates, token, proxy.
        load_kubeconfig, load_service_account: Fill the settings.
        rest_client: Class that makes a urllib3 pool manager of the settings.
        failures: Errors of all parts. On a damaged file the library raises not only its own errors,
            but any that its code runs into, the ACCIDENTS.
    """

    configuration: Callable[[], Any]
    load_kubeconfig: Callable[..., None]
    load_service_account: Callable[..., None]
    rest_client: Callable[[Any], Any]
    failures: tuple[type[Exception], ...]


def for_service_account() -> Library:
    """Return what the login of a pod needs."""
    with _LOADING:
        return _small()


def for_kubeconfig(path: Path) -> Library:
    """Return what the login with a kubeconfig needs.

    Raises:
        InputError: A file is too large. For one that cannot be read the library has the error.
    """
    # Read to the last one, so that a file that is too large is found.
    texts = tuple(kubeconfig_files.texts(path))
    names_a_provider = any(b"auth-provider" in text for text in texts)
    with _LOADING:
        return _whole() if names_a_provider else _small()


@cache
def _whole() -> Library:
    importlib.import_module(f"{_ROOT}.config")
    return _parts()


@cache
def _small() -> Library:
    if _ROOT in sys.modules:
        return _whole()  # there is nothing to save
    try:
        with _stand_ins():
            return _parts()
    except ImportError:  # of a version of the library that is divided differently
        return _whole()


def _parts() -> Library:
    # Imported here, when it is decided how much comes with them.
    from kubernetes.client.configuration import Configuration  # noqa: PLC0415
    from kubernetes.client.rest import RESTClientObject  # noqa: PLC0415
    from kubernetes.config.config_exception import ConfigException  # noqa: PLC0415
    from kubernetes.config.incluster_config import load_incluster_config  # noqa: PLC0415
    from kubernetes.config.kube_config import load_kube_config  # noqa: PLC0415

    return Library(
        configuration=Configuration,
        load_kubeconfig=load_kube_config,
        load_service_account=load_incluster_config,
        rest_client=RESTClientObject,
        failures=(
            *(ConfigException, yaml.YAMLError, OSError, ValueError),
            *ACCIDENTS,
        ),
    )


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Put empty modules in place of large ones inside the block."""
    located = importlib.util.find_spec(_ROOT)
    if located is None or located.submodule_search_locations is None:
        raise ImportError(f"found no package {_ROOT}")
    (root,) = located.submodule_search_locations
    added = [name for name in _UNUSED if name not in sys.modules]
    for name in added:
        sys.modules[name] = _empty(name)
    for name in _PACKAGES:
        sys.modules[name] = _empty(name, Path(root, *name.split(".")[1:]))
    try:
        settings = importlib.import_module(f"{_ROOT}.client.configuration")
        vars(sys.modules[f"{_ROOT}.client"]).update(
            Configuration=settings.Configuration, ApiClient=None
        )
        yield
    finally:
        loaded = [name for name in sys.modules if name == _ROOT or name.startswith(f"{_ROOT}.")]
        for name in (*added, *loaded):
            del sys.modules[name]


def _empty(name: str, *folders: Path) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(__path__=[str(folder) for folder in folders], OAuth2Session=None)
    return module
