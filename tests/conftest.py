"""What every test stands on: MLX without its pool, and random tests that repeat themselves."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

try:
    import mlx.core as mx
except ImportError:  # the index's own tests run without it
    mx = None

if TYPE_CHECKING:
    from collections.abc import Iterator

# What fails in there says what it compared.
pytest.register_assert_rewrite("tests.support")

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("repeatable")


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Keeps what mlx_lm, transformers and earlier files brought out of the collections that tests make.

    With all test files' modules in it, a collection takes a hundred times as long.
    """
    if mx is None:
        return
    import mlx_lm.models.cache  # noqa: F401

    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def exact_allocator() -> Iterator[None]:
    """Without a pool MLX's counters are those of live arrays; nothing is left of the test before."""
    if mx is None:
        yield
        return
    # Once a test: with many threads gone by, setting the limit takes MLX 10 ms.
    mx.set_cache_limit(0)
    gc.collect()
    mx.clear_cache()
    yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`make test` leaves out what only `make test-full` runs.

    `make test-parallel` has each test run by several threads at once, except where that cannot be.
    """
    from tests.support.full import keep_default, mark_products

    mark_products(items)
    keep_default(config, items)
    if config.getoption("parallel_threads", 1) in (1, "1"):
        return
    from tests.support.sharing import why_not

    for item in items:
        reason = why_not(item)
        if reason is not None:
            item.add_marker(pytest.mark.thread_unsafe(reason=reason))
