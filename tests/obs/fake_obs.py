"""A scripted obs-websocket 5 server, written from the protocol document."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve
from websockets.typing import Subprotocol

SALT, CHALLENGE = (
    "lM1GncleQOaCu9lT1yeUZhFYnqhsLLP1G5lAGo3ixaI=",
    "+IxH4CnCiqpX1rM9scsNynZzbOe4KhDe=",
)
OK = {"result": True, "code": 100}


class FakeObs:
    """OBS with scenes and inputs.

    Attributes:
        password: None requires none.
        rpc: offered RPC version.
        kinds: kinds of inputs.
        devices: devices in its property list.
        scenes: names of the sources in each scene.
        inputs: kind and settings of each input, by name.
        asked: requests in order of arrival.
        instead: raw text to send instead of a response, by request; "" for no response.
    """

    def __init__(self) -> None:
        self.password: str | None = None
        self.rpc: Any = 1
        self.kinds = ["browser_source", "pulse_input_capture"]
        self.devices = ["default", "rt-drama3"]
        self.scenes: dict[str, list[str]] = {"Intro": [], "Talk": []}
        self.current = "Talk"
        self.inputs: dict[str, tuple[str, dict[str, Any]]] = {}
        self.asked: list[str] = []
        self.instead: dict[str, str] = {}
        self.url = ""

    @contextlib.contextmanager
    def running(self) -> Iterator[FakeObs]:
        with serve(
            self._serve, "127.0.0.1", 0, subprotocols=[Subprotocol("obswebsocket.json")]
        ) as server:
            self.url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()

    def _serve(self, socket: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            self._talk(socket)

    def _talk(self, socket: ServerConnection) -> None:
        assert socket.subprotocol == "obswebsocket.json"
        hello: dict[str, Any] = {"obsWebSocketVersion": "5.1.0", "rpcVersion": self.rpc}
        if self.password is not None:
            hello["authentication"] = {"challenge": CHALLENGE, "salt": SALT}
        self._say(socket, 0, hello)
        identify = json.loads(socket.recv())
        assert identify["op"] == 1
        if self.password is not None:
            secret = self._hash(self.password + SALT)
            if identify["d"].get("authentication") != self._hash(secret + CHALLENGE):
                socket.close(4009, "Authentication failed.")
                return
        if identify["d"]["rpcVersion"] != self.rpc:
            socket.close(4010, "Unsupported RPC version")
            return
        self._say(socket, 2, {"negotiatedRpcVersion": 1})
        for text in socket:
            request = json.loads(text)
            assert request["op"] == 6
            kind, data = request["d"]["requestType"], request["d"].get("requestData", {})
            self.asked.append(kind)
            if kind in self.instead:
                if self.instead[kind]:
                    socket.send(self.instead[kind])
                continue
            self._say(socket, 5, {"eventType": "Unasked", "eventIntent": 1})
            status, found = self._do(kind, data)
            answer = {"requestType": kind, "requestId": request["d"]["requestId"]}
            self._say(socket, 7, {**answer, "requestStatus": status, "responseData": found})

    def _do(self, kind: str, data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        name = data.get("inputName", data.get("sourceName", ""))
        scene = self.scenes.get(data.get("sceneName", ""))
        match kind:
            case "GetSceneList":
                scenes = [{"sceneName": name, "sceneIndex": 0} for name in self.scenes]
                return OK, {"currentProgramSceneName": self.current, "scenes": scenes}
            case "GetInputKindList":
                assert data["unversioned"] is True
                return OK, {"inputKinds": self.kinds}
            case "GetVideoSettings":
                return OK, {"baseWidth": 2560, "baseHeight": 1440}
            case "GetInputList":
                inputs = [
                    {"inputName": name, "inputKind": kind, "unversionedInputKind": kind}
                    for name, (kind, _) in self.inputs.items()
                ]
                return OK, {"inputs": inputs}
            case "CreateInput" if scene is not None and name not in self.inputs:
                assert data["inputKind"] in self.kinds
                self.inputs[name] = (data["inputKind"], dict(data["inputSettings"]))
                scene.append(name)
                return OK, {"sceneItemId": len(scene)}
            case "SetInputSettings" if name in self.inputs:
                self.inputs[name][1].update(data["inputSettings"])
                return OK, {}
            case "GetSceneItemId" if scene is not None and name in scene:
                return OK, {"sceneItemId": scene.index(name) + 1}
            case "CreateSceneItem" if scene is not None:
                scene.append(name)
                return OK, {"sceneItemId": len(scene)}
            case "RemoveInput" if name in self.inputs:
                del self.inputs[name]
                self.scenes = {s: [n for n in ns if n != name] for s, ns in self.scenes.items()}
                return OK, {}
            case "GetInputPropertiesListPropertyItems" if name in self.inputs:
                assert data["propertyName"] == "device_id"
                items = [
                    {"itemName": f"Device {device}", "itemValue": device, "itemEnabled": True}
                    for device in self.devices
                ]
                return OK, {"propertyItems": items}
        return {"result": False, "code": 600, "comment": f"No source {name!r} was found."}, {}

    @staticmethod
    def _say(socket: ServerConnection, op: int, data: dict[str, Any]) -> None:
        socket.send(json.dumps({"op": op, "d": data}))

    @staticmethod
    def _hash(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
