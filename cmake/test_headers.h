// Precompiled for every torch-free test.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cmake/common_headers.h"
