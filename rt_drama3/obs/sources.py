"""Adds, updates and removes the OBS sources that play the server's speech.

All operations are idempotent: an existing source gets the settings, and is not added to a scene
that already has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from rt_drama3.obs.client import NOT_FOUND, ObsClient, ObsError, RequestFailed

PAGE, MIC = "page", "mic"
INPUTS = (PAGE, MIC)
NAMES = {PAGE: "rt-drama3", MIC: "rt-drama3 microphone"}  # in OBS
PAGE_URL = "http://127.0.0.1:8035/obs"
BROWSER = "browser_source"
# The kind of input that records from a device, by system.
CAPTURES = ("pulse_input_capture", "coreaudio_input_capture", "wasapi_input_capture")
# Device names of the virtual microphone on these systems; see sinks.microphone.
DEVICES = {
    "pulse_input_capture": "rt-drama3",
    "coreaudio_input_capture": "BlackHole",
    "wasapi_input_capture": "CABLE Output",
}
NO_DEVICE = "rt-drama3: none"
TRANSPARENT = "body { background-color: rgba(0, 0, 0, 0); margin: 0; overflow: hidden; }"


@dataclass(frozen=True)
class Change:
    """A change that was made in OBS.

    Attributes:
        what: "added", "updated" or "removed".
        source: name of the source in OBS.
        scene: scene it is in; "" if it was removed.
        note: a hint for the user, or "".
    """

    what: str
    source: str
    scene: str = ""
    note: str = ""


def set_up(
    obs: ObsClient,
    inputs: Sequence[str] = (PAGE,),
    *,
    scene: str | None = None,
    page: str = PAGE_URL,
    key: str | None = None,
    device: str | None = None,
) -> list[Change]:
    """Adds sources to a scene, or updates them.

    Args:
        obs: a connected client.
        inputs: elements of ``INPUTS``.
        scene: name of the scene; None for the current program scene.
        page: address of the server's page. Together with the microphone it only shows captions.
        key: API key of the server; OBS stores it in its scene collection.
        device: part of the microphone's name; None for the default of OBS's system.

    Raises:
        ObsError: a request failed, or OBS lacks what is needed.
    """
    scene = _scene(obs, scene)
    kinds = _strings(obs.request("GetInputKindList", unversioned=True), "inputKinds")
    changes = []
    for wanted in dict.fromkeys(inputs):
        if wanted == PAGE:
            address = page_address(page, key, muted=MIC in inputs)
            changes.append(_page(obs, scene, kinds, address))
        elif wanted == MIC:
            changes.append(_microphone(obs, scene, kinds, device))
        else:
            raise ObsError(f"--input is {wanted!r}; use one of {', '.join(INPUTS)}.")
    return changes


def page_address(page: str, key: str | None = None, *, muted: bool = False) -> str:
    """Returns the page's address with its settings; the key is in the fragment: it is not sent."""
    parts = urlsplit(page)
    query, fragment = parts.query, parts.fragment
    if muted:
        query = f"{query}&volume=0" if query else "volume=0"
    if key:
        fragment = f"key={quote(key, safe='')}"
    return urlunsplit((parts.scheme, parts.netloc, parts.path, query, fragment))


def remove(obs: ObsClient) -> list[Change]:
    """Removes the sources that ``set_up`` adds, from all scenes.

    Raises:
        ObsError: a request failed.
    """
    known = {PAGE: (BROWSER,), MIC: CAPTURES}
    changes = []
    for wanted, name in NAMES.items():
        if _kind(obs, name) in known[wanted]:
            obs.request("RemoveInput", inputName=name)
            changes.append(Change("removed", name))
    return changes


def _page(obs: ObsClient, scene: str, kinds: list[str], page: str) -> Change:
    if BROWSER not in kinds:
        raise ObsError(
            "this OBS has no browser source (some distributions omit it): use --input "
            "mic, or install OBS from obsproject.com."
        )
    size = obs.request("GetVideoSettings")
    settings = {
        "url": page,
        "width": _whole(size, "baseWidth", 1920),
        "height": _whole(size, "baseHeight", 1080),
        "reroute_audio": True,  # through OBS's mixer instead of the desktop's output
        "css": TRANSPARENT,
        "shutdown": False,  # it would miss speech while another scene is shown
        "restart_when_active": False,
    }
    return _put(obs, scene, NAMES[PAGE], BROWSER, settings)


