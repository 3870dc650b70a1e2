"""Configuration: precedence, value types, messages, help, and the way to a child's flags."""

import argparse
import enum
import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.kit.config import (
    ConfigError,
    OneLineParser,
    add_arguments,
    from_namespace,
    load_config,
    to_argv,
)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache. More about it."""

    block_size: int = 16
    """Tokens in a block,
    100 % of them."""
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError("block_size", self.block_size, "must be at least 1")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a test."""

    model: str = "tiny"
    port: int = field(default=1, metadata={"flag": "--http-port", "aliases": ["--port"]})
    wait_s: float = field(default=1.5, metadata={"flag": "--wait"})
    eager: bool = False
    level: Literal["low", "high"] = "low"
    color: Color = Color.RED
    names: tuple[str, ...] = ()
    sizes: tuple[int, ...] = (1, 2)
    folder: Path | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    limit: int | Literal["auto"] = "auto"
    maybe: bool | None = None
    cache: Cache = field(default_factory=lambda: Cache(block_size=32))

    def __post_init__(self) -> None:
        if self.cache.block_size > 1000:
            raise ValueError("block_size", self.cache.block_size, "must be at most 1000")


def load(*argv: str, **env: str) -> Settings:
    return load_config(Settings, prog="test", argv=argv, env=env)


def error_of(*argv: str, **env: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*argv, **env)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_sources_the_defaults_hold_also_those_of_the_parents_factory():
    assert load() == Settings()
    assert load().cache.block_size == 32


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("block-size: 1\nmodel: file\nhttp_port: 3\n")
    loaded = load(
        "--config",
        str(file),
        "--block-size=3",
        PAGEWIRE_BLOCK_SIZE="2",
        PAGEWIRE_MODEL="environment",
    )
    assert (loaded.cache.block_size, loaded.model, loaded.port) == (3, "environment", 3)


def test_the_file_can_be_named_by_the_environment(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("cache: {block_size: 7}\nnames: [a, b]\nwait_s: 2\nextra: {a: [1]}\n")
    loaded = load(PAGEWIRE_CONFIG=str(file))
    assert (loaded.cache.block_size, loaded.names, loaded.wait_s) == (7, ("a", "b"), 2.0)
    assert loaded.extra == {"a": [1]}


@pytest.mark.parametrize(
    ("argument", "name", "value"),
    [
        ("--wait=0.25", "wait_s", 0.25),
        ("--eager", "eager", True),
        ("--no-eager", "eager", False),
        ("--level=high", "level", "high"),
        ("--color=blue", "color", Color.BLUE),
        ("--names=a, b", "names", ("a", "b")),
        ("--names=", "names", ()),
        ("--sizes=3,4", "sizes", (3, 4)),
        ("--folder=/x", "folder", Path("/x")),
        ("--folder=none", "folder", None),
        ('--extra={"a": 1}', "extra", {"a": 1}),
        ("--limit=5", "limit", 5),
        ("--limit=auto", "limit", "auto"),
        ("--maybe=no", "maybe", False),
        ("--maybe=none", "maybe", None),
        ("--port=9", "port", 9),
    ],
)
def test_each_type_is_read_from_a_flag(argument, name, value):
    assert getattr(load(argument), name) == value


def test_a_tuple_flag_may_be_repeated():
    assert load("--names=a,b", "--names=c").names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("1024", 1024), ("512M", 512_000_000), ("1GiB", 2**30), ("1.5kib", 1536), ("2GB", 2 * 10**9)],
)
def test_bytes_may_have_a_unit(text, num_bytes):
    assert load(f"--memory-bytes={text}").cache.memory_bytes == num_bytes


@pytest.mark.parametrize(("text", "value"), [("TRUE", True), ("1", True), ("off", False)])
def test_a_variable_may_spell_a_bool_in_several_ways(text, value):
    assert load(PAGEWIRE_EAGER=text).eager is value


