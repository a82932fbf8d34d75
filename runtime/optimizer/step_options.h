// A step's settings as the options of the kernels: one place for the host's and the device's rules.
// Pure.
#pragma once

#include "dtrain/optimizer_config.h"
#include "kernels/adagrad.h"
#include "kernels/adamw.h"
#include "kernels/lamb.h"
#include "kernels/lion.h"
#include "kernels/muon.h"
#include "kernels/sgd.h"
#include "runtime/optimizer/update_rule.h"

namespace dtrain {

// Also of Muon, for what is no hidden matrix.
kernels::AdamWOptions AdamWOptionsOf(const OptimizerConfig& optimizer, const UpdateStep& step,
                                     const ParamSettings& settings);
kernels::SgdOptions SgdOptionsOf(const OptimizerConfig& optimizer, const UpdateStep& step,
                                 const ParamSettings& settings);
kernels::LionOptions LionOptionsOf(const OptimizerConfig& optimizer, const UpdateStep& step,
                                   const ParamSettings& settings);
kernels::LambOptions LambOptionsOf(const OptimizerConfig& optimizer, const UpdateStep& step,
                                   const ParamSettings& settings);
kernels::MuonOptions MuonOptionsOf(const OptimizerConfig& optimizer, const UpdateStep& step,
                                   const ParamSettings& settings);
kernels::AdagradOptions AdagradOptionsOf(const OptimizerConfig& optimizer, const UpdateStep& step,
                                         const ParamSettings& settings);

}  // namespace dtrain
