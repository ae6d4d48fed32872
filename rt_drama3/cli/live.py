"""Commands for going live: ``stop`` silences a server, ``obs`` sets up OBS Studio.

Heavy imports wait until a command runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias
from urllib.parse import urlsplit

import typer

from rt_drama3.errors import RequestError

if TYPE_CHECKING:
    from rt_drama3.obs import Change

SECONDS = 5.0  # for an answer
LONGEST_ANSWER = 65_536  # bytes

obs_app = typer.Typer(help="Let OBS Studio hear what is spoken.", no_args_is_help=True)

ObsUrl: TypeAlias = Annotated[str, typer.Option("--url", help="Of OBS's WebSocket server.")]
Password: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="RT_DRAMA3_OBS_PASSWORD",
        help="Of OBS's WebSocket server; better from the environment, where others do not see it.",
    ),
]


def register(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command()(stop)
    app.add_typer(obs_app, name="obs")


def stop(
    url: Annotated[str, typer.Option(help="Of the server.")] = "http://127.0.0.1:8035",
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End the clients' running speech as well.")
    ] = False,
    api_key: Annotated[
        str | None, typer.Option(envvar="RT_DRAMA3_API_KEY", help="Where the server asks for one.")
    ] = None,
) -> None:
    """Makes a server that plays or is listened to be quiet now; for a hotkey."""
    status, answer = _post(url, "/v1/stop", {"cancel": cancel}, api_key)
    if status == 404:
        raise RequestError(f"{url} lets nobody listen: start it with serve --listen or --sink.")
    if status != 200:
        raise RequestError(f"{url} answered {status}: {answer.get('message', 'no reason')}")
    typer.echo("quiet" + (f", {answer.get('cancelled', 0)} cancelled" if cancel else ""))


@obs_app.command("setup")
def obs_setup(
    scene: Annotated[
        str | None, typer.Option(help="Scene to add to; default: the one on air.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="page: browser source with captions (default); mic: the virtual microphone; "
            "repeatable.",
        ),
    ] = None,
    page: Annotated[
        str, typer.Option(help="The server's page, which OBS opens.")
    ] = "http://127.0.0.1:8035/obs",
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="RT_DRAMA3_API_KEY", help="Where the server asks for one; OBS will keep it."
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="A part of the microphone's name; default: rt-drama3.")
    ] = None,
    url: ObsUrl = "ws://127.0.0.1:4455",
    password: Password = None,
) -> None:
    """Adds what is spoken to a scene of OBS; a second time it only brings it up to date."""
    from rt_drama3.obs import ObsClient, set_up
    from rt_drama3.obs.sources import INPUTS

    for wrong in set(inputs or ()).difference(INPUTS):
        raise RequestError(f"--input is {wrong!r}; use one of {', '.join(INPUTS)}.")
    if urlsplit(page).scheme not in ("http", "https"):
        raise RequestError(f"--page is {page!r}; an http or https address is needed.")
    with ObsClient(url, password) as obs:
        wanted = inputs or ("page",)
        _tell(set_up(obs, wanted, scene=scene, page=page, key=api_key, device=device))


@obs_app.command("remove")
def obs_remove(url: ObsUrl = "ws://127.0.0.1:4455", password: Password = None) -> None:
    """Removes from OBS what setup has added."""
    from rt_drama3.obs import ObsClient, remove

    with ObsClient(url, password) as obs:
        changes = remove(obs)
    _tell(changes)
    if not changes:
        typer.echo("there was nothing")


def _tell(changes: Sequence[Change]) -> None:
    for change in changes:
        where = f" in scene {change.scene!r}" if change.scene else ""
        typer.echo(f"{change.what} {change.source!r}{where}")
        if change.note:
            typer.echo(change.note, err=True)


def _post(
    url: str, path: str, body: dict[str, object], key: str | None
) -> tuple[int, dict[str, object]]:
    """Status and body of a POST with JSON.

    Raises:
        RequestError: the address cannot be read, or nobody answers.
    """
    try:
        parts = urlsplit(url)
        host, port, scheme = parts.hostname, parts.port, parts.scheme
    except ValueError:
        host, port, scheme = None, None, ""
    if scheme not in ("http", "https") or not host:
        raise RequestError(f"--url is {url!r}; write http://HOST:PORT.")
    kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    connection = kind(host, port, timeout=SECONDS)
    try:
        connection.request("POST", parts.path.rstrip("/") + path, json.dumps(body), headers)
        response = connection.getresponse()
        found = json.loads(response.read(LONGEST_ANSWER) or b"{}")
    except (OSError, http.client.HTTPException) as error:
        raise RequestError(f"no server answers at {url}: {error}; is it running?") from error
    except ValueError as error:
        raise RequestError(f"what answers at {url} is not rt-drama3.") from error
    finally:
        connection.close()
    return response.status, found if isinstance(found, dict) else {}
