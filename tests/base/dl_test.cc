// The wrappers of optional libraries: a missing library is a clear error, a driver's refusal is
// passed on with its text, and values that a device does not support are left out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "base/dl/dynamic_library.h"
#include "base/dl/nvml.h"
#include "base/dl/open_once.h"
#include "base/dl/verbs.h"
#include "base/status.h"
#include "base/system/mapped_libraries.h"

namespace dtrain::dl_test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

// NVML with two GPUs joined by two links; `failing` names the call that gives kGpuIsLost.
struct FakeNvml {
  static inline const char* failing = "";
  static inline int shutdowns = 0;
  static nvml::Return Give(const char* call) {
    return std::strcmp(failing, call) == 0 ? nvml::kGpuIsLost : nvml::kSuccess;
  }
  static intptr_t Index(nvml::Device* device) { return reinterpret_cast<intptr_t>(device) - 1; }

  static nvml::Functions Functions() {
    nvml::Functions f = {};
    f.init = [] { return Give("init"); };
    f.shutdown = [] {
      ++shutdowns;
      return nvml::kSuccess;
    };
    f.error_string = [](nvml::Return result) {
      return result == nvml::kGpuIsLost ? "GPU is lost" : "ok";
    };
    f.system_get_driver_version = [](char* text, unsigned length) {
      std::snprintf(text, length, "580.65.06");
      return Give("driver");
    };
    f.system_get_cuda_driver_version = [](int* version) {
      *version = 13000;
      return Give("cuda");
    };
    f.device_get_count = [](unsigned* count) {
      *count = 2;
      return Give("count");
    };
    f.device_get_handle_by_index = [](unsigned index, nvml::Device** device) {
      *device = reinterpret_cast<nvml::Device*>(static_cast<intptr_t>(index) + 1);
      return Give("handle");
    };
    f.device_get_name = [](nvml::Device*, char* text, unsigned length) {
      std::snprintf(text, length, "NVIDIA H100 80GB HBM3");
      return Give("name");
    };
    f.device_get_uuid = [](nvml::Device* device, char* text, unsigned length) {
      std::snprintf(text, length, "GPU-%d", static_cast<int>(Index(device)));
      return Give("uuid");
    };
    f.device_get_pci_info = [](nvml::Device* device, nvml::PciInfo* info) {
      std::snprintf(info->bus_id, sizeof(info->bus_id), "00000000:%sB:00.0",
                    Index(device) == 0 ? "1" : "4");
      return Give("pci");
    };
    f.device_get_memory_info = [](nvml::Device*, nvml::Memory* memory) {
      memory->total = 80ULL << 30;
      memory->free = 79ULL << 30;
      return Give("memory");
    };
    f.device_get_nvlink_state = [](nvml::Device*, unsigned link, nvml::EnableState* state) {
      *state = link == 1 ? nvml::kDisabled : nvml::kEnabled;
      return link < 3 ? nvml::kSuccess : nvml::kInvalidArgument;
    };
    f.device_get_nvlink_remote_pci_info = [](nvml::Device* device, unsigned, nvml::PciInfo* info) {
      std::snprintf(info->bus_id, sizeof(info->bus_id), "00000000:%sB:00.0",
                    Index(device) == 0 ? "4" : "1");
      return Give("remote");
    };
    return f;
  }
};

TEST(DynamicLibrary, AMissingLibraryIsNotFoundAndListsWhatWasTried) {
  const auto library = DynamicLibrary::Open({"libdoes-not-exist.so.7", "libnor-this.so"});
  EXPECT_EQ(library.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(library.status().message()),
              testing::AllOf(HasSubstr("libdoes-not-exist.so.7"), HasSubstr("libnor-this.so")));
}

TEST(DynamicLibrary, TheFirstThatLoadsIsOpenedAndNamed) {
  const auto library = DynamicLibrary::Open({"libdoes-not-exist.so.7", "libm.so.6", "libc.so.6"});
  ASSERT_TRUE(library.ok()) << library.status();
  double (*cosine)(double) = nullptr;
  EXPECT_THAT(std::string(library->Bind("no_such_symbol", &cosine).message()),
              HasSubstr("libm.so.6"));
}

TEST(DynamicLibrary, AMissingSymbolNamesTheSymbolAndTheLibrary) {
  const auto library = DynamicLibrary::Open({"libm.so.6"});
  ASSERT_TRUE(library.ok()) << library.status();
  double (*cosine)(double) = nullptr;
  ASSERT_TRUE(library->Bind("cos", &cosine).ok());
  EXPECT_EQ(cosine(0), 1.0);
  const absl::Status missing = library->Bind("no_such_symbol", &cosine);
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()),
              testing::AllOf(HasSubstr("no_such_symbol"), HasSubstr("libm.so.6")));
}

// OpenOnce keeps one table a type, so each test has a type of its own.
template <int kTest>
struct Cosine {
  double (*cosine)(double) = nullptr;
};

