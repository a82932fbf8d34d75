#include "runtime/plan/config/config_keys.h"

#include <iterator>
#include <vector>

namespace dtrain::plan {
namespace {

// Path, type, default (JSON), range, use, supported values (JSON list), flags, meaning. Comment
// lines are the headings of docs/CONFIG.md's groups for the reader of the source; the document
// takes its own from the first part of the path.
constexpr ConfigKey kKeys[] = {
    // The run.
    {"train_steps", KeyType::kInteger, "null", "[1, inf)", KeyUse::kUsed, "", 0,
     "Number of optimizer steps in the run. If it is not set, it follows from train_epochs; if "
     "that is not set either, the run takes scheduler.params.total_num_steps, or else 1000."},
    {"train_epochs", KeyType::kNumber, "null", "(0, inf)", KeyUse::kUsed, "", 0,
     "Length of the run in rounds through the training data, such as 3 or 0.5, in place of "
     "train_steps: the run takes train_epochs * windows of data.train / train_batch_size steps, "
     "rounded up. With data of its own, a program says how many steps an epoch takes "
     "(Job::SetStepsPerEpoch). An epoch of a mixture is as many samples as its parts hold "
     "together. With --set, train_steps and train_epochs replace each other."},
    {"eval_interval", KeyType::kInteger, "0", "[0, inf)", KeyUse::kUsed, "", 0,
     "Evaluates after every N steps and after the last one. 0 turns evaluation off."},
    {"eval_batches", KeyType::kInteger, "16", "[1, inf)", KeyUse::kUsed, "", 0,
     "Number of global batches (train_batch_size) in one evaluation. Every evaluation reads the "
     "same windows, the first ones of data.validation, whatever the number of ranks. If there are "
     "fewer, it reads each of them once, and its last batch is short."},
    {"seed", KeyType::kInteger, "1234", "[0, inf)", KeyUse::kUsed, "", kIdentity,
     "Seed of the initial weights, of dropout and of the order of the data. Dropout draws anew for "
     "each micro-batch: its masks depend on train_micro_batch_size_per_gpu, but not on the number "
     "of ranks."},
    {"deterministic", KeyType::kBool, "false", "", KeyUse::kUsed, "", kIdentity,
     "Sums gradients in the order of the ranks, so that results are bit-equal for every bucket "
     "size and transport."},
    {"device", KeyType::kString, "\"auto\"", "auto|cpu|cuda", KeyUse::kUsed, "", 0,
     "Chooses where ranks train. cuda: each rank uses the GPU whose number is its local rank. cpu: "
     "on the CPU. auto: on GPUs if the machine has any, otherwise on the CPU."},
    {"cuda_graphs", KeyType::kBool, "false", "", KeyUse::kUsed, "", 0,
     "On GPUs, captures CUDA graphs of forward and backward of a micro-batch (stages 0 and 1) and "
     "of the update (stages 0 and 3). A graph is launched as one operation. Results do not change. "
     "The loss function runs only during the capture. Its host code (counters, prints, branches, "
     "host random numbers) therefore runs once, and the tensors that it reads must stay at the "
     "same address. A micro-batch that cannot be captured runs without a graph, and one log line "
     "gives the reason."},
    {"module_buffers", KeyType::kString, "\"broadcast\"", "broadcast|average|local", KeyUse::kUsed,
     "", kIdentity,
     "Says what happens to the module's buffers (BatchNorm's statistics, counters) after a step in "
     "which any rank's have changed. broadcast: all ranks take those of rank 0, as torch's "
     "DistributedDataParallel does. average: floating-point buffers become the mean over the "
     "ranks, and all others are those of rank 0. local: each rank keeps its own; evaluations and "
     "the checkpoint's model/ use those of rank 0, and a resume on the same number of ranks gives "
     "each rank its own back. Buffers that never change cost nothing."},
    // Batch.
    {"train_batch_size", KeyType::kInteger, "null", "[1, 2147483648]", KeyUse::kUsed, "",
     kAutoAllowed | kIdentity,
     "Samples in one optimizer step, over all ranks. If it is not set or \"auto\", it is computed "
     "from the other two batch keys."},
    {"train_micro_batch_size_per_gpu", KeyType::kInteger, "null", "[1, 2147483648]", KeyUse::kUsed,
     "", kAutoAllowed,
     "Samples that one rank sends through the model at a time. If it is not set or \"auto\", it is "
     "computed from the other two batch keys. If one of this key and train_batch_size is \"auto\" "
     "and neither is a number, it is 8, as in the Hugging Face Trainer."},
    {"gradient_accumulation_steps", KeyType::kInteger, "null", "[1, 2147483648]", KeyUse::kUsed, "",
     kAutoAllowed,
     "Micro-batches of each rank in one optimizer step. If it is not set or \"auto\", it is "
     "computed from the other two batch keys."},
    // Optimizer.
    {"optimizer.type", KeyType::kString, "\"AdamW\"",
     "AdamW|Adam|Adagrad|Lamb|Lion|Muon|SGD|OneBitAdam|ZeroOneAdam|OneBitLamb", KeyUse::kRefused,
     "[\"AdamW\", \"Adam\", \"SGD\", \"Lion\", \"Lamb\", \"Adagrad\", \"Muon\"]", kIdentity,
     "Chooses the optimizer. Upper and lower case make no difference. Adam means AdamW unless "
     "adam_w_mode is false. DeepSpeed's OneBitAdam, ZeroOneAdam and OneBitLamb are refused; use "
     "comm.compression instead."},
    {"optimizer.params.lr", KeyType::kNumber, "1e-3", "[0, inf)", KeyUse::kUsed, "",
     kAutoAllowed | kIdentity,
     "Learning rate. \"auto\" takes the default of the optimizer type (see the table above)."},
    {"optimizer.params.betas", KeyType::kNumberPair, "[0.9, 0.999]", "[0, 1)", KeyUse::kUsed, "",
     kAutoAllowed | kIdentity,
     "Decay rates of the first and the second moment. \"auto\" takes the default of the optimizer "
     "type."},
    {"optimizer.params.eps", KeyType::kNumber, "1e-8", "(0, inf)", KeyUse::kUsed, "",
     kAutoAllowed | kIdentity,
     "Small number added to the root of the second moment. \"auto\" takes the default of the "
     "optimizer type."},
    {"optimizer.params.weight_decay", KeyType::kNumber, "0", "[0, inf)", KeyUse::kUsed, "",
     kAutoAllowed | kIdentity, "Weight decay. \"auto\" takes 0."},
    {"optimizer.params.adam_w_mode", KeyType::kBool, "true", "", KeyUse::kUsed, "", kIdentity,
     "Applies to type Adam only. true: decays weights directly (AdamW). false: adds the decay to "
     "the gradient (Adam)."},
    {"optimizer.params.momentum", KeyType::kNumber, "0", "[0, 1)", KeyUse::kUsed, "", kIdentity,
     "Momentum of SGD and Muon. Muon's default is 0.95."},
    {"optimizer.params.dampening", KeyType::kNumber, "0", "[0, 1]", KeyUse::kUsed, "", kIdentity,
     "SGD: adds only the share (1 - dampening) of each gradient to the momentum."},
    {"optimizer.params.nesterov", KeyType::kBool, "false", "", KeyUse::kUsed, "", kIdentity,
     "SGD: uses Nesterov momentum, which needs momentum above 0 and dampening 0. Muon always uses "
     "it."},
    {"optimizer.params.max_coeff", KeyType::kNumber, "10.0", "(0, inf)", KeyUse::kUsed, "",
     kIdentity, "Lamb: upper limit of the trust ratio."},
    {"optimizer.params.min_coeff", KeyType::kNumber, "0.01", "[0, inf)", KeyUse::kUsed, "",
     kIdentity, "Lamb: lower limit of the trust ratio."},
    {"optimizer.params.eps_inside_sqrt", KeyType::kBool, "false", "", KeyUse::kRefused, "[false]",
     kIdentity, "Lamb always adds eps outside the square root."},
    {"optimizer.params.lr_decay", KeyType::kNumber, "0", "[0, inf)", KeyUse::kUsed, "", kIdentity,
     "Adagrad: update n (counted from 0) uses the learning rate lr / (1 + lr_decay * n)."},
    {"optimizer.params.initial_accumulator_value", KeyType::kNumber, "0", "[0, inf)", KeyUse::kUsed,
     "", kIdentity, "Adagrad: start value of the sum of squared gradients."},
    {"optimizer.params.muon_lr", KeyType::kNumber, "null", "[0, inf)", KeyUse::kUsed, "", kIdentity,
     "Muon: learning rate of the matrices. If it is not set, it is lr, or 0.02 if lr is not set."},
    {"optimizer.params.adam_lr", KeyType::kNumber, "null", "[0, inf)", KeyUse::kUsed, "", kIdentity,
     "Muon: learning rate of all other parameters. If it is not set, it is lr, or 3e-4 if lr is "
     "not set."},
    {"optimizer.params.ns_method", KeyType::kString, "\"gram\"", "gram|standard", KeyUse::kIgnored,
     "", 0,
     "dtrain computes Muon's Newton-Schulz iteration in fp32, whichever order of operations is "
     "named."},
    {"optimizer.params.per_head_muon", KeyType::kBool, "false", "", KeyUse::kRefused, "[false]",
     kIdentity, "Muon always orthogonalises whole matrices, not single heads."},
    {"optimizer.params.bias_correction", KeyType::kBool, "true", "", KeyUse::kUsed, "", kIdentity,
     "AdamW, Adam and Lamb: corrects the moments for their start at zero. false: the first steps "
     "take the moments as they are."},
    {"optimizer.params.amsgrad", KeyType::kBool, "false", "", KeyUse::kRefused, "[false]",
     kIdentity, "Use AdamW without AMSGrad."},
    {"optimizer.params.torch_adam", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "dtrain has one implementation of Adam."},
    {"optimizer.params.fused", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "The update is always fused into one pass."},
    {"optimizer.params.max_grad_norm", KeyType::kNumber, "null", "", KeyUse::kRefused, "[0]", 0,
     "Set gradient_clipping instead."},
    {"optimizer.legacy_fusion", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "dtrain has one implementation of each optimizer."},
    {"optimizer.no_weight_decay", KeyType::kStringList, "[]", "", KeyUse::kUsed, "", kIdentity,
     "Names of parameters that get no weight decay. In a name, * matches any text, for example "
     "\"*.bias\" or \"*norm*\". With the empty list every parameter is decayed, as in torch."},
    {"optimizer.param_groups", KeyType::kObjectList, "[]", "", KeyUse::kUsed, "", kIdentity,
     "Settings for some parameters, chosen by name. The section above explains the format."},
    {"engines", KeyType::kFree, "{}", "", KeyUse::kUsed, "", kIdentity,
     "Settings of single engines of a program that has several: an object with an object for each "
     "engine by its name, as the program gives it (EngineOptions::name). Its keys are lr, "
     "weight_decay, betas and eps, which replace those of optimizer.params, gradient_clipping, "
     "gradient_accumulation_steps and param_groups. A key that is absent has the value of all "
     "engines."},
    {"optimizer.skip_unused_parameters", KeyType::kBool, "false", "", KeyUse::kUsed, "", kIdentity,
     "Leaves parameters that no rank's loss used in a step as they are, with their states, as "
     "torch does with parameters that have no gradient. Such a step does not count as one of "
     "their updates (bias correction). With false their gradient is zero: weight decay and the "
     "optimizer's states move them. Each such parameter is named once in the log."},
    {"gradient_clipping", KeyType::kNumber, "1.0", "[0, inf)", KeyUse::kUsed, "",
     kAutoAllowed | kIdentity,
     "Clips the global gradient norm to this value. 0 turns clipping off. \"auto\" takes 1.0. The "
     "default is the one of DeepSpeed 0.19; older releases of DeepSpeed do not clip unless this "
     "key is set."},
    {"gradient_clipping_value", KeyType::kNumber, "0", "[0, inf)", KeyUse::kUsed, "", kIdentity,
     "Clips each element of the gradient to this magnitude, after gradient_clipping. 0 turns it "
     "off."},
    // Scheduler (it steps after the optimizer).
    {"scheduler.type", KeyType::kString, "null",
     "WarmupLR|WarmupDecayLR|WarmupCosineLR|LRRangeTest|OneCycle|WSD", KeyUse::kUsed, "", kIdentity,
     "The learning-rate schedule. If it is not set, the learning rate is constant."},
    {"scheduler.params.warmup_min_lr", KeyType::kNumber, "0", "[0, inf)", KeyUse::kUsed, "",
     kAutoAllowed | kIdentity,
     "WarmupLR, WarmupDecayLR: learning rate at the start of warm-up. \"auto\" takes 0."},
    {"scheduler.params.warmup_max_lr", KeyType::kNumber, "null", "[0, inf)", KeyUse::kUsed, "",
     kAutoAllowed | kIdentity,
     "WarmupLR, WarmupDecayLR: learning rate at the end of warm-up. If it is not set, WarmupLR "
     "takes the optimizer's lr and WarmupDecayLR takes 0.001. \"auto\" takes the optimizer's lr "
     "for both."},
    {"scheduler.params.warmup_num_steps", KeyType::kInteger, "1000", "[0, inf)", KeyUse::kUsed, "",
     kAutoAllowed | kIdentity,
     "Steps of warm-up. The values 0 and 1 act as 2, as in DeepSpeed; WSD takes them as they are. "
     "\"auto\" takes train_steps / 50, at least 1. If it is not set, WSD takes total_num_steps / "
     "50."},
    {"scheduler.params.warmup_type", KeyType::kString, "\"log\"", "log|linear", KeyUse::kUsed, "",
     kIdentity, "Shape of the warm-up curve. log: ln(n + 1) / ln(N). linear: n / N."},
    {"scheduler.params.total_num_steps", KeyType::kInteger, "null", "[1, inf)", KeyUse::kUsed, "",
     kAutoAllowed | kIdentity,
     "WarmupDecayLR, WarmupCosineLR, WSD: step at which the decay ends. If it is not set or "
     "\"auto\", it is train_steps, also where that follows from train_epochs."},
    {"scheduler.params.warmup_min_ratio", KeyType::kNumber, "0", "[0, 1]", KeyUse::kUsed, "",
     kIdentity,
     "WarmupCosineLR, WSD: learning rate at the start of warm-up, as a share of the optimizer's "
     "lr."},
    {"scheduler.params.cos_min_ratio", KeyType::kNumber, "1e-4", "[0, 1]", KeyUse::kUsed, "",
     kIdentity,
     "WarmupCosineLR: learning rate at the end of the cosine, as a share of the optimizer's lr."},
    {"scheduler.params.last_batch_iteration", KeyType::kInteger, "-1", "", KeyUse::kRefused, "[-1]",
     0, "Remove this key. A resumed run continues the schedule from its checkpoint."},
    {"scheduler.params.lr_range_test_min_lr", KeyType::kNumber, "1e-3", "(0, inf)", KeyUse::kUsed,
     "", kIdentity, "LRRangeTest: the first learning rate."},
    {"scheduler.params.lr_range_test_step_rate", KeyType::kNumber, "1.0", "[0, inf)", KeyUse::kUsed,
     "", kIdentity,
     "LRRangeTest: growth of the learning rate in each interval, as a multiple of the first "
     "learning rate."},
    {"scheduler.params.lr_range_test_step_size", KeyType::kInteger, "2000", "[1, inf)",
     KeyUse::kUsed, "", kIdentity, "LRRangeTest: steps in one interval."},
    {"scheduler.params.lr_range_test_staircase", KeyType::kBool, "false", "", KeyUse::kUsed, "",
     kIdentity, "LRRangeTest: raises the learning rate only at the end of each interval."},
    {"scheduler.params.cycle_min_lr", KeyType::kNumber, "null", "[0, inf)", KeyUse::kUsed, "",
     kIdentity,
     "OneCycle: learning rate at the start and at the end of the cycle. OneCycle requires this "
     "key."},
    {"scheduler.params.cycle_max_lr", KeyType::kNumber, "null", "[0, inf)", KeyUse::kUsed, "",
     kIdentity, "OneCycle: highest learning rate of the cycle. OneCycle requires this key."},
    {"scheduler.params.cycle_first_step_size", KeyType::kInteger, "2000", "[1, inf)", KeyUse::kUsed,
     "", kIdentity, "OneCycle: steps in which the learning rate rises."},
    {"scheduler.params.cycle_second_step_size", KeyType::kInteger, "null", "[0, inf)",
     KeyUse::kUsed, "", kIdentity,
     "OneCycle: steps in which the learning rate falls. If it is not set, it is "
     "cycle_first_step_size."},
    {"scheduler.params.cycle_first_stair_count", KeyType::kInteger, "0", "[0, inf)", KeyUse::kUsed,
     "", kIdentity,
     "OneCycle: number of stairs while the learning rate rises. 0 means a straight line."},
    {"scheduler.params.cycle_second_stair_count", KeyType::kInteger, "null", "[0, inf)",
     KeyUse::kUsed, "", kIdentity,
     "OneCycle: number of stairs while the learning rate falls. If it is not set, it is "
     "cycle_first_stair_count."},
    {"scheduler.params.decay_step_size", KeyType::kInteger, "0", "[0, inf)", KeyUse::kUsed, "",
     kIdentity,
     "OneCycle: steps in one interval of the decay after the cycle. 0 turns this decay off."},
    {"scheduler.params.decay_lr_rate", KeyType::kNumber, "0", "[0, inf)", KeyUse::kUsed, "",
     kIdentity, "OneCycle: rate of the decay in each interval after the cycle."},
    {"scheduler.params.cycle_momentum", KeyType::kBool, "true", "", KeyUse::kUsed, "", kIdentity,
     "OneCycle: moves beta1 in the opposite direction to the learning rate and sets beta2 to 0.99, "
     "as DeepSpeed does."},
    {"scheduler.params.cycle_min_mom", KeyType::kNumber, "0.8", "[0, 1)", KeyUse::kUsed, "",
     kIdentity, "OneCycle: beta1 when the learning rate is highest."},
    {"scheduler.params.cycle_max_mom", KeyType::kNumber, "0.9", "[0, 1)", KeyUse::kUsed, "",
     kIdentity, "OneCycle: beta1 at the start, at the end and after the cycle."},
    {"scheduler.params.decay_mom_rate", KeyType::kNumber, "0", "", KeyUse::kRefused, "[0]",
     kIdentity, "Remove it: a beta1 that grows after the cycle would exceed 1."},
    {"scheduler.params.decay_num_steps", KeyType::kInteger, "null", "[1, inf)", KeyUse::kUsed, "",
     kIdentity,
     "WSD: steps of the decay at the end of the run. If it is not set, it is a tenth of "
     "total_num_steps."},
    {"scheduler.params.decay_type", KeyType::kString, "\"sqrt\"", "sqrt|linear", KeyUse::kUsed, "",
     kIdentity,
     "WSD: shape of the decay curve, where p rises from 0 to 1. sqrt: 1 - sqrt(p). linear: 1 - p."},
    {"scheduler.params.decay_min_ratio", KeyType::kNumber, "0", "[0, 1]", KeyUse::kUsed, "",
     kIdentity, "WSD: learning rate at the end of the decay, as a share of the optimizer's lr."},
    // Data.
    {"data.train", KeyType::kDataSources, "[]", "", KeyUse::kUsed, "", kIdentity,
     "Token files to train on, as paths or glob patterns. Relative paths start at the working "
     "directory. s3://bucket/key, where the name behind the last / may be a pattern, and "
     "https://host/path are read over the network and kept in data.cache_dir. A mixture is a list "
     "of parts {\"files\": [...], \"weight\": NUMBER}: each part "
     "gives its weight's share of the samples, and goes through its own files again when it has "
     "reached their end."},
    {"data.validation", KeyType::kStringList, "[]", "", KeyUse::kUsed, "", 0,
     "Token files to evaluate on: paths, glob patterns or addresses, as in data.train."},
    {"data.cache_dir", KeyType::kString, "\"\"", "", KeyUse::kUsed, "", 0,
     "Folder, on a disk of each host's own, in which blocks of token files at addresses are kept. "
     "The ranks of a host and later runs share it. Empty: ~/.cache/dtrain."},
    {"data.cache_limit", KeyType::kInteger, "0", "[0, inf)", KeyUse::kUsed, "", 0,
     "Largest number of bytes in data.cache_dir. The least recently read blocks are removed first. "
     "0: half of the free space of its disk, where the folder's own bytes count as free."},
    {"data.remote_timeout_s", KeyType::kNumber, "60", "(0, 86400]", KeyUse::kUsed, "", 0,
     "Time in seconds for which a read of a token file at an address tries again when the server "
     "fails or cannot be reached. Then the run ends with an error that names the address. "
     "comm.hang_data_timeout_s is 10 longer if it is not set; comm.timeout_min_s is 15 longer, and "
     "at least 150, because the other ranks wait meanwhile."},
    {"data.sequence_length", KeyType::kInteger, "1024", "[1, 2147483647]", KeyUse::kUsed, "",
     kIdentity,
     "Tokens that the model sees in one sample. The file must hold at least one token more, "
     "because targets are shifted by one."},
    {"data.format", KeyType::kString, "\"auto\"", "auto|llmc|nanogpt-u16|megatron", KeyUse::kUsed,
     "", kIdentity,
     "Format of the token files. llmc: the llm.c format with a header, in u16 or u32, which dtrain "
     "data prepare writes. nanogpt-u16: plain u16 tokens without a header. megatron: Megatron-LM's "
     "PREFIX.bin with PREFIX.idx beside it. auto: reads the format from the header, and Megatron's "
     "from the index."},
    {"data.document_token", KeyType::kInteger, "-1", "[-1, 2147483647]", KeyUse::kUsed, "",
     kIdentity,
     "Id of the token that separates documents. Attention then stays inside one document, "
     "positions start at 0 in each document, and the loss leaves out the prediction of the next "
     "document's first token. -1 treats each sample as one text. Files from dtrain data prepare "
     "use 0."},
    {"data.document_token_place", KeyType::kString, "\"end\"", "end|start", KeyUse::kUsed, "",
     kIdentity,
     "Says where the separating token is. end: it is the last token of a document, as dtrain data "
     "prepare writes it. start: it is the first token, as in llm.c's FineWeb files (token 50256)."},
    // Checkpoint.
    {"checkpoint.interval", KeyType::kInteger, "0", "[0, inf)", KeyUse::kUsed, "",
     kContinuousAllowed,
     "Saves a checkpoint after every N steps and after the last one. 0 saves only after the last "
     "step. \"continuous\" begins the next save when the last one is durable, in the background as "
     "with checkpoint.async."},
    {"checkpoint.keep", KeyType::kInteger, "3", "[0, inf)", KeyUse::kUsed, "", 0,
     "Number of newest checkpoints to keep. 0 keeps all."},
    {"checkpoint.keep_every", KeyType::kInteger, "0", "[0, inf)", KeyUse::kUsed, "", 0,
     "Keeps for good, beside the newest ones, each checkpoint whose step is a multiple of this "
     "number. 0 keeps none of them."},
    {"checkpoint.keep_best", KeyType::kInteger, "0", "[0, 1000000]", KeyUse::kUsed, "", 0,
     "Keeps, beside the newest ones, this many checkpoints with the best value of "
     "checkpoint.best_metric. A checkpoint has the value that was logged at its step; without one "
     "it is not among the best. 0 keeps none of them."},
    {"checkpoint.best_metric", KeyType::kString, "\"eval/loss\"", "", KeyUse::kUsed, "", 0,
     "Name of the metric that the program logs and by which checkpoint.keep_best chooses."},
    {"checkpoint.best_is", KeyType::kString, "\"smallest\"", "smallest|largest", KeyUse::kUsed, "",
     0,
     "Says which value of checkpoint.best_metric is the best: of a loss the smallest, of an "
     "accuracy the largest."},
    {"checkpoint.async", KeyType::kBool, "true", "", KeyUse::kUsed, "", 0,
     "Writes checkpoints while training goes on. A save copies the state ahead of the next update "
     "of the weights, which waits only for what is not copied yet, and a thread of its own writes "
     "the copy. If a save comes due while one is still being written on some rank, it is skipped "
     "and counted. false: training stands still until a checkpoint is complete."},
    {"checkpoint.staging_memory", KeyType::kInteger, "0", "[0, inf)", KeyUse::kUsed, "", 0,
     "Largest number of bytes of memory that a rank uses for the copies of checkpoint.async: "
     "weights (also those that stage 3 gathers), states, module buffers and tracked tensors. The "
     "memory is page-locked if the rank trains on a GPU. If the copies need more, they are made in "
     "waves, and training waits until enough is written: when the save starts and in the next "
     "update. The least value is 4194304, or 8388608 on a GPU. 0: as much as the copies need, but "
     "at most a quarter of the free memory of the node, divided among its ranks."},
    {"checkpoint.write_rate", KeyType::kInteger, "0", "[0, inf)", KeyUse::kUsed, "", 0,
     "Largest number of bytes a second that a rank writes of a checkpoint in the background, so "
     "that other users of a shared file system are not held up. The limit does not hold while "
     "training waits for the save: at the end of a run, and where checkpoint.staging_memory is too "
     "small. 0 sets no limit."},
    {"checkpoint.dir", KeyType::kString, "\"\"", "", KeyUse::kUsed, "", 0,
     "Folder for checkpoints. A relative path starts from the folder in which the run is started. "
     "If it is empty, checkpoints go to checkpoints/ in the run directory."},
    {"checkpoint.remote", KeyType::kString, "\"\"", "", KeyUse::kUsed, "", 0,
     "Second place for checkpoints, for nodes whose disks are temporary: a folder on other "
     "storage, or s3://bucket/prefix. Rank 0 copies each durable checkpoint there while training "
     "goes on; if a newer one is durable before that has begun, only the newer one is copied. The "
     "same rules say which of them are kept. A run that resumes takes the newest checkpoint of "
     "both places. The last checkpoint is copied before the run ends. Empty: there is none."},
    {"checkpoint.local_dir", KeyType::kString, "\"\"", "", KeyUse::kUsed, "", 0,
     "Folder on a disk of each host's own, which may be temporary. Each rank then writes its part "
     "of a checkpoint there, so that a save does not cross the network. While training goes on, "
     "each host copies its part of each durable checkpoint to checkpoint.remote, or else to "
     "checkpoint.dir; all hosts must reach that place. A run that resumes takes the newest "
     "checkpoint that all places together hold whole, and ranks read from other hosts what lies "
     "there. The files are in a folder named by the run's id. A relative path starts from the "
     "folder in which the host's ranks are started. Empty: ranks write to checkpoint.dir."},
    {"checkpoint.replicas", KeyType::kInteger, "0", "[0, 1]", KeyUse::kUsed, "", 0,
     "1: while it writes to checkpoint.local_dir, each rank also sends its part of a checkpoint to "
     "the next host, in the order of ranks, which keeps the newest one in memory. The loss of one "
     "host then loses no durable step. The files outlive the ranks and are removed when the run "
     "has ended. A replica that cannot be written fails no checkpoint. The step journal "
     "(checkpoint.journal) is kept there too: a step counts as durable when both have it."},
    {"checkpoint.replica_dir", KeyType::kString, "\"/dev/shm\"", "", KeyUse::kUsed, "", 0,
     "Folder in memory (tmpfs) for checkpoint.replicas. A relative path starts from the folder in "
     "which the host's ranks are started."},
    {"checkpoint.replica_memory", KeyType::kInteger, "0", "[0, inf)", KeyUse::kUsed, "", 0,
     "Largest number of bytes of memory that a host may use for checkpoint.replicas. It needs two "
     "times what the ranks of another host save: the newest whole checkpoint and the one that is "
     "being written. A run that needs more is refused. The step journal uses what the checkpoints "
     "leave. 0: all that is free; the journal then uses at most half of what the checkpoints "
     "leave."},
    {"checkpoint.max_shard_size", KeyType::kInteger, "50000000000", "[1, inf)", KeyUse::kUsed, "",
     0,
     "Largest number of bytes of weights in one .safetensors file, for checkpoints and exports. "
     "Larger models are split into several files with an index. One tensor is never split."},
    {"checkpoint.journal", KeyType::kString, "\"off\"", "off|async|sync", KeyUse::kUsed, "", 0,
     "Keeps a journal of the steps between checkpoints, in the folder journal/ beside them, so "
     "that a run resumes after its last step. Each rank writes its part of each step's reduced "
     "gradient, and a run that resumes takes the same updates again, with the same bits, on any "
     "number of ranks. \"async\": a step is durable when the next one ends, so that at most one is "
     "lost. \"sync\": it is durable when MaybeSave returns; with a GPU, MaybeSave then waits for "
     "the device too. The steps before a durable checkpoint are removed. It works with one engine, "
     "and with optimizers that treat each element by itself, so not with Lamb, Muon or a program's "
     "own optimizer. If the journal fails, or the disk is too slow for it, it switches itself off "
     "with a warning until the next checkpoint."},
    {"checkpoint.journal_dtype", KeyType::kString, "\"bf16\"", "bf16|fp32", KeyUse::kUsed, "", 0,
     "Type in which the journal holds gradients. With \"bf16\", 2 bytes a parameter and step, "
     "every update takes the gradient rounded to bf16. With \"fp32\", 4 bytes, training has the "
     "bits that it has without a journal."},
    {"checkpoint.journal_share", KeyType::kNumber, "0.8", "(0, 1]", KeyUse::kUsed, "", 0,
     "Largest share of the time of 20 steps in which the journal may keep the disk busy. Above it "
     "the journal switches itself off until the next checkpoint, because training would soon wait "
     "for the disk. 1 leaves it on."},
    {"checkpoint.tag_validation", KeyType::kString, "\"Warn\"", "Ignore|Warn|Fail",
     KeyUse::kIgnored, "", 0, "All ranks always save under the same name."},
    {"checkpoint.load_universal", KeyType::kBool, "false", "", KeyUse::kRefused, "[false]", 0,
     "dtrain cannot read DeepSpeed's universal checkpoints. Convert them to a Hugging Face folder "
     "first."},
    {"checkpoint.use_node_local_storage", KeyType::kBool, "false", "", KeyUse::kRefused, "[false]",
     0, "Set checkpoint.local_dir to a folder on each host's own disk."},
    // Precision.
    {"bf16.enabled", KeyType::kBool, "false", "", KeyUse::kUsed, "", kAutoAllowed,
     "Trains in bf16: parameters and computation are bf16. Each rank keeps an fp32 master copy of "
     "the weights that it updates, and gradients are summed in fp32. A CPU without instructions "
     "for bf16 multiplies slower than in fp32; the run then warns with the measured ratio. "
     "\"auto\" takes false."},
    {"bf16.cast_buffers", KeyType::kBool, "false", "", KeyUse::kUsed, "", 0,
     "Casts the module's floating-point buffers to bf16. Otherwise they keep the type that the "
     "module gave them, so that tables stay exact and counters do not stop at 256; operations on "
     "a bf16 tensor and an fp32 buffer then give fp32. Torch's BatchNorm and InstanceNorm layers "
     "give what their input has: beside running statistics in fp32 they compute with their weight "
     "and bias as fp32. Integer buffers are never cast."},
    {"fp16.enabled", KeyType::kBool, "false", "", KeyUse::kUsed, "", kAutoAllowed,
     "Trains in fp16 with a scaled loss. Master copies and gradient sums are fp32, as with "
     "bf16.enabled, and a CPU may also be slower than in fp32. \"auto\" takes false."},
    {"fp16.cast_buffers", KeyType::kBool, "false", "", KeyUse::kUsed, "", 0,
     "Casts the module's floating-point buffers to fp16. The rules are those of "
     "bf16.cast_buffers."},
    {"fp16.loss_scale", KeyType::kNumber, "0", "[0, inf)", KeyUse::kUsed, "", kIdentity,
     "Factor that multiplies the loss before backward. 0 adjusts the factor during the run "
     "(dynamic loss scale)."},
    {"fp16.initial_scale_power", KeyType::kInteger, "16", "[0, 32]", KeyUse::kUsed, "", kIdentity,
     "Dynamic loss scale: the first scale is 2 to this power."},
    {"fp16.loss_scale_window", KeyType::kInteger, "1000", "[1, inf)", KeyUse::kUsed, "", kIdentity,
     "Dynamic loss scale: the scale doubles after this many steps without overflow."},
    {"fp16.hysteresis", KeyType::kInteger, "2", "[1, inf)", KeyUse::kUsed, "", kIdentity,
     "Dynamic loss scale: the scale halves after this many overflows."},
    {"fp16.consecutive_hysteresis", KeyType::kBool, "false", "", KeyUse::kUsed, "", kIdentity,
     "Dynamic loss scale: restarts the count of overflows after each step without overflow. "
     "Otherwise the count restarts only when the scale doubles."},
    {"fp16.min_loss_scale", KeyType::kNumber, "1", "(0, inf)", KeyUse::kUsed, "", kIdentity,
     "Dynamic loss scale: smallest scale. An overflow at this scale ends the run with an error."},
    {"fp16.auto_cast", KeyType::kBool, "false", "", KeyUse::kRefused, "[false]", 0,
     "Cast the inputs in the loss function instead."},
    {"fp16.fp16_master_weights_and_grads", KeyType::kBool, "false", "", KeyUse::kRefused, "[false]",
     0, "Master weights and gradients are always fp32."},
    {"bf16.check_grad_overflow", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "dtrain always skips a step whose gradient is not finite."},
    {"bf16.immediate_grad_update", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "dtrain has one implementation of the gradient update."},
    {"bf16.bf16_master_weights_and_grads", KeyType::kBool, "false", "", KeyUse::kRefused, "[false]",
     0,
     "Master weights and gradients are always fp32. To save memory, set "
     "bf16.bf16_optimizer_states."},
    {"bf16.bf16_optimizer_states", KeyType::kBool, "false", "", KeyUse::kUsed, "", 0,
     "Keeps optimizer states in bf16, rounded to nearest. Master weights stay fp32. Lamb and Muon "
     "do not support it."},
    {"bf16.stochastic_rounding", KeyType::kBool, "false", "", KeyUse::kUsed, "", kIdentity,
     "AdamW and Adam with bf16_optimizer_states: rounds each state up or down at random, more "
     "often to the nearer value. The second moment can then follow small changes. The random bits "
     "depend only on the seed, the step and the position in the model, so they are the same at "
     "every stage, on any number of ranks and after a resume."},
    {"fp8.enabled", KeyType::kBool, "false", "", KeyUse::kUsed, "", kIdentity,
     "Computes the products of linear layers in 8-bit floating point. It needs bf16.enabled and a "
     "model that calls ops::Fp8Linear; the example calls it in its layers, but not in the output "
     "head. On a CPU, FP8 is emulated, which is slow but shows the numerical effect."},
    {"fp8.scaling", KeyType::kString, "\"tensorwise\"", "tensorwise|rowwise", KeyUse::kUsed, "",
     kIdentity,
     "Chooses which elements share one scale. tensorwise: a whole matrix. rowwise: one row of the "
     "first factor, or one column of the second."},
    {"fp8.gradients", KeyType::kString, "\"e5m2\"", "e5m2|e4m3", KeyUse::kUsed, "", kIdentity,
     "FP8 format of gradients. Weights and activations are always e4m3."},
    {"data_types.grad_accum_dtype", KeyType::kString, "null", "fp32|bf16|fp16", KeyUse::kRefused,
     "[\"fp32\"]", 0, "Gradients are always accumulated in fp32."},
};

}  // namespace

absl::Span<const ConfigKey> ConfigKeys() {
  static const std::vector<ConfigKey> all = [] {
    std::vector<ConfigKey> keys(std::begin(kKeys), std::end(kKeys));
    for (const absl::Span<const ConfigKey> part :
         {ZeroConfigKeys(), CommConfigKeys(), OtherConfigKeys(), DeepSpeedConfigKeys()}) {
      keys.insert(keys.end(), part.begin(), part.end());
    }
    return keys;
  }();
  return all;
}

}  // namespace dtrain::plan
