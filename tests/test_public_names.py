"""Names that other packages use; a change of them is a change of the public API."""

from tensorfusion_dra import extend, testing


def test_public_names_are_these_and_all_are_there() -> None:
    assert sorted(extend.__all__) == sorted(
        [
            *("BUDGET_SECONDS", "AttributeProvider", "AttributeValue", "Begins", "Capacity"),
            *("CapacityProvider", "ClaimError", "Edits", "Enforcer", "EnforcerSettings", "Folder"),
            *("Gpu", "HealthSource", "Isolation", "Limit", "Listens", "Mount", "Needs", "Node"),
            *("Advice", "PreparedClaim", "PreparedShare", "Problem", "Quantity", "Reading"),
            *("EnforcerFacts", "Records", "RetryableError", "Sign", "SilentEnforcerError"),
            *("State", "TextFile", "TflopsSource", "Verdict", "Version", "consumable"),
            *("enforced", "is_simulated", "limits_by_index"),
        ]
    )
    assert sorted(testing.__all__) == sorted(
        [
            *("ODD_GPUS", "check_attributes", "check_capacities", "check_enforcer"),
            *("check_health_source", "claim", "enforcer_settings", "gpu", "node", "reading"),
            "share",
        ]
    )
    for module in (extend, testing):
        assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_fields_that_providers_read() -> None:
    """A field may be added; one that goes breaks the packages that read it."""
    assert set(extend.Gpu.__dataclass_fields__) >= {
        *("uuid", "index", "minor", "product_name", "model", "milli_tflops", "tflops_source"),
        *("vram_bytes", "brand", "architecture", "compute_capability", "driver_version"),
        *("cuda_driver_version", "pci_bus_id", "pcie_root", "numa_node", "simulated"),
    }
    assert set(extend.Node.__dataclass_fields__) >= {"name", "gpupool", "qos"}
    assert set(extend.Reading.__dataclass_fields__) >= {"inventory", "node", "host"}
    assert set(extend.Problem.__dataclass_fields__) == {"reason", "text"}
