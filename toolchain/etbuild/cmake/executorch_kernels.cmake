# Builds a library that registers just the kernels that programs need, in a project that uses CMake 3.20 or later.
#
#   find_package(etbuild REQUIRED)
#   executorch_add_kernels_library(kernels PROGRAMS net.pte SOURCES ${portable_kernels} RUNTIME executorch)
#   target_link_libraries(app PRIVATE kernels)
#
# The compiler is that of the project: with the toolchain file of Android's NDK, the library is for Android.

include_guard(GLOBAL)

# executorch_add_kernels_library(NAME PROGRAMS program... RUNTIME library
#                                [SOURCES file...] [LIBRARIES library...] [FUNCTIONS file...] [ALL_DTYPES])
#
#   NAME        the name of the library; executables and shared libraries link it
#   PROGRAMS    all programs of the application: files, or targets of executorch_add_program
#   RUNTIME     a library with ExecuTorch's runtime and headers, without kernels
#   SOURCES     C++ sources of kernels, with more than the selected ones. They must not register kernels
#   LIBRARIES   more libraries: headers of SOURCES, or kernels that are built already and do not register themselves
#   FUNCTIONS   the kernels that there are, as YAML in the form of ExecuTorch's functions.yaml; of several kernels for one
#               operator, the one in the first file is taken. By default ExecuTorch's portable and quantized kernels
#   ALL_DTYPES  compile SOURCES for all dtypes and not only for the selected ones
function(executorch_add_kernels_library NAME)
  cmake_parse_arguments(PARSE_ARGV 1 arg "ALL_DTYPES" "RUNTIME" "PROGRAMS;SOURCES;LIBRARIES;FUNCTIONS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "executorch_add_kernels_library(${NAME}): unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  foreach(needed IN ITEMS PROGRAMS RUNTIME)
    if(NOT arg_${needed})
      message(FATAL_ERROR "executorch_add_kernels_library(${NAME}): ${needed} is missing")
    endif()
  endforeach()
  etbuild_find_driver()

  set(programs)
  set(after)
  foreach(program IN LISTS arg_PROGRAMS)
    if(TARGET "${program}")
      get_target_property(place "${program}" ETBUILD_DIRECTORY)
      if(NOT place)
        message(FATAL_ERROR "executorch_add_kernels_library(${NAME}): ${program} is no target of executorch_add_program")
      endif()
      list(APPEND programs "${place}/${program}.pte")
      list(APPEND after "${program}")
    else()
      cmake_path(ABSOLUTE_PATH program BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
      list(APPEND programs "${program}")
    endif()
  endforeach()
  set(lists)
  set(options)
  foreach(file IN LISTS arg_FUNCTIONS)
    cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
    list(APPEND lists "${file}")
    list(APPEND options --functions "${file}")
  endforeach()

  set(directory "${CMAKE_CURRENT_BINARY_DIR}/${NAME}_files")
  set(selection "${directory}/selected_operators.yaml")
  set(source "${directory}/RegisterCodegenUnboxedKernelsEverything.cpp")
  set(headers "${directory}/NativeFunctions.h" "${directory}/selected_op_variants.h")
  add_custom_command(
    OUTPUT "${selection}"
    COMMAND "${CMAKE_COMMAND}" -E make_directory "${directory}"
    COMMAND "${ETBUILD_EXECUTABLE}" selected-ops ${programs} -o "${selection}"
    DEPENDS ${programs} ${after}
    COMMENT "Listing the kernels for ${NAME}"
    VERBATIM)
  add_custom_command(
    OUTPUT "${source}" ${headers}
    COMMAND "${ETBUILD_EXECUTABLE}" kernels "${selection}" -o "${directory}" ${options}
    DEPENDS "${selection}" ${lists}
    COMMENT "Writing C++ that registers kernels for ${NAME}"
    VERBATIM)
  add_custom_target(${NAME}_files DEPENDS "${source}" ${headers})

  add_library(${NAME} INTERFACE)
  add_library(${NAME}_registration OBJECT "${source}")
  set(compiled ${NAME}_registration)
  if(arg_SOURCES)
    add_library(${NAME}_kernels STATIC ${arg_SOURCES})
    if(NOT arg_ALL_DTYPES)
      target_compile_definitions(${NAME}_kernels PRIVATE EXECUTORCH_SELECTIVE_BUILD_DTYPE)
    endif()
    list(APPEND compiled ${NAME}_kernels)
    target_link_libraries(${NAME} INTERFACE ${NAME}_kernels)
  endif()
  foreach(each IN LISTS compiled)
    add_dependencies(${each} ${NAME}_files)
    target_compile_features(${each} PUBLIC cxx_std_17)
    target_include_directories(${each} PRIVATE "${directory}")
    target_link_libraries(${each} PUBLIC ${arg_LIBRARIES} ${arg_RUNTIME})
    set_target_properties(${each} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  endforeach()
  # The object, and no archive with it: nothing refers to what registers kernels.
  target_sources(${NAME} INTERFACE $<TARGET_OBJECTS:${NAME}_registration>)
  target_link_libraries(${NAME} INTERFACE ${arg_LIBRARIES} ${arg_RUNTIME})
endfunction()
