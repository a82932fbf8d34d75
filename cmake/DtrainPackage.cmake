# The installed package: find_package(dtrain) gives dtrain::dtrain. Included by runtime/, whose library
# it is; programs are installed by dtrain_program.
#
# The tree may be moved: the targets file finds itself, programs find each other beside them, and
# lib/dtrain/torch leads to LibTorch where it was. Headers are the public ones and the two of base/ that
# they include, under dtrain/base/ so that no other project's "base/" is shadowed.
include(CMakePackageConfigHelpers)
set(_package_dir lib/cmake/dtrain)

set_target_properties(dtrain_runtime PROPERTIES EXPORT_NAME dtrain)
install(TARGETS dtrain_runtime dtrain_remote_data dtrain_plan dtrain_kernels dtrain_checkpoint dtrain_nccl dtrain_comm
                dtrain_net dtrain_base
        EXPORT dtrainTargets ARCHIVE DESTINATION lib)
install(EXPORT dtrainTargets NAMESPACE dtrain:: DESTINATION ${_package_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/runtime/include/dtrain DESTINATION include
        FILES_MATCHING PATTERN *.h)
install(FILES ${PROJECT_SOURCE_DIR}/base/json.h ${PROJECT_SOURCE_DIR}/base/status.h
        DESTINATION include/dtrain/base)

dtrain_torch_release(DTRAIN_TORCH_RELEASE ${DTRAIN_TORCH})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/dtrainConfig.cmake.in
  ${PROJECT_BINARY_DIR}/generated/dtrainConfig.cmake
  INSTALL_DESTINATION ${_package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/generated/dtrainConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/generated/dtrainConfig.cmake
              ${PROJECT_BINARY_DIR}/generated/dtrainConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/DtrainTorch.cmake
              ${CMAKE_CURRENT_LIST_DIR}/DtrainTorchRelease.cmake
        DESTINATION ${_package_dir})

# pkg-config --cflags --libs dtrain. packaging/ fills the same template for packages that bring Abseil.
set(PC_TORCH "torch=\${libdir}/dtrain/torch")
set(PC_REQUIRES "absl_flat_hash_map absl_flat_hash_set absl_function_ref absl_span absl_status \
absl_statusor absl_str_format absl_strings absl_time nlohmann_json openssl")
set(PC_CFLAGS "-isystem \${torch}/include -isystem \${torch}/include/torch/csrc/api/include")
set(PC_LIBS "-L\${torch}/lib -Wl,-rpath,\${torch}/lib")
configure_file(${CMAKE_CURRENT_LIST_DIR}/dtrain.pc.in ${PROJECT_BINARY_DIR}/generated/dtrain.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/generated/dtrain.pc DESTINATION lib/pkgconfig)

# The configurations that `dtrain train` starts from, a project to copy, and a batch script and manifests.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/configs DESTINATION share/dtrain)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/minimal ${PROJECT_SOURCE_DIR}/examples/cluster
        DESTINATION share/dtrain/examples)
# Run by hand with a Python that has torch; no program of dtrain starts it.
install(FILES ${PROJECT_SOURCE_DIR}/tools/convert_checkpoint.py DESTINATION share/dtrain/tools)
install(FILES ${PROJECT_BINARY_DIR}/lib/dtrain/torch DESTINATION lib/dtrain OPTIONAL)  # The link itself.
