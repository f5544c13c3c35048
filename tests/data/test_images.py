from __future__ import annotations

from pathlib import Path

import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from penstock.data import Chunk, open_source
from penstock.data.images import Decoder
from penstock.data.raw import RawFiles
from penstock.errors import ConfigError, InputError
from tests.data.pictures import encoded, fill, scene

HEIGHT, WIDTH = 60, 80


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pictures") / "images"
    fill(place)
    return place


def _by_name(chunk: Chunk) -> dict[str, np.ndarray]:
    return {Path(key).name: row for key, row in zip(chunk.keys, chunk.columns[""], strict=True)}


def test_every_kind_becomes_upright_rgb(folder: Path) -> None:
    source = open_source(folder, size=(HEIGHT, WIDTH))
    rows = _by_name(source.read(0, len(source)))
    wanted = np.asarray(scene(160, 120).resize((WIDTH, HEIGHT), 2)).astype(int)
    for name in ("photo1.jpg", "photo10.png", "web.webp", "side.jpg", "upside.jpg", "alpha.png"):
        assert np.abs(rows[name] - wanted).mean() < 3, name
    assert np.abs(rows["photo2.JPEG"] - wanted).mean() < 3
    for name in ("cmyk.jpg", "palette.png", "palette_clear.png"):  # colours change a little
        assert np.abs(rows[name] - wanted).mean() < 12, name
    grey = np.asarray(scene(160, 120).convert("L").resize((WIDTH, HEIGHT), 2)).astype(int)
    for name in ("grey.png", "grey16.png"):
        assert np.abs(rows[name] - grey[..., None]).mean() < 1, name


def test_what_does_not_decode_is_a_failed_row(folder: Path) -> None:
    chunk = open_source(folder, size=HEIGHT).read(0, 100)
    failed = {Path(str(failure.key)).name: failure for failure in chunk.failures}
    assert sorted(failed) == sorted(p.name for p in folder.iterdir() if p.name.startswith("bad_"))
    assert {failure.kind for failure in chunk.failures} == {"decode"}
    assert "no bytes" in failed["bad_empty.png"].message
    assert "b'This is a te" in failed["bad_text.jpg"].message
    assert "truncated" in failed["bad_cut.jpg"].message
    for failure in chunk.failures:
        assert chunk.keys[failure.row] == failure.key
        assert not chunk.columns[""][failure.row].any()
        assert " at 0x" not in failure.message  # the same words in every run
    assert chunk.good.sum() == len(chunk) - len(failed)


def test_names_are_keys_in_the_natural_order(folder: Path) -> None:
    names = [Path(key).name for key in open_source(folder, size=8).read(0, 100).keys]
    assert names.index("photo1.jpg") < names.index("photo2.JPEG") < names.index("photo10.png")
    assert len(names) == len(list(folder.iterdir()))


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGBA", 4)])
def test_modes(folder: Path, mode: str, channels: int) -> None:
    source = open_source(
        [folder / "alpha.png", folder / "grey.png"], size=(HEIGHT, WIDTH), mode=mode
    )
    chunk = source.read(0, 2)
    assert chunk.columns[""].shape == (2, HEIGHT, WIDTH, channels)
    assert not chunk.failures
    if mode == "RGBA":
        assert set(chunk.columns[""][..., 3].reshape(2, -1)[0]) == {100}


def test_fits(tmp_path: Path) -> None:
    (tmp_path / "wide.png").write_bytes(encoded(scene(400, 100), "PNG"))
    by = {
        fit: open_source(tmp_path, size=50, fit=fit, resample="nearest").read(0, 1).columns[""][0]
        for fit in ("stretch", "crop", "pad")
    }
    assert by["stretch"][25, :, 0].min() < 5
    assert by["stretch"][25, :, 0].max() > 250
    assert 90 < by["crop"][25, :, 0].min() < by["crop"][25, :, 0].max() < 165
    assert not by["pad"][:15].any()
    assert by["pad"][25].any()


def test_draft_is_close_and_another_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "large.jpg").write_bytes(encoded(scene(1600, 1200), "JPEG", quality=95))
    exact, draft = (open_source(tmp_path, size=(HEIGHT, WIDTH), draft=how) for how in (False, True))
    one, other = (source.read(0, 1).columns[""].astype(int) for source in (exact, draft))
    assert 0 < np.abs(one - other).mean() < 4
    assert exact.fingerprint() != draft.fingerprint()


def test_raw_bytes(folder: Path) -> None:
    source = open_source(folder, decode=False)
    chunk = source.read(3, 6)
    assert not source.decodes
    for key, data in zip(chunk.keys, chunk.columns[""], strict=True):
        assert data == Path(key).read_bytes()
    assert source.costs().tolist() == [Path(k).stat().st_size for k in source.read(0, 99).keys]


