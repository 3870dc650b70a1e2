"""Tests of several services together, with real gRPC servers in the test's own process."""
