"""Cables and optical modules: mlxlink, `ethtool -m`, `hccn_tool -optical`; each against the limits that it prints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from bringup.preflight.parsers.text import pairs, plain
from bringup.preflight.unread import Unread

_NUMBER = r"-?\d+(?:\.\d+)?(?:[eE]-?\d+)?"
_LIMITED = re.compile(rf"({_NUMBER}(?:,{_NUMBER})*)\s*\[({_NUMBER})\.\.({_NUMBER})\]")
_BER = re.compile(r"(\d+(?:\.\d+)?)[eE]-(\d+)")
_DARK = -40.0
"""dBm that a lane without light answers."""
_READINGS = (("temperature", "Temperature [C]", "C"), ("voltage", "Voltage [mV]", "mV"),
             ("received power", "Rx Power Current [dBm]", "dBm"), ("sent power", "Tx Power Current [dBm]", "dBm"))


@dataclass(frozen=True)
class Reading:
    """A measured value, one for each lane, and the limits that the module itself names; None where it names none."""

    name: str
    values: tuple[float, ...]
    low: float | None
    high: float | None
    unit: str

    @property
    def outside(self) -> str:
        """What lies beyond the limits, as a person reads it; "" for none."""
        if self.low is None or self.high is None:
            return ""
        odd = [(number, value) for number, value in enumerate(self.values) if not self.low <= value <= self.high]
        if not odd:
            return ""
        lane = f" on lane {', '.join(str(number) for number, _ in odd)}" if len(self.values) > 1 else ""
        worst = max(odd, key=lambda item: max((self.low or 0) - item[1], item[1] - (self.high or 0)))
        return f"{self.name} {worst[1]:g} {self.unit}{lane} (limits {self.low:g} to {self.high:g})"


@dataclass(frozen=True)
class Module:
    """What sits in a port. `optical` is False for copper; `alarms` are flags that the module has raised."""

    kind: str
    optical: bool
    readings: tuple[Reading, ...] = ()
    alarms: tuple[str, ...] = ()

    @property
    def troubles(self) -> tuple[str, ...]:
        """Readings beyond their limits, then alarms."""
        return (*(text for text in (reading.outside for reading in self.readings) if text), *self.alarms)


@dataclass(frozen=True)
class Link:
    """A port as mlxlink sees it. Bit error ratios behind the correction are errors a bit; None where there is none.

    `refused` is what the tool said instead of an answer, `unread` why an answer cannot be read.
    """

    module: Module | None = None
    effective: float | None = None
    symbol: float | None = None
    minutes: float | None = None
    refused: str = ""
    unread: str = ""


@dataclass(frozen=True)
class Silent:
    """A port whose tool gave no answer: what it said, and whether it refused in words that are known."""

    said: str
    refused: bool

    def __str__(self) -> str:
        return self.said


def by_port(text: str) -> Mapping[str, str]:
    """The answers of a loop over ports that writes `PORT| ` before each line and `== end` last. Raises Unread."""
    out: dict[str, str] = {}
    whole = False
    for line in plain(text).splitlines():
        if line.strip() == "== end":
            whole = True
            continue
        match = re.match(r"([\w.:@-]+)\| ?(.*)$", line)
        if match:
            out[match.group(1)] = out.get(match.group(1), "") + match.group(2) + "\n"
        elif line.strip():
            raise Unread(f"no port stands before `{line.strip()[:100]}`")
    if not whole:
        raise Unread("the answers of the ports stop half way")
    if not out:
        raise Unread("no port answers", absent=True)
    return out


def mlxlink(text: str) -> Mapping[str, Link]:
    """`mlxlink -d DEVICE -m -c` of each device, see `by_port`. Raises Unread for what is none of its answers.

    One port that cannot be read takes no other with it: it may be one that carries nothing.
    """
    out = {}
    for port, answer in by_port(text).items():
        try:
            out[port] = _mlxlink(port, answer)
        except Unread as error:
            out[port] = Link(unread=error.reason)
    return out


def _mlxlink(port: str, text: str) -> Link:
    fields = pairs(text)
    if "State" not in fields and (refused := re.search(r"(?m)^\s*-E- (.+)$", text)):
        return Link(refused=refused.group(1).strip())
    for key in ("State", "Cable Type", "Effective Physical BER", "Time Since Last Clear [Min]"):
        if key not in fields:
            raise Unread(f"mlxlink says of {port} no `{key}`")
    if ("Symbol BER" in fields) != ("Symbol Errors" in fields):
        raise Unread(f"mlxlink says of {port} no `Symbol BER`")
    minutes = fields["Time Since Last Clear [Min]"]
    if not re.fullmatch(_NUMBER, minutes):
        raise Unread(f"mlxlink says of {port}: Time Since Last Clear: {minutes[:40]}")
    symbol = _ber(port, fields["Symbol BER"]) if "Symbol BER" in fields else None
    return Link(_module(port, fields), _ber(port, fields["Effective Physical BER"]), symbol, float(minutes))


def _ber(port: str, text: str) -> float | None:
    """`15E-255` is the tool's word for none seen."""
    if text == "N/A":
        return None
    match = _BER.fullmatch(text)
    if not match:
        raise Unread(f"mlxlink says of {port} the bit error ratio `{text[:40]}`")
    return float(match.group(1)) * 10.0 ** -min(int(match.group(2)), 300)


