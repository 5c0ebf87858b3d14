"""The lock of a file or folder: alone or shared, and of the file that has the name now."""

import os

import pytest

from everytoken.locks import locked


def test_a_lock_is_held_alone_and_free_afterwards(tmp_path):
    with locked(tmp_path), pytest.raises(BlockingIOError), locked(tmp_path, wait=False, shared=True):
        pass
    with locked(tmp_path, wait=False):
        pass


def test_readers_share_a_lock_that_no_writer_gets(tmp_path):
    with (
        locked(tmp_path, shared=True),
        locked(tmp_path, shared=True, wait=False),
        pytest.raises(BlockingIOError),
        locked(tmp_path, wait=False),
    ):
        pass


def test_a_file_that_was_replaced_while_it_was_opened_is_opened_again(tmp_path):
    path, opened = tmp_path / "file", []

    def make():
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        opened.append(descriptor)
        if len(opened) == 1:
            path.unlink()
        return descriptor

    with locked(path, make) as descriptor:
        assert len(opened) == 2
        assert os.path.samestat(os.fstat(descriptor), path.stat())


def test_what_is_missing_cannot_be_locked(tmp_path):
    with pytest.raises(FileNotFoundError), locked(tmp_path / "missing"):
        pass
