"""Generated stubs of the wire contract in `protos/pagewire/v1`. `make protos` writes them."""
