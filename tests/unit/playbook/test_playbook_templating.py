"""Rendering: types, laziness, undefined names with their chain, values still to come, trust."""

from __future__ import annotations

import time
from typing import Any

import pytest

from bringup.base import yaml
from bringup.base.errors import InputError
from bringup.base.secrets import Secret
from bringup.playbook.jinja import StillToCome
from bringup.playbook.templating import (
    Engine,
    Layer,
    Pending,
    Scope,
    TemplateFailure,
    UndefinedFailure,
)

VARIABLES = """
five: "{{ 2 + 3 }}"
text: "5"
table: {x: "{{ five }}", bad: "{{ nope }}"}
items: [1, "{{ five }}", x]
chain_a: "{{ chain_b }}"
chain_b: "{{ missing_name }}"
own: "{{ other }}"
other: "x{{ own }}"
secret: !unsafe "{{ five }}"
"""


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def scope(engine: Engine) -> Scope:
    return Scope(engine, [Layer(yaml.load(VARIABLES, "vars.yml"))])


@pytest.mark.parametrize(("text", "value"), [
    ("{{ 5 }}", 5), ("{{ five }}", 5), ("{{ text }}", "5"), ("a{{ five }}", "a5"), ("{{ five }}{{ five }}", "55"),
    ("{{ true }}", True), ("{{ none }}", None), ("{{ [1, five] }}", [1, 5]), ("{{ table.x }}", 5),
    ("{{ items }}", [1, 5, "x"]), ("{{ items + [2] }}", [1, 5, "x", 2]), ("{{ items[1:] }}", [5, "x"]),
    ("{{ items | map('string') | join('-') }}", "1-5-x"), ("{{ 5 in items }}", True),
    ("{{ items | to_json }}", '[1, 5, "x"]'), ("{{ (items | first) is defined }}", True),
    ("{{ table | combine({'bad': 1}) }}", {"x": 5, "bad": 1}), ("{{ range(3) }}", [0, 1, 2]),
    ("{{ chain_a | default('d') }}", "d"), ("{{ table.none.deeper | default(1) }}", 1),
    ("{{ secret }}", "{{ five }}"), ("plain {text}", "plain {text}"), ("{# gone #}x", "x"),
    (r"{{ 'a1' | regex_replace('(\d)', '<\1>') }}", "a<1>"),
])
def test_values(engine: Engine, scope: Scope, text: str, value: Any) -> None:
    assert engine.render(text, scope) == value
    assert type(engine.render(text, scope)) is type(value) or isinstance(value, str)


def test_omit_leaves_out(engine: Engine, scope: Scope) -> None:
    raw = {"a": "{{ omit }}", "b": "{{ nothing | default(omit) }}", "c": [1, "{{ omit }}"], "d": {"e": "{{ omit }}"}}
    assert engine.render(raw, scope) == {"c": [1], "d": {}}


def test_a_part_that_is_not_looked_at_may_be_undefined(engine: Engine, scope: Scope) -> None:
    assert engine.render("{{ table.x }} {{ table.keys() | list }}", scope) == "5 ['x', 'bad']"
    with pytest.raises(UndefinedFailure) as caught:
        engine.render("{{ table }}", scope)
    assert "`nope`" in caught.value.what
    assert str(caught.value.where).startswith("vars.yml:4:")


def test_undefined_names_chain_and_near(engine: Engine, scope: Scope) -> None:
    text = yaml.load('"{{ chain_a }}"', "play.yml", line=7)
    with pytest.raises(UndefinedFailure) as caught:
        engine.render(text, scope)
    shown = str(caught.value)
    assert "`missing_name` is not defined" in shown
    assert "chain_b (vars.yml:7)" in shown
    assert "chain_a (vars.yml:6)" in shown
    with pytest.raises(UndefinedFailure) as caught:
        engine.render(yaml.load('"{{ fivee }}"', "play.yml", line=9), scope)
    assert str(caught.value.where) == "play.yml:9:1"
    assert caught.value.next == "nearest: five"
    with pytest.raises(UndefinedFailure) as caught:
        engine.render("{{ table.xx }}", scope)
    assert "no key `xx`" in caught.value.what


def test_a_circle_is_named(engine: Engine, scope: Scope) -> None:
    with pytest.raises(TemplateFailure) as caught:
        engine.render("{{ own }}", scope)
    assert caught.value.found == "own -> other -> own"


