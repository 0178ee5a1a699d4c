"""Settings for the clients that people use, made of a deployment: base URL, model name, what goes with each request.

Keys: what each takes is its own documentation's word of 2026. A key is never part of it: it is named by a variable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.serving.recipes.routes import Route

KEY = "GLM_API_KEY"
"""The environment variable from which clients take the endpoint's key."""
_MODELS = ("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL",
           "ANTHROPIC_DEFAULT_HAIKU_MODEL")
NAMES = ("openai", "claude-code", "roo-code", "kilo-code")


@dataclass(frozen=True)
class Endpoint:
    """What clients are pointed at. `url` is http://HOST:PORT; `context` is in tokens."""

    url: str
    model: str
    context: int
    engine: str
    has_key: bool


@dataclass(frozen=True)
class Settings:
    """One client's settings: `text` goes where `place` says; `data` is the same as values."""

    client: str
    place: str
    text: str
    data: Mapping[str, Any]
    notes: Sequence[str] = ()


def settings_of(endpoint: Endpoint, route: Route) -> list[Settings]:
    """Settings of every client for one route."""
    return [_openai(endpoint, route), _claude(endpoint, route), _roo(endpoint, route), _kilo(endpoint, route)]


def _tokens(endpoint: Endpoint, route: Route) -> int:
    return min(int(route.parameters.get("max_tokens") or 8192), endpoint.context or 1 << 30)


def _unsaid(route: Route) -> list[str]:
    """What a client without request extras cannot say."""
    switches = route.extra.get("chat_template_kwargs") or {}
    if switches.get("clear_thinking") is False:
        return ["it sends no chat_template_kwargs: the template's own way holds (thinking on, earlier thinking "
                "dropped)"]
    if switches.get("enable_thinking") is False:
        return ["it sends no chat_template_kwargs: thinking stays on; for this route use a client that can"]
    return []


def _openai(endpoint: Endpoint, route: Route) -> Settings:
    wait = route.timeout
    request = {**route.parameters, "max_tokens": _tokens(endpoint, route)}
    key = f'os.environ["{KEY}"]' if endpoint.has_key else '"none"'
    lines = ["import os", "", "from openai import OpenAI, Timeout", "",
             "client = OpenAI(", f'    base_url="{endpoint.url}/v1", api_key={key},',
             f"    timeout=Timeout({wait.whole:g}, connect={wait.connect:g}, read={wait.first_token:g}),",
             "    max_retries=2)",
             "answer = client.chat.completions.create(", f'    model="{endpoint.model}", messages=messages,',
             "    " + ", ".join(f"{name}={value!r}" for name, value in request.items()) + ","]
    if route.extra:
        lines.append(f"    extra_body={dict(route.extra)!r},")
    lines.append(")")
    notes = []
    if (route.extra.get("chat_template_kwargs") or {}).get("clear_thinking") is False:
        notes.append("preserved thinking: send each assistant message back with its `reasoning` unchanged")
    return Settings("openai", "Python, package openai", "\n".join(lines if endpoint.has_key else lines[2:]), {
        "base_url": f"{endpoint.url}/v1", "api_key": f"${KEY}" if endpoint.has_key else "none",
        "model": endpoint.model, "request": request, "extra_body": dict(route.extra),
        "timeout": {"connect": wait.connect, "read": wait.first_token, "whole": wait.whole}}, notes)


def _claude(endpoint: Endpoint, route: Route) -> Settings:
    data = {"ANTHROPIC_BASE_URL": endpoint.url,
            "ANTHROPIC_AUTH_TOKEN": f"${KEY}" if endpoint.has_key else "none",
            **dict.fromkeys(_MODELS, endpoint.model),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(_tokens(endpoint, route)),
            "API_TIMEOUT_MS": str(int(route.timeout.whole * 1000))}
    notes = ["the base URL is without /v1: it asks /v1/messages, which "
             + ("vLLM answers" if endpoint.engine.startswith("vllm") else
                f"{endpoint.engine} may not answer: then a translating gateway goes in front"),
             "unset ANTHROPIC_API_KEY: it would be sent instead", *_unsaid(route)]
    text = "\n".join(f'export {name}="{value}"' for name, value in data.items())
    return Settings("claude-code", "the shell, or the block `env` of ~/.claude/settings.json", text, data, notes)


def _roo(endpoint: Endpoint, route: Route) -> Settings:
    profile: dict[str, Any] = {
        "apiProvider": "openai", "openAiBaseUrl": f"{endpoint.url}/v1", "openAiModelId": endpoint.model,
        "openAiStreamingEnabled": True, "includeMaxTokens": True, "openAiCustomModelInfo": {
            "maxTokens": _tokens(endpoint, route), "contextWindow": endpoint.context, "supportsImages": False,
            "supportsPromptCache": False}}
    if "temperature" in route.parameters:
        profile["modelTemperature"] = route.parameters["temperature"]
    name = f"bringup {route.name}"
    data = {"providerProfiles": {"currentApiConfigName": name, "apiConfigs": {name: profile}}}
    notes = ["type the key into the field API Key after the import" if endpoint.has_key else
             "type any word into the field API Key: it must not be empty", *_unsaid(route)]
    return Settings("roo-code", "a file for Settings > About > Import", json.dumps(data, indent=2), data, notes)


def _kilo(endpoint: Endpoint, route: Route) -> Settings:
    provider: dict[str, Any] = {"npm": "@ai-sdk/openai-compatible", "name": "bringup",
                                "options": {"baseURL": f"{endpoint.url}/v1"}}
    if endpoint.has_key:
        provider["env"] = [KEY]
    model: dict[str, Any] = {"name": endpoint.model, "tool_call": True, "reasoning": True,
                             "limit": {"context": endpoint.context, "output": _tokens(endpoint, route)}}
    if "temperature" in route.parameters:
        model["options"] = {"temperature": route.parameters["temperature"]}
    provider["models"] = {endpoint.model: model}
    data = {"provider": {"bringup": provider}, "model": f"bringup/{endpoint.model}"}
    return Settings("kilo-code", "~/.config/kilo/kilo.json (or kilo.json in the project)", json.dumps(data, indent=2),
                    data, _unsaid(route))
