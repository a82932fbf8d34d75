// Everything that a training program uses.
#pragma once

#include "base/status.h"          // IWYU pragma: export
#include "dtrain/checkpointer.h"  // IWYU pragma: export
#include "dtrain/config.h"        // IWYU pragma: export
#include "dtrain/construct.h"     // IWYU pragma: export
#include "dtrain/data_loader.h"   // IWYU pragma: export
#include "dtrain/ema.h"           // IWYU pragma: export
#include "dtrain/engine.h"        // IWYU pragma: export
#include "dtrain/flops.h"         // IWYU pragma: export
#include "dtrain/fp8.h"           // IWYU pragma: export
#include "dtrain/job.h"           // IWYU pragma: export
#include "dtrain/lora.h"          // IWYU pragma: export
#include "dtrain/loss.h"          // IWYU pragma: export
#include "dtrain/main.h"          // IWYU pragma: export
#include "dtrain/metrics.h"       // IWYU pragma: export
#include "dtrain/model_files.h"   // IWYU pragma: export
#include "dtrain/optimizer.h"     // IWYU pragma: export
#include "dtrain/token_loader.h"  // IWYU pragma: export
#include "dtrain/tracked.h"       // IWYU pragma: export
#include "dtrain/warm_start.h"    // IWYU pragma: export
