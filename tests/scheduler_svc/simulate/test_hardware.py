import pytest

from scheduler_svc.simulate.hardware import GPUS, MODELS, HardwareConfig, ModelShape, parse_model


def test_a_model_can_be_given_by_its_numbers():
    assert parse_model("8e9,32,32,8,128") == ModelShape(8e9, 32, 32, 8, 128, 131_072)
    assert parse_model("1e9,4,4,2,64,2048").max_position_embeddings == 2048


@pytest.mark.parametrize("text", ["gpt", "8e9,32", "8e9,32,32,8,x", "0,32,32,8,128", "8e9,0,1,1,1"])
def test_what_is_no_model_is_refused_with_what_is(text):
    with pytest.raises(ValueError) as caught:
        parse_model(text)
    assert caught.value.args[:2] == ("sim_model", text)
    assert "llama-3.1-8b" in caught.value.args[2]


def test_an_unknown_gpu_is_refused():
    with pytest.raises(ValueError, match="h100"):
        HardwareConfig(gpu="h999")


def test_help_names_every_gpu_and_model():
    from pagewire.kit.config_fields import settings_of

    texts = {setting.name: setting.help for setting in settings_of(HardwareConfig)}
    assert all(name in texts["gpu"] for name in GPUS)
    assert all(name in texts["sim_model"] for name in MODELS)
