from __future__ import annotations

import os

import pytest

from camshaft.checkpoint.fingerprint import fingerprint

SIZE = 2**20


def weights(path, value: int = 1):
    path.write_bytes(bytes([value]) * SIZE)
    os.utime(path, (0, 1000))
    return path


def test_the_same_files_have_the_same_fingerprint(tmp_path):
    (tmp_path / "copy").mkdir()
    first, second = weights(tmp_path / "a.gguf"), weights(tmp_path / "copy" / "a.gguf")
    assert fingerprint([first]) == fingerprint([first]) == fingerprint([second])
    assert len(fingerprint([first])) == 16


def test_TIR_03_other_weights_of_the_same_shape_differ(tmp_path):
    first = fingerprint([weights(tmp_path / "a.gguf")])
    assert fingerprint([weights(tmp_path / "a.gguf", value=2)]) != first


@pytest.mark.parametrize("place", [0, SIZE // 2, SIZE - 1])
def test_one_byte_and_the_time_of_an_edit_make_a_difference(tmp_path, place):
    path = weights(tmp_path / "a.gguf")
    before = fingerprint([path])
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    assert fingerprint([path]) != before


def test_the_order_and_number_of_files_count(tmp_path):
    files = [weights(tmp_path / "a.gguf"), weights(tmp_path / "b.gguf")]
    assert len({fingerprint(files), fingerprint(files[::-1]), fingerprint(files[:1])}) == 3


def test_short_and_empty_files_have_one_too(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(b"abc")
    short = fingerprint([path])
    path.write_bytes(b"")
    assert fingerprint([path]) != short