@pytest.mark.parametrize(("text", "said"), [
    ("{{ a | nosuchfilter }}", "filter `nosuchfilter`"), ("{{ a | to_jsn }}", "nearest: to_json"),
    ("{{ a is definde }}", "nearest: defined"), ("{{ a", "not a valid template"), ("{% if %}", "not a valid template"),
])
def test_what_cannot_be_compiled_is_refused(engine: Engine, text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        engine.check(yaml.load(f'"{text}"', "play.yml"))
    assert said in caught.value.what
    assert str(caught.value.where).startswith("play.yml:1")


@pytest.mark.parametrize("text", ["{{ later }}", "{{ later | default(1) }}", "{{ later is defined }}", "x{{ later }}",
                                  "{{ through }}", "{% if later %}a{% endif %}"])
def test_what_is_still_to_come_is_waited_for(engine: Engine, text: str) -> None:
    scope = Scope(engine, [Layer({"later": Pending()}, trusted=False), Layer({"through": "{{ later }}"})])
    with pytest.raises(StillToCome):
        engine.render(text, scope)


def test_what_is_pending_for_another_branch_is_not(engine: Engine) -> None:
    scope = Scope(engine, [Layer({"later": Pending()}, trusted=False), Layer({"now": 1})])
    assert engine.render("{{ now }}", scope) == 1


def test_a_task_that_has_ended_is_judged_by_what_was(engine: Engine) -> None:
    scope = Scope(engine, [Layer({"seen": Pending("before")}, trusted=False)], settled=True)
    assert engine.render("{{ seen }}", scope) == "before"


def test_what_hosts_return_is_no_template(engine: Engine) -> None:
    scope = Scope(engine, [Layer({"out": {"stdout": "{{ 1 + 1 }}"}}, trusted=False)])
    assert engine.render("{{ out.stdout }}", scope) == "{{ 1 + 1 }}"
    assert engine.render("{{ out }}", scope) == {"stdout": "{{ 1 + 1 }}"}


@pytest.mark.parametrize(("text", "value"), [
    ("five == 5", True), ("five > 7", False), ("nothing is not defined", True), (True, True),
    ("{{ five == 5 }}", True), ("not (five == 5)", False), ("chain_a is undefined", True),
])
def test_conditions(engine: Engine, scope: Scope, text: Any, value: bool) -> None:
    assert engine.condition(text, scope) is value


@pytest.mark.parametrize("text", ["text", "five", "items"])
def test_a_condition_gives_a_boolean(engine: Engine, scope: Scope, text: str) -> None:
    with pytest.raises(TemplateFailure) as caught:
        engine.condition(text, scope)
    assert "not a boolean" in caught.value.what


def test_pipe_is_refused(engine: Engine, scope: Scope) -> None:
    with pytest.raises(TemplateFailure) as caught:
        engine.render("{{ lookup('pipe', 'id') }}", scope)
    assert "refused" in caught.value.what


def test_origins_stay_hidden(engine: Engine, scope: Scope) -> None:
    assert engine.render("{{ table.origin | default('hidden') }}", scope) == "hidden"
    assert engine.render("{{ text.origin | default('hidden') }}", scope) == "hidden"
    with pytest.raises(TemplateFailure):
        engine.render("{{ text.__class__ }}", scope)


def test_a_secret_stays_masked_in_messages(engine: Engine) -> None:
    scope = Scope(engine, [Layer({"word": Secret("swordfish-22")})])
    assert engine.render("{{ word }}", scope) == "swordfish-22"
    assert "swordfish" not in repr(scope.find("word"))


def test_five_hundred_tasks_render_fast(engine: Engine) -> None:
    table = yaml.load('base: "/srv/{{ host }}"\nhost: gpu01\n', "v.yml")
    texts = [yaml.load(f'{{path: "{{{{ base }}}}/d{n}", state: directory, mode: "0755"}}', "p.yml") for n in range(50)]
    engine.render(texts[0], Scope(engine, [Layer(table)]))
    for text in texts:
        engine.check(text["path"])
    began = time.process_time()
    for _ in range(10):
        for text in texts:
            scope = Scope(engine, [Layer({}) for _ in range(12)] + [Layer(table)])
            engine.render(text, scope)
    assert time.process_time() - began < 0.2
