"""The sampler's version; apart from the sampler, so that nothing need import torch to tell it."""

SAMPLER_VERSION = "philox-1"
"""Changes with whatever changes tokens; part of engine_fingerprint."""
