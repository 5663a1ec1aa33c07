# find_package(etbuild) defines executorch_add_program, executorch_add_runtime, executorch_add_cc_library and
# executorch_add_kernels_library. `etbuild --cmake-prefix-path` prints where it is.

# Sets ETBUILD_EXECUTABLE, which names the driver. By default `etbuild` is looked for on the PATH.
macro(etbuild_find_driver)
  find_program(ETBUILD_EXECUTABLE etbuild DOC "The driver of rules_executorch")
  if(NOT ETBUILD_EXECUTABLE)
    message(FATAL_ERROR "etbuild is not on the PATH: install the driver, or set ETBUILD_EXECUTABLE")
  endif()
endmacro()

include("${CMAKE_CURRENT_LIST_DIR}/executorch_cc.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/executorch_kernels.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/executorch_program.cmake")