def _microphone(obs: ObsClient, scene: str, kinds: list[str], device: str | None) -> Change:
    kind = next((kind for kind in CAPTURES if kind in kinds), None)
    if kind is None:
        raise ObsError(
            "this OBS cannot record from sound devices; it needs its PulseAudio, CoreAudio or "
            "WASAPI plugin."
        )
    part = device or DEVICES[kind]
    # OBS opens a device when the setting changes, but not when a device comes back: change it.
    change = _put(obs, scene, NAMES[MIC], kind, {"device_id": NO_DEVICE})
    items = obs.request(
        "GetInputPropertiesListPropertyItems", inputName=NAMES[MIC], propertyName="device_id"
    ).get("propertyItems")
    for item in items if isinstance(items, list) else []:
        if not isinstance(item, dict):
            continue
        name, value = str(item.get("itemName", "")), item.get("itemValue")
        if part.lower() in name.lower() or part == value:
            _choose(obs, value)
            return change
    if kind == CAPTURES[0]:  # PulseAudio's sources are identified by name
        _choose(obs, part)
    note = (
        f"OBS sees no microphone named {part!r} yet; create it (rt-drama3 mic create --keep, or "
        "serve --sink mic) and run this again."
    )
    return Change(change.what, change.source, change.scene, note)


def _choose(obs: ObsClient, device: object) -> None:
    obs.request("SetInputSettings", inputName=NAMES[MIC], inputSettings={"device_id": device})


def _put(obs: ObsClient, scene: str, name: str, kind: str, settings: dict[str, Any]) -> Change:
    """Adds or updates a source, and ensures that it is in the scene."""
    existing = _kind(obs, name)
    if existing is None:
        obs.request(
            "CreateInput", sceneName=scene, inputName=name, inputKind=kind, inputSettings=settings
        )
        return Change("added", name, scene)
    if existing != kind:
        raise ObsError(f"OBS has a source {name!r} of another kind ({existing}); rename it first.")
    obs.request("SetInputSettings", inputName=name, inputSettings=settings, overlay=True)
    try:
        obs.request("GetSceneItemId", sceneName=scene, sourceName=name)
    except RequestFailed as error:
        if error.code != NOT_FOUND:
            raise
        obs.request("CreateSceneItem", sceneName=scene, sourceName=name)
    return Change("updated", name, scene)


def _kind(obs: ObsClient, name: str) -> str | None:
    """Returns the unversioned kind of a source, or None if it does not exist."""
    inputs = obs.request("GetInputList").get("inputs")
    for entry in inputs if isinstance(inputs, list) else []:
        if isinstance(entry, dict) and entry.get("inputName") == name:
            return str(entry.get("unversionedInputKind") or entry.get("inputKind"))
    return None


def _scene(obs: ObsClient, wanted: str | None) -> str:
    found = obs.request("GetSceneList")
    scenes = found.get("scenes")
    entries = scenes if isinstance(scenes, list) else []
    names = [str(entry.get("sceneName")) for entry in entries if isinstance(entry, dict)]
    if wanted is None:
        current = found.get("currentProgramSceneName")
        if not isinstance(current, str) or not current:
            raise ObsError("OBS has no scene; create one first.")
        return current
    if wanted not in names:
        known = ", ".join(repr(name) for name in names[:20])
        raise ObsError(f"OBS has no scene {wanted!r}; it has {known}.")
    return wanted


def _strings(found: dict[str, Any], name: str) -> list[str]:
    values = found.get(name)
    return [str(value) for value in values] if isinstance(values, list) else []


def _whole(found: dict[str, Any], name: str, default: int) -> int:
    value = found.get(name)
    return round(value) if isinstance(value, int | float) and 1 <= value <= 16_384 else default