@pytest.mark.parametrize(
    ("argv", "env", "parts"),
    [
        (["--level=x"], {}, ["--level x: must be one of low, high"]),
        ([], {"PAGEWIRE_LEVEL": "x"}, ["PAGEWIRE_LEVEL=x: must be one of low, high"]),
        (["--color=x"], {}, ["must be one of red, blue"]),
        (["--http-port=1.5"], {}, ["--http-port 1.5: must be an integer"]),
        (["--wait=nan"], {}, ["must be a finite number"]),
        (["--memory-bytes=2X"], {}, ["must be a number of bytes"]),
        (["--memory-bytes=1.5"], {}, ["must be a number of bytes"]),
        ([], {"PAGEWIRE_EAGER": "maybe"}, ["must be true or false"]),
        (["--extra=[1]"], {}, ["must be a JSON object"]),
        (["--limit=some"], {}, ["must be an integer or one of auto"]),
        (["--sizes=1,x"], {}, ["--sizes 1,x: must be an integer"]),
        (["--block-size=0"], {}, ["--block-size 0: must be at least 1"]),
        ([], {"PAGEWIRE_BLOCK_SIZE": "2000"}, ["PAGEWIRE_BLOCK_SIZE=2000: must be at most 1000"]),
        (["--unknown"], {}, ["--unknown"]),
        (["--model"], {}, ["--model", "expected one argument"]),
        (["--mod=x"], {}, ["--mod"]),
        (["stray"], {}, ["stray"]),
    ],
)
def test_a_bad_value_gives_one_line_with_its_source_and_the_rule(argv, env, parts):
    message = error_of(*argv, **env)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("blok_size: 1", "blok_size in {file}: unknown key; did you mean block_size?"),
        ("cache: {model: x}", "cache.model in {file}: unknown key"),
        ("block_size: 1\ncache: {block-size: 2}", "given twice (also as block_size)"),
        ("block_size: true", "block_size: True in {file}: must be an integer"),
        ("model: 7", "model: 7 in {file}: must be text; put it in quotes"),
        ("eager: 1", "must be true or false"),
        ("level: 1", "must be one of low, high"),
        ("block_size: 0", "block_size: 0 in {file}: must be at least 1"),
        ("- a", "must be a mapping"),
        ("model: a\nmodel: b", "at line 2: has model twice"),
        ("a: [", "is not valid YAML at line"),
    ],
)
def test_a_bad_file_gives_one_line_with_the_key(tmp_path, content, part):
    file = tmp_path / "c.yaml"
    file.write_text(content)
    assert part.format(file=file) in error_of("--config", str(file))


def test_a_missing_file_is_an_error(tmp_path):
    assert "No such file" in error_of("--config", str(tmp_path / "absent.yaml"))


def test_an_empty_variable_counts_as_unset():
    assert load(PAGEWIRE_BLOCK_SIZE="", PAGEWIRE_EAGER="") == Settings()
    assert to_argv(Settings(), env={"PAGEWIRE_BLOCK_SIZE": ""}) == []


def test_a_name_that_is_a_section_and_a_setting_is_told_apart_by_its_value(tmp_path):
    @dataclass(frozen=True)
    class Model:
        model: str = "a"
        dtype: str = "auto"

    @dataclass(frozen=True)
    class Engine:
        model: Model = field(default_factory=Model)

    @dataclass(frozen=True)
    class Stack:
        engine: Engine = field(default_factory=Engine)

    file = tmp_path / "c.yaml"
    for content in (
        "model: b\ndtype: x",
        "model: {model: b, dtype: x}",
        "engine: {model: {model: b, dtype: x}}",
    ):
        file.write_text(content)
        loaded = load_config(Stack, prog="x", argv=["--config", str(file)], env={})
        assert loaded.engine.model == Model("b", "x")


def test_variables_of_other_services_are_no_errors():
    assert load(PAGEWIRE_SOMETHING_ELSE="x") == Settings()


