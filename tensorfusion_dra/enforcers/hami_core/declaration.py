"""Declaration of enforcer hami-core; see enforcer.py."""

from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.enforcer import EnforcerFacts
from tensorfusion_dra.core.settings import setting
from tensorfusion_dra.enforcers.declaration import Declaration

_INSTALL: Final = "chart value enforcers.hamiCore.install=true"

HAMI_CORE: Final = Declaration(
    name="hami-core",
    path="hami_core.enforcer:HamiCore",
    facts=EnforcerFacts(
        keeper="HAMi-core",
        enforces_hard=True,
        enforces_compute=True,
        enforces_memory=True,
        fixed_memory=frozenset(),
        lends_idle_compute=True,
        keeps_lent_memory=True,
        equal_only=True,
        remedy=f"put HAMi-core's library there ({_INSTALL}, or setting hami-core-library)",
    ),
    bypasses=names.HAMI_CORE_BYPASSES,
    alternative=f"hami-core needs only a library on each node: {_INSTALL}",
    settings={
        "hami_core_library": setting(
            "/usr/local/vgpu/libvgpu.so.1", "HAMi-core's library on the host.", is_path=True
        )
    },
    pod={
        "folder": {
            "name": "hami-core",
            "setting": "hami-core-library",
            "isOfFile": True,
            "type": "Directory",
            # On nodes with a read-only /usr/local the usual folder cannot be made.
            "mounted": "named",
            "about": "The driver checks for the library before it prepares a claim; without it, "
            "nothing would enforce the limits.",
        },
        "written": "hami-core/claims",
        "settings": "hami-core-settings",
        "installs": "HAMi-core's library, from an image",
    },
)
