# find_package(etbuild) defines executorch_add_program. `etbuild --cmake-prefix-path` prints where it is.
include("${CMAKE_CURRENT_LIST_DIR}/executorch_program.cmake")
