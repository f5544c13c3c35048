from __future__ import annotations

import random
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data import listing
from penstock.data.files import Facts
from penstock.data.listing import Listing, list_files, natural
from penstock.data.names import Names

ANY = st.text(st.characters(exclude_categories=()) | st.sampled_from("/ab1"), max_size=12)


def _names(texts: list[str]) -> Names:
    names = Names()
    for text in texts:
        names.append(text)
    return names


def _by_pieces(name: str) -> tuple[list[str | int], str]:
    """The natural order as one would say it, with a list for a key."""
    parts: list[str | int] = []
    for step in name.split("/"):
        pieces = re.split(r"(\d+)", step)
        parts += [piece if index % 2 == 0 else int(piece) for index, piece in enumerate(pieces)]
        parts.append(-1)
    return parts, name


@given(st.lists(ANY, max_size=12))
def test_names_are_what_was_appended(texts: list[str]) -> None:
    names = _names(texts)
    for same in (names, Names.of(names.arrays())):
        assert list(same) == texts
        assert same == texts
        assert [same[at] for at in range(-len(texts), len(texts))] == texts * 2
        assert same[1:-1] == texts[1:-1]
        with pytest.raises(IndexError):
            same[len(texts)]


@given(st.lists(st.text("ab019٣./\U0001f600", max_size=8), max_size=8))
def test_keys_are_ordered_as_the_pieces_of_names(texts: list[str]) -> None:
    assert sorted(texts, key=natural) == sorted(texts, key=_by_pieces)


def test_a_folder_is_sorted_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"d{folder}/{name}" for folder in ("1", "01", "2", "2.x") for name in "cab"]
    names += ["d1.x", "d01.x", "d3.x", "d10.x"]
    for name in names:
        path = tmp_path / (name if name.endswith(".x") else f"{name}.x")
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    whole = list_files(tmp_path, lambda name: name.endswith(".x"))
    monkeypatch.setattr(listing, "_SORTED_AT_ONCE", 3)
    merged = list_files(tmp_path, lambda name: name.endswith(".x"))
    assert len(merged) == len(names)
    assert list(merged.names) == sorted(merged.names, key=_by_pieces)
    assert merged.names == whole.names
    assert merged.sizes.tolist() == whole.sizes.tolist()
    assert merged.fingerprint() == whole.fingerprint()


def test_a_pattern_that_finds_a_file_twice_means_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a/b").mkdir(parents=True)
    Path("a/b/1.x").touch()
    assert list_files("**/**/*.x", lambda name: True).names == ["a/b/1.x"]


def test_a_listing_is_mapped_by_another_process(tmp_path: Path) -> None:
    for names in (["b/2.x", "b/10.x", "\udcff.x", "c/é.x"], ["1.x"]):
        found = [(name, Facts(7 + at, f"stamp {at}")) for at, name in enumerate(names)]
        one = Listing(found, "/base")
        again = Listing.load(one.save(tmp_path / "names"))
        assert again.names == names
        assert again.sizes.tolist() == one.sizes.tolist()
        assert again.path(0) == f"/base/{names[0]}"
        assert again.fingerprint() == one.fingerprint()
        for changed in ("other", "stamp 0"):
            other = Listing([(f"{names[0]}x", Facts(7, changed)), *found[1:]], "/base")
            assert other.fingerprint() != one.fingerprint()


def test_names_take_little_memory_while_they_are_sorted_and_after() -> None:
    count = 200_000
    order = list(range(count))
    random.Random(5).shuffle(order)

    tracemalloc.start()
    try:
        one = Listing(
            listing._sorted(
                (f"images/class{at // 1000}/photo{at}.jpg", Facts(at, "1763447938000000000"))
                for at in order
            ),
            "/",
        )
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert one.names[0] == "images/class0/photo0.jpg"
    assert len(one) == count
    assert kept < 50 * count
    assert peak < 300 * count
