"""${NAME}, ${NAME:-default}, ${NAME:?message}, ${file:PATH}, $$: on parsed values, typed by the field, masked (C2)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from iop_config import Secret, SensitiveInt, is_sensitive, reveal
from support.configs import BASE, brief, config, loaded, problems, replaced
from support.rules import rule


def named(value: str) -> str:
    """The base with a value in a field that takes any text but an empty one."""
    return BASE + f"bootstrap: {{artifact_dir: {value}}}\n"


def injected(value: str, **env: str) -> str | None:
    return config(named(value), env=env).bootstrap.artifact_dir


@rule("C2")
@pytest.mark.parametrize(
    ("text", "env", "value"),
    [
        ('"${A}"', {"A": "x"}, "x"),
        ('"pre ${A}-${B}"', {"A": "x", "B": "y"}, "pre x-y"),
        ('"${A:-d}"', {}, "d"),
        ('"${A:-d}"', {"A": ""}, "d"),
        ('"${A:-d}"', {"A": "x"}, "x"),
        ('"${A:-}x"', {}, "x"),
        ('"${A:-http://h:1/?a=b}"', {}, "http://h:1/?a=b"),
        ('"${A:?say}"', {"A": "x"}, "x"),
        ('"$$"', {}, "$"),
        ('"$${A}"', {}, "${A}"),
        ('"$A and $"', {"A": "x"}, "$A and $"),
        ('"${A}"', {"A": "a: b\n- c"}, "a: b\n- c"),
        ('"${A}"', {"A": "${B}"}, "${B}"),
        ("'${A}'", {"A": "x"}, "x"),
    ],
)
def test_each_form(text: str, env: dict[str, str], value: str) -> None:
    assert injected(text, **env) == value


@rule("C2")
def test_only_what_came_from_outside_is_masked() -> None:
    assert isinstance(injected('"a${A}"', A="x"), Secret)
    assert str(injected('"a${A}"', A="x")) == "<redacted>"
    assert not is_sensitive(injected('"${A:-d}"'))
    assert not is_sensitive(injected('"$$A"'))


@rule("C2")
@pytest.mark.parametrize(
    ("text", "env", "code"),
    [
        ('"${A}"', {}, "C2.unset"),
        ('"${A:?}"', {}, "C2.unset"),
        ('"${A:?say}"', {"A": ""}, "C2.unset"),
        ('"${}"', {}, "C2.form"),
        ('"${A"', {}, "C2.form"),
        ('"${1A}"', {}, "C2.form"),
        ('"${A-b}"', {}, "C2.form"),
        ('"${A:b}"', {}, "C2.form"),
        ('"${A:=b}"', {}, "C2.form"),
        ('"${ A }"', {"A": "x"}, "C2.form"),
        ('"${A:-${B}}"', {"B": "x"}, "C2.form"),
        ('"${env:A}"', {"A": "x"}, "C2.form"),
    ],
)
def test_what_cannot_be_injected_is_one_problem_at_the_value(text: str, env: dict[str, str], code: str) -> None:
    (found,) = problems(named(text), env=env)
    assert (found.code, found.path, found.column) == (code, "bootstrap.artifact_dir", 27)


@rule("C2")
def test_an_empty_variable_is_a_value_where_nothing_says_otherwise() -> None:
    assert injected('"x${A}"', A="") == "x"
    (found,) = problems(named('"${A}"'), env={"A": ""})
    assert found.code == "C18.format"  # a path, and an empty text is none


@rule("C2", "C19")
def test_the_message_of_the_operator_is_shown_and_the_name_too() -> None:
    (found,) = problems(named('"${A:?ask the team}"'))
    assert found.message == 'the environment variable "A" is not set: ask the team'


@rule("C2", "C18")
@pytest.mark.parametrize(("value", "number"), [("8", 8), (" 8\n", 8)])
def test_a_number_is_parsed_by_the_type_of_its_field(value: str, number: int) -> None:
    text = replaced("        adapter: a\n", "        adapter: a\n        capacity: ${N}\n")
    capacity = config(text, env={"N": value}).nodes[0].providers[0].capacity
    assert capacity == number
    assert isinstance(capacity, SensitiveInt)
    assert f"{capacity} {capacity!r}" == "<redacted> <redacted>"


@rule("C2", "C18", "C23")
@pytest.mark.parametrize(
    ("value", "code"),
    [("0", "C11.bound"), ("99999999999", "C11.bound"), ("1" * 5000, "C18.type"), ("08", "C18.type"), ("x", "C18.type")],
)
def test_a_number_that_does_not_fit_is_said_without_it(value: str, code: str) -> None:
    text = replaced("        adapter: a\n", '        adapter: a\n        capacity: "${N}"\n')
    (found,) = problems(text, env={"N": value})
    assert found.code == code
    assert value not in found.message.split()


@rule("C2")
def test_a_boolean_is_parsed_by_the_type_of_its_field() -> None:
    text = BASE + 'console: {enabled: "${ON}"}\n'
    assert config(text, env={"ON": "true"}).console.enabled is True
    assert [problem.code for problem in problems(text, env={"ON": "yes"})] == ["C18.type"]


@rule("C2", "C5")
def test_an_injected_name_works_as_a_name_and_shows_as_a_mask() -> None:
    text = replaced("  - id: n\n", "  - id: ${NODE}\n")
    made = config(text, env={"NODE": "secret-host"})
    assert reveal(made).nodes[0].id == "secret-host"
    found = problems(text.replace("category: local_inference", "category: x"), env={"NODE": "secret-host"})
    assert brief(found) == [f"{found[0].line}:19 C6.unknown-category nodes[<redacted>].providers[p].category"]


@rule("C2")
def test_keys_and_extension_keys_are_not_injected() -> None:
    assert config(BASE + 'x-notes: {a: "${NOT_SET}"}\n').edge.id == "e"
    found = problems(replaced("{p: served}", '{p: served, "${P}": served}'))
    assert [problem.code for problem in found] == ["C18.format"]


@rule("C2")
def test_a_value_used_by_several_aliases_is_injected_once_and_reported_at_each_use() -> None:
    text = BASE + 'x-a: &a {listen: "${L}"}\nmetrics: *a\nbootstrap: *a\n'
    assert config(text, env={"L": "127.0.0.1:0"}).bootstrap.listen == "127.0.0.1:0"
    assert len(problems(text)) >= 1
    assert {problem.code for problem in problems(text)} == {"C2.unset"}


class TestFiles:
    """`${file:PATH}`."""

    @staticmethod
    def text(path: str) -> str:
        return named(f'"${{file:{path}}}"')

    @rule("C2")
    @pytest.mark.parametrize(
        ("content", "value"),
        [(b"x", "x"), (b"x\n", "x"), (b"x\r\n", "x"), (b"x\n\n", "x\n"), (b" x ", " x "), ("é\n".encode(), "é")],
    )
    def test_one_newline_at_the_end_is_stripped(self, tmp_path: Path, content: bytes, value: str) -> None:
        file = tmp_path / "secret"
        file.write_bytes(content)
        file.chmod(0o600)
        found = loaded(self.text("secret"), base_dir=tmp_path)
        assert found.config.bootstrap.artifact_dir == value
        assert isinstance(found.config.bootstrap.artifact_dir, Secret)
        assert not found.warnings

    @rule("C2")
    def test_an_absolute_path_and_a_part_of_a_text(self, tmp_path: Path) -> None:
        file = tmp_path / "secret"
        file.write_text("k")
        file.chmod(0o600)
        text = named(f'"Bearer ${{file:{file}}}!"')
        assert config(text, base_dir="/").bootstrap.artifact_dir == "Bearer k!"

    @rule("C2")
    def test_each_file_of_a_set_has_its_own_folder(self, tmp_path: Path) -> None:
        import iop_config

        (tmp_path / "private").mkdir()
        for place, value in ((tmp_path, "outer"), (tmp_path / "private", "inner")):
            (place / "secret").write_text(value)
            (place / "secret").chmod(0o600)
        main, over = tmp_path / "edge.yaml", tmp_path / "private" / "over.yaml"
        main.write_text(self.text("secret"))
        over.write_text('edge: {name: "${file:secret}"}\n')
        made = iop_config.load(main, overlays=[over], env={}).config
        assert (made.bootstrap.artifact_dir, made.edge.name) == ("outer", "inner")

    @rule("C2", "C23")
    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            (None, "no such file or directory"),
            (b"", "it is empty"),
            (b"\n", "it is empty"),
            (b"x" * (64 * 1024 + 1), "it has more than 65536 bytes"),
            (b"\xff", "it is not UTF-8 text"),
        ],
    )
    def test_a_file_that_cannot_be_used_is_one_problem(
        self, tmp_path: Path, content: bytes | None, reason: str
    ) -> None:
        if content is not None:
            (tmp_path / "secret").write_bytes(content)
        (found,) = problems(self.text("secret"), base_dir=tmp_path)
        assert (found.code, found.path) == ("C2.file", "bootstrap.artifact_dir")
        assert found.message.endswith(": " + reason)

    @rule("C2")
    def test_a_folder_and_a_pipe_are_no_regular_files(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "secret")
        (found,) = problems(self.text("secret"), base_dir=tmp_path)
        assert found.message.endswith("it is not a regular file")
        (found,) = problems(self.text("."), base_dir=tmp_path)
        assert found.code == "C2.file"

    @rule("C2")
    def test_a_file_that_everyone_may_read_is_a_warning(self, tmp_path: Path) -> None:
        file = tmp_path / "secret"
        file.write_text("k")
        file.chmod(0o644)
        (warning,) = loaded(self.text("secret"), base_dir=tmp_path).warnings
        assert (warning.code, warning.path) == ("C2.world-readable", "bootstrap.artifact_dir")

    @rule("C2", "C21")
    def test_a_rotated_secret_under_the_same_yaml_is_another_version(self, tmp_path: Path) -> None:
        file = tmp_path / "secret"
        file.write_text("k1")
        before = loaded(self.text("secret"), base_dir=tmp_path).version
        assert loaded(self.text("secret"), base_dir=tmp_path).version == before
        file.write_text("k2")
        assert loaded(self.text("secret"), base_dir=tmp_path).version != before
