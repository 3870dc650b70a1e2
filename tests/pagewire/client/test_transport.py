"""Tests of targets and of the service config that is shipped."""

from __future__ import annotations

import json

import pytest

from pagewire.client.transport import Endpoint, service_config
from pagewire.v1 import inference_pb2


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("gateway:50050", "gateway:50050"),
        ("unix:/run/x.sock", "unix:/run/x.sock"),
        ("dns:///gateways:50050", "dns:///gateways:50050"),
        (["gateway:1"], "gateway:1"),
        (["10.0.0.1:1", "10.0.0.2:2"], "ipv4:10.0.0.1:1,10.0.0.2:2"),
        (["[::1]:1", "[::2]:2"], "ipv6:[::1]:1,[::2]:2"),
    ],
)
def test_addresses_become_one_target(address, target):
    assert Endpoint(address).target == target


@pytest.mark.parametrize(
    "address",
    ["gateway", "gateway:0", [], ["a:1", "b:2"], ["10.0.0.1:1", "[::1]:1"], ["1.2.3.4"] * 2],
)
def test_what_is_no_address_is_refused_at_once(address):
    with pytest.raises(ValueError, match="address"):
        Endpoint(address)


@pytest.mark.parametrize("key", ["sécret", "a\nb"])
def test_a_key_that_metadata_cannot_hold_is_refused(key):
    with pytest.raises(ValueError, match="api_key"):
        Endpoint(api_key=key)


def test_the_service_config_names_every_method_but_those_that_are_not_served():
    config = json.loads(service_config())
    service = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
    (method_config,) = config["methodConfig"]
    assert {name["service"] for name in method_config["name"]} == {service.full_name}
    named = {name["method"] for name in method_config["name"]}
    assert named == {method.name for method in service.methods} - {"Embed"}
    assert method_config["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE", "CANCELLED"]


def test_channels_balance_as_the_service_config_says_and_leave_retries_to_the_sdk():
    options = dict(Endpoint().options)
    config = json.loads(service_config())
    assert options["grpc.enable_retries"] == 0
    assert json.loads(str(options["grpc.service_config"])) == {
        "loadBalancingConfig": config["loadBalancingConfig"]
    }
    assert config["loadBalancingConfig"] == [{"round_robin": {}}]
