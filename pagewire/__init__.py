"""pagewire: a serving system for large language models as four small gRPC services.

This package is the Python surface that users install: the command line, the configuration object,
the generated stubs, and the plumbing that the services share. It never imports torch.
"""

__version__ = "0.1.0"
