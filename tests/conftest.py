"""What all tests share: the GPU marker, hypothesis' settings, and stricter comparison of the stored notebooks."""

import base64
import io
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from matplotlib.testing.compare import compare_images
from matplotlib.testing.exceptions import ImageComparisonFailure
from nbval.plugin import IPyNbCell, IPyNbFile
from PIL import Image

from book.stored import packed

ROOT = Path(__file__).resolve().parent.parent
IMAGE_TOLERANCE = 2.0  # RMS of 255: antialiasing of another CPU stays below 0.5, a moved curve is above 3

settings.register_profile("book", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("book")
os.environ["PYTHONPATH"] = str(ROOT)  # for the kernels that nbval starts
os.environ.pop("MPLBACKEND", None)
os.environ["BOOK_LANGUAGE"] = "en"  # of the judge, as in the stored run
os.environ["BOOK_DATA"] = tempfile.mkdtemp(prefix="book-data-")  # no reader's progress
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tests run side by side: more threads would wait for each other


def pytest_addoption(parser):
    parser.addoption("--gpu", action="store_true", help="only what runs on CUDA: gpu tests and the stored notebooks")


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_collection_modifyitems(config, items):
    """Mark stored notebooks' cells for `--gpu`, and skip what needs a CUDA device where there is none."""
    only_gpu = config.getoption("--gpu")
    wanted = [item for item in items if item.get_closest_marker("gpu") or (only_gpu and isinstance(item, IPyNbCell))]
    if only_gpu:
        config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
        items[:] = wanted
    if wanted and not _has_cuda():
        for item in wanted:
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))


def pytest_report_header(config):
    if not config.getoption("--gpu"):
        return None
    if not _has_cuda():
        return "no CUDA device on this machine: all gpu tests are skipped"
    import torch

    return f"GPU: {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, torch {torch.__version__}"


def pytest_collectstart(collector):
    """Warnings are not part of what a chapter claims: nbval compares stdout and results."""
    if isinstance(collector, IPyNbFile):
        collector.skip_compare += ("stderr",)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    """nbval passes a cell that was never run without comparing anything: refuse it."""
    if isinstance(item, IPyNbCell) and item.cell.execution_count is None:
        pytest.fail(f"{item.path.name}: cell {item.cell_num} was never run: run make notebooks ALL=1", pytrace=False)


def _images(outputs) -> list[bytes]:
    return [base64.b64decode(o["data"]["image/png"]) for o in outputs if "image/png" in o.get("data", {})]


def _on_white(png: bytes, path: Path) -> str:
    """Lay a transparent figure on white: compare_images drops the alpha channel, and with it all antialiasing."""
    image = Image.open(io.BytesIO(png)).convert("RGBA")
    Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB").save(path)
    return str(path)


def image_difference(stored: bytes, now: bytes) -> str | None:
    """How two PNG differ beyond the tolerance, in one line, or None."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [_on_white(png, Path(folder) / f"{name}.png") for name, png in (("stored", stored), ("now", now))]
        try:
            found = compare_images(*paths, tol=IMAGE_TOLERANCE, in_decorator=True)
        except ImageComparisonFailure as error:
            return str(error).splitlines()[0]
    return f"RMS {found['rms']:.2f}, at most {IMAGE_TOLERANCE}" if found else None


def _compare_with_images(self, test, ref, skip_compare=None):
    """nbval skips images; compare them by tolerance, so that a changed figure fails."""
    if not _compare_outputs(self, test, ref, skip_compare):
        return False
    now, stored = [packed(png) for png in _images(test)], _images(ref)  # a palette changes the colours of a heat map
    problems = [f"{len(stored)} figures stored, {len(now)} now"] if len(now) != len(stored) else []
    problems += [f"figure differs: {text}" for a, b in zip(stored, now) if (text := image_difference(a, b))]
    self.comparison_traceback += problems
    return not problems


_compare_outputs = IPyNbCell.compare_outputs
IPyNbCell.compare_outputs = _compare_with_images