template <int kTest>
absl::StatusOr<Cosine<kTest>> BindCosine(const DynamicLibrary& library) {
  Cosine<kTest> functions;
  DT_RETURN_IF_ERROR(library.Bind(kTest == 0 ? "cos" : "no_such_symbol", &functions.cosine));
  return functions;
}

TEST(OpenOnce, EveryCallGivesTheTableOfTheFirst) {
  using Functions = Cosine<0>;
  int binds = 0;
  const auto bind = [&](const DynamicLibrary& library) {
    ++binds;
    return BindCosine<0>(library);
  };
  const absl::Status missing = absl::UnimplementedError("no mathematics");
  const auto first = OpenOnce<Functions>({"libdoes-not-exist.so.7", "libm.so.6"}, missing, bind);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)->cosine(0), 1.0);
  const auto second = OpenOnce<Functions>({"libdoes-not-exist.so.7", "libm.so.6"}, missing, bind);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*second, *first);
  EXPECT_EQ(binds, 1);
}

TEST(OpenOnce, AMissingLibraryIsTheCallersErrorWithTheLoadersText) {
  const auto bind = [](const DynamicLibrary&) -> absl::StatusOr<Cosine<1>> {
    ADD_FAILURE() << "no library was opened";
    return Cosine<1>();
  };
  const auto opened =
      OpenOnce<Cosine<1>>({"libdoes-not-exist.so.7"}, absl::UnimplementedError("install it"), bind);
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(opened.status().message()),
              testing::AllOf(testing::StartsWith("install it: none of libdoes-not-exist.so.7"),
                             HasSubstr("cannot open shared object file")));
}

TEST(OpenOnce, AnErrorOfTheFirstCallIsGivenToAll) {
  int binds = 0;
  const auto bind = [&](const DynamicLibrary& library) {
    ++binds;
    return BindCosine<2>(library);
  };
  for (int call = 0; call < 2; ++call) {
    const auto opened =
        OpenOnce<Cosine<2>>({"libm.so.6"}, absl::UnimplementedError("install it"), bind);
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(opened.status().message(), "libm.so.6 has no symbol no_such_symbol");
  }
  EXPECT_EQ(binds, 1);
}

