"""Models of the Hugging Face hub, from its cache and from a hub that is a server of this test."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from camshaft.checkpoint import open_checkpoint
from camshaft.errors import CheckpointError

from .conftest import FolderMaker

COMMIT = "0123456789abcdef0123456789abcdef01234567"
constants = pytest.importorskip("huggingface_hub.constants")


class Hub(BaseHTTPRequestHandler):
    """Knows one repository, `org/tiny`, at one commit."""

    files: dict[str, bytes]
    asked: list[str]
    status = 200

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        if self.status != 200:
            gated = {"X-Error-Code": "GatedRepo"} if self.status == 403 else {}
            self.answer(b"{}", self.status, gated)
        elif self.path.startswith("/api/models/org/tiny/revision/"):
            known = self.path.endswith(("/main", "/v1"))
            error = {} if known else {"X-Error-Code": "RevisionNotFound"}
            self.answer(
                json.dumps(
                    {
                        "id": "org/tiny",
                        "sha": COMMIT,
                        "siblings": [{"rfilename": name} for name in self.files],
                    }
                ).encode(),
                200 if known else 404,
                error,
            )
        elif self.path.startswith("/api/models/org/tiny/tree/"):
            rows = [
                {"type": "file", "path": name, "size": len(content), "oid": "1" * 40}
                for name, content in self.files.items()
            ]
            self.answer(json.dumps(rows).encode())
        elif self.path.startswith(f"/org/tiny/resolve/{COMMIT}/"):
            name = self.path.rpartition(f"{COMMIT}/")[2]
            tag = {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT}
            self.answer(self.files[name], headers=tag)
        else:
            self.answer(b"{}", 401, {"X-Error-Code": "RepoNotFound"})

    def answer(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no hub behind it: nobody listens on that port."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    return tmp_path / "cache"


@pytest.fixture
def hub(
    cache: Path, make_folder: FolderMaker, monkeypatch: pytest.MonkeyPatch
) -> Iterator[type[Hub]]:
    folder = make_folder({"model.safetensors": {"a": (2,)}})
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files |= {"pytorch_model.bin": b"pickle", "original/a.safetensors": b"", "README.md": b"#"}
    handler = type("OneHub", (Hub,), {"files": files, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        constants.ENDPOINT + "/{repo_id}/resolve/{revision}/{filename}",
    )
    yield handler
    server.shutdown()
    server.server_close()


def cached(cache: Path, folder: Path, revision: str = "main") -> Path:
    """Lay out a model as the hub's own tools leave it in their cache."""
    repository = cache / "models--org--tiny"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / revision).write_text(COMMIT)
    return snapshot


def test_a_model_in_the_cache_needs_no_network(cache: Path, make_folder: FolderMaker) -> None:
    snapshot = cached(cache, make_folder({"model.safetensors": {"a": (2,)}}))
    checkpoint = open_checkpoint("hf:org/tiny")
    assert checkpoint.source == "hf:org/tiny"
    assert checkpoint.files == (snapshot / "model.safetensors",)
    assert checkpoint.text.where == snapshot


def test_a_revision_is_a_branch_a_tag_or_a_commit(cache: Path, make_folder: FolderMaker) -> None:
    snapshot = cached(cache, make_folder({"model.safetensors": {"a": (2,)}}), "v1")
    for revision in ("v1", COMMIT):
        assert open_checkpoint(f"hf:org/tiny@{revision}").text.where == snapshot
    with pytest.raises(CheckpointError, match="hf:org/tiny@v2: it is not in the cache"):
        open_checkpoint("hf:org/tiny@v2")


def test_without_a_network_the_error_names_repository_cause_and_cures(cache: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        open_checkpoint("hf:org/tiny")
    for words in ("hf:org/tiny:", str(cache), "Connect", "give its folder", "HF_HOME", "package:"):
        assert words in str(error.value)


def test_a_download_that_was_cut_is_not_taken_for_the_model(
    cache: Path, make_folder: FolderMaker
) -> None:
    snapshot = cached(cache, make_folder({"model.safetensors": {"a": (2,)}}))
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"lacks config\.json or safetensors files"):
        open_checkpoint("hf:org/tiny")


def test_a_model_is_fetched_once_and_only_what_is_read(hub: type[Hub]) -> None:
    first = open_checkpoint("hf:org/tiny")
    assert first.tensor("a", (2,)).shape == (2,)
    fetched = {line.rpartition("/")[2] for line in hub.asked if "GET" in line and "resolve" in line}
    assert fetched == {"config.json", "model.safetensors"}
    asked = len(hub.asked)
    assert open_checkpoint("hf:org/tiny").files == first.files
    assert len(hub.asked) == asked


@pytest.mark.parametrize(
    ("source", "status", "message"),
    [
        ("hf:org/other", 200, "hf:org/other: the hub has no such repository, or not for you"),
        ("hf:org/tiny@v9", 200, "hf:org/tiny@v9: the repository has no revision 'v9'"),
        ("hf:org/tiny", 403, "hf:org/tiny: its authors ask to accept terms first"),
        ("hf:org/tiny", 500, r"hf:org/tiny: it is not in the cache .* fetching it failed \(.*500"),
    ],
)
def test_what_the_hub_refuses_is_told_in_words(
    hub: type[Hub], source: str, status: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "status", status)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(source)


def test_no_other_source_imports_the_library(make_folder: FolderMaker) -> None:
    folder = make_folder({"model.safetensors": {"a": (2,)}})
    code = (
        "import sys; from camshaft.checkpoint import open_checkpoint; "
        f"open_checkpoint({str(folder)!r}); assert 'huggingface_hub' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_library_the_error_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    modules: dict[str, Any] = {"huggingface_hub": None}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(CheckpointError, match="Run `pip install huggingface_hub`"):
        open_checkpoint("hf:org/tiny")
