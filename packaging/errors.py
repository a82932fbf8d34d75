"""What ends the making of packages: one line, with what to do."""


class PackageError(Exception):
    pass
