import pytest

from pagewire.kit.config import ConfigError, load_config
from scheduler_svc.config import SchedulerServiceConfig


def load(*argv, env=None):
    return load_config(SchedulerServiceConfig, prog="test", argv=argv, env=env or {})


def test_defaults_are_the_documented_ports():
    config = load()
    assert config.server.listen == "127.0.0.1:50052"
    assert config.server.admin_listen == "127.0.0.1:50062"
    assert config.server.metrics_port == 9102
    assert config.workers == ("127.0.0.1:50053",)
    assert config.tokenizers == ("127.0.0.1:50051",)


def test_engine_flags_are_flags_of_the_scheduler():
    assert load("--max-num-seqs", "7").engine.scheduler.max_num_seqs == 7
    assert load(env={"PAGEWIRE_BLOCK_SIZE": "32"}).engine.cache.block_size == 32


def test_several_workers_can_be_named():
    assert load("--workers", "a:1,unix:/tmp/w").workers == ("a:1", "unix:/tmp/w")


def test_tokenizers_are_several_or_none():
    assert load("--tokenizers", "a:1,unix:/tmp/t").tokenizers == ("a:1", "unix:/tmp/t")
    assert load("--tokenizers", "").tokenizers == ()
    assert load(env={"PAGEWIRE_TOKENIZERS": "dns:///t:1"}).tokenizers == ("dns:///t:1",)


@pytest.mark.parametrize("flag", ["workers", "tokenizers"])
@pytest.mark.parametrize("address", ["nowhere", "a:b"])
def test_a_bad_address_is_refused(flag, address):
    with pytest.raises(ConfigError, match=flag):
        load(f"--{flag}", address)


@pytest.mark.parametrize("flag", ["tls-allowed-sans", "vllm-grpc-allowed-sans"])
def test_an_allow_list_without_certificates_is_refused(flag):
    listens = "--vllm-grpc-listen=127.0.0.1:1"
    with pytest.raises(ConfigError, match=f"{flag} smg: restricts nobody.*set --tls-cert"):
        load(listens, f"--{flag}=smg")
    with_files = load("--tls-cert=c", "--tls-key=k", "--tls-ca=a", listens, f"--{flag}=smg")
    assert with_files.server.tls.is_on