def _module(port: str, fields: Mapping[str, str]) -> Module:
    readings = []
    for name, key, unit in _READINGS:
        text = fields.get(key)
        if text is None:
            raise Unread(f"mlxlink says of {port} no `{key}`")
        if text.startswith("N/A"):
            continue
        match = _LIMITED.fullmatch(text)
        if not match:
            raise Unread(f"mlxlink says of {port} `{key}`: {text[:60]}")
        low, high = float(match.group(2)), float(match.group(3))
        # a copper cable answers 0 with limits of 0: it measures nothing
        if low < high:
            values = tuple(float(one) for one in match.group(1).split(","))
            # lanes that are not in use answer with the floor of the scale
            used = tuple(one for one in values if one > _DARK) if unit == "dBm" else values
            readings.append(Reading(name, used or values, low, high, unit))
    # the LOS of copper says nothing: it is set on links that run
    lost = re.fullmatch(r"[01](?:,[01])*", fields.get("Rx LOS [per lane]", ""))
    optical = any(reading.name == "received power" for reading in readings)
    alarms = ("the receiver sees no light on lane " + ", ".join(
        str(number) for number, word in enumerate(lost.group().split(",")) if word == "1"),) if (
        optical and lost and "1" in lost.group()) else ()
    return Module(fields["Cable Type"], optical, tuple(readings), alarms)


def ethtool_module(text: str) -> Mapping[str, Module | Silent]:
    """`ethtool -m IF` of each interface, see `by_port`: the module, or what the tool said instead. Raises Unread."""
    out: dict[str, Module | Silent] = {}
    for port, answer in by_port(text).items():
        fields = pairs(answer)
        try:
            out[port] = _ethtool(port, answer, fields) if "Identifier" in fields else silent(
                answer, r"^(Cannot get|netlink error|No data|ethtool:)")
        except Unread as error:
            out[port] = Silent(error.reason, False)
    return out


def silent(answer: str, refusals: str) -> Silent:
    """What a tool said that gave no answer."""
    line = next((one.strip() for one in answer.splitlines() if one.strip()), "nothing")
    return Silent(line[:120], re.search(refusals, line, re.IGNORECASE) is not None)


