"""Errors that end the making of packages: one line, with what to do."""
import contextlib
import errno
import os
import shutil

FULL = (errno.ENOSPC, errno.EDQUOT)


class PackageError(Exception):
    pass


def number_of_full_disk(error):
    """ENOSPC or EDQUOT when `error` tells of it, else None. The error of shutil.copytree holds only texts."""
    if isinstance(error, shutil.Error):
        return next((number for number in FULL if os.strerror(number) in str(error)), None)
    return error.errno if error.errno in FULL else None


@contextlib.contextmanager
def writing_below(folder):
    """The error of a full disk names `folder`: shutil names the file that was read, which may be on
    another disk, and others name none."""
    try:
        yield
    except OSError as error:
        if number := number_of_full_disk(error):
            raise OSError(number, os.strerror(number), folder) from error
        raise
