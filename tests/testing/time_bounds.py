"""How long tests wait before they call it a hang. Sanitized code is slow: CTest gives its tests more time
(cmake/DtrainTargets.cmake), and says here how many times as much."""
import os

FACTOR = int(os.environ.get("DTRAIN_TEST_TIME_FACTOR", "1"))


def bound_s(seconds):
    """`seconds` that are plenty for an ordinary build, for the build under test."""
    return FACTOR * seconds