TEST(Nvml, ReadsGpusAndTheirActiveLinks) {
  FakeNvml::failing = "";
  auto library = Nvml::Over(FakeNvml::Functions());
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_EQ(*(*library)->DriverVersion(), "580.65.06");
  const auto gpus = (*library)->Gpus();
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  ASSERT_EQ(gpus->size(), 2U);
  EXPECT_EQ((*gpus)[0].pci, "0000:1b:00.0");
  EXPECT_EQ((*gpus)[0].name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ((*gpus)[0].memory_total_bytes, 80ULL << 30);
  EXPECT_EQ((*gpus)[1].uuid, "GPU-1");
  ASSERT_EQ((*gpus)[0].links.size(), 2U) << "link 1 is down, links above 2 do not exist";
  EXPECT_EQ((*gpus)[0].links[1].link, 2U);
  EXPECT_EQ((*gpus)[0].links[1].remote_pci, "0000:4b:00.0");
  const int before = FakeNvml::shutdowns;
  library->reset();
  EXPECT_EQ(FakeNvml::shutdowns, before + 1);
}

TEST(Nvml, TheDriversCudaIsZeroWhereItDoesNotSay) {
  FakeNvml::failing = "";
  EXPECT_EQ((*Nvml::Over(FakeNvml::Functions()))->CudaDriverVersion(), 13000);
  FakeNvml::failing = "cuda";
  EXPECT_EQ((*Nvml::Over(FakeNvml::Functions()))->CudaDriverVersion(), 0);
  FakeNvml::failing = "";
  nvml::Functions old = FakeNvml::Functions();
  old.system_get_cuda_driver_version = nullptr;
  EXPECT_EQ((*Nvml::Over(old))->CudaDriverVersion(), 0);
}

TEST(Nvml, TheStateOfAGpuIsReadAndWhatItDoesNotSayHasNoValue) {
  FakeNvml::failing = "";
  const NvmlGpu silent = (*Nvml::Over(FakeNvml::Functions()))->Gpus()->front();
  EXPECT_EQ(silent.compute_capability, 0);
  EXPECT_FALSE(silent.health.temperature_c.has_value());
  EXPECT_FALSE(silent.health.ecc_uncorrected.has_value());
  EXPECT_FALSE(silent.health.fabric_state.has_value());
  EXPECT_EQ(silent.health.nvlinks_down, 1) << "link 1 of the fake is disabled";

  nvml::Functions f = FakeNvml::Functions();
  f.device_get_cuda_compute_capability = [](nvml::Device*, int* major, int* minor) {
    *major = 9;
    *minor = 0;
    return nvml::kSuccess;
  };
  f.device_get_temperature = [](nvml::Device*, int sensor, unsigned* celsius) {
    *celsius = 41;
    return sensor == 0 ? nvml::kSuccess : nvml::kInvalidArgument;
  };
  f.device_get_curr_pcie_link_width = [](nvml::Device*, unsigned* width) {
    *width = 16;
    return nvml::kSuccess;
  };
  f.device_get_total_ecc_errors = [](nvml::Device*, int type, int counter,
                                     unsigned long long* count) {
    *count = type == 1 ? 2 : 7;
    return counter == 0 ? nvml::kSuccess : nvml::kInvalidArgument;
  };
  f.device_get_remapped_rows = [](nvml::Device*, unsigned* corrected, unsigned* uncorrected,
                                  unsigned* is_pending, unsigned* has_failed) {
    *corrected = 1;
    *uncorrected = 3;
    *is_pending = 1;
    *has_failed = 0;
    return nvml::kSuccess;
  };
  f.device_get_nvlink_error_counter = [](nvml::Device*, unsigned link, unsigned counter,
                                         unsigned long long* count) {
    *count = link;
    return counter < 4 ? nvml::kSuccess : nvml::kNotSupported;
  };
  f.device_get_gpu_fabric_info = [](nvml::Device*, nvml::GpuFabricInfo* info) {
    info->state = 2;
    return nvml::kSuccess;
  };
  const NvmlGpu gpu = (*Nvml::Over(f))->Gpus()->front();
  EXPECT_EQ(gpu.compute_capability, 90);
  EXPECT_EQ(gpu.health.temperature_c, 41);
  EXPECT_EQ(gpu.health.pcie_width, 16);
  EXPECT_FALSE(gpu.health.pcie_generation.has_value());
  EXPECT_EQ(gpu.health.ecc_uncorrected, 2U);
  EXPECT_EQ(gpu.health.ecc_corrected, 7U);
  EXPECT_EQ(gpu.health.remapped_rows, 4);
  EXPECT_EQ(gpu.health.remap_pending, true);
  EXPECT_EQ(gpu.health.remap_failed, false);
  EXPECT_EQ(gpu.health.nvlink_errors, 8U) << "four counters of links 0 and 2";
  EXPECT_EQ(gpu.health.fabric_state, "in progress");
}

TEST(Nvml, EachFailingCallIsNamedWithTheGpu) {
  for (const char* const call : {"handle", "name", "uuid", "pci"}) {
    FakeNvml::failing = call;
    const auto gpus = (*Nvml::Over(FakeNvml::Functions()))->Gpus();
    EXPECT_EQ(gpus.status().code(), absl::StatusCode::kUnavailable) << call;
    EXPECT_THAT(std::string(gpus.status().message()),
                testing::AllOf(HasSubstr("of GPU 0"), HasSubstr("GPU is lost")));
  }
  FakeNvml::failing = "init";
  EXPECT_THAT(std::string(Nvml::Over(FakeNvml::Functions()).status().message()),
              HasSubstr("nvmlInit_v2: GPU is lost"));
  for (const char* const optional : {"memory", "remote"}) {
    FakeNvml::failing = optional;
    const auto gpus = (*Nvml::Over(FakeNvml::Functions()))->Gpus();
    ASSERT_TRUE(gpus.ok()) << gpus.status();
    EXPECT_EQ(gpus->size(), 2U);
  }
  FakeNvml::failing = "";
}

TEST(Nvml, WithoutADriverTheErrorNamesTheLibraryOrNvmlsReason) {
  const auto library = Nvml::Open();
  if (library.ok()) {
    EXPECT_TRUE((*library)->Gpus().ok());  // With a driver on this machine the calls must work.
    return;
  }
  EXPECT_THAT(std::string(library.status().message()),
              testing::AnyOf(HasSubstr("libnvidia-ml.so.1"), HasSubstr("nvmlInit_v2")));
}

TEST(Verbs, OpensWhereTheLibraryIsInstalledAndSaysSoWhereNot) {
  const auto verbs = Verbs::Open();
  if (!verbs.ok()) {
    EXPECT_EQ(verbs.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(verbs.status().message()), HasSubstr("libibverbs"));
    return;
  }
  EXPECT_NE((*verbs)->functions().create_qp, nullptr);
  EXPECT_EQ(*Verbs::Open(), *verbs) << "opened once";
}

TEST(MappedLibraries, AreReadFromMapsOnceEachAndSorted) {
  const auto found = LibrariesInMaps(
      "7f1-7f2 r-xp 00000000 08:01 12  /lib/libz.so.1\n"
      "7f2-7f3 rw-p 00000000 08:01 12  /lib/libz.so.1\n"
      "7f3-7f4 r--p 00000000 08:01 13  /opt/a b/libcudart.so.13\n"
      "7f4-7f5 rw-p 00000000 00:00 0   [stack]\n"
      "7f5-7f6 rw-s 00000000 00:01 9   /dev/shm/x\n");
  EXPECT_THAT(found, ElementsAre("/lib/libz.so.1", "/opt/a b/libcudart.so.13"));
  const auto own = MappedLibraries();
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_THAT(*own, Contains(HasSubstr("libc.so.6")));
}

}  // namespace
}  // namespace dtrain::dl_test
