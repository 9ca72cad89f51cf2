from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.kubernetes_api import PATH, TOKEN, KubernetesApi, kubernetes_api, make_certificates

from bellringer.scheduler.orchestrator.config import KubernetesConfig
from bellringer.scheduler.orchestrator.drivers.driver import DriverFailed
from bellringer.scheduler.orchestrator.drivers.kubernetes import Kubernetes


@pytest.fixture
def api(tmp_path: Path) -> Iterator[KubernetesApi]:
    with kubernetes_api(tmp_path) as running:
        yield running


@pytest.fixture
def config(api: KubernetesApi, tmp_path: Path) -> KubernetesConfig:
    """As the files of a pod's service account say."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "namespace").write_text("bellringer")
    return KubernetesConfig(
        deployment="executors",
        url=api.url,
        token_file=str(tmp_path / "token"),
        ca_file=str(api.ca_file),
        namespace_file=str(tmp_path / "namespace"),
        timeout_seconds=5.0,
    )


@pytest.fixture
async def driver(config: KubernetesConfig) -> AsyncIterator[Kubernetes]:
    opened = Kubernetes(config)
    yield opened
    await opened.close()


async def order(driver: Kubernetes, executors: int) -> None:
    await driver.scale_to(executors, current=0, reason="a burst")


async def test_the_replicas_of_the_deployment_are_read_and_patched(driver: Kubernetes, api: KubernetesApi) -> None:
    assert await driver.current() == 2
    await order(driver, 7)
    assert api.replicas == await driver.current() == 7
    method, path, content_type, body = api.requests[1]
    assert (method, path, content_type) == ("PATCH", PATH, "application/merge-patch+json")
    assert json.loads(body) == {"spec": {"replicas": 7}}


async def test_no_replicas_are_zero(driver: Kubernetes) -> None:
    await order(driver, 0)
    assert await driver.current() == 0


async def test_a_renewed_token_is_used_from_then_on(driver: Kubernetes, api: KubernetesApi, tmp_path: Path) -> None:
    api.token = "renewed"
    with pytest.raises(DriverFailed, match=r"/scale: 401 Unauthorized$"):
        await driver.current()
    tmp_path.joinpath("token").write_text("renewed")
    assert await driver.current() == 2


@pytest.mark.parametrize(("status", "said"), [(409, "409 the object has been modified"), (500, "500 ")])
async def test_a_refusal_says_what_the_api_said_and_the_next_try_works(
    driver: Kubernetes, api: KubernetesApi, status: int, said: str
) -> None:
    api.status = status
    with pytest.raises(DriverFailed, match=f"PATCH {PATH}: {said}"):
        await order(driver, 3)
    api.status = 200
    await order(driver, 3)
    assert api.replicas == 3


async def test_a_deployment_that_does_not_exist_is_named(config: KubernetesConfig) -> None:
    driver = Kubernetes(msgspec.structs.replace(config, namespace="elsewhere"))
    with pytest.raises(DriverFailed, match=r'404 deployments.apps "executors" not found'):
        await driver.current()
    await driver.close()


async def test_an_api_that_does_not_answer_in_time_is_given_up(config: KubernetesConfig, api: KubernetesApi) -> None:
    driver = Kubernetes(msgspec.structs.replace(config, timeout_seconds=0.2))
    api.hold.clear()
    with pytest.raises(DriverFailed, match=r"timed out"):
        await driver.current()
    await driver.close()


async def test_nobody_listening_is_a_failure_of_the_driver(config: KubernetesConfig) -> None:
    driver = Kubernetes(msgspec.structs.replace(config, url="https://localhost:1"))
    with pytest.raises(DriverFailed, match=r"GET /apis/.*refused"):
        await driver.current()
    await driver.close()


async def test_a_server_of_another_authority_gets_no_token(
    config: KubernetesConfig, api: KubernetesApi, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    make_certificates(tmp_path / "other")
    driver = Kubernetes(msgspec.structs.replace(config, ca_file=str(tmp_path / "other" / "ca.crt")))
    with pytest.raises(DriverFailed, match=r"certificate"):
        await driver.current()
    assert api.requests == []
    await driver.close()


@pytest.mark.parametrize("missing", ["token_file", "ca_file", "namespace_file"])
async def test_outside_of_a_pod_the_missing_file_is_named(config: KubernetesConfig, missing: str) -> None:
    driver = Kubernetes(msgspec.structs.replace(config, **{missing: "/nowhere/file"}))
    with pytest.raises(DriverFailed, match="/nowhere/file cannot be read: No such file or directory"):
        await driver.current()


async def test_an_authority_that_is_none_is_told(config: KubernetesConfig, tmp_path: Path) -> None:
    (tmp_path / "broken.crt").write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    driver = Kubernetes(msgspec.structs.replace(config, ca_file=str(tmp_path / "broken.crt")))
    with pytest.raises(DriverFailed, match="certificate"):
        await driver.current()
