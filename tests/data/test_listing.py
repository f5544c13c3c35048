from __future__ import annotations

import os
import re
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data.listing import list_files, natural
from penstock.errors import InputError


def _any(name: str) -> bool:
    return name.endswith(".x")


def _touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_a_folder_in_natural_order_without_what_is_hidden(tmp_path: Path) -> None:
    _touch(
        tmp_path, "b/2.x", "b/10.x", "b/.3.x", ".git/1.x", "a10.x", "a9.x", "notes.txt", "b/c/1.x"
    )
    found = list_files(tmp_path, _any).names
    assert [os.path.relpath(name, tmp_path) for name in found] == [
        "a9.x",
        "a10.x",
        "b/2.x",
        "b/10.x",
        "b/c/1.x",
    ]


@given(st.lists(st.text("ab01./", max_size=6), max_size=8))
def test_the_natural_order_is_one_order(names: list[str]) -> None:
    ordered = sorted(names, key=natural)
    names.reverse()
    assert sorted(names, key=natural) == ordered
    assert sorted(ordered) == sorted(names)


def test_patterns_lists_and_lists_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _touch(tmp_path, "d/1.x", "d/2.x", "d/10.x", "d/n.txt", "e/f/3.x")
    assert list_files("d/*.x", _any).names == ["d/1.x", "d/2.x", "d/10.x"]
    assert list_files("**/*.x", _any).names == ["d/1.x", "d/2.x", "d/10.x", "e/f/3.x"]
    assert list_files(["d/10.x", "e", "d/1.x"], _any).names == ["d/10.x", "e/f/3.x", "d/1.x"]
    Path("list.txt").write_text("d/2.x\n\nd/1.x\n")
    assert list_files("@list.txt", _any).names == ["d/2.x", "d/1.x"]
    listing = list_files("d", _any)
    monkeypatch.chdir("/")
    assert Path(listing.path(0)).read_text() == "d/1.x"


def test_a_name_with_magic_that_exists_is_a_name(tmp_path: Path) -> None:
    _touch(tmp_path, "a[1].x")
    assert len(list_files(tmp_path / "a[1].x", _any)) == 1


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file or folder at nowhere"):
        list_files("nowhere", _any)
    with pytest.raises(InputError, match="no list"):
        list_files("@nowhere", _any)
    (tmp_path / "gone.x").symlink_to(tmp_path / "nothing")
    with pytest.raises(InputError, match="a link to nothing"):
        list_files(tmp_path, _any)


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    _touch(tmp_path, "1.x")
    os.mkfifo(tmp_path / "2.x")
    for what in (tmp_path, tmp_path / "2.x", f"{tmp_path}/*.x"):
        with pytest.raises(InputError, match=r"expected a file at .*2\.x, found a pipe"):
            list_files(what, _any)
    with pytest.raises(InputError, match="found a device"):
        list_files("/dev/zero", _any)


def test_a_folder_that_links_to_itself_ends(tmp_path: Path) -> None:
    _touch(tmp_path, "d/1.x")
    (tmp_path / "d" / "again").symlink_to(tmp_path)
    assert len(list_files(tmp_path, _any)) == 1


def test_a_pattern_that_goes_deep_does_not_go_round(tmp_path: Path) -> None:
    _touch(tmp_path, "d/1.x", "d/e/2.x", "d/.hidden/4.x", "f/3.x", "f/1/2/5.x")
    (tmp_path / "d" / "again").symlink_to(tmp_path / "d")
    (tmp_path / "d" / "e" / "again").symlink_to(tmp_path / "d")
    (tmp_path / "d" / "e" / "aside").symlink_to(tmp_path / "f")
    base = str(tmp_path)
    below = ["d/e/aside/1/2/5.x", "d/e/aside/3.x"]
    assert list_files("d/**/*.x", _any, base).names == ["d/1.x", "d/e/2.x", *below]
    assert len(list_files("**/e/**/*.x", _any, base)) == 4
    assert list_files("f/**", _any, base).names == ["f/1/2/5.x", "f/3.x"]
    assert list_files("*/**/2/*", _any, base).names == ["d/e/aside/1/2/5.x", "f/1/2/5.x"]
    assert len(list_files(f"{base}/**/1.x", _any)) == 1


def test_a_pattern_of_nothing_is_refused(tmp_path: Path) -> None:
    _touch(tmp_path, "1.x")
    for nothing in ("2[3].x", "3*.x", "memory://no/such/*.x"):
        with pytest.raises(InputError, match=re.escape(nothing)):
            list_files(["1.x", nothing], _any, str(tmp_path))
    own = [str(tmp_path.resolve() / "1.x")]
    assert list_files("*.x", _any, str(tmp_path), own).left == own, "there was one"


