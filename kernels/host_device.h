// DT_HOST_DEVICE for this room's arithmetic.
#pragma once

#include "base/numeric/host_device.h"  // IWYU pragma: export
