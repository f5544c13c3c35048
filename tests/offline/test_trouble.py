"""Full disks, shut folders, files that vanish, manifests that do not fit: told, and mended."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.data import open_sink, open_source
from penstock.errors import ConfigError, InputError
from penstock.offline import ending, fingerprints, joining, parts
from penstock.offline.manifest import open_manifest
from penstock.offline.setting_up import serving
from tests.conditions import until
from tests.data.pictures import encoded, fill, scene
from tests.offline.conftest import model
from tests.offline.functions import scores
from tests.offline.jobs import begin, ended, recorded


def test_a_full_disk_is_told_and_the_job_goes_on_when_there_is_room(place, x, engine, monkeypatch):
    np.save("x.npy", x)
    staged, files = parts.staged, []

    def full(path):
        files.append(path)
        if len(files) > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return staged(path)

    monkeypatch.setattr(parts, "staged", full)
    with pytest.raises(ConfigError, match=r"y\.parquet\.parts.*No space left.*goes on from here"):
        penstock.predict("scores", "x.npy", "y.parquet", engine=engine, chunk=128)
    monkeypatch.setattr(parts, "staged", staged)
    report = penstock.predict("scores", "x.npy", "y.parquet", engine=engine, chunk=128)
    assert (report.known, report.rows) == (192, 1000)


def test_a_file_that_vanishes_stops_the_job_and_it_goes_on_when_it_is_back(place):
    fill(place / "images")
    source = open_source("images/photo*", size=8)
    Path("images/photo10.png").rename("elsewhere")
    with pytest.raises(InputError, match=r"changed|is gone"):
        penstock.predict(model("scores"), source, "y.npy")
    Path("elsewhere").rename("images/photo10.png")
    report = penstock.predict(model("scores"), source, "y.npy")
    assert (report.rows, report.failed) == (3, 0)


def test_a_file_that_vanishes_from_a_loader_stops_the_job_and_it_goes_on(place):
    Path("images").mkdir()
    for n in range(100):
        Path(f"images/{n}.png").write_bytes(encoded(scene(20, 30), "PNG"))
    gate = place / "gate"
    settings_ = ("--size", 8, "--chunk", 16, "--max-batch", 8, "--loaders", 1)
    arguments = (model("held"), "images", *settings_, "--out", "y.jsonl")
    job = begin(*arguments, OFFLINE_GATE=str(gate))
    until(Path(f"{gate}.reached").exists)
    Path("images/90.png").rename("elsewhere")
    gate.touch()
    _, told = job.communicate(timeout=40)
    assert (job.returncode, "images/90.png was there when it was listed" in told) == (1, True)
    assert "Traceback" not in told
    Path("elsewhere").rename("images/90.png")
    assert ended(begin(*arguments, OFFLINE_GATE=str(gate))) == 0
    assert Path("y.jsonl").read_text().count("\n") == 100


@pytest.mark.parametrize("kind", ["npy", "arrow"])
def test_an_input_that_is_cut_short_while_it_is_read_stops_the_job_and_it_goes_on(place, x, kind):
    """Whoever reads what was mapped of it would be ended by the system, without a word."""
    x, name = np.tile(x, (8, 1)), f"x.{kind}"
    with open(name, "wb") as file:
        open_sink(name).write(file, {"x": x})
    whole, before = Path(name).read_bytes(), os.stat(name)
    gate = place / "gate"
    settings_ = ("--max-batch", 8, "--chunk", 2048)
    arguments = (model("held_after_some"), name, *settings_, "--out", "y.npy")
    job = begin(*arguments, OFFLINE_GATE=str(gate))
    until(Path(f"{gate}.reached").exists)
    os.truncate(name, 1000)
    gate.touch()
    _, told = job.communicate(timeout=40)
    assert job.returncode == 1, told
    assert "Traceback" not in told
    assert f"{name} is shorter than it was" in told or "the input changed" in told
    Path(name).write_bytes(whole)
    os.utime(name, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ended(begin(*arguments, OFFLINE_GATE=str(gate))) == 0
    assert np.array_equal(np.load("y.npy"), scores(x))


_CUT_SHORT = """
import os, sys
import penstock
from penstock.offline import labour

