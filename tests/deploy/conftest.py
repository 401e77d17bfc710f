import os
from pathlib import Path

import pytest

import image


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image, with the program as the tests have it."""
    if not image.INSIDE:
        pytest.skip("entering the image needs root and namespaces")
    folder = tmp_path_factory.mktemp("image") / "root"
    image.build(folder, Path(image.HOTROW))
    # An engine makes places for volumes.
    for place in ("etc/hotrow-tls", "etc/hotrow-tokens"):
        (folder / place).mkdir()
    return folder


@pytest.fixture
def volumes(root: Path, tmp_path: Path) -> dict[str, Path]:
    """Empty volumes of the image's user."""
    made = {}
    for name in ("data", "checkpoints"):
        made[f"/var/lib/hotrow/{name}"] = tmp_path / name
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, 10001, 10001)
    return made