def test_help_shows_field_texts_defaults_and_variables(capsys):
    with pytest.raises(SystemExit) as caught:
        load("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert caught.value.code == 0
    assert "Tokens in a block, 100 % of them. (default: 32, env PAGEWIRE_BLOCK_SIZE)" in text


def test_a_start_without_help_reads_no_source(monkeypatch):
    def refuse(_: object) -> str:
        raise AssertionError("the source was read")

    monkeypatch.setattr(inspect, "getsource", refuse)

    @dataclass(frozen=True)
    class Fresh:
        block_size: int = 1
        """Tokens in a block."""

    assert load_config(Fresh, prog="test", argv=["--block-size=2"], env={}).block_size == 2
    with pytest.raises(AssertionError, match="the source was read"):
        load_config(Fresh, prog="test", argv=["--help"], env={})


def test_a_required_setting_must_be_given():
    @dataclass(frozen=True)
    class Required:
        target: str

    with pytest.raises(ConfigError, match=r"--target is required \(or set PAGEWIRE_TARGET\)"):
        load_config(Required, prog="test", argv=[], env={})


def test_two_fields_with_one_flag_are_refused():
    @dataclass(frozen=True)
    class Twice:
        block_size: int = 1
        cache: Cache = field(default_factory=Cache)

    with pytest.raises(TypeError, match="--block-size is claimed by block_size and by"):
        load_config(Twice, prog="test", argv=[], env={})


def test_an_unsupported_type_is_refused():
    @dataclass(frozen=True)
    class Odd:
        values: set[int] = field(default_factory=set)

    with pytest.raises(TypeError, match="not a supported type"):
        load_config(Odd, prog="test", argv=[], env={})


def test_a_subcommand_takes_its_settings_from_its_own_arguments():
    parser = OneLineParser(prog="pagewire")
    serve = parser.add_subparsers(dest="command").add_parser("serve")
    add_arguments(serve, Settings)
    namespace = parser.parse_args(["serve", "--block-size=3"])
    assert from_namespace(Settings, namespace, {}).cache.block_size == 3
    assert from_namespace(Settings, argparse.Namespace(), {}) == Settings()


def test_only_changed_settings_become_flags():
    config = Settings(eager=True, names=("a", "b"), cache=Cache(block_size=8))
    assert to_argv(config, env={}) == ["--eager", "--names=a,b", "--block-size=8"]


def test_a_default_is_passed_on_when_the_child_would_read_another_value_from_its_environment():
    assert to_argv(Settings(), env={"PAGEWIRE_BLOCK_SIZE": "4"}) == ["--block-size=32"]


def test_a_value_without_a_form_on_the_command_line_is_refused():
    with pytest.raises(ValueError, match="comma"):
        to_argv(Settings(names=("a,b",)), env={})


TEXT = st.text(st.characters(codec="utf-8", exclude_characters=","), max_size=8)
NAME = TEXT.map(str.strip).filter(bool)


@given(
    st.builds(
        Settings,
        model=TEXT,
        port=st.integers(),
        wait_s=st.floats(allow_nan=False, allow_infinity=False),
        eager=st.booleans(),
        level=st.sampled_from(["low", "high"]),
        color=st.sampled_from(Color),
        names=st.lists(NAME).map(tuple),
        sizes=st.lists(st.integers()).map(tuple),
        extra=st.dictionaries(TEXT, st.integers() | TEXT),
        limit=st.integers() | st.just("auto"),
        maybe=st.sampled_from([None, True, False]),
        cache=st.builds(Cache, st.integers(1, 1000), st.none() | st.integers(0)),
    ),
    st.booleans(),
)
def test_a_child_gets_the_same_configuration_from_its_flags(config, only_changed):
    argv = to_argv(config, only_changed, env={})
    assert load_config(Settings, prog="child", argv=argv, env={}) == config


def test_a_list_may_be_json_as_well():
    assert load('--names=["a", "b"]').names == ("a", "b")
    assert load("--names=[::1]:5,[::1]").names == ("[::1]:5", "[::1]")
    assert "names" in error_of("--names=[1, {}]")


def test_a_secret_is_in_no_message():
    @dataclass(frozen=True)
    class Secrets:
        """Secrets."""

        key: str = field(default="", metadata={"secret": True})

        def __post_init__(self) -> None:
            if self.key:
                raise ValueError("key", "...", "must be better")

    for argv, env in ((["--key=hunter2"], {}), ([], {"PAGEWIRE_KEY": "hunter2"})):
        with pytest.raises(ConfigError, match="must be better") as caught:
            load_config(Secrets, prog="test", argv=argv, env=env)
        assert "hunter2" not in str(caught.value)