def test_decoded_into_given_memory(folder: Path) -> None:
    source = open_source(folder, size=16)
    place = np.full((9, 16, 16, 3), 7, np.uint8)
    chunk = source.read(2, 8, {"": place})
    assert np.shares_memory(chunk.columns[""], place)
    assert np.array_equal(place[:6], source.read(2, 8).columns[""])
    assert (place[6:] == 7).all()


def test_bytes_of_a_few_images_are_in_memory_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        data = b"" if number % 40 == 33 else encoded(scene(9 + number, 12), "PNG")
        (tmp_path / f"{number}.png").write_bytes(data)
    source = open_source(tmp_path, size=8)
    one_by_one = [source.read(row, row + 1) for row in range(100)]
    read, most = RawFiles.read, []
    monkeypatch.setattr(
        RawFiles, "read", lambda self, a, b, out=None: most.append(b - a) or read(self, a, b, out)
    )
    chunk = source.read(3, 99)
    assert max(most) <= 32
    assert [failure.row for failure in chunk.failures] == [33, 73]
    assert chunk.failures == tuple(f for one in one_by_one for f in one.failures)
    assert chunk.keys.tolist() == [one.keys[0] for one in one_by_one[3:99]]
    for row, pixels in enumerate(chunk.columns[""], 3):
        assert np.array_equal(pixels, one_by_one[row].columns[""][0])
    assert len(source.read(100, 200)) == len(source.read(5, 5)) == 0


def test_keys_are_told_without_decoding(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(folder, size=8)
    known = source.read(2, 5).keys.tolist()
    monkeypatch.setattr(Decoder, "decode", lambda *_: pytest.fail("decoded"))
    assert source.keys(2, 5).tolist() == known


def test_images_in_a_column(folder: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = sorted(folder.iterdir())
    table = pa.table({"name": [p.name for p in files], "image": [p.read_bytes() for p in files]})
    pq.write_table(table, tmp_path / "images.parquet")
    source = open_source(tmp_path / "images.parquet", images="image", size=16, key="name")
    chunk = source.read(0, 99)
    assert source.decodes
    assert {failure.key for failure in chunk.failures} == {
        p.name for p in files if p.name.startswith("bad_")
    }
    plain = _by_name(open_source(folder, size=16).read(0, 99))
    for name, row in zip(chunk.keys, chunk.columns["image"], strict=True):
        assert np.array_equal(row, plain[name])


def test_a_column_of_paths_holds_no_images(tmp_path: Path) -> None:
    table = pyarrow.table({"image": ["a.jpg"]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    (failure,) = open_source(tmp_path / "t.parquet", images="image", size=8).read(0, 1).failures
    assert failure.message == "expected the bytes of an image, got the text 'a.jpg'"


def test_a_file_that_may_not_be_read_fails_and_one_that_is_gone_stops(tmp_path: Path) -> None:
    fill(tmp_path)
    source = open_source(tmp_path, size=8)
    (tmp_path / "photo1.jpg").unlink()
    (tmp_path / "photo1.jpg").mkdir()
    assert [f.kind for f in source.read(0, 99).failures].count("unreadable") == 1
    (tmp_path / "photo1.jpg").rmdir()
    with pytest.raises(InputError, match=r"photo1\.jpg was there when it was listed and is gone"):
        source.read(0, 99)


def test_images_elsewhere(folder: Path) -> None:
    memory = fsspec.filesystem("memory")
    for path in folder.iterdir():
        memory.pipe(f"/pictures/{path.name}", path.read_bytes())
    here, there = open_source(folder, size=8), open_source("memory://pictures", size=8)
    one, other = here.read(0, 99), there.read(0, 99)
    assert np.array_equal(one.columns[""], other.columns[""])
    assert [f.row for f in one.failures] == [f.row for f in other.failures]
    memory.rm_file("/pictures/photo1.jpg")
    with pytest.raises(InputError, match=r"photo1\.jpg was there when it was listed and is gone"):
        there.read(0, 99)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"expected size=\(height, width\)"),
        ({"size": (0, 5)}, r"expected \(height, width\)"),
        ({"size": 5, "mode": "CMYK"}, "mode: expected one of RGB, L, RGBA"),
        ({"size": 5, "resample": "best"}, "resample: expected one of nearest"),
        ({"decode": False, "size": 5}, "unknown option size"),
        ({"columns": ["x"], "size": 5}, "unknown option columns"),
    ],
)
def test_bad_options(folder: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_source(folder, **options)
