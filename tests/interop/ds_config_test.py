"""DeepSpeed's configurations read by `dtrain config check`, beside DeepSpeed itself and the schema.

ds_configs/ holds files of the shapes that are met: the Hugging Face Trainer's with "auto", ZeRO-2
and -3 with offload, ZeRO-Infinity, a pretraining run with every fp16 and checkpointing key, older
spellings, monitors. dtrain must derive the same values from a file as DeepSpeed's own
classes, and know every key that those classes know.
"""
import json
import os
import subprocess
import tempfile
import unittest

import end_to_end

BIN = os.environ["DTRAIN_BIN"]
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ds_configs")

# FILE: (--set, world size, values in force, texts in the notes).
ACCEPTED = {
    "hf_zero2_auto.json": (
        ["train_batch_size=64"], 4,
        {"train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 1,
         "gradient_clipping": 1.0, "optimizer.params.lr": 1e-3, "fp16.enabled": False,
         "zero_optimization.reduce_bucket_size": 200000000,
         "zero_optimization.offload_optimizer.device": "cpu"}, ["allgather_bucket_size"]),
    "hf_zero3_offload_auto.json": (
        ["train_micro_batch_size_per_gpu=2", "gradient_accumulation_steps=4",
         "model.hidden_size=1024"], 8,
        {"train_batch_size": 64, "zero_optimization.reduce_bucket_size": 1024 * 1024,
         "zero_optimization.stage3_prefetch_bucket_size": int(0.9 * 1024 * 1024),
         "zero_optimization.stage3_param_persistence_threshold": 10240,
         "zero_optimization.offload_param.device": "cpu"}, ["steps_per_print"]),
    "infinity_nvme.json": (
        [], 16,
        {"gradient_accumulation_steps": 1, "zero_optimization.stage": 3,
         "zero_optimization.stage3_max_live_parameters": 30000000,
         "zero_optimization.offload_optimizer.nvme_path": "/local_nvme"}, ["aio.queue_depth"]),
    "pretrain_fp16.json": (
        [], 64,
        {"gradient_accumulation_steps": 6, "fp16.initial_scale_power": 12,
         "activation_checkpointing.cpu_checkpointing": True},
        ["partition_activations", "number_checkpoints", "activation_checkpointing.profile",
         "dtrain::Recompute", "wall_clock_breakdown"]),
    "older_spellings.json": (
        [], 2,
        {"train_batch_size": 64, "bf16.enabled": True, "gradient_clipping": 0.0,
         "optimizer.type": "AdamW", "zero_optimization.offload_optimizer.device": "cpu",
         "zero_optimization.offload_param.device": "none"},
        ["cpu_offload is an older spelling", "bfloat16.enabled is an older spelling",
         "stage3_gather_fp16_weights_on_model_save is an older spelling"]),
    "zero_is_true.json": (
        [], 4, {"zero_optimization.stage": 1, "train_micro_batch_size_per_gpu": 8,
                "optimizer.params.momentum": 0.9}, ["zero_allow_untested_optimizer"]),
    "observers.json": (
        [], 1, {"train_micro_batch_size_per_gpu": 16},
        ["tensorboard.enabled", "wandb.project", "comet", "csv_monitor.enabled", "comms_logger",
         "flops_profiler.enabled", "timers", "checkpoint.tag_validation", "compile", "log_level"]),
    "switched_off.json": ([], 1, {"zero_optimization.stage": 0}, []),
}