def _ethtool(port: str, text: str, fields: Mapping[str, str]) -> Module:
    kind = " ".join(word for word in (fields.get("Vendor name", ""), fields.get("Vendor PN", "")) if word)
    measured = "Module temperature" in fields
    alarms = []
    for key, value in re.findall(r"(?m)^\s*(\S.*?(?:alarm|warning))(?:\s*\([^)]*\))?\s*:\s*(\S.*?)\s*$", text):
        if value not in ("On", "Off"):
            raise Unread(f"ethtool -m says of {port} `{key}`: {value[:40]}")
        if value == "On" and "bias" not in key:
            alarms.append(re.sub(r"\s+", " ", key))
    if measured and not re.fullmatch(rf"{_NUMBER} degrees C / {_NUMBER} degrees F", fields["Module temperature"]):
        raise Unread(f"ethtool -m says of {port} the temperature `{fields['Module temperature'][:40]}`")
    if not measured and not kind:
        raise Unread(f"ethtool -m says of {port} neither a module's name nor its temperature")
    optical = "avg optical power" in text
    if optical and "Yes" in fields.get("Rx loss of signal", ""):
        alarms.append("the receiver sees no light on a lane")
    return Module(kind, optical, (), tuple(dict.fromkeys(alarms)))


def hccn_optical(text: str) -> Module:
    """`hccn_tool -i N -optical -g`: lanes in mW against the thresholds that it prints. Raises Unread.

    Absent where the tool says that it is not supported (ports without optics).
    """
    fields = pairs(text)
    if "present" not in fields:
        line = next((one.strip() for one in plain(text).splitlines() if one.strip()), "")
        raise Unread(line[:160] or "hccn_tool says nothing of optics", absent="not support" in line.lower())
    if not re.search(r"rx ?power", text, re.IGNORECASE):
        raise Unread("the module measures no light: a copper cable", absent=True)
    readings = [_hccn(fields, "temperature", r"temperature", "Temp", "C"),
                _hccn(fields, "voltage", r"Vcc", "Vcc", "mV"),
                _hccn(fields, "received power", r"Rx Power\d*", "RxPower", "mW"),
                _hccn(fields, "sent power", r"Tx Power\d*", "TxPower", "mW")]
    alarms = []
    if fields["present"] != "present":
        if fields["present"] != "not present":
            raise Unread(f"hccn_tool says of the module: {fields['present'][:60]}")
        alarms.append("the tool sees no module in the port")
    for key in ("Rx Los Flag", "Tx Los Flag", "Rx LoL Flag", "Tx LoL Flag"):
        value = fields.get(key, "")
        if not re.fullmatch(r"0x[0-9a-fA-F]+", value):
            raise Unread(f"hccn_tool says of `{key}`: {value[:40] or 'nothing'}")
        if int(value, 16):
            alarms.append(f"{key.removesuffix(' Flag')} {value}")
    for key, value in sorted(fields.items()):
        if key.startswith("Media SNR Lane") and value != "not supported":
            readings.append(Reading(f"SNR of {key.removeprefix('Media SNR ')}", (_unit(key, value, "dB"),), 8.0, 100.0,
                                    "dB"))
    return Module(" ".join(fields.get(key, "") for key in ("vendor name", "vendor part number")).strip(), True,
                  tuple(reading for reading in readings if reading is not None), tuple(alarms))


def _hccn(fields: Mapping[str, str], name: str, pattern: str, limit: str, unit: str) -> Reading:
    found = [(key, value) for key, value in fields.items() if re.fullmatch(pattern, key)]
    if not found:
        raise Unread(f"hccn_tool says no {name} of the module")
    low, high = (_unit(key, fields.get(key, ""), unit) for key in (f"{limit} Low Thres", f"{limit} High Thres"))
    return Reading(name, tuple(_unit(key, value, unit) for key, value in sorted(found)), low, high, unit)


def _unit(key: str, text: str, unit: str) -> float:
    match = re.fullmatch(rf"({_NUMBER}) {re.escape(unit)}", text)
    if not match:
        raise Unread(f"hccn_tool says of `{key}`: {text[:40] or 'nothing'}")
    return float(match.group(1))
