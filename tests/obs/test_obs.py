"""Setting up OBS: requests, repeated setups, and errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner
from websockets.sync.server import serve

from rt_drama3.cli.main import app
from rt_drama3.errors import RequestError
from rt_drama3.obs import Change, ObsClient, ObsError, remove, set_up
from rt_drama3.obs.client import RequestFailed, authentication
from tests.obs.fake_obs import FakeObs
from tests.ports import free_port

PAGE, MIC = "rt-drama3", "rt-drama3 microphone"


@pytest.fixture
def obs() -> Iterator[FakeObs]:
    with FakeObs().running() as running:
        yield running


def test_page_is_added_to_the_current_scene_and_then_updated(obs: FakeObs) -> None:
    with ObsClient(obs.url) as client:
        assert client.version == "5.1.0"
        assert set_up(client) == [Change("added", PAGE, "Talk")]
        kind, settings = obs.inputs[PAGE]
        assert kind == "browser_source"
        assert settings["url"] == "http://127.0.0.1:8035/obs"
        assert (settings["width"], settings["height"]) == (2560, 1440)
        assert settings["reroute_audio"] is True
        assert "rgba(0, 0, 0, 0)" in settings["css"]
        again = set_up(client, page="http://127.0.0.1:9000/obs")
    assert again == [Change("updated", PAGE, "Talk")]
    assert obs.inputs[PAGE][1]["url"] == "http://127.0.0.1:9000/obs"
    assert obs.scenes == {"Intro": [], "Talk": [PAGE]}


def test_page_has_the_key_and_is_muted_with_the_microphone(obs: FakeObs) -> None:
    with ObsClient(obs.url) as client:
        set_up(client, ["page", "mic"], key="a&b#c", page="http://127.0.0.1:9000/obs?size=60")
        wanted = "http://127.0.0.1:9000/obs?size=60&volume=0#key=a%26b%23c"
        assert obs.inputs[PAGE][1]["url"] == wanted
        set_up(client)
    assert obs.inputs[PAGE][1]["url"] == "http://127.0.0.1:8035/obs"


def test_source_of_another_scene_is_added_to_this_one(obs: FakeObs) -> None:
    with ObsClient(obs.url) as client:
        set_up(client, scene="Intro")
        set_up(client)
    assert obs.scenes == {"Intro": [PAGE], "Talk": [PAGE]}
    assert obs.asked.count("CreateInput") == 1


@pytest.mark.parametrize(
    ("kind", "device"),
    [
        ("pulse_input_capture", "rt-drama3"),
        ("coreaudio_input_capture", "BlackHole2ch_UID"),
        ("wasapi_input_capture", "CABLE Output (VB-Audio)"),
    ],
)
def test_microphone_is_found_by_its_name(obs: FakeObs, kind: str, device: str) -> None:
    obs.kinds, obs.devices = [kind], ["default", device]
    with ObsClient(obs.url) as client:
        for what in ("added", "updated"):
            assert set_up(client, ["mic", "mic"]) == [Change(what, MIC, "Talk")]
            assert obs.inputs[MIC] == (kind, {"device_id": device})


def test_missing_microphone(obs: FakeObs) -> None:
    obs.devices = ["default"]
    with ObsClient(obs.url) as client:
        [change] = set_up(client, ["mic"])
    assert "mic create" in change.note
    assert obs.inputs[MIC][1] == {"device_id": "rt-drama3"}


def test_remove_removes_only_our_sources(obs: FakeObs) -> None:
    obs.inputs["Game"] = ("browser_source", {})
    with ObsClient(obs.url) as client:
        set_up(client, ["page", "mic"])
        assert [change.source for change in remove(client)] == [PAGE, MIC]
        assert remove(client) == []
    assert list(obs.inputs) == ["Game"]


def test_source_of_another_kind_is_not_changed(obs: FakeObs) -> None:
    obs.inputs[PAGE] = ("image_source", {"file": "x.png"})
    with ObsClient(obs.url) as client:
        with pytest.raises(ObsError, match="image_source"):
            set_up(client)
        assert remove(client) == []
    assert obs.inputs == {PAGE: ("image_source", {"file": "x.png"})}


def test_missing_plugins_and_scenes_raise(obs: FakeObs) -> None:
    obs.kinds = ["image_source"]
    with ObsClient(obs.url) as client:
        with pytest.raises(ObsError, match="no browser source"):
            set_up(client)
        with pytest.raises(ObsError, match="cannot record from sound devices"):
            set_up(client, ["mic"])
        with pytest.raises(ObsError, match="'Intro', 'Talk'"):
            set_up(client, scene="Outro")
        with pytest.raises(ObsError, match="use one of page, mic"):
            set_up(client, ["camera"])
        with pytest.raises(RequestFailed, match=r"SetInputSettings \(code 600\)") as caught:
            client.request("SetInputSettings", inputName="x", inputSettings={})
    assert caught.value.code == 600


def test_passwords(obs: FakeObs) -> None:
    obs.password = "supersecretpassword"
    with ObsClient(obs.url, "supersecretpassword"):
        pass
    with pytest.raises(ObsError, match="rejected the password"):
        ObsClient(obs.url, "wrong")
    with pytest.raises(ObsError, match="requires a password"):
        ObsClient(obs.url)


def test_authentication_example_of_the_protocol_document() -> None:
    salt = "lM1GncleQOaCu9lT1yeUZhFYnqhsLLP1G5lAGo3ixaI="
    challenge = "+IxH4CnCiqpX1rM9scsNynZzbOe4KhDeYcTNS3PDaeY="
    wanted = "1Ct943GAT+6YQUUX47Ia/ncufilbe6+oD6lY+5kaCu4="
    assert authentication("supersecretpassword", salt, challenge) == wanted


@pytest.mark.parametrize("rpc", [0, "1", None])
def test_unsupported_versions_raise(obs: FakeObs, rpc: object) -> None:
    obs.rpc = rpc
    with pytest.raises(ObsError, match="use OBS 28 or newer"):
        ObsClient(obs.url)


def test_server_that_refuses_our_version_raises(obs: FakeObs) -> None:
    obs.rpc = 2
    with pytest.raises(ObsError, match="use OBS 28 or newer"):
        ObsClient(obs.url)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("", "within 0.2 s"),
        ("nonsense", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "without data"),
        ('{"op": 7, "d": {"requestId": "1"}}', "without a status"),
        (
            '{"op": 7, "d": {"requestId": "1", "requestStatus": {"result": true}, '
            '"responseData": [1]}}',
            "not an object",
        ),
    ],
)
def test_invalid_responses_raise(obs: FakeObs, answer: str, message: str) -> None:
    obs.instead["GetSceneList"] = answer
    client = ObsClient(obs.url, seconds=0.2 if not answer else 30)
    with contextlib.closing(client), pytest.raises(ObsError, match=message):
        set_up(client)


def test_unreachable_obs_raises() -> None:
    with pytest.raises(ObsError, match="start OBS"):
        ObsClient(f"ws://127.0.0.1:{free_port()}")
    with pytest.raises(ObsError, match="not a WebSocket address"):
        ObsClient("http://127.0.0.1")


def test_other_websocket_server_raises() -> None:
    import threading

    with serve(lambda socket: socket.close(), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with contextlib.closing(server.socket), pytest.raises(ObsError):
            ObsClient(f"ws://127.0.0.1:{server.socket.getsockname()[1]}")
        server.shutdown()
        thread.join()


def test_unknown_input_raises_before_connecting() -> None:
    with pytest.raises(RequestError, match="--input is 'foo'; use one of page, mic"):
        CliRunner().invoke(
            app,
            ["obs", "setup", "--url", "ws://127.0.0.1:1", "--input", "foo"],
            catch_exceptions=False,
        )


def test_commands(obs: FakeObs) -> None:
    obs.password = "word"
    there = {"RT_DRAMA3_OBS_PASSWORD": "word"}
    runner = CliRunner()
    address = ["--url", obs.url]
    setup = ["obs", "setup", *address, "--input", "page", "--input", "mic", "--scene", "Intro"]
    result = runner.invoke(app, setup, env=there, catch_exceptions=False)
    assert result.stdout == f"added {PAGE!r} in scene 'Intro'\nadded {MIC!r} in scene 'Intro'\n"
    result = runner.invoke(app, ["obs", "remove", *address], env=there, catch_exceptions=False)
    assert result.stdout == f"removed {PAGE!r}\nremoved {MIC!r}\n"
    result = runner.invoke(app, ["obs", "remove", *address, "--password", "word"])
    assert result.stdout == "nothing to remove\n"