# Settings that would change the numbers, or whether the job fits: (changes, text in the message).
REFUSED = [
    ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "bf16.enabled and fp16.enabled"),
    ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, "offload_optimizer.device"),
    ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
     "offload_param.device"),
    ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "nvme_path"),
    ({"zero_optimization": {"stage": 3, "zenflow": {"topk_ratio": 0.1}}}, "zenflow"),
    ({"zero_optimization": {"stage": 3, "mics_shard_size": 8}}, "mics_shard_size"),
    ({"zero_optimization": {"stage": 3, "zero_quantized_gradients": True,
                            "zeropp_loco_param": {"err_beta": 0.8, "reset_T": 1024}}},
     "zeropp_loco_param"),
    ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage is 4"),
    ({"zero_optimization": {"reduce_bucket_size": 1.5}}, "reduce_bucket_size is 1.5"),
    ({"zero_optimization": {"contigous_gradients": True}}, "contiguous_gradients"),
    ({"curriculum_learning": {"enabled": True, "curriculum_type": "seqlen"}},
     "curriculum_learning"),
    ({"data_efficiency": {"enabled": True}}, "data_efficiency"),
    ({"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": True}}}},
     "compression_training"),
    ({"progressive_layer_drop": {"enabled": True, "theta": 0.5}}, "progressive_layer_drop"),
    ({"sparse_attention": {"mode": "fixed", "block": 16}}, "sparse_attention"),
    ({"expert_parallel": {"enabled": True, "autoep_size": 4}}, "expert_parallel"),
    ({"amp": {"enabled": True, "opt_level": "O1"}}, "amp"),
    ({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}, "torch_autocast"),
    ({"fp16": {"enabled": True, "auto_cast": True}}, "fp16.auto_cast"),
    ({"data_types": {"grad_accum_dtype": "bf16"}}, "data_types.grad_accum_dtype"),
    ({"gradient_allreduce_op": "sum"}, "gradient_allreduce_op"),
    ({"sequence_parallel_size": 2}, "sequence_parallel_size"),
    ({"tensor_parallel": {"autotp_size": 4}}, "tensor_parallel.autotp_size"),
    ({"sparse_gradients": True}, "sparse_gradients"),
    ({"optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3}}}, "OneBitAdam"),
    ({"elasticity": {"enabled": True}}, "elasticity.enabled"),
    ({"checkpoint": {"load_universal": True}}, "checkpoint.load_universal"),
    ({"activation_checkpointing": {"cpu_checkpointing": True, "nvme_path": "/nvme"}},
     "both say where to keep activations"),
    ({"prescale_gradients": True, "gradient_predivide_factor": 2.0}, "exclude each other"),
    ({"seed": "auto"}, "seed"),
]


def check(path, sets=(), world=1):
    words = [word for value in sets for word in ("--set", value)]
    return subprocess.run([f"{BIN}/dtrain", "config", "check", path, "--world-size", str(world),
                           "--all", *words], capture_output=True, text=True, check=False)


def values_of(text):
    """The JSON output of `--all`, by dotted key."""
    flat = {}

    def walk(node, prefix):
        for name, value in node.items():
            if isinstance(value, dict) and not prefix.startswith("origins"):
                walk(value, f"{prefix}{name}.")
            flat[prefix + name] = value
    walk(json.loads(text[text.index("\n{") + 1:text.rindex("}") + 1]), "")
    return flat


def without_comments(path):
    with open(path, encoding="utf-8") as file:
        return json.loads("".join(line for line in file if not line.strip().startswith("//")))


class DeepSpeedConfigs(unittest.TestCase):
    def test_real_shapes_are_accepted_with_the_values_and_notes_expected(self):
        self.assertEqual(sorted(os.listdir(FOLDER)), sorted(ACCEPTED), "a file without expectations")
        for name, (sets, world, expected, notes) in ACCEPTED.items():
            with self.subTest(name):
                result = check(f"{FOLDER}/{name}", sets, world)
                self.assertEqual(result.returncode, 0, result.stderr)
                values = values_of(result.stdout)
                for key, value in expected.items():
                    self.assertEqual(values[key], value, key)
                self.assertEqual(values["train_batch_size"],
                                 values["train_micro_batch_size_per_gpu"] *
                                 values["gradient_accumulation_steps"] * world)
                for note in notes:
                    self.assertIn(note, result.stderr)
                if not notes:
                    self.assertEqual(result.stderr, "")

    def test_each_note_comes_once(self):
        for name, (sets, world, _, _) in ACCEPTED.items():
            lines = check(f"{FOLDER}/{name}", sets, world).stderr.splitlines()
            self.assertEqual(len(lines), len(set(lines)), name)

    def test_what_changes_numbers_or_memory_is_refused_by_name_in_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            for changes, named in REFUSED:
                with self.subTest(named):
                    path = f"{folder}/refused.json"
                    with open(path, "w", encoding="utf-8") as file:
                        json.dump({"train_batch_size": 8, **changes}, file, indent=1)
                    result = check(path)
                    self.assertEqual(result.returncode, 64, result.stdout + result.stderr)
                    self.assertIn(named, result.stderr)
                    self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
                    self.assertEqual(result.stdout, "")

    def test_all_three_batch_numbers_auto_take_the_trainers_and_none_is_an_error(self):
        result = check(f"{FOLDER}/hf_zero2_auto.json", [], 4)
        self.assertEqual(result.returncode, 0, result.stderr)
        values = values_of(result.stdout)
        self.assertEqual(values["train_micro_batch_size_per_gpu"], 8)
        self.assertEqual(values["train_batch_size"], 32)
        sets = [f"{key}=null" for key in ("train_batch_size", "train_micro_batch_size_per_gpu",
                                          "gradient_accumulation_steps")]
        result = check(f"{FOLDER}/hf_zero2_auto.json", sets, 4)
        self.assertEqual(result.returncode, 64)
        self.assertIn("set train_batch_size or train_micro_batch_size_per_gpu", result.stderr)


class Schema(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        try:
            import jsonschema
        except ImportError as error:
            raise unittest.SkipTest(f"{error}: ./dev deps test") from error
        text = subprocess.run([f"{BIN}/dtrain", "config", "schema"], check=True,
                              capture_output=True, text=True).stdout
        schema = json.loads(text)
        jsonschema.Draft202012Validator.check_schema(schema)
        cls.validator = jsonschema.Draft202012Validator(schema)

    def test_real_shapes_are_valid(self):
        for name in ACCEPTED:
            errors = [f"{list(e.absolute_path)}: {e.message[:200]}" for e in
                      self.validator.iter_errors(without_comments(f"{FOLDER}/{name}"))]
            self.assertEqual(errors, [], name)

    def test_the_values_in_force_are_valid_too(self):
        for name, (sets, world, _, _) in ACCEPTED.items():
            text = check(f"{FOLDER}/{name}", sets, world).stdout
            values = json.loads(text[text.index("\n{") + 1:text.rindex("}") + 1])
            errors = [f"{list(e.absolute_path)}: {e.message[:200]}"
                      for e in self.validator.iter_errors(values)]
            self.assertEqual(errors, [], name)

    def test_wrong_types_ranges_and_unknown_keys_are_not(self):
        for wrong in ({"train_batch_size": "many"}, {"train_batch_size": 0},
                      {"zero_optimization": {"stage": 4}}, {"gradient_cliping": 1.0},
                      {"zero_optimization": {"offload_param": {"device": "disk"}}},
                      {"optimizer": {"params": {"betas": [0.9]}}}, {"seed": "auto"}):
            self.assertFalse(self.validator.is_valid(wrong), wrong)


def deepspeed_config():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        from deepspeed.runtime import config
    except ImportError as error:
        raise unittest.SkipTest(f"{error}: ./dev deps test") from error
    return config


class BesideDeepSpeed(unittest.TestCase):
    def test_deepspeed_derives_the_same_batch_clipping_and_stage_from_the_same_file(self):
        config = deepspeed_config()
        for name, (sets, _, _, _) in ACCEPTED.items():
            # "auto" is a value of the Trainer; DeepSpeed no longer reads amp at all.
            if sets or name == "switched_off.json":
                continue
            with self.subTest(name):
                theirs = config.DeepSpeedConfig(without_comments(f"{FOLDER}/{name}"))
                ours = values_of(check(f"{FOLDER}/{name}").stdout)
                for key, value in (
                        ("train_batch_size", theirs.train_batch_size),
                        ("train_micro_batch_size_per_gpu", theirs.train_micro_batch_size_per_gpu),
                        ("gradient_accumulation_steps", theirs.gradient_accumulation_steps),
                        ("gradient_clipping", theirs.gradient_clipping),
                        ("zero_optimization.stage", theirs.zero_config.stage),
                        ("bf16.enabled", theirs.bfloat16_config.enabled),
                        ("fp16.enabled", theirs.float16_config.enabled)):
                    self.assertEqual(ours[key], value, key)

    def test_every_key_of_deepspeeds_own_classes_is_known(self):
        config = deepspeed_config()
        from deepspeed.comm.config import CommsLoggerConfig
        from deepspeed.monitor import config as monitor
        from deepspeed.runtime import precision_config as precision
        from deepspeed.runtime.zero import offload_config as offload
        from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
        from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig
        known = {key for key in dir(config) if key.isupper()}
        self.assertIn("TRAIN_BATCH_SIZE", known)
        sections = {
            "zero_optimization": DeepSpeedZeroConfig,
            "zero_optimization.leaf_module": DeepSpeedZeroLeafModuleConfig,
            "zero_optimization.offload_optimizer": offload.DeepSpeedZeroOffloadOptimizerConfig,
            "zero_optimization.offload_param": offload.DeepSpeedZeroOffloadParamConfig,
            "fp16": precision.DeepSpeedFP16Config, "bf16": precision.DeepSpeedBF16Config,
            "tensorboard": monitor.TensorBoardConfig, "wandb": monitor.WandbConfig,
            "csv_monitor": monitor.CSVConfig, "comms_logger": CommsLoggerConfig}
        schema = json.loads(subprocess.run([f"{BIN}/dtrain", "config", "schema"], check=True,
                                           capture_output=True, text=True).stdout)
        missing = []
        for section, model in sections.items():
            node = schema
            for part in section.split("."):
                node = node["properties"][part]
            for name, field in model.model_fields.items():
                if (field.alias or name) not in node["properties"]:
                    missing.append(f"{section}.{field.alias or name}")
        from deepspeed.runtime import constants
        top = [getattr(constants, name) for name in (
            "TRAIN_BATCH_SIZE", "OPTIMIZER", "SCHEDULER", "ZERO_ALLOW_UNTESTED_OPTIMIZER",
            "ZERO_FORCE_DS_CPU_OPTIMIZER", "STEPS_PER_PRINT", "TRAIN_MICRO_BATCH_SIZE_PER_GPU",
            "GRADIENT_ACCUMULATION_STEPS", "MANAGED_GRADIENT_ACCUMULATION", "TORCH_AUTOCAST",
            "COMMUNICATION_DATA_TYPE", "SEQ_PARALLEL_COMMUNICATION_DATA_TYPE",
            "PRESCALE_GRADIENTS", "GRADIENT_PREDIVIDE_FACTOR", "GRADIENT_ALLREDUCE_OP",
            "DISABLE_ALLGATHER", "DISABLE_PYTHON_GC", "CHECKPOINT", "DATA_TYPES",
            "DATALOADER_DROP_LAST", "USE_DATA_BEFORE_EXPERT_PARALLEL", "LOG_LEVEL",
            "DUMP_STATE", "GRADIENT_CLIPPING", "WALL_CLOCK_BREAKDOWN", "MEMORY_BREAKDOWN")]
        missing += [name for name in top if name not in schema["properties"]]
        self.assertEqual(missing, [])


if __name__ == "__main__":
    end_to_end.main()
