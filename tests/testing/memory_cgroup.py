"""Memory cgroups of a test's own, where this user may make them (root; cgroup version 1 or 2)."""
import os
import tempfile


def memory_group():
    """(folder in which a test can make a memory group, name of the group's limit), or None. Version 2 has limits
    only where no process is beside the group, so there the folder may be one above that of this process."""
    with open("/proc/self/cgroup", encoding="ascii") as file:
        paths = {line.split(":")[1]: line.strip().split(":", 2)[2] for line in file}
    version1 = f"/sys/fs/cgroup/memory{paths.get('memory', '/missing')}"
    version2 = f"/sys/fs/cgroup{paths.get('', '/missing')}"
    folders = [(version1, "memory.limit_in_bytes")]
    while version2.startswith("/sys/fs/cgroup"):
        folders.append((version2, "memory.max"))
        version2 = os.path.dirname(version2)
    for folder, limit in folders:
        try:
            probe = tempfile.mkdtemp(prefix="dtrain-probe-", dir=folder)
        except OSError:
            continue
        found = os.access(f"{probe}/{limit}", os.W_OK)
        os.rmdir(probe)
        if found:
            return folder, limit
    return None
