"""Route profiles and the settings of clients that are made of them."""

from __future__ import annotations

import json

import pytest

from bringup.base.errors import InputError
from bringup.serving.contract.clients import NAMES, Endpoint, settings_of
from bringup.serving.recipes.load import load_library, parse_recipe
from bringup.serving.recipes.routes import load_routes, routes_of

LIBRARY = load_library()
ENDPOINT = Endpoint("http://h:8000", "glm-5.1", 202752, "vllm", has_key=True)


@pytest.mark.parametrize("recipe", ["zai-org/GLM-5.1", "zai-org/GLM-5.1-FP8"])
def test_the_routes_of_the_recipes(recipe):
    routes = routes_of(LIBRARY.recipes[recipe])
    assert list(routes) == ["coding_agent", "general", "tool_agent", "fast", "retrieval", "execute", "summarization"]
    assert routes["coding_agent"].request == {
        "temperature": 0.7, "top_p": 1.0, "max_tokens": 16384,
        "chat_template_kwargs": {"enable_thinking": True, "clear_thinking": False}}
    general = routes["general"].request
    assert (general["temperature"], general["top_p"], general["max_tokens"]) == (1.0, 0.95, 131072)
    assert routes["tool_agent"].request["temperature"] == 0
    assert routes["tool_agent"].extra["chat_template_kwargs"]["clear_thinking"] is False
    assert routes["fast"].extra == {"chat_template_kwargs": {"enable_thinking": False}}
    assert all(route.answer["required"] == ["finish_reason", "message"] for route in routes.values())
    assert routes["fast"].timeout.whole < routes["coding_agent"].timeout.whole < routes["general"].timeout.whole


def made(route="coding_agent", endpoint=ENDPOINT):
    routes = routes_of(LIBRARY.recipes["zai-org/GLM-5.1"])
    return {settings.client: settings for settings in settings_of(endpoint, routes[route])}


def test_each_client_gets_its_own_form():
    found = made()
    assert tuple(found) == NAMES
    compile(found["openai"].text, "settings", "exec")
    assert found["openai"].data["extra_body"]["chat_template_kwargs"]["clear_thinking"] is False
    assert found["claude-code"].data["ANTHROPIC_BASE_URL"] == "http://h:8000"
    profiles = json.loads(found["roo-code"].text)["providerProfiles"]
    assert profiles["apiConfigs"][profiles["currentApiConfigName"]]["openAiBaseUrl"] == "http://h:8000/v1"
    kilo = json.loads(found["kilo-code"].text)
    provider, _, model = kilo["model"].partition("/")
    assert kilo["provider"][provider]["models"][model]["limit"] == {"context": 202752, "output": 16384}
    assert all("GLM_API_KEY" in found[name].text for name in ("openai", "claude-code", "kilo-code"))


def test_no_more_tokens_than_the_context_holds():
    small = Endpoint("http://h:8000", "glm-5.1", 4096, "sglang", has_key=False)
    found = made("general", small)
    assert found["openai"].data["request"]["max_tokens"] == 4096
    assert "GLM_API_KEY" not in "".join(settings.text for settings in found.values())
    assert any("gateway" in note for note in found["claude-code"].notes)


def test_what_is_wrong_in_a_file_of_routes(tmp_path):
    path = tmp_path / "r.yaml"
    good = "timeouts: {t: {connect: 1, first_token: 2, between_tokens: 3, whole: 4}}\nroutes:\n  a: "
    for text, words in ((good + "{purpose: p, timeout: u, request: {}, answer: {}}", "has no timeout `u`"),
                        (good + "{purpose: p, timeout: t, request: {}}", "lacks answer"),
                        (good + "{purpose: p, timeout: t, request: {}, answer: {type: nothing}}", "is no JSON schema"),
                        (good + "{purpos: p}", "knows no `purpos`"),
                        ("timeouts: {t: {connect: soon}}", "needs seconds")):
        path.write_text(text)
        load_routes.cache_clear()
        with pytest.raises(InputError) as error:
            load_routes(path)
        assert words in "\n".join(error.value.lines())
    recipe = parse_recipe({**LIBRARY.recipes["zai-org/GLM-5.1"].raw, "routes": "glm-6"}, "x")
    with pytest.raises(InputError, match="there are no routes `glm-6`"):
        routes_of(recipe)
