"""The sampler's version; apart from the sampler, so that nothing need import torch to tell it."""

SAMPLER_VERSION = "philox-3"
"""Changes with whatever changes tokens; part of engine_fingerprint."""
DEVICE_SAMPLER_VERSION = f"{SAMPLER_VERSION}-device"
"""Of the same draws where weights are added up in the device's order."""
