// A step's settings as the options of the kernels: one place for the host's and the device's rules.
// Pure.
#pragma once

#include "dtrain/optimizer_config.h"
#include "kernels/optimizer/adagrad.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/lamb.h"
#include "kernels/optimizer/lion.h"
#include "kernels/optimizer/muon.h"
#include "kernels/optimizer/sgd.h"
#include "runtime/optimizer/update_rule.h"

namespace dtrain {

// Muon has AdamW's too, for parameters that are no hidden matrices.
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
