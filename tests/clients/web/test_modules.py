"""The modules of clients/web under Node's own test runner, and MessagePack against Python's."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

WEB = Path(__file__).parents[3] / "clients" / "web"
NODE = shutil.which("node")


def node_major() -> int:
    if NODE is None:
        return 0
    version = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=True)
    return int(re.sub(r"\D.*", "", version.stdout.removeprefix("v")))


needs_node = pytest.mark.skipif(node_major() < 20, reason="needs Node.js 20 or newer")

ECHO = """
import { createInterface } from "node:readline";
import { decode, encode } from "./src/msgpack.js";
for await (const line of createInterface({ input: process.stdin })) {
  console.log(Buffer.from(encode(decode(Buffer.from(line, "hex")))).toString("hex"));
}
"""


@needs_node
def test_modules_under_nodes_test_runner() -> None:
    assert NODE is not None
    ran = subprocess.run(
        [NODE, "--test"], cwd=WEB, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stdout[-5_000:] + ran.stderr[-2_000:]
    passed = re.search(r"^# pass (\d+)$", ran.stdout, re.MULTILINE)
    assert passed is not None
    assert int(passed[1]) > 50  # that it found them


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=300),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=40), inner),
    max_leaves=20,
)


@needs_node
def test_messagepack_round_trips_with_python() -> None:
    assert NODE is not None
    cases: list[object] = []

    @settings(max_examples=300, database=None, suppress_health_check=list(HealthCheck))
    @given(values)
    def collect(value: object) -> None:
        cases.append(value)

    collect()
    ran = subprocess.run(
        [NODE, "--input-type=module", "--eval", ECHO],
        cwd=WEB,
        input="\n".join(msgpack.packb(case).hex() for case in cases) + "\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    back = [msgpack.unpackb(bytes.fromhex(line)) for line in ran.stdout.split()]
    # JavaScript has one kind of number: 1.0 comes back as 1, which Python calls equal.
    assert back == cases


def test_package_lists_its_files() -> None:
    package = json.loads((WEB / "package.json").read_text())
    assert package["type"] == "module"
    for path in (package["main"], package["types"], package["exports"]["./processor.js"]):
        assert (WEB / path).is_file()
    assert "dependencies" not in package
    exported = re.findall(
        r"^export (?:\* from|\{ (.+?) \} from) ", (WEB / "src/index.js").read_text(), re.MULTILINE
    )
    names = {name for group in exported for name in group.split(", ") if name}
    errors = (WEB / "src/errors.js").read_text()
    names |= set(re.findall(r"^export (?:class|function) (\w+)", errors, re.MULTILINE))
    typed = set(
        re.findall(
            r"^export (?:declare )?(?:class|function|const) (\w+)",
            (WEB / "src/index.d.ts").read_text(),
            re.MULTILINE,
        )
    )
    assert names == typed