found = labour.awaited

def cut_after_the_third(column):
    seen.append(found(column))
    if len(seen) == 3:
        os.truncate("x.npy", 1000)
    return seen[-1]

seen = []
labour.awaited = cut_after_the_third
try:
    penstock.predict(sys.argv[1], "x.npy", "y.npy", max_batch=4)
except penstock.errors.InputError as error:
    assert seen == [True] * len(seen), seen
    print(error)
"""


def test_rows_that_are_only_copied_are_read_not_looked_at(place):
    """What is cut short after the disk was waited for does not end the job without a word."""
    np.save("x.npy", np.ones((80, 1 << 20), np.float32))
    command = [sys.executable, "-c", _CUT_SHORT, model("scores")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert "x.npy is shorter than it was" in done.stdout


def full_disk(*_: object) -> OSError:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("what", ["output", "keys", "side file", "manifest"])
def test_a_disk_that_is_full_at_any_other_step(place, x, engine, monkeypatch, what):
    x[17, 0] = -1
    np.save("x.npy", x)

    def run():
        return penstock.predict("picky", "x.npy", "y.npy", engine=engine, chunk=96)

    with monkeypatch.context() as patch:
        if what == "output":
            for module in (joining, ending):
                patch.setattr(module, "staged", full_disk)
        elif what == "manifest":
            write = os.write

            def half_a_line(descriptor, data):
                if data.startswith(b'{"part": 4'):
                    write(descriptor, data[:9])
                    full_disk()
                return write(descriptor, data)

            patch.setattr(os, "write", half_a_line)
        else:
            name = {"keys": ".y.keys.npy.partial", "side file": ".y.npy.errors.jsonl.partial"}[what]
            Path(name).symlink_to("/dev/full")
        with pytest.raises(ConfigError, match=r"No space left.*goes on from here"):
            run()
    assert not Path("y.npy").exists() or what == "side file"
    report = run()
    assert (report.written, report.failed) == (999, 1)
    assert report.known == (4 * 48 if what == "manifest" else 1000)
    penstock.predict("picky", "x.npy", "z.npy", engine=engine, chunk=96)
    for suffix in (".npy", ".keys.npy", ".npy.errors.jsonl"):
        assert Path(f"y{suffix}").read_bytes() == Path(f"z{suffix}").read_bytes()


def test_a_disk_that_is_full_for_a_while_as_parts_are_joined(place, x, engine):
    np.save("x.npy", x)
    Path(".y.parquet.partial").symlink_to("/dev/full")
    report = penstock.predict("scores", "x.npy", "y.parquet", engine=engine, chunk=96)
    assert report.written == 1000
    penstock.predict("scores", "x.npy", "z.parquet", engine=engine, chunk=96)
    assert Path("y.parquet").read_bytes() == Path("z.parquet").read_bytes()


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "npy"])
def test_a_part_that_is_damaged_is_told(place, x, engine, suffix):
    x[900, 0] = -1
    np.save("x.npy", x)
    with pytest.raises(InputError, match="max_errors"):
        penstock.predict("picky", "x.npy", f"y.{suffix}", engine=engine, chunk=96, max_errors=0)
    Path(f"y.{suffix}.parts/part-0000002.{suffix}").write_bytes(b"dust")
    with pytest.raises(InputError, match="part"):
        penstock.predict("picky", "x.npy", f"y.{suffix}", engine=engine, chunk=96)
    assert not Path(f"y.{suffix}").exists()


def test_a_folder_that_cannot_be(place, x, engine):
    Path("file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        penstock.predict("scores", x, "file/y.npy", engine=engine)


@pytest.fixture
def shut():
    """A folder that everybody can read, and nobody but root can write to."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_folder_that_may_not_be_written_to(shut, x, engine):
    script = f"""
        import os, penstock
        from penstock.errors import ConfigError
        from penstock.offline.run import predict

        if not os.getuid():
            os.setuid(65534)
        try:
            predict("scores", "x.npy", "{shut}/y.npy", engine="none")
        except ConfigError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=40,
        check=True,
    )
    assert done.stdout == f"{shut}/y.npy.manifest.jsonl cannot be written: Permission denied\n"
    assert list(shut.iterdir()) == []
    shut.chmod(0o755)
    assert penstock.predict("scores", x, str(shut / "y.npy"), engine=engine).written == 1000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shopping list\n", "no manifest"),
        ("12\n", "no manifest"),
        ('{"penstock": 99}\n', "another version"),
    ],
)
def test_a_manifest_of_something_else_is_refused_unless_it_does_not_matter(
    place, x, engine, text, message
):
    Path("y.npy.manifest.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=f"{message}.*restart"):
        penstock.predict("scores", x, "y.npy", engine=engine)
    assert Path("y.npy.manifest.jsonl").read_text() == text
    assert penstock.predict("scores", x, "y.npy", engine=engine, restart=True).rows == 1000
    assert penstock.predict("scores", x, "y.npy", engine=engine).computed == 0


def test_a_restart_that_comes_to_nothing_leaves_what_was_done(place, x, engine):
    np.save("x.npy", x)
    x[500:, 0] = -1
    np.save("x.npy", x)
    with pytest.raises(InputError, match="max_errors"):
        penstock.predict("picky", "x.npy", "y.npy", engine=engine, chunk=64, max_errors=10)
    known = recorded("y.npy")
    with pytest.raises(InputError, match="no model"):
        penstock.predict("pciky", "x.npy", "y.npy", engine=engine, chunk=64, restart=True)
    assert recorded("y.npy") == known > 0
    report = penstock.predict("picky", "x.npy", "y.npy", engine=engine, chunk=64, max_errors=-1)
    assert report.known >= 500


def test_a_job_that_never_began_leaves_nothing(place):
    manifest = open_manifest(place / "m")
    manifest.close()
    assert list(place.iterdir()) == []


def test_what_the_result_depends_on_stands_in_the_manifest(place, x, engine):
    np.save("x.npy", x)
    penstock.predict("scores", "x.npy", "y.npy", engine=engine, chunk=96)
    header = json.loads(Path("y.npy.manifest.jsonl").read_text().splitlines()[0])
    assert header["plan"] == {
        "mode": "python", "precision": header["plan"]["precision"], "max_batch": 16,
        "batched": True,
    }  # fmt: skip
    assert header["cut"] == {"batch": 16, "part": 48, "block": 48}
    assert header["versions"]["numpy"] == np.__version__
    assert header["rows"] == 1000


def test_another_version_of_a_library_is_told_of(place, x, engine, monkeypatch):
    x[900, 0] = -1
    np.save("x.npy", x)
    with pytest.raises(InputError, match="max_errors"):
        penstock.predict("picky", "x.npy", "y.npy", engine=engine, chunk=96, max_errors=0)
    found = fingerprints.versions()
    monkeypatch.setattr(fingerprints, "versions", lambda: {**found, "numpy": "9.9"})
    report = penstock.predict("picky", "x.npy", "y.npy", engine=engine, chunk=96)
    (note,) = report.notes
    assert note.startswith(f"numpy was {np.__version__} when the job was begun, and is now 9.9")


def test_a_plan_that_cannot_be_followed_here_is_refused():
    known = {"mode": "xla", "precision": "", "max_batch": 16, "batched": True}
    seen = penstock.Model(model("scores"), max_batch=16)
    refused = pytest.raises(ConfigError, match=r"begun with mode xla.*here .*mode python.*restart")
    with refused, serving(seen, {}, known):
        pass


@pytest.mark.timeout(120)
def test_a_job_goes_on_with_the_mode_that_it_was_begun_with():
    seen = penstock.Model(model("network"), max_batch=4)
    with serving(seen, {}) as served:
        plan = served.plan()
    other = "function" if plan["mode"] != "function" else "frozen"
    with serving(seen, {}, {**plan, "mode": other}) as served:
        assert served.plan() == {**plan, "mode": other}
