# How programs are installed, so that the tree may be moved and nothing in it names the build.
#
# A program that uses LibTorch is PREFIX/lib/dtrain/NAME, and PREFIX/bin/NAME is dtrain-start, which
# finds LibTorch and becomes it. All others are in PREFIX/bin. PREFIX/lib/dtrain/torch leads to the
# LibTorch of the build; packages leave it out. Libraries that a package brings lie in
# PREFIX/lib/dtrain too.
include(DtrainTorchRelease)

# Whether `target` is linked, through any of its libraries, to LibTorch.
function(_dtrain_uses_torch result target)
  set(${result} OFF PARENT_SCOPE)
  get_target_property(libraries ${target} LINK_LIBRARIES)
  set(seen "")
  while(libraries)
    list(POP_FRONT libraries library)
    if(library STREQUAL "dtrain::torch")
      set(${result} ON PARENT_SCOPE)
      return()
    endif()
    if(TARGET ${library} AND NOT library IN_LIST seen)
      list(APPEND seen ${library})
      get_target_property(more ${library} INTERFACE_LINK_LIBRARIES)
      if(more)
        list(APPEND libraries ${more})
      endif()
    endif()
  endwhile()
endfunction()

function(dtrain_install_program name)
  _dtrain_uses_torch(uses_torch ${name})
  if(uses_torch AND TARGET dtrain-start)
    set_target_properties(${name} PROPERTIES INSTALL_RPATH "\$ORIGIN" INSTALL_RPATH_USE_LINK_PATH OFF)
    install(TARGETS ${name} RUNTIME DESTINATION lib/dtrain)
    install(PROGRAMS $<TARGET_FILE:dtrain-start> DESTINATION bin RENAME ${name})
  else()
    set_target_properties(${name} PROPERTIES INSTALL_RPATH "\$ORIGIN/../lib/dtrain"
      INSTALL_RPATH_USE_LINK_PATH ${uses_torch})
    install(TARGETS ${name} RUNTIME DESTINATION bin)
  endif()
endfunction()