def test_a_list_that_names_itself(tmp_path: Path) -> None:
    _touch(tmp_path, "1.x")
    (tmp_path / "a.txt").write_text("1.x\n@b.txt\n@b.txt\n")
    (tmp_path / "b.txt").write_text("1.x\n")
    assert list_files("@a.txt", _any, str(tmp_path)).names == ["1.x"] * 3, "twice is no circle"
    (tmp_path / "b.txt").write_text("@./a.txt\n")
    with pytest.raises(InputError, match=r"names itself: @\./a\.txt in .*b\.txt in .*a\.txt$"):
        list_files("@a.txt", _any, str(tmp_path))


def test_a_list_of_names_that_are_no_text(tmp_path: Path) -> None:
    names = [b"\xe9.x", "a\u2028b.x".encode(), b"c\x0bd.x"]
    for name in names:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).touch()
    (tmp_path / "list.txt").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(names))
    found = list_files("@list.txt", _any, str(tmp_path)).names
    assert [os.fsencode(name) for name in found] == names


def test_whether_files_are_as_they_were_found(tmp_path: Path) -> None:
    for name in ("a.x", "b.x", "c.x"):
        (tmp_path / name).write_text("12")
    listing = list_files(tmp_path, _any)
    before = (tmp_path / "b.x").stat()
    (tmp_path / "d.x").write_text("12")
    assert listing.unchanged(), "another one is none of them"
    os.utime(tmp_path / "b.x")
    assert not listing.unchanged()
    os.utime(tmp_path / "b.x", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert listing.unchanged()
    (tmp_path / "a.x").unlink()
    assert listing.unchanged(), "nothing else can be read in its place"
    (tmp_path / "c.x").write_text("123")
    assert not listing.unchanged()


def test_the_fingerprint_follows_names_sizes_and_times(tmp_path: Path) -> None:
    _touch(tmp_path, "1.x", "2.x")
    seen = [list_files(tmp_path, _any).fingerprint()]
    assert list_files(tmp_path, _any).fingerprint() == seen[0]
    os.utime(tmp_path / "1.x", ns=(1, 1))
    seen.append(list_files(tmp_path, _any).fingerprint())
    (tmp_path / "2.x").write_text("longer")
    seen.append(list_files(tmp_path, _any).fingerprint())
    (tmp_path / "2.x").rename(tmp_path / "3.x")
    seen.append(list_files(tmp_path, _any).fingerprint())
    assert len(set(seen)) == 4


def test_other_file_systems() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe(
        {"/listing/b10.x": b"1", "/listing/b2.x": b"22", "/listing/.h.x": b"", "/listing/n": b""}
    )
    listing = list_files("memory://listing", _any)
    assert listing.names == ["memory:///listing/b2.x", "memory:///listing/b10.x"]
    assert listing.sizes.tolist() == [2, 1]
    assert len(list_files("memory://listing/*10.x", _any)) == 1
    before = listing.fingerprint()
    memory.pipe("/listing/b2.x", b"33")
    assert list_files("memory://listing", _any).fingerprint() != before
    with pytest.raises(InputError, match="no file or folder at memory://nowhere"):
        list_files("memory://nowhere", _any)


def test_a_jobs_own_files_are_no_part_of_a_folder(tmp_path: Path) -> None:
    _touch(tmp_path, "d/1.x", "d/out.x", "d/out.x.parts/1.x", "d/out.x.log.x", "d/out.xx.x")
    (tmp_path / "link").symlink_to(tmp_path / "d")
    own = [f"{tmp_path}/d/out.x"]
    for folder in ("d", "link"):
        for what in (tmp_path / folder, tmp_path / folder / "*.x"):
            listing = list_files(what, _any, without=own)
            assert [Path(name).name for name in listing.names] == ["1.x", "out.xx.x"]
            assert own[0] in listing.left
        with pytest.raises(InputError, match=r"out\.x is to be read and to be written over"):
            list_files([tmp_path / folder / "1.x", tmp_path / folder / "out.x"], _any, without=own)
    (tmp_path / "other.x").symlink_to(tmp_path / "d" / "out.x")
    with pytest.raises(InputError, match="to be written over"):
        list_files(tmp_path / "other.x", _any, without=own)


def test_nothing_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _touch(tmp_path, "1.x")
    with pytest.raises(InputError, match="expected a path, got ''"):
        list_files("", _any)
